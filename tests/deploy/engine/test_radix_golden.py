"""The radix cache does what SGLang 0.5.22's own tree did: equal events in equal batches, for the recorded workload."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.cache import Namespace
from deploy.engine.radix_cache import RadixCache
from deploy.engine.slot_vectors import MakeVector
from engine.wire import decode as decode_batch
from index.event import BlockStored, KVEvent
from index.worker import EngineKind
from tests.deploy.engine.running import begin, decode, extend, prefill, run
from tests.deploy.engine.slot_kinds import VECTORS

GOLDEN = Path(__file__).parents[2] / "golden" / "sglang"
CHUNK = 48
SALT_1, SALT_2 = Namespace(cache_salt="salt-1"), Namespace(cache_salt="salt-2")
LORA_A = "0f" * 16


def batches(stream: str) -> list[list[KVEvent]]:
    """The recorded events, batch by batch."""
    lines = (GOLDEN / f"event_frames_{stream}.jsonl").read_text().splitlines()
    return [decode_batch(bytes.fromhex(json.loads(line)["frames"][2]), EngineKind.SGLANG).events for line in lines]


class Texts:
    """The prompts of the workload: those that were probed, the others as their store events show them."""

    def __init__(self) -> None:
        with (GOLDEN / "oracle_page1.jsonl").open() as lines:
            probes = {probe["id"]: probe["tokens"] for probe in json.loads(next(lines))["probes"]}
        self.sys: list[int] = probes["sys"]
        self.sys_u0: list[int] = probes["sys_u0"]
        self.sys_u1: list[int] = probes["sys_u1"]
        self.cut_u2: list[int] = self.sys[:37] + probes["u2_alone"]
        self.sys_u4: list[int] = probes["sys_u4@salt-2"]
        self.sys_u5 = self.sys + stored(13)
        self.sys_u6 = stored(24)[:-1]
        self.sys_u7 = stored(26)[:-1]
        self.turn2: list[int] = probes["turn2"]
        self.long: list[int] = probes["long"]
        self.others: list[list[int]] = [probes[f"other{number}"] for number in range(6)]


def stored(seq: int) -> list[int]:
    """The tokens that a batch of page1 stores."""
    events = batches("page1")[seq]
    return [token for event in events if isinstance(event, BlockStored) for token in array("I", event.tokens)]


def outputs(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def conversation(cache: RadixCache, text: Texts) -> Iterator[None]:
    """The first part of the recorded workload, with a stop where the engine flushed its events."""
    yield
    run(cache, text.sys_u0, outputs(500, 6), limit=CHUNK)
    yield
    run(cache, text.sys_u1, outputs(600, 3), limit=CHUNK)
    yield
    run(cache, text.cut_u2, outputs(610, 2), limit=CHUNK)
    yield
    long = begin(cache, text.long, limit=CHUNK)
    for end in (2 * CHUNK, 3 * CHUNK, len(text.long)):
        cache.checkpoint(long)
        yield
        extend(cache, long, end - long.computed_tokens)
    decode(cache, long, outputs(620, 5))
    cache.finish(long)
    yield
    run(cache, text.turn2, outputs(630, 4), limit=CHUNK)
    yield
    run(cache, text.sys_u0, outputs(500, 6), limit=CHUNK)
    yield


def salted(cache: RadixCache, text: Texts) -> Iterator[None]:
    run(cache, text.sys_u0, outputs(650, 3), SALT_1, limit=CHUNK)
    yield
    run(cache, text.sys_u4, outputs(650, 3), SALT_1, limit=CHUNK)
    yield
    run(cache, text.sys_u4, outputs(655, 2), SALT_2, limit=CHUNK)
    yield


def keyed(cache: RadixCache, text: Texts) -> Iterator[None]:
    """Between the conversation and `salted`, in the streams with extra keys."""
    run(cache, text.sys_u0, outputs(640, 3), Namespace(extra_key="tenant-a"), limit=CHUNK)
    yield
    run(cache, text.sys_u4, outputs(640, 3), Namespace(extra_key="tenant-b"), limit=CHUNK)
    yield


def with_adapters(cache: RadixCache, text: Texts) -> Iterator[None]:
    """After `salted`, in the streams with extra keys."""
    both = Namespace(cache_salt="salt-1", extra_key="tenant-a")
    run(cache, text.sys_u4, outputs(660, 3), both, limit=CHUNK)
    yield
    run(cache, text.sys_u0, outputs(670, 3), Namespace(extra_key=LORA_A), limit=CHUNK)
    yield
    run(cache, text.sys_u0, outputs(675, 3), Namespace(extra_key="tenant-a" + LORA_A), limit=CHUNK)
    yield


def under_pressure(cache: RadixCache, text: Texts) -> Iterator[None]:
    """The pool is full: every request evicts, but not what a running one holds."""
    aborted = begin(cache, text.others[3], limit=CHUNK)
    cache.checkpoint(aborted)
    cache.finish(aborted, keep=False)
    yield
    running = prefill(cache, text.sys_u5, limit=CHUNK)
    yield
    for number in range(3):
        run(cache, text.others[number], outputs(710 + 10 * number, 4), limit=CHUNK)
        yield
    decode(cache, running, outputs(700, 2))
    yield
    decode(cache, running, outputs(702, 6))
    cache.finish(running)
    yield
    yield
    for number, first in ((4, 790), (5, 800), (3, 780), (0, 750)):
        run(cache, text.others[number], outputs(first, 4), limit=CHUNK)
        yield
    run(cache, text.sys_u1, outputs(600, 3), limit=CHUNK)
    yield


def flushed(cache: RadixCache, text: Texts) -> Iterator[None]:
    assert cache.clear()
    yield
    run(cache, text.sys_u6, outputs(800, 2), limit=CHUNK)
    yield
    run(cache, text.sys_u0, outputs(810, 2), SALT_1, limit=CHUNK)
    yield
    assert cache.clear()
    run(cache, text.sys_u7, outputs(820, 2), limit=CHUNK)
    yield


def workload(cache: RadixCache, *, extra_keys: bool) -> Iterator[None]:
    text = Texts()
    yield from conversation(cache, text)
    if extra_keys:
        yield from keyed(cache, text)
    yield from salted(cache, text)
    if extra_keys:
        yield from with_adapters(cache, text)
    yield from under_pressure(cache, text)
    yield from flushed(cache, text)


def built_as(recorded: dict[str, Any], vector: MakeVector) -> RadixCache:
    """A cache configured as the recorded one."""
    return RadixCache(
        recorded["pool_tokens"],
        recorded["page_size"],
        policy=recorded["eviction_policy"],
        bigrams=recorded["is_eagle"],
        dynamo=recorded["kv_events_config"].get("format") == "dynamo",
        lora_names={LORA_A: "adapter-a"},
        vector=vector,
    )


def asked(cache: RadixCache, tokens: list[int], namespace: Namespace) -> list[int]:
    """What the recorder asked: a match refreshes and splits, so asking is part of the workload."""
    return [len(cache.tree.slots(cache.tree.match(cache.units(prompt), namespace))) for prompt in (tokens, tokens[:-1])]


def namespace_of(probe: dict[str, Any]) -> Namespace:
    """The engine's own key: the request's followed by the adapter's id."""
    extra_key = (probe.get("extra_key") or "") + (probe.get("lora_id") or "")
    return Namespace(cache_salt=probe.get("cache_salt"), extra_key=extra_key or None)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("stream", ["page1", "page16", "page16_eagle", "page1_dynamo", "page1_extra_key"])
def test_the_recorded_workload_gives_the_recorded_events_and_answers(stream: str, vector: MakeVector) -> None:
    with (GOLDEN / f"oracle_{stream}.jsonl").open() as lines:
        recorded, *rows = map(json.loads, lines)
    probes = {probe["id"]: probe for probe in recorded["probes"]}
    cache, flushed_batches = built_as(recorded, vector), batches(stream)
    steps = workload(cache, extra_keys=recorded["extra_keys_used"])
    taken = -1
    for _, row in zip(steps, rows, strict=True):
        if row["after_seq"] > taken:
            taken += 1
            assert cache.take_events() == flushed_batches[taken], row["step"]
        assert row["after_seq"] == taken
        for name, expected in row["match"].items():
            probe = probes[name]
            assert asked(cache, probe["tokens"], namespace_of(probe)) == expected, (row["step"], name)
    assert taken == len(flushed_batches) - 1
    assert cache.take_events() == []
