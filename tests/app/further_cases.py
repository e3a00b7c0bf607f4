"""Situations in the form of `tests/golden/cases.json` that it does not hold: name -> (steps, expected routes)."""

from __future__ import annotations

from typing import Any

Step = dict[str, Any]
Routes = dict[str, dict[str, Any]]

PROMPT = list(range(1, 14))
"""Covers the blocks 11 (tokens 1..4), 12 (5..8) and 13 (9..12), and one token more."""
OTHER = [31, 32, 33, 34, 35]
"""Covers block 21."""
TOKENS = {11: [1, 2, 3, 4], 12: [5, 6, 7, 8], 13: [9, 10, 11, 12], 21: [31, 32, 33, 34]}
PARENTS = {11: None, 12: 11, 13: 12, 21: None}
CLEARED: Step = {"type": "AllBlocksCleared"}

SILENCE_HIDES = {"a restarted engine stores the same first block", "first contact with a stream long begun"}
"""Cases that need either time stamps or an answering engine."""


def fleet(*ids: str, engine: str = "vllm") -> Step:
    instances = [
        {"id": name, "engine": engine, "model": "m", "address": f"http://{name}:8000", "block_size": 4} for name in ids
    ]
    return {"op": "config", "router": {}, "instances": instances}


def stored(block: int, **fields: Any) -> Step:
    event = {"type": "BlockStored", "block_hashes": [block], "parent": PARENTS[block], "token_ids": TOKENS[block]}
    return {**event, "block_size": 4, "lora": None, "medium": "GPU", "group": None, **fields}


def removed(block: int) -> Step:
    return {"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group": None}


def batch(seq: int, *events: Step, source: str = "A", rank: int = 0) -> Step:
    return {"op": "batch", "from": source, "rank": rank, "seq": seq, "events": list(events)}


def replay(start: int, *batches: tuple[int, Step], end: bool = True) -> Step:
    answer = [{"seq": seq, "events": [event]} for seq, event in batches]
    return {"op": "replay_reply", "from": "A", "rank": 0, "start": start, "batches": answer, "end": end}


def route(label: str, tokens: list[int] = PROMPT, **fields: Any) -> Step:
    return {"op": "route", "label": label, "request": {"model": "m", "token_ids": tokens, **fields}}


def holds(count: int, *picks: str, instance: str = "A") -> dict[str, Any]:
    expected: dict[str, Any] = {"matched_tokens": {instance: count}}
    return expected | ({"pick_any_of": list(picks)} if picks else {})


OLD_FORM = [1, [["BlockStored", [11], None, TOKENS[11], 4, None, "GPU"]]]
MADE_UP_TIME = [1.0, [["BlockStored", [12], 11, TOKENS[12], 4, None, "GPU"]], 0]

FURTHER: dict[str, tuple[list[Step], Routes]] = {
    "a gap that replay cannot fill": (
        [
            fleet("A"),
            batch(0, stored(11)),
            batch(3, stored(12)),
            replay(1, (3, stored(12))),
            route("r1"),
            batch(4, stored(21)),
            route("r2", OTHER),
        ],
        {"r1": holds(0), "r2": holds(4)},
    ),
    "a replay without its end mark": (
        [fleet("A"), batch(0, stored(11)), batch(2, stored(13)), replay(1, (1, stored(12)), end=False), route("r1")],
        {"r1": holds(12)},
    ),
    "a restarted engine stores something else": (
        [
            fleet("A"),
            batch(0, stored(11)),
            batch(1, stored(12)),
            {"op": "engine_restart", "id": "A"},
            batch(0, stored(21)),
            route("r1"),
            route("r2", OTHER),
        ],
        {"r1": holds(0), "r2": holds(4)},
    ),
    "a restarted engine stores the same first block": (
        [
            fleet("A"),
            batch(0, stored(11)),
            batch(1, stored(12)),
            {"op": "engine_restart", "id": "A"},
            batch(0, stored(11)),
            route("r1"),
        ],
        {"r1": holds(4)},
    ),
    "a removal on one rank leaves the other": (
        [
            fleet("A"),
            batch(0, stored(11), stored(12)),
            batch(0, stored(11), rank=1),
            batch(1, removed(11), rank=1),
            route("r1"),
        ],
        {"r1": holds(8, "A")},
    ),
    "an instance is removed": (
        [fleet("A", "B"), batch(0, stored(11)), {"op": "instance_removed", "id": "A"}, route("r1")],
        {"r1": holds(0, "B", instance="B")},
    ),
    "a child comes before its parent": (
        [
            fleet("A"),
            batch(0, stored(12)),
            route("r1"),
            route("r2", [5, 6, 7, 8, 9]),
            batch(1, stored(11)),
            route("r3"),
        ],
        {"r1": holds(0), "r2": holds(0), "r3": holds(8)},
    ),
    "a child comes before its parent on SGLang": (
        [fleet("A", engine="sglang"), batch(0, stored(12)), route("r1"), batch(1, stored(11)), route("r2")],
        {"r1": holds(0), "r2": holds(8)},
    ),
    "a clear in the middle of a batch": (
        [fleet("A"), batch(0, stored(11)), batch(1, stored(12), CLEARED, stored(21)), route("r1"), route("r2", OTHER)],
        {"r1": holds(0), "r2": holds(4)},
    ),
    "a salt of SGLang": (
        [
            fleet("A", engine="sglang"),
            batch(0, stored(11, cache_salt="t")),
            route("r1", cache_salt="t"),
            route("r2"),
        ],
        {"r1": holds(4), "r2": holds(0)},
    ),
    "a made-up time after a real one": (
        [
            fleet("A"),
            batch(0, stored(11)),
            {"op": "wire", "from": "A", "rank": 0, "seq": 1, "payload_as_json": MADE_UP_TIME},
            route("r1"),
        ],
        {"r1": holds(8)},
    ),
    "a time that is an integer": (
        [fleet("A"), {"op": "wire", "from": "A", "rank": 0, "seq": 0, "payload_as_json": OLD_FORM}, route("r1")],
        {"r1": holds(4)},
    ),
    "first contact with a stream long begun": ([fleet("A"), batch(7, stored(11)), route("r1")], {"r1": holds(4)}),
    "a batch sent twice counts once": (
        [
            fleet("A"),
            batch(0, stored(11)),
            batch(1, stored(12)),
            batch(1, stored(12)),
            batch(2, removed(12)),
            route("r1"),
        ],
        {"r1": holds(4)},
    ),
    "the request narrows the fleet": (
        [
            fleet("A", "B"),
            batch(0, stored(11)),
            route("r1", exclude=["A"]),
            route("r2", candidates=["B"]),
            route("r3", candidates=[]),
        ],
        {"r1": {"pick_any_of": ["B"]}, "r2": {"pick_any_of": ["B"]}, "r3": {"error": 503}},
    ),
}
