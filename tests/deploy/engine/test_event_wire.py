from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deploy.engine.event_wire import EventForm, batch, sglang_form, vllm_form
from engine.wire import decode
from index.worker import EngineKind
from tests.support.golden import sglang_stream, vllm_stream

NOT_KEPT = ("session_id",)
"""Fields of recorded events that plain events do not hold."""


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor", "xxhash_cbor", "bytes_hash_dp1_topic"])
def test_a_recorded_vllm_batch_is_written_as_the_engine_wrote_it(name: str) -> None:
    payloads = vllm_stream(name).payloads.values()
    lora_ids = {event["lora_name"]: event["lora_id"] for event in _stores(payloads)}
    adapters = [name for name, number in sorted(lora_ids.items(), key=lambda item: item[1] or 0) if name is not None]
    for payload in payloads:
        _check(payload, EngineKind.VLLM, vllm_form(adapters))


@pytest.mark.parametrize("name", ["page1", "page16", "page1_dynamo", "page16_eagle"])
def test_a_recorded_sglang_batch_is_written_as_the_engine_wrote_it(name: str) -> None:
    for payload in sglang_stream(name).payloads.values():
        _check(payload, EngineKind.SGLANG, sglang_form)


def _check(payload: bytes, kind: EngineKind, form: EventForm) -> None:
    said = decode(payload, kind)
    assert said.dp_rank is not None
    recorded = msgspec.msgpack.decode(payload)
    for event in recorded[1]:
        for field in NOT_KEPT:
            event.pop(field, None)
    written = msgspec.msgpack.decode(batch(said.ts, said.events, said.dp_rank, form))
    assert written == recorded
    assert [list(event) for event in written[1]] == [list(event) for event in recorded[1]], "fields in their order"


def _stores(payloads: Any) -> list[dict[str, Any]]:
    return [event for payload in payloads for event in msgspec.msgpack.decode(payload)[1] if "token_ids" in event]
