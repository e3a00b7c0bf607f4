"""The block pool does what vLLM 0.32.0's own `KVCacheManager` did: equal hits, block numbers and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import KVSequence, Namespace
from index.block_hash import HashIdentity
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, KVEvent
from index.prompt import MultimodalItem

RECORDED = Path(__file__).parents[2] / "golden" / "engine"


class Player:
    """Does recorded operations on a block pool; each method checks one kind against what vLLM answered."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        identity = HashIdentity(recorded["algorithm"], recorded["seed"])
        self.size: int = recorded["block_size"]
        self.pool = BlockPool(recorded["num_blocks"], self.size, identity)
        self.segments = [[1000 * number + at for at in range(n)] for number, n in enumerate(recorded["segments"], 1)]
        self.running: dict[int, KVSequence] = {}

    def start(
        self, number: int, parts: list[int], length: int, space: dict[str, Any], limit: int | None, *answer: Any
    ) -> None:
        tokens = [token for part in parts for token in self.segments[part]][:length]
        sequence = self.pool.start(tokens, namespace_of(space), limit=limit)
        if sequence is None:
            assert answer == (None,)
            return
        assert answer == (sequence.cached_tokens, self.blocks(sequence))
        self.running[number] = sequence
        self.pool.computed(sequence)

    def extend(self, number: int, count: int, fits: bool, *added: list[int]) -> None:
        sequence = self.running[number]
        before = len(self.blocks(sequence))
        assert self.pool.extend(sequence, count) == fits
        if fits:
            assert self.blocks(sequence)[before:] == added[0]
            self.pool.computed(sequence)

    def token(self, number: int, token: int) -> None:
        self.running[number].tokens.append(token)

    def finish(self, number: int) -> None:
        self.pool.finish(self.running.pop(number))

    def clear(self, done: bool) -> None:
        assert self.pool.clear() == done

    def events(self, expected: list[Any]) -> None:
        assert [shown(event) for event in self.pool.take_events()] == expected

    def blocks(self, sequence: KVSequence) -> list[int]:
        return [slot // self.size for slot in sequence.slots[:: self.size]]


def namespace_of(space: dict[str, Any]) -> Namespace:
    return Namespace(
        cache_salt=space.get("cache_salt"),
        lora=tuple(space["lora"]) if "lora" in space else None,
        mm_items=tuple(MultimodalItem(*item) for item in space.get("mm", ())),
    )


def shown(event: KVEvent) -> list[Any]:
    """An event as it was recorded."""
    match event:
        case BlockStored():
            assert event.extra_keys is not None
            extra = [None if keys is None else [as_list(key) for key in keys] for keys in event.extra_keys]
            tokens = len(event.tokens) // 4
            return ["S", event.block_hashes, event.parent, tokens, extra, event.lora_name, event.kind, event.group]
        case BlockRemoved():
            return ["R", event.block_hashes]
        case AllBlocksCleared():
            return ["C"]
        case _:
            pytest.fail(f"{event}")


def as_list(key: ExtraKey) -> Any:
    return list(key) if isinstance(key, tuple) else key


@pytest.mark.parametrize("name", ["vllm_cbor_16", "vllm_pickle_4", "vllm_xxhash_1"])
def test_recorded_operations_give_the_recorded_answers_and_events(name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    player = Player(recorded)
    for operation, *values in recorded["operations"]:
        getattr(player, operation)(*values)
