"""Byte-level byte pair encoding: text to token ids and back, exactly.

Text is cut into short pieces (a word with the space before it, up to three digits, punctuation, white space); within a
piece the merge that was learnt first goes first. The ids: `SPECIALS` in order, the 256 bytes, then one per merge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

SPECIALS: Final = ("<|begin|>", "<|end|>", "<|turn|>", "<|close|>")
"""Begin of text, end of text (of a generation), begin of a chat turn, end of a chat turn."""

BEGIN, END, TURN, CLOSE = range(4)
FIRST_BYTE: Final = len(SPECIALS)
FIRST_MERGE: Final = FIRST_BYTE + 256
MERGES_FILE: Final = Path(__file__).with_name("merges.txt")

_PIECE: Final = re.compile(r" ?[^\W\d_]{1,32}| ?\d{1,3}| ?(?:[^\w\s]|_){1,32}|\s{1,32}(?!\S)|\s{1,32}")
"""The limit bounds the work for a piece, which grows with the square of its length."""

_SPECIAL: Final = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
_PIECES_KEPT: Final = 1 << 16


class Merge(NamedTuple):
    """Two neighbouring tokens that become one."""

    left: int
    right: int


def pieces(text: str) -> list[str]:
    """The parts of a text across whose borders nothing is merged; joined they are the text."""
    return _PIECE.findall(text)


class BytePairs:
    """Encodes and decodes by a list of merges."""

    def __init__(self, merges: Sequence[Merge]) -> None:
        self._ranks = {merge: FIRST_MERGE + rank for rank, merge in enumerate(merges)}
        self._bytes = [special.encode() for special in SPECIALS] + [bytes([byte]) for byte in range(256)]
        for left, right in merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._encode_piece = lru_cache(_PIECES_KEPT)(self._merged)

    @property
    def size(self) -> int:
        """The number of token ids."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a special token's name in it is that token. UnicodeEncodeError for lone surrogates."""
        tokens: list[int] = []
        for part in _SPECIAL.split(text):
            if part in SPECIALS:
                tokens.append(SPECIALS.index(part))
            else:
                tokens += self.encode_plain(part)
        return tokens

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a special token."""
        tokens: list[int] = []
        for piece in pieces(text):
            tokens += self._encode_piece(piece)
        return tokens

    def decode_bytes(self, tokens: Iterable[int], *, specials: bool = True) -> bytes:
        """The bytes behind ids, which may begin or end within a character; ids beyond `size` have none."""
        known = range(0 if specials else FIRST_BYTE, self.size)
        return b"".join(self._bytes[token] for token in tokens if token in known)

    def decode(self, tokens: Iterable[int], *, specials: bool = True) -> str:
        """The text behind ids; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens, specials=specials).decode("utf-8", "replace")

    def word_tokens(self) -> list[int]:
        """The tokens that are a whole ` word`: any sequence of them is encoded as itself after it was decoded."""
        texts = {token: self._bytes[token].decode("utf-8", "replace") for token in range(FIRST_MERGE, self.size)}
        words = [token for token, text in texts.items() if re.fullmatch(" [a-z]{3,}", text)]
        return [token for token in words if self.encode_plain(texts[token]) == [token]]

    def _merged(self, piece: str) -> tuple[int, ...]:
        tokens = [FIRST_BYTE + byte for byte in piece.encode()]
        while len(tokens) > 1:
            ranks = [(self._ranks.get(Merge(*pair)), at) for at, pair in enumerate(pairwise(tokens))]
            merged, at = min(((rank, at) for rank, at in ranks if rank is not None), default=(None, 0))
            if merged is None:
                break
            tokens[at : at + 2] = [merged]
        return tuple(tokens)


def read_merges(file: Path = MERGES_FILE) -> list[Merge]:
    """The shipped merges: a line `left right` each, ids in hexadecimal, in the order learnt; `#` begins a comment."""
    lines = (line.partition("#")[0].split() for line in file.read_text().splitlines())
    return [Merge(int(left, 16), int(right, 16)) for left, right in filter(None, lines)]
