"""Every row of the recorded vLLM oracles, applied directly: what the real `get_computed_blocks` answered."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from engine.wire import decode
from index.block_hash import HashIdentity
from index.block_pools import BlockPools
from index.delta import Delta
from index.event import AllBlocksCleared, BlockRemoved, BlockStored
from index.pool import WorkerSpec
from index.prompt import MultimodalItem, Prompt
from index.worker import EngineKind, Worker

pytestmark = pytest.mark.usefixtures("core")

STREAMS = Path(__file__).parent.parent / "golden" / "vllm" / "streams"
EXACT = sorted(path.name for path in STREAMS.iterdir() if path.name != "report_full")
FALLS_SHORT = {"hybrid_full32_swa16", "hybrid_three_mixed", "mamba_align_eagle_unit"}
"""Streams that request keys alone cannot follow: with opaque hashes the answer is never more than the engine's."""
WORKER = Worker("vllm-0", 0)
PATH_OF = {"sql": "/adapters/sql-v1", "chat": "/adapters/chat"}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def prompt_of(probe: dict[str, Any]) -> Prompt:
    extras = probe["extras"]
    lora = extras.get("lora")
    return Prompt(
        array("I", probe["tokens"]).tobytes(),
        lora=lora["name"] if lora else None,
        cache_salt=extras.get("cache_salt"),
        mm_items=tuple(MultimodalItem(*item) for item in extras.get("mm", ())),
        lora_path=lora["path"] if lora else None,
    )


def play(pools: BlockPools, payload: bytes) -> None:
    delta = Delta()
    for event in decode(payload, EngineKind.VLLM).events:
        if isinstance(event, BlockStored):
            pools.store(WORKER, event, delta)
        elif isinstance(event, BlockRemoved):
            pools.drop(WORKER, event, delta)
        else:
            assert isinstance(event, AllBlocksCleared)
            pools.clear(WORKER)
    assert not delta.skipped
    assert not delta.orphans


def answer(pools: BlockPools, prompt: Prompt) -> int:
    if prompt.lora is not None and PATH_OF[prompt.lora] != prompt.lora_path:
        return 0  # the caller asks only workers that serve the adapter from this path
    matches = list(pools.match("m", prompt, {WORKER}, prompt.lora_path).values())
    for match in matches:
        assert sum(match.by_medium) == match.matched >= match.reusable
    return matches[0].reusable if matches else 0


@pytest.mark.parametrize("identified", [True, False], ids=["identity known", "opaque hashes"])
@pytest.mark.parametrize("stream", EXACT)
def test_reusable_tokens_equal_the_engine_on_every_row(stream: str, identified: bool) -> None:
    meta = json.loads((STREAMS / stream / "meta.json").read_text())
    pools = BlockPools()
    pools.add(
        WORKER, WorkerSpec("m", EngineKind.VLLM, eagle=meta["use_eagle"], match_unit=meta.get("prefix_match_unit"))
    )
    if identified:
        pools.identify(WORKER, HashIdentity(meta["algo"], meta["PYTHONHASHSEED"]), shared=True)
    frames = {frame["seq"]: frame["frames"] for frame in lines(STREAMS / stream / "event_frames.jsonl")}
    prompts = {name: prompt_of(probe) for name, probe in meta["probes"].items()}
    rows: dict[int, list[tuple[str, int]]] = {}
    for row in lines(STREAMS / stream / "oracle.jsonl"):
        rows.setdefault(row["after_seq"], []).append((row["probe"], row["hit_tokens"]))
    checked = 0
    for seq in range(-1, max(frames) + 1):
        if seq in frames:
            play(pools, bytes.fromhex(frames[seq][2]))
        for probe, hit in rows.get(seq, ()):
            got = answer(pools, prompts[probe])
            assert got == hit or (got < hit and not identified and stream in FALLS_SHORT), (seq, probe)
            checked += 1
    assert checked == sum(len(answers) for answers in rows.values()) > 50
    pools.remove(WORKER)
    assert list(pools.stats()) == []
