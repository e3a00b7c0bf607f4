"""The radix index against what SGLang 0.5.22's own trees answered after every batch of their event streams."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.wire import decode
from index.delta import Delta
from index.event import AllBlocksCleared, BlockRemoved, BlockStored
from index.radix_namespace import NamespaceRequest, RadixNamespaces
from index.radix_units import bigrams, reusable_units
from index.worker import EngineKind
from tests.support.cores import RADIX_CORES, RadixCore

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"
SLOT = 3


class Answer(NamedTuple):
    """A probe, and what the engine's tree said of it."""

    tokens: list[int]
    request: NamespaceRequest
    expected: list[int]
    label: str


class Follower:
    """A radix index that follows one recorded stream."""

    def __init__(self, core: RadixCore, page_size: int, *, eagle: bool) -> None:
        self.page_size, self.eagle = page_size, eagle
        unit_bytes = 8 if eagle else 4
        self.index = core(page_size, unit_bytes)
        self.namespaces = RadixNamespaces(page_size * unit_bytes)
        self.index.add(SLOT)
        self.delta = Delta()

    def apply(self, payload: bytes) -> None:
        for event in decode(payload, EngineKind.SGLANG).events:
            match event:
                case BlockStored():
                    namespace = "" if event.parent is not None else self.namespaces.of_root(SLOT, event).namespace
                    self.index.store(SLOT, event, namespace, self.delta)
                case BlockRemoved():
                    self.index.remove(SLOT, event, self.delta)
                case AllBlocksCleared():
                    self.index.clear(SLOT)
                case _:
                    pytest.fail(f"{event}")

    def match(self, tokens: list[int], request: NamespaceRequest) -> tuple[int, tuple[int, int, int, int]]:
        prompt = array("I", tokens).tobytes()
        units = bigrams(prompt) if self.eagle else prompt
        names = [name for place in self.namespaces.places(units, request, 1 << SLOT) for name in place.names]
        held = self.index.match(units, names, 1 << SLOT)
        return (held[0].units, held[0].by_medium) if held else (0, (0, 0, 0, 0))

    def answer(self, tokens: list[int], request: NamespaceRequest) -> list[int]:
        matched, _ = self.match(tokens, request)
        return [matched, reusable_units(matched, len(tokens), self.page_size, eagle=self.eagle)]


def replay(core: RadixCore, stream: str) -> Iterator[tuple[Follower, list[Answer]]]:
    """After each batch at which the engine was asked: the index, and the engine's answers."""
    header, *rows = map(json.loads, (GOLDEN / f"oracle_{stream}.jsonl").read_text().splitlines())
    frames = [json.loads(line) for line in (GOLDEN / f"event_frames_{stream}.jsonl").read_text().splitlines()]
    follower = Follower(core, header["page_size"], eagle=header["is_eagle"])
    for row in rows:
        while frames and frames[0]["seq"] <= row["after_seq"]:
            follower.apply(bytes.fromhex(frames.pop(0)["frames"][2]))
        yield follower, list(answers(header, row["match"]))


def answers(header: dict[str, Any], match: Any) -> Iterator[Answer]:
    if "segments" in header:
        for parts, salt, *expected in match:
            tokens = [token for segment, length in parts for token in header["segments"][segment][:length]]
            yield Answer(tokens, NamespaceRequest(cache_salt=salt), expected, str(parts))
        return
    for probe in header["probes"]:
        if probe["id"] in match:
            key = (probe.get("extra_key") or "") + (probe.get("lora_id") or "")
            request = NamespaceRequest(cache_salt=probe.get("cache_salt"), extra_key=key or None)
            yield Answer(probe["tokens"], request, match[probe["id"]], probe["id"])


@pytest.mark.parametrize("core", RADIX_CORES)
@pytest.mark.parametrize("stream", ["page1", "page16", "page1_dynamo", "page16_eagle", "fuzz_page1"])
def test_every_answer_equals_the_engines(core: RadixCore, stream: str) -> None:
    compared = 0
    for follower, rows in replay(core, stream):
        for row in rows:
            assert follower.answer(row.tokens, row.request) == row.expected, row.label
            compared += 1
    assert compared > 500
    assert follower.delta.skipped == {}
    assert follower.delta.orphans == 0


@pytest.mark.parametrize("core", RADIX_CORES)
def test_the_host_tier_continues_the_device(core: RadixCore) -> None:
    compared = 0
    for follower, rows in replay(core, "page16_host_tier"):
        for row in rows:
            matched, by_medium = follower.match(row.tokens, row.request)
            assert by_medium == (row.expected[0], row.expected[1], 0, 0), row.label
            assert matched == sum(row.expected)
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("core", RADIX_CORES)
def test_an_adapter_is_found_by_its_id_or_by_its_name(core: RadixCore) -> None:
    """The probes of adapter-a, asked with the id, and without it: by name alone its extra_key cannot be told."""
    adapter = "0f" * 16
    seen = 0
    for follower, rows in replay(core, "page1_dynamo"):
        for row in rows:
            if row.label == "sys_u0@lora-a":
                by_id = NamespaceRequest(lora_name="adapter-a", lora_ids=[adapter])
                assert follower.answer(row.tokens, by_id) == row.expected
                by_name, _ = follower.match(row.tokens, NamespaceRequest(lora_name="adapter-a"))
                assert by_name >= row.expected[0]
                seen += row.expected[0]
            if row.label == "sys_u0@key-a+lora-a":
                both = NamespaceRequest(lora_name="adapter-a", lora_ids=[adapter], extra_key="tenant-a")
                assert follower.answer(row.tokens, both) == row.expected
    assert seen


@pytest.mark.parametrize("core", RADIX_CORES)
def test_hidden_namespaces_of_the_default_format_stay_bounded(core: RadixCore) -> None:
    """extra_key and adapters are not on the wire: a request with one gets nothing, the others may get too much."""
    for follower, rows in replay(core, "page1_extra_key"):
        for row in rows:
            matched, reusable = follower.answer(row.tokens, row.request)
            assert 0 <= reusable <= matched <= len(row.tokens)
            if row.request.extra_key is not None:
                assert matched == 0
            else:
                assert matched >= row.expected[0], row.label


@pytest.mark.parametrize("core", RADIX_CORES)
@pytest.mark.parametrize("stream", ["page1", "page16_eagle", "page1_extra_key", "fuzz_page1"])
def test_nothing_is_left_after_a_clear(core: RadixCore, stream: str) -> None:
    follower, _ = list(replay(core, stream))[-1]
    held = sum(follower.index.pages(SLOT))
    assert held
    assert follower.index.clear(SLOT) == held
    assert (follower.index.node_count, follower.index.page_count, follower.index.size_bytes) == (0, 0, 0)
