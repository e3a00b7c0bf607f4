from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.engine.byte_pairs import END, FIRST_BYTE, BytePairs, read_merges
from deploy.engine.text_output import TextOutput

TOKENIZER = BytePairs(read_merges())
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def _tokens(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


@given(st.text("ab\nü", max_size=30), STOPS, st.booleans())
def test_the_parts_are_the_text_up_to_the_stop_that_is_complete_first(text: str, stops: list[str], keep: bool) -> None:
    output, parts = TextOutput(TOKENIZER, stops, keep_stop=keep), []
    for token in _tokens(text):
        parts.append(output.push(token))
        if output.stopped_by is not None:
            break
    parts.append(output.rest())
    expected, stop = _first_stop(text, stops)
    assert output.stopped_by == stop
    assert "".join(parts) == expected + (stop or "") * keep


def _first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What has come before the first moment at which a stop is complete: then the one that begins first counts."""
    for end in range(len(text) + 1):
        found = [(text[:end].find(stop), stop) for stop in stops if stop in text[:end]]
        if found:
            at, stop = min(found)
            return text[:at], stop
    return text, None


def test_a_character_comes_when_it_is_whole_and_a_cut_one_at_the_end() -> None:
    output = TextOutput(TOKENIZER)
    assert [output.push(token) for token in _tokens("aü")] == ["a", "", "ü"]
    assert output.push(_tokens("ü")[0]) == ""
    assert output.rest() == "\ufffd"


def test_special_tokens_have_no_text() -> None:
    assert TextOutput(TOKENIZER).push(END) == ""
