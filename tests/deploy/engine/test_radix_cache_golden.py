"""The radix cache does what SGLang 0.5.22's own `RadixCache` did under each policy: equal hits, sizes and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.cache import KVSequence, Namespace
from deploy.engine.eviction_policy import POLICIES
from deploy.engine.radix_cache import RadixCache
from deploy.engine.slot_vectors import MakeVector
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from tests.deploy.engine.slot_kinds import VECTORS

RECORDED = Path(__file__).parents[2] / "golden" / "engine"


class Player:
    """Does recorded operations on a radix cache; each method checks one kind against what SGLang answered."""

    def __init__(self, recorded: dict[str, Any], vector: MakeVector) -> None:
        self.cache = RadixCache(
            recorded["pool_tokens"],
            recorded["page_size"],
            policy=recorded["policy"],
            bigrams=recorded["is_eagle"],
            vector=vector,
        )
        self.segments = [[1000 * number + at for at in range(n)] for number, n in enumerate(recorded["segments"], 1)]
        self.running: dict[int, KVSequence] = {}

    def start(
        self, number: int, parts: list[int], length: int, space: dict[str, Any], limit: int | None, hit: int | None
    ) -> None:
        tokens = [token for part in parts for token in self.segments[part]][:length]
        sequence = self.cache.start(tokens, Namespace(**space), limit=limit)
        assert (None if sequence is None else sequence.cached_tokens) == hit
        if sequence is not None:
            self.running[number] = sequence
            self.cache.computed(sequence)

    def extend(self, number: int, count: int, fits: bool) -> None:
        assert self.cache.extend(self.running[number], count) == fits
        if fits:
            self.cache.computed(self.running[number])

    def token(self, number: int, token: int) -> None:
        self.running[number].tokens.append(token)

    def finish(self, number: int, keep: bool) -> None:
        self.cache.finish(self.running.pop(number), keep=keep)

    def clear(self) -> None:
        assert self.cache.clear()

    def sizes(self, evictable: int, free: int) -> None:
        stats = self.cache.stats()
        assert (stats.evictable, stats.free) == (evictable, free)

    def events(self, expected: list[Any]) -> None:
        assert [shown(event) for event in self.cache.take_events()] == expected


def shown(event: KVEvent) -> list[Any]:
    """An event as it was recorded."""
    match event:
        case BlockStored():
            units = len(event.tokens) // (8 if event.bigrams else 4)
            return ["S", event.block_hashes, event.parent, units, event.block_size, event.cache_salt]
        case BlockRemoved():
            return ["R", event.block_hashes]
        case AllBlocksCleared():
            return ["C"]
        case _:
            pytest.fail(f"{event}")


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_recorded_operations_give_the_recorded_answers_and_events(policy: str, vector: MakeVector) -> None:
    recorded = json.loads((RECORDED / f"sglang_{policy}.json").read_text())
    player = Player(recorded, vector)
    for operation, *values in recorded["operations"]:
        getattr(player, operation)(*values)
