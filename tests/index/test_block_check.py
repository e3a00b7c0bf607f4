"""Stored blocks against their tokens: what is found wrong, what is left unchecked, and the same in both cores."""

from __future__ import annotations

import json
from array import array
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import decode
from index import native
from index.block_hash import ALGORITHMS, HashIdentity, block_hash, none_hash, wire_uint64
from index.delta import Delta
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.prompt import Prompt
from index.worker import EngineKind, Worker
from tests.support.cores import native_module, need_native
from tests.support.golden import VLLM, vllm_stream, vllm_streams

WORKER = Worker("a", 0)
IDENTITIES = [HashIdentity(algorithm, "0") for algorithm in ALGORITHMS]
IDENTITY = IDENTITIES[1]
SIZE = 4
RECORDED = [*vllm_streams(), "report_full"]
PLAIN = ["bytes_hash_dp1_topic", "eagle", "report_full", "sched_sync", "sha256", "sha256_cbor", "xxhash_cbor"]


class Counts(NamedTuple):
    """Blocks by outcome."""

    matched: int
    mismatched: int
    unchecked: int


def new_index(identity: HashIdentity, core: native.Core | None = None, verify: bool = True) -> Index:
    """A worker whose identity was verified."""
    index = Index(core)
    index.add(WORKER, WorkerSpec("m", EngineKind.VLLM, verify=verify))
    index.identify(WORKER, identity, shared=True)
    return index


def apply(index: Index, payload: bytes) -> Delta:
    """As app/ingest.py does it."""
    applied = index.apply_payload(WORKER, payload, record=True)
    if applied is not None and applied.done == applied.events:
        return applied.delta
    return index.apply(WORKER, decode(payload, EngineKind.VLLM), True, applied)


def counts(delta: Delta) -> Counts:
    return Counts(delta.matched, delta.mismatched, delta.unchecked)


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def stored(
    first: int, blocks: int = 3, identity: HashIdentity = IDENTITY, *, whole: bool = False, skip: int = 0, **fields: Any
) -> dict[str, Any]:
    """The event of a prompt's blocks from number `skip` on; `whole`: hashes are whole digests."""
    tokens = list(range(first, first + (skip + blocks) * SIZE))
    digests = [none_hash(identity)]
    for at in range(0, len(tokens), SIZE):
        digests.append(block_hash(identity.algorithm, digests[-1], tokens[at : at + SIZE], None))
    names = digests if whole else [wire_uint64(digest) for digest in digests]
    return {
        "type": "BlockStored",
        "block_hashes": names[skip + 1 :],
        "parent_block_hash": names[skip] if skip else None,
        "token_ids": tokens[skip * SIZE :],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **fields,
    }


def wrong(event: dict[str, Any], block: int) -> dict[str, Any]:
    """The event with another hash for one of its blocks."""
    hashes: list[Any] = list(event["block_hashes"])
    hashes[block] = bytes(len(hashes[block])) if isinstance(hashes[block], bytes) else hashes[block] ^ 1
    return {**event, "block_hashes": hashes}


def matched(index: Index, first: int, blocks: int = 3) -> int:
    tokens = array("I", range(first, first + blocks * SIZE)).tobytes()
    found = index.match("m", Prompt(tokens), [WORKER])
    return found[WORKER].matched // SIZE if WORKER in found else 0


@pytest.fixture
def index(core: native.Core) -> Index:
    return new_index(IDENTITY, core)


# What is right, and what is wrong


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("whole", [False, True])
def test_root_blocks_and_those_behind_them_in_the_event_match(
    core: native.Core, identity: HashIdentity, whole: bool
) -> None:
    index = new_index(identity, core)
    assert counts(apply(index, batch(stored(0, 5, identity, whole=whole)))) == (5, 0, 0)
    assert counts(apply(index, batch(stored(100, 1, identity, whole=whole), stored(200, 2, identity)))) == (3, 0, 0)


def test_what_follows_another_events_block_is_checked_by_whole_digests_alone(core: native.Core) -> None:
    for whole, expected in ((True, (2, 0, 0)), (False, (0, 0, 2))):
        index = new_index(IDENTITY, core)
        apply(index, batch(stored(0, 3, whole=whole)))
        assert counts(apply(index, batch(stored(0, 2, whole=whole, skip=3)))) == expected
        assert matched(index, 0, 5) == 5


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_a_wrong_block_and_what_follows_it_in_its_event_are_not_filed(index: Index, block: int, whole: bool) -> None:
    apply(index, batch(stored(0)))
    delta = apply(index, batch(wrong(stored(100, whole=whole), block), stored(200, whole=whole)))
    assert counts(delta) == (block + 3, 1, 2 - block)
    assert (delta.skipped, delta.lossy) == ({"hash_mismatch": 1}, True)
    assert [matched(index, first) for first in (0, 100, 200)] == [3, block, 3]
    again = new_index(IDENTITY)
    apply(again, batch(stored(0)))
    assert delta.operations is not None
    assert again.redo(WORKER, delta.operations)
    assert [matched(again, first) for first in (100, 200)] == [block, 3]


