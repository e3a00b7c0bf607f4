"""The demo's recordings are what the engines published."""

from __future__ import annotations

import msgspec
import pytest

from deploy.demo import FIRST_STOP, LATER_STOP, STRANGER_STOP
from deploy.recording import RECORDINGS, published_at, read_prompts, read_recording
from tests.support.golden import Stream, sglang_stream, vllm_stream

STREAMS = {
    "vllm": (vllm_stream("sha256_cbor"), LATER_STOP),
    "vllm_seed_42": (vllm_stream("bytes_hash_dp1_topic"), STRANGER_STOP),
    "sglang": (sglang_stream("page16"), FIRST_STOP["sglang-0"]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_recording_is_the_beginning_of_an_engines_stream(name: str) -> None:
    recording = read_recording(RECORDINGS / f"{name}.jsonl")
    stream, last = STREAMS[name]
    assert (recording.engine, recording.topic) == (stream.engine, stream.topic)
    assert recording.payloads == [stream.payloads[seq] for seq in range(last + 1)]


@pytest.mark.parametrize("part", ["first", "then"])
def test_what_a_prompt_says_of_an_engine_is_what_the_engine_answered(part: str) -> None:
    stops = FIRST_STOP | ({"vllm-1": LATER_STOP} if part == "then" else {})
    for prompt in read_prompts(part):
        assert prompt.engine_reused
        for name, reused in prompt.engine_reused.items():
            stream, _ = STREAMS[name.rpartition("-")[0]]
            assert reused in _answers(stream, stops[name], prompt.token_ids, prompt.fields), prompt.about


def test_only_the_time_of_a_batch_is_changed() -> None:
    for name in STREAMS:
        for payload in read_recording(RECORDINGS / f"{name}.jsonl").payloads:
            before, after = (msgspec.msgpack.decode(form) for form in (payload, published_at(payload, 5.5)))
            assert after == [5.5, *before[1:]]


def _answers(stream: Stream, seq: int, tokens: list[int], fields: dict[str, object]) -> list[int]:
    return [
        row.expected["reusable_tokens"]
        for row in stream.rows
        if (row.after_seq, row.tokens, row.fields) == (seq, tokens, fields)
    ]
