from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.engine.byte_pairs import BEGIN, FIRST_BYTE, MERGES_FILE, SPECIALS, BytePairs, pieces, read_merges
from deploy.engine.train_tokenizer import train

TOKENIZER = BytePairs(read_merges())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_decoding_gives_back_the_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_plain(text)) == text
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(TEXTS)
def test_pieces_are_the_whole_text_and_short(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(len(piece) <= 33 for piece in pieces(text))


@given(st.binary(max_size=60))
def test_any_tokens_can_be_decoded(data: bytes) -> None:
    tokens = [FIRST_BYTE + byte for byte in data]
    assert TOKENIZER.decode_bytes(tokens) == data
    assert TOKENIZER.decode([*tokens, 1 << 31]) == data.decode("utf-8", "replace")


@given(st.lists(st.sampled_from(TOKENIZER.word_tokens()), max_size=50))
def test_words_are_encoded_as_the_tokens_they_were(tokens: list[int]) -> None:
    assert TOKENIZER.encode_plain(TOKENIZER.decode(tokens)) == tokens


def test_a_special_tokens_name_is_that_token_unless_the_text_is_plain() -> None:
    assert TOKENIZER.encode("a<|begin|>b")[1] == BEGIN
    assert not {BEGIN} & set(TOKENIZER.encode_plain("a<|begin|>b"))
    assert TOKENIZER.decode(range(len(SPECIALS))) == "".join(SPECIALS)
    assert TOKENIZER.decode(range(len(SPECIALS)), specials=False) == ""


def test_english_takes_a_quarter_of_its_characters() -> None:
    text = "Return the value of the named attribute of an object, or the default if it is not found. " * 3
    assert len(TOKENIZER.encode(text)) < len(text) / 4


def test_the_shipped_file_is_small_and_the_vocabulary_a_round_number() -> None:
    assert MERGES_FILE.stat().st_size < 300_000
    assert TOKENIZER.size == 8192
    assert len(TOKENIZER.word_tokens()) > 2000


@pytest.mark.parametrize("text", ["x" * 50_000, "xy" * 25_000, " " * 50_000, "=-" * 25_000])
def test_long_runs_take_no_longer_than_other_texts(text: str) -> None:
    fresh, start = BytePairs(read_merges()), time.process_time()
    fresh.encode(text)
    assert time.process_time() - start < 1.0


def test_training_takes_the_most_frequent_neighbours_first_like_counting_anew_each_time() -> None:
    chance = random.Random(5)
    words = {tuple(chance.choices(range(4, 9), k=chance.randint(1, 8))): chance.randint(1, 9) for _ in range(60)}
    assert train(words, 12) == _counted_anew(words, 12)


def _counted_anew(words: dict[tuple[int, ...], int], count: int) -> list[tuple[int, int]]:
    spelt = [(list(word), weight) for word, weight in words.items()]
    merges: list[tuple[int, int]] = []
    for token in range(260, 260 + count):
        pairs: dict[tuple[int, int], int] = {}
        for word, weight in spelt:
            for at in range(len(word) - 1):
                pairs[word[at], word[at + 1]] = pairs.get((word[at], word[at + 1]), 0) + weight
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, _ in spelt:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [token]
                at += 1
    return merges