def test_a_token_that_was_changed_on_its_way_is_found(index: Index) -> None:
    event = stored(0, 8)
    event["token_ids"][5 * SIZE] += 1
    assert counts(apply(index, batch(event))) == (5, 1, 2)


def test_a_wrong_parent_digest_is_found_in_the_first_block(index: Index) -> None:
    apply(index, batch(stored(0, 3, whole=True), stored(100, 3, whole=True)))
    event = stored(0, 2, whole=True, skip=3) | {"parent_block_hash": stored(100, 3, whole=True)["block_hashes"][2]}
    assert counts(apply(index, batch(event))) == (0, 1, 1)


def test_hashes_of_older_releases_are_negative_numbers(index: Index) -> None:
    event = stored(0, 40)
    event["block_hashes"] = [number - 2**64 if number >= 2**63 else number for number in event["block_hashes"]]
    assert min(event["block_hashes"]) < 0
    assert counts(apply(index, batch(event))) == (40, 0, 0)


# What is left unchecked


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_keys": None},
        {"extra_keys": [["salt"], None, None]},
        {"medium": "CPU"},
        {"medium": "STORAGE"},
        {"lora_name": "sql"},
        {"lora_id": 7},
        {"group_idx": 1},
        {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8},
        {"block_size": 2, "block_hashes": [5], "token_ids": [1, 2], "extra_keys": [None]},
        {"block_hashes": [1, 2], "extra_keys": [None, None]},
        {"parent_block_hash": b"short"},
    ],
)
def test_a_hash_that_may_cover_something_else_is_never_called_wrong(index: Index, fields: dict[str, Any]) -> None:
    apply(index, batch(stored(0)))
    event = wrong(stored(100), 0) | fields
    delta = apply(index, batch(event))
    assert counts(delta) == (0, 0, len(event["block_hashes"]))
    assert "hash_mismatch" not in delta.skipped


def test_blocks_before_the_first_with_extra_keys_are_checked(index: Index) -> None:
    event = stored(0, 4, extra_keys=[None, None, [["image", 1]], None])
    assert counts(apply(index, batch(event))) == (2, 0, 2)
    assert counts(apply(index, batch(wrong(event, 1)))) == (1, 1, 2)


def test_an_engine_whose_blocks_have_never_matched_is_not_called_wrong(core: native.Core) -> None:
    index = new_index(HashIdentity("sha256", "0"), core)
    assert counts(apply(index, batch(stored(0), wrong(stored(100), 2)))) == (0, 0, 6)
    assert matched(index, 0) == 3


def test_what_was_proven_goes_with_the_engines_process(index: Index) -> None:
    apply(index, batch(stored(0)))
    index.restart(WORKER)
    assert counts(apply(index, batch(wrong(stored(100), 0)))) == (0, 0, 3)
    index.identify(WORKER, IDENTITY, shared=True)
    assert counts(apply(index, batch(wrong(stored(200), 0)))) == (0, 0, 3)


def test_nothing_is_checked_where_it_is_not_asked_for(core: native.Core) -> None:
    index = new_index(IDENTITY, core, verify=False)
    apply(index, batch(stored(0)))
    assert counts(apply(index, batch(wrong(stored(100), 0)))) == (0, 0, 0)
    assert matched(index, 100) == 3


# Recorded engines


def identity_of(stream: str) -> HashIdentity:
    meta = json.loads((VLLM / stream / "meta.json").read_text())
    return HashIdentity(meta["algo"], meta["PYTHONHASHSEED"])


def played(stream: str, identity: HashIdentity, core: native.Core) -> Counts:
    index, total = new_index(identity, core), Delta()
    for _, payload in sorted(vllm_stream(stream).payloads.items()):
        delta = apply(index, payload)
        total.matched += delta.matched
        total.mismatched += delta.mismatched
        total.unchecked += delta.unchecked
    return counts(total)


@pytest.mark.parametrize("stream", RECORDED)
def test_no_recorded_block_is_called_wrong(core: native.Core, stream: str) -> None:
    found = played(stream, identity_of(stream), core)
    assert found.mismatched == 0
    assert (found.matched > 20) == (stream in PLAIN), found
    if stream == "bytes_hash_dp1_topic":  # parents are whole digests; only adapters and extra keys are left
        assert found.matched > found.unchecked


