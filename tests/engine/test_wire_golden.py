"""`engine.wire` against recorded and published payloads of both engines and all their releases."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.wire import WireError, decode
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, EventBatch, KVEvent, SkippedEvent
from index.worker import EngineKind, Medium

GOLDEN = Path(__file__).parents[1] / "golden"
VLLM, SGLANG = EngineKind.VLLM, EngineKind.SGLANG


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


ODD = golden("vllm/odd_events.json")
LEGACY = {frame["name"]: frame for frame in golden("vllm/legacy_frames_synthetic.json")["frames"]}
SGLANG_FORMS = golden("sglang/wire_forms.json")["versions"]
LLMD = golden("peers/llmd_event_decode.json")
MOONCAKE_VLLM = golden("peers/mooncake_vllm_map_event.json")["cases"]
MOONCAKE_SGLANG = golden("peers/mooncake_sglang_map_events.json")
MEDIA = {
    None: Medium.GPU,
    "": Medium.GPU,
    "gpu": Medium.GPU,
    "cpu": Medium.CPU,
    "cpu_pinned": Medium.CPU,
    "storage": Medium.DISK,
}


def u32(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def as_json(value: Any) -> Any:
    """Golden files write bytes as base64 and tuples as lists."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def fields_of(event: KVEvent) -> dict[str, Any]:
    """An event in the words of the golden files."""
    match event:
        case BlockStored():
            return {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(struct.unpack(f"<{len(event.tokens) // 4}I", event.tokens)),
                "block_size": event.block_size,
                "medium": event.medium,
                "lora_name": event.lora_name,
                "extra_keys": as_json(event.extra_keys),
                "group_idx": event.group,
                "kv_cache_spec_kind": event.kind,
                "kv_cache_spec_sliding_window": event.window,
                "cache_salt": event.cache_salt,
            }
        case BlockRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": event.block_hashes,
                "medium": event.medium,
                "group_idx": event.group,
            }
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case SkippedEvent():
            return {"type": "SkippedEvent", "reason": event.reason, "lossy": event.lossy}


UNUSED = {"locality", "ownership", "session_id"}
RENAMED = {
    "parent": "parent_block_hash",
    "tokens": "token_ids",
    "tier": "medium",
    "kind": "kv_cache_spec_kind",
    "sliding_window": "kv_cache_spec_sliding_window",
}


def expected(wire: dict[str, Any]) -> dict[str, Any]:
    """A golden event in the words of `fields_of`: a medium normalised, hashes written as text made integers."""
    fields = {RENAMED.get(key, key): value for key, value in wire.items() if key not in UNUSED}
    lora_id = fields.pop("lora_id", None)
    if lora_id is not None and fields.get("lora_name") is None:
        fields["lora_name"] = f"lora_id={lora_id}"
    if "medium" in fields:
        fields["medium"] = MEDIA[fields["medium"].casefold()]
    if fields.get("group_idx", 0) is None:
        fields["group_idx"] = 0
    if isinstance(fields.get("parent_block_hash"), str):
        fields["parent_block_hash"] = int(fields["parent_block_hash"])
    if "block_hashes" in fields:
        fields["block_hashes"] = [int(value) for value in fields["block_hashes"]]
    return fields


