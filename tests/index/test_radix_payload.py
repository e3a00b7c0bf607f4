"""SGLang payloads read by the native core: to the same events as engine/wire.py reads, and with the same effect."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import WireError, decode
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.worker import EngineKind, Worker
from tests.support.cores import need_native

_NATIVE = chosen("auto")
pytestmark = need_native

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"
STREAMS = sorted(path.name.removeprefix("event_frames_") for path in GOLDEN.glob("event_frames_*.jsonl"))
WORKER = Worker("one", 0)


def payloads(stream: str) -> list[bytes]:
    lines = (GOLDEN / f"event_frames_{stream}").read_text().splitlines()
    return [bytes.fromhex(json.loads(line)["frames"][2]) for line in lines]


def wire_forms() -> list[tuple[str, bytes]]:
    versions = json.loads((GOLDEN / "wire_forms.json").read_text())["versions"]
    forms = [(f"{version}-{name}", text) for version, of in versions.items() if isinstance(of, dict)
             for name, text in of.items() if isinstance(text, str)]  # fmt: skip
    return [(name, bytes.fromhex(text)) for name, text in forms if _is_hex(text)]


def _is_hex(text: str) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except ValueError:
        return False


def plain_batch(payload: bytes) -> Any:
    assert _NATIVE.module is not None
    return _NATIVE.module.plain_batch(payload)


def agrees(payload: bytes) -> bool:
    """Whether the payload is plain; if so, it must be read as Python reads it."""
    plain = plain_batch(payload)
    if plain is None:
        return False
    batch = decode(payload, EngineKind.SGLANG)
    assert EventBatch(plain.ts, [plain.event(at) for at in range(len(plain))], plain.dp_rank) == batch
    assert plain.counts == tuple(
        sum(type(event) is kind for event in batch.events) for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
    )
    return True


@pytest.mark.parametrize("stream", STREAMS)
def test_what_sglang_sends_is_plain(stream: str) -> None:
    assert all(map(agrees, payloads(stream)))


@pytest.mark.parametrize(("name", "payload"), wire_forms())
def test_every_release_is_read_alike_or_left_to_python(name: str, payload: bytes) -> None:
    assert agrees(payload) or "unsigned" in name or "bytes" in name


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("record", [False, True])
def test_a_stream_has_the_same_effect_either_way(stream: str, record: bool) -> None:
    by_event, by_payload = Index(chosen("python")), Index(_NATIVE)
    for index in (by_event, by_payload):
        index.add(WORKER, WorkerSpec("m", EngineKind.SGLANG))
        index.hint(WORKER, dynamo="dynamo" in stream, adapters={"adapter-a": "/a"})
    short = 0
    for payload in payloads(stream):
        batch = decode(payload, EngineKind.SGLANG)
        applied = by_payload.apply_payload(WORKER, payload, record)
        if applied is not None:
            short += applied.done
            assert (applied.ts, applied.events) == (batch.ts, len(batch.events))
        assert by_payload.apply(WORKER, batch, record, applied) == by_event.apply(WORKER, batch, record)
        assert by_payload.counts(WORKER) == by_event.counts(WORKER)
    assert short > 8
    dumps: Any = [index.dump(WORKER) for index in (by_event, by_payload)]
    assert sorted(map(repr, dumps[0].runs)) == sorted(map(repr, dumps[1].runs))
    assert dumps[0]._replace(runs=[]) == dumps[1]._replace(runs=[])


@given(st.data())
def test_damaged_payloads_are_read_alike_or_left_to_python(data: st.DataObject) -> None:
    payload = bytearray(data.draw(st.sampled_from(SHORT)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "double"])):
            case "change":
                payload[at] = data.draw(st.sampled_from(BYTES) | st.integers(0, 255))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 8))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case _:
                payload[at:at] = payload[at : at + 20]
        if not payload:
            return
    agrees(bytes(payload))


texts = st.sampled_from(["", "GPU", "cpu", "Disk", "\N{KELVIN SIGN}", "remote", "BlockStored", "é"])
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
pairs = st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=3)
lists = st.lists(st.integers(0, 2**33), max_size=4) | pairs
maps = st.dictionaries(st.sampled_from("abc"), st.none(), max_size=2)
field_values: Any = st.none() | st.booleans() | numbers | st.binary(max_size=3) | texts | lists | maps
NAMES = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
         "cache_salt", "locality", "group_idx", "extra"]  # fmt: skip
TAGS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])


@given(st.data())
def test_events_with_any_fields_are_read_alike_or_left_to_python(data: st.DataObject) -> None:
    tag = data.draw(TAGS)
    stored: dict[str, Any] = {"block_hashes": [1, -2], "token_ids": [5, 6], "block_size": 1, "parent_block_hash": None}
    event: Any = {"type": tag} | (
        stored if tag == "BlockStored" else {"block_hashes": [3]} if tag == "BlockRemoved" else {}
    )
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        event[name] = data.draw(field_values)
    if data.draw(st.booleans()):
        event = [tag, [1, -2], None, [5, 6], 1, *data.draw(st.lists(field_values, max_size=4))][
            : data.draw(st.integers(1, 9))
        ]
    message = [
        data.draw(st.floats() | st.integers(0, 9)),
        [event],
        *data.draw(st.lists(st.none() | st.integers(-2, 9), max_size=2)),
    ]
    agrees(msgspec.msgpack.encode(message))


def test_a_batch_that_is_not_plain_raises_nothing() -> None:
    draw = random.Random(5)
    assert not any(agrees(draw.randbytes(draw.randrange(40))) for _ in range(2000))
    with pytest.raises(WireError):
        decode(b"\xc1", EngineKind.SGLANG)


def test_an_event_beyond_the_batch_is_an_error() -> None:
    plain = plain_batch(msgspec.msgpack.encode([1.0, [{"type": "AllBlocksCleared"}]]))
    assert plain is not None
    with pytest.raises(IndexError):
        plain.event(1)


SHORT = [payload for stream in STREAMS for payload in payloads(stream) if len(payload) < 1500]
BYTES = [0x80, 0x90, 0xC0, 0xC2, 0xCB, 0xCC, 0xCF, 0xD3, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF]