@pytest.mark.parametrize("stream", RECORDED)
def test_another_identity_proves_no_block_wrong_unless_parents_are_whole_digests(
    core: native.Core, stream: str
) -> None:
    found = played(stream, HashIdentity(identity_of(stream).algorithm, "another"), core)
    if stream == "bytes_hash_dp1_topic":  # what has a parent follows from it whatever the seed, only roots do not
        assert found.matched > 100
        assert found.mismatched > 5
    else:
        assert (found.matched, found.mismatched) == (0, 0)


# Both cores


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Batches of genuine events, some of them with a fault."""
    payloads = []
    for _ in range(draw(st.integers(1, 6))):
        events = []
        for _ in range(draw(st.integers(1, 3))):
            first, blocks, skip = (
                draw(st.integers(0, 2)) * 1000,
                draw(st.integers(1, 4)),
                draw(st.sampled_from([0, 0, 2])),
            )
            event = stored(first, blocks, whole=draw(st.booleans()), skip=skip)
            fault = draw(st.sampled_from(["none", "none", "hash", "token", "field"]))
            if fault == "hash":
                event = wrong(event, draw(st.integers(0, blocks - 1)))
            elif fault == "token":
                event["token_ids"][draw(st.integers(0, blocks * SIZE - 1))] ^= 1
            elif fault == "field":
                event |= draw(
                    st.sampled_from(
                        [
                            {"extra_keys": None},
                            {"extra_keys": [None]},
                            {"extra_keys": [["x"]] + [None] * (blocks - 1)},
                            {"medium": "CPU"},
                            {"lora_name": "sql"},
                            {"parent_block_hash": b"p" * 32},
                            {"kv_cache_spec_kind": None},
                        ]
                    )
                )
            events.append(event)
        payloads.append(batch(*events))
    return payloads


@need_native
@settings(max_examples=300, deadline=None)
@given(histories())
def test_both_cores_find_the_same(history: list[bytes]) -> None:
    python, built = new_index(IDENTITY, chosen("python")), new_index(IDENTITY, chosen("native"))
    for payload in history:
        expected, found = apply(python, payload), apply(built, payload)
        assert counts(found) == counts(expected)
        assert (found.stored, found.orphans, found.lossy, found.skipped) == (
            expected.stored,
            expected.orphans,
            expected.lossy,
            expected.skipped,
        )
        assert [msgspec.msgpack.encode(one) for one in found.operations or []] == [
            msgspec.msgpack.encode(one) for one in expected.operations or []
        ]
    for first in (0, 1000, 2000):
        assert matched(built, first, 6) == matched(python, first, 6)


@need_native
def test_right_payloads_are_checked_without_decoding() -> None:
    index = new_index(IDENTITY, chosen("native"))
    apply(index, batch(stored(0)))
    applied = index.apply_payload(WORKER, batch(stored(100), stored(200)))
    assert applied is not None
    assert (applied.done, counts(applied.delta)) == (2, (6, 0, 0))
    stopped = index.apply_payload(WORKER, batch(stored(300), wrong(stored(400), 1), stored(500)))
    assert stopped is not None
    assert (stopped.done, counts(stopped.delta)) == (1, (3, 0, 0))


@need_native
def test_payloads_applied_together_are_checked_as_one_by_one() -> None:
    index = new_index(IDENTITY, chosen("native"))
    apply(index, batch(stored(0)))
    payloads = [batch(stored(100), stored(200)), batch(stored(250)), batch(stored(300), wrong(stored(400), 1))]
    run = index.apply_payloads(WORKER, [*payloads, batch(stored(600))])
    assert (run.payloads, run.matched, run.unchecked) == (2, 9, 0)
    assert run.begun is not None
    assert (run.begun.done, counts(run.begun.delta)) == (1, (3, 0, 0))
    assert matched(index, 600, 3) == 0


@need_native
def test_what_is_not_checked_is_not_counted() -> None:
    index = new_index(IDENTITY, chosen("native"), verify=False)
    apply(index, batch(stored(0)))
    run = index.apply_payloads(WORKER, [batch(stored(100)), batch(wrong(stored(400), 1))])
    assert (run.payloads, run.matched, run.unchecked) == (2, 0, 0)


@need_native
def test_a_rule_that_cannot_be_is_refused() -> None:
    built = native_module()
    with pytest.raises(KeyError, match="md5"):
        built.BlockRule("md5", bytes(32))
    with pytest.raises(ValueError, match="none_hash"):
        built.BlockRule("xxhash", bytes(32))