def assert_says(event: KVEvent, wire: dict[str, Any]) -> None:
    said, wanted = fields_of(event), expected(wire)
    assert {key: said[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", [name for name in ODD["events"] if name != "removed_storage"])
def test_an_unusual_vllm_event_keeps_every_field_the_index_needs(name: str) -> None:
    batch = decode(bytes.fromhex(ODD["events"][name]["payload"]), VLLM)
    assert (batch.ts, batch.dp_rank) == (1.0, 0)
    (event,) = batch.events
    assert_says(event, ODD["events"][name]["decoded"])


def test_a_remote_removal_of_vllm_has_no_effect() -> None:
    batch = decode(bytes.fromhex(ODD["events"]["removed_storage"]["payload"]), VLLM)
    assert batch.events == [SkippedEvent("remote", lossy=False)]


def test_a_vllm_batch_can_lack_the_rank() -> None:
    assert decode(bytes.fromhex(ODD["batch_without_rank"]), VLLM) == EventBatch(1.0, [], None)


@pytest.mark.parametrize("name", LEGACY)
def test_every_older_vllm_form_is_understood(name: str) -> None:
    batch = decode(bytes.fromhex(LEGACY[name]["payload"]), VLLM)
    stored, removed, cleared = batch.events
    assert isinstance(stored, BlockStored)
    assert isinstance(removed, BlockRemoved)
    assert cleared == AllBlocksCleared()
    assert (batch.ts, batch.dp_rank) == (1.5, {"array5_no_rank": None, "array_medium": 1}.get(name, 0))
    assert removed == BlockRemoved(stored.block_hashes[: len(removed.block_hashes)], Medium.GPU, stored.group)
    count = len(stored.tokens) // 4
    assert stored.tokens == u32(list(range(count)))
    assert count == stored.block_size * len(stored.block_hashes)
    if name == "array_bytes_hash":
        assert (stored.block_hashes, stored.parent) == ([b"\x01" * 32], b"\x02" * 32)
    else:
        assert_says(stored, LEGACY[name]["stored"])


@pytest.mark.parametrize("version", SGLANG_FORMS)
def test_every_sglang_release_is_understood(version: str) -> None:
    forms: Any = version
    while isinstance(forms, str):
        forms = SGLANG_FORMS[forms]
    stored = BlockStored([11, -12], None, u32([1, 2, 3, 4]), 2)
    removed = BlockRemoved([11, -12])
    meaning: dict[str, list[KVEvent]] = {
        "stored": [stored],
        "stored_child": [stored._replace(parent=-12)],
        "stored_salt": [stored._replace(cache_salt="salt-1")],
        "stored_session": [stored],
        "stored_lora_name": [stored._replace(lora_name="adapter-a")],
        "stored_cpu": [stored._replace(medium=Medium.CPU)],
        "removed": [removed],
        "removed_no_medium": [BlockRemoved([11])],
        "cleared": [AllBlocksCleared()],
        "bigram_pages": [stored._replace(tokens=u32([1, 2, 2, 3, 3, 4, 4, 5]), bigrams=True)],
        "all_rank_3": [AllBlocksCleared(), stored, BlockRemoved([11])],
    }
    for name, payload in forms.items():
        batch = decode(bytes.fromhex(payload), SGLANG)
        assert batch == EventBatch(1700000000.5, meaning[name], 3 if name == "all_rank_3" else 0), name


@pytest.mark.parametrize("case", LLMD["cases"], ids=lambda case: case["name"])
def test_the_event_cases_of_llm_d_give_the_same_fields_or_a_skipped_event(case: dict[str, Any]) -> None:
    payload = msgspec.msgpack.encode([1.0, [case["event"]], None])
    (event,) = decode(payload, EngineKind(case["adapter"])).events
    if "unknown" in case.get("error_contains", ""):
        assert event == SkippedEvent("unknown_type", lossy=False)
    elif "error_contains" in case:
        assert event == SkippedEvent("malformed", lossy=True)
    else:
        assert_says(event, case["expect"])


def test_both_event_forms_can_share_a_batch() -> None:
    batch = decode(msgspec.msgpack.encode([1.0, LLMD["mixed_batch"]["events"], None]), VLLM)
    assert [fields_of(event)["type"] for event in batch.events] == LLMD["mixed_batch"]["expect_types"]


MOONCAKE = [
    *((VLLM, case) for case in MOONCAKE_VLLM if "payload_hex" in case),
    *((SGLANG, case) for case in MOONCAKE_SGLANG["cases"]),
]


@pytest.mark.parametrize(("engine", "case"), MOONCAKE, ids=lambda part: part if isinstance(part, str) else part["name"])
def test_the_batches_mooncake_captured_say_the_same(engine: EngineKind, case: dict[str, Any]) -> None:
    batch, wanted = decode(bytes.fromhex(case["payload_hex"]), engine), case["expected"]
    assert batch.ts == wanted["ts"]
    assert batch.dp_rank == wanted.get("data_parallel_rank", wanted.get("attn_dp_rank"))
    assert len(batch.events) == len(wanted["events"])
    for event, wire in zip(batch.events, wanted["events"], strict=True):
        assert_says(event, wire)


def test_the_tiers_of_mooncakes_sglang_run_are_told_apart() -> None:
    run = MOONCAKE_SGLANG["integration"]
    hashes: list[EngineHash] = [int(value) for value in run["block_hashes_signed"]]
    for tier, medium in zip(run["tier_publishes"], (Medium.GPU, Medium.CPU, Medium.DISK), strict=True):
        blocks = tier["block_count"]
        stored = BlockStored(hashes[:blocks], None, u32(run["token_ids"][: 4 * blocks]), 4, medium)
        assert decode(bytes.fromhex(tier["payload_hex"]), SGLANG).events == [stored]
    assert decode(bytes.fromhex(run["remove_first_block_hex"]), SGLANG).events == [BlockRemoved(hashes[:1])]
    assert decode(bytes.fromhex(run["clear_all_hex"]), SGLANG).events == [AllBlocksCleared()]


@pytest.mark.parametrize("payload", [b"", b"\xff\xff\xff"])
def test_llm_ds_unreadable_payloads_are_refused_whole(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload, VLLM)


STREAMS = [
    *((VLLM, path) for path in sorted((GOLDEN / "vllm/streams").glob("*/event_frames.jsonl"))),
    *((SGLANG, path) for path in sorted((GOLDEN / "sglang").glob("event_frames_*.jsonl"))),
]


def test_recorded_streams_of_both_engines_are_here() -> None:
    assert {engine for engine, _ in STREAMS} == {VLLM, SGLANG}


@pytest.mark.parametrize(("engine", "path"), STREAMS, ids=lambda part: str(part).removeprefix(str(GOLDEN)))
def test_no_event_of_a_recorded_stream_is_skipped(engine: EngineKind, path: Path) -> None:
    for line in path.read_text().splitlines():
        payload = bytes.fromhex(json.loads(line)["frames"][-1])
        raw = msgspec.msgpack.decode(payload)
        batch = decode(payload, engine)
        assert (batch.ts, batch.dp_rank, len(batch.events)) == (raw[0], raw[2], len(raw[1]))
        for event, wire in zip(batch.events, raw[1], strict=True):
            assert_is(event, wire)


def assert_is(event: KVEvent, wire: dict[str, Any]) -> None:
    """The event as a plain reading of its map."""
    assert type(event).__name__ == wire["type"]
    if isinstance(event, BlockStored):
        ids = wire["token_ids"]
        assert event.bigrams == (bool(ids) and isinstance(ids[0], list))
        assert event.tokens == u32([half for pair in ids for half in pair] if event.bigrams else ids)
        assert (event.parent, event.block_size) == (wire["parent_block_hash"], wire["block_size"])
        assert event.lora_name == wire.get("lora_name")
        assert as_json(event.extra_keys) == as_json(wire.get("extra_keys"))
        assert (event.kind, event.cache_salt) == (wire.get("kv_cache_spec_kind"), wire.get("cache_salt"))
        assert event.window == wire.get("kv_cache_spec_sliding_window")
    if isinstance(event, BlockStored | BlockRemoved):
        assert event.block_hashes == wire["block_hashes"]
        assert event.medium == MEDIA[wire["medium"].casefold()]
        assert event.group == wire.get("group_idx", 0)
