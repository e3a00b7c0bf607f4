"""What cases ask beside their routes, as far as it can be seen from outside: one function per case."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.app.case_player import CasePlayer

Statuses = dict[str, tuple[int, ...]]

STATUSES: dict[str, Statuses] = {
    "B20-nan-and-surrogates-in-body": {
        "h1": (400, 422),
        "h2": (400, 422),
        "h3": (200, 400, 422),
        "h4": (400, 422),
        "h5": (400,),
    },
    "B44-token-id-range": dict.fromkeys(("h1", "h2", "h3", "h4"), (400, 422)),
    "B48-template-failure-silent": {"h1": (200,)},
    "B50-empty-and-missing-fields": {
        "h1": (422,),
        "h2": (422,),
        "h3": (422,),
        "h4": (422,),
        "h5": (404,),
        "h6": (400, 422),
        "h7": (400, 422),
        "h8": (400, 422),
    },
    "B51-huge-body": {"h1": (200,), "h2": (413,), "h3": (200,)},
}
"""What the plain HTTP steps may answer; the cases say it in words."""


def _replayed_in_order(player: CasePlayer) -> None:
    worker = player.world.worker("A")
    assert (worker["gaps"], worker["seq"]) == (1, 4)
    assert not worker["resets"]
    removal = {"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU"}
    player.do({"op": "batch", "from": "A", "rank": 0, "seq": 5, "events": [removal]})
    player.world.settle()
    assert _matched(player, list(range(1, 14)))["A"] == 4


def _replay_was_read(player: CasePlayer) -> None:
    worker = player.world.worker("A")
    assert worker["seq"] == 4
    assert worker["wire_errors"] == {}
    assert worker["resets"] == {}
    assert worker["gaps"] == 0


def _share_is_fair(player: CasePlayer) -> None:
    for order in (["A", "B"], ["B", "A"]):
        counts = Counter(
            player.ask(model="m", token_ids=_unique(), candidates=order).body["instance"] for _ in range(100)
        )
        assert 35 <= counts["A"] <= 65, counts
    counts = _picks(player, "rN")
    assert 140 <= counts["A"] <= 260, counts


def _hot_spot_is_relieved(player: CasePlayer) -> None:
    counts = _picks(player, "rN")
    assert counts["A"] < 50, counts
    player.do({"op": "load", **{name: {"running": 0, "waiting": 0} for name in "ABCD"}})
    prompt = [*range(1, 17), 99]
    even = Counter(player.ask(model="m", token_ids=prompt, dry_run=True).body["instance"] for _ in range(20))
    assert even["A"] == 20, even


def _refusals_are_small(player: CasePlayer) -> None:
    for label, answers in player.answers.items():
        for answer in answers:
            assert answer.status == 200 or len(str(answer.body)) < 1000, label
            assert "NaN" not in str(answer.body)
    assert player.world.running.http.get("/metrics").status_code == 200


def _herd_follows_its_first(player: CasePlayer) -> None:
    counts = _picks(player, "rN")
    assert max(counts.values()) >= 10, counts


def _block_size_is_shown(player: CasePlayer) -> None:
    assert player.world.worker("A")["block_size"] == 4
    assert player.world.worker("B")["block_size"] == 8


def _wire_errors_are_counted(player: CasePlayer) -> None:
    worker = player.world.worker("A")
    assert sum(worker["wire_errors"].values()) >= 4, worker
    reasons = {line for line in _metrics(player) if line.startswith('kvroute_event_wire_errors_total{instance="A"')}
    assert len(reasons) >= 2, reasons
    assert worker["state"] == "live"


def _failure_is_counted(player: CasePlayer) -> None:
    answer = player.answers["h1"][0].body
    assert (answer["reason"], answer["prompt_tokens"]) in {("fallback", None), ("only", None)}
    assert player.world.running.metric("kvroute_tokenise_failures_total{") == 1


def _unknown_models_make_no_series(player: CasePlayer) -> None:
    before = len(_metrics(player))
    for number in range(200):
        assert player.ask(model=f"random-{number}", token_ids=[1]).status == 404
    assert len(_metrics(player)) == before


def _health_answers_meanwhile(player: CasePlayer) -> None:
    assert player.answers["h1"][0].body["prompt_tokens"] == 1_000_000
    times = sorted(answer.took_s for answer in player.answers["h3"])
    assert times[len(times) // 2] < 0.2, times


def _endpoints_are_resolved(player: CasePlayer) -> None:
    assert player.world.worker("A")["events"] == "tcp://[::1]:5557"
    assert player.world.worker("B")["events"] == "tcp://127.0.0.7:5557"


def _only_the_shared_identity_is_admitted(player: CasePlayer) -> None:
    workers = {name: player.world.worker(name) for name in "ABCDE"}
    assert workers["A"]["hash"]["status"] == "verified"
    assert workers["A"]["blocks"]["gpu"] == 2
    for name in "BCDE":
        hash_ = workers[name]["hash"]
        assert (workers[name]["state"], workers[name]["trust"], hash_["status"]) == ("refused", "none", "mismatch")
        assert hash_["expected"] == {"algorithm": "sha256", "seed": "0"}
        assert hash_["advice"]
        assert workers[name]["blocks"]["gpu"] == 0
    assert workers["B"]["hash"]["algorithm"] == "sha256_cbor"
    assert workers["C"]["hash"]["seed"] == "none"


def _flood_is_followed(player: CasePlayer) -> None:
    engine = player.world.engines["S", 0]
    assert (engine.last_seq or 0) > 40
    worker = player.world.worker("S")
    assert worker["seq"] == engine.last_seq
    # Seconds by the engine's clock: the bound tells units and stalls apart from a busy machine; it is no speed claim.
    assert 0.0 <= worker["lag_s"] < 15.0 or player.surroundings.fixed_ts is not None


def _nothing_is_left(player: CasePlayer) -> None:
    stats = player.world.running.http.get("/index/stats").json()
    assert (stats["blocks"], stats["holders"]) == (0, 0)
    assert not [line for line in _metrics(player) if "passing-" in line]
    assert [one["id"] for one in player.world.running.http.get("/instances").json()["instances"]] == ["A"]


def _unknown_load_is_not_best(player: CasePlayer) -> None:
    assert _picks(player, "rN")["B"] <= 60
    assert not [line for line in _metrics(player) if 'instance="B"' in line]


def _unknown_models_make_no_label(player: CasePlayer) -> None:
    assert not [line for line in _metrics(player) if "nope" in line]


def _blocks_are_distinct(player: CasePlayer) -> None:
    for name in "AB":
        gauge = f'kvroute_index_blocks{{dp_rank="0",instance="{name}",medium="gpu"}}'
        other = f'kvroute_index_blocks{{instance="{name}",dp_rank="0",medium="gpu"}}'
        assert player.world.running.metric(gauge) + player.world.running.metric(other) == 1
    picks = Counter(player.ask(model="m", token_ids=[1, 2, 3, 4, 5]).body["instance"] for _ in range(20))
    assert set(picks) == {"A", "B"}, picks


def _addresses_are_names(player: CasePlayer) -> None:
    assert player.answers["r1"][0].body["unknown_candidates"] == []


def _difference_is_counted(player: CasePlayer) -> None:
    running = player.world.running
    assert running.metric('kvroute_undelivered_tokens_total{instance="A"}') == 8
    for series in ("event_batches_total", "events_total", "event_lag_seconds", "delivered_tokens_total"):
        assert [line for line in _metrics(player) if line.startswith(f"kvroute_{series}")], series


def _race_has_one_outcome(player: CasePlayer) -> None:
    step = next(one for one in player.case["situation"] if one["op"] == "race")
    for number in range(1, 30):
        stored, removed = step["steps"]
        again = {**stored, "from": "B", "seq": 2 * number}
        player.do(again)
        races = [{**stored, "seq": number}, {**removed, "seq": 2 * number + 1}]
        player.do({"op": "race", "steps": races})
        player.world.settle()
        assert _matched(player, [1, 2, 3, 4, 5]) == {"A": 4, "B": 0}


def _matched(player: CasePlayer, tokens: list[int]) -> dict[str, int]:
    body = player.ask(model="m", token_ids=tokens, dry_run=True).body
    return {one["instance"]: one["matched_tokens"] for one in body["candidates"]}


def _picks(player: CasePlayer, label: str) -> Counter[Any]:
    return Counter(answer.body["instance"] for answer in player.answers[label])


def _metrics(player: CasePlayer) -> list[str]:
    lines = player.world.running.http.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("kvroute_")]


def _unique() -> list[int]:
    return random.sample(range(100_000), 40)


CHECKS: dict[str, Callable[[CasePlayer], None]] = {
    "B11-gap-replayed-in-order": _replayed_in_order,
    "B12-replay-framing": _replay_was_read,
    "B17-cold-tie-and-serial-spread": _share_is_fair,
    "B18-hot-prefix-hot-spot": _hot_spot_is_relieved,
    "B20-nan-and-surrogates-in-body": _refusals_are_small,
    "B27-herd-before-first-event": _herd_follows_its_first,
    "B28-block-size-from-event": _block_size_is_shown,
    "B45-malformed-frames": _wire_errors_are_counted,
    "B48-template-failure-silent": _failure_is_counted,
    "B50-empty-and-missing-fields": _unknown_models_make_no_series,
    "B51-huge-body": _health_answers_meanwhile,
    "B54-ipv6-and-wildcard-endpoints": _endpoints_are_resolved,
    "B55-none-hash-seed-and-algorithm": _only_the_shared_identity_is_admitted,
    "B58-page-size-one-flood": _flood_is_followed,
    "B60-memory-bounds": _nothing_is_left,
    "B61-stale-series-and-bad-metrics": _unknown_load_is_not_best,
    "B64-two-models-one-router": _unknown_models_make_no_label,
    "B70-store-remove-race": _race_has_one_outcome,
    "B75-duplicate-store-no-double-count": _blocks_are_distinct,
    "B77-identity-mapping": _addresses_are_names,
    "B78-metrics-parity": _difference_is_counted,
}
