"""What SGLang's cache counts in: pages of tokens or, with EAGLE, of bigrams; and how much of a match it reuses."""

from __future__ import annotations

from array import array


def bigrams(tokens: bytes) -> bytes:
    """The pairs (t[i], t[i+1]) of a prompt of little-endian u32 ids, 8 bytes each: one unit fewer than tokens."""
    count = len(tokens) // 4
    if count < 2:
        return b""
    ids = array("I", tokens)
    pairs = array("I", bytes(8 * (count - 1)))
    pairs[0::2] = ids[:-1]
    pairs[1::2] = ids[1:]
    return pairs.tobytes()


def reusable_units(matched: int, prompt_tokens: int, page_size: int, *, eagle: bool) -> int:
    """How many units of a match SGLang skips (`Req._compute_max_prefix_len`, then `RadixCache.match_prefix`).

    The last token is always computed; with EAGLE the units are one fewer than the tokens, so two are. Whole pages only.
    """
    limit = max(0, prompt_tokens - (2 if eagle else 1))
    units = min(matched, limit)
    return units - units % page_size
