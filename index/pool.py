"""Values shared by both kinds of pools: what a worker is before its events come, and how big a pool is."""

from __future__ import annotations

from typing import NamedTuple

from index.worker import EngineKind


class WorkerSpec(NamedTuple):
    """What must be known of a worker before its events: model, engine, EAGLE (vLLM does not show it), match unit.

    `verify`: the hash of every stored block is derived again, as far as it can be. `extra_keys`: whether an SGLang
    adapter may be asked for together with an extra_key (index/radix_namespace.py); None: nobody says.
    """

    model: str
    engine: EngineKind
    eagle: bool = False
    match_unit: int | None = None
    verify: bool = False
    extra_keys: bool | None = None


class PoolStats(NamedTuple):
    """One pool's size: distinct blocks (pages), holdings over all its workers, our own memory in bytes."""

    model: str
    engine: EngineKind
    block_size: int
    workers: int
    blocks: int
    holders: int
    size_bytes: int
