"""Metrics: the documented names, labels of our own words only, and no series that outlives what it is about."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.availability import State
from app.fleet_rows import FleetRows, WorkerRow
from app.metrics import Metrics
from index.worker import Trust, Worker

A0, A1, B0 = Worker("a/ü", 0), Worker("a/ü", 1), Worker("b", 0)
ROW = WorkerRow(A0, State.LIVE, Trust.EXACT, False, (5, 4, 3, 2), 0.5, 1, False)

DOCUMENTED = {
    "instance_state": {"instance", "state"},
    "ejections_total": {"instance", "reason"},
    "route_requests_total": {"model", "reason"},
    "route_errors_total": {"status"},
    "prompt_tokens_total": {"model"},
    "matched_tokens_total": {"model"},
    "reusable_tokens_total": {"model"},
    "delivered_tokens_total": {"model"},
    "delivered_prompt_tokens_total": {"model"},
    "events_total": {"instance", "dp_rank", "type"},
    "event_batches_total": {"instance", "dp_rank"},
    "event_gaps_total": {"instance", "dp_rank"},
    "event_replayed_batches_total": {"instance", "dp_rank"},
    "event_wire_errors_total": {"instance", "reason"},
    "worker_resets_total": {"instance", "dp_rank", "reason"},
    "worker_state": {"instance", "dp_rank", "state"},
    "worker_trust": {"instance", "dp_rank", "trust"},
    "hash_mismatch": {"instance", "dp_rank"},
    "index_blocks": {"instance", "dp_rank", "medium"},
    "index_bytes": set(),
    "event_lag_seconds": {"instance", "dp_rank"},
    "state_errors_total": {"op"},
    "state_writes_total": set(),
    "state_lag_batches": set(),
    "tokenise_failures_total": {"model", "kind"},
    "unknown_candidates_total": set(),
    "promised_tokens_total": {"instance"},
    "undelivered_tokens_total": {"instance"},
    "unpredicted_tokens_total": {"instance"},
    "events_skipped_total": {"instance", "reason"},
    "event_missing_batches_total": {"instance", "dp_rank"},
    "worker_parked": {"instance", "dp_rank"},
    "block_size_mismatch": {"instance"},
    "instance_draining": {"instance"},
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(metrics: Metrics) -> Series:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return series(metrics).get((f"kvroute_{name}", frozenset(labels.items())))


def busy() -> Metrics:
    """Metrics after one of everything has happened to two instances and two models."""
    metrics = Metrics()
    metrics.watch(
        lambda: FleetRows(
            [ROW, ROW._replace(worker=A1), ROW._replace(worker=B0)], {"a": State.LIVE, "b": State.DOWN}, 4096
        )
    )
    for worker, model in ((A0, "m"), (A1, "m"), (B0, "n")):
        metrics.routed(model, "prefix", (100, 64, 48))
        metrics.tokenise_failed(model, "engine")
        metrics.delivered(model, worker.instance, 100, 48, 64)
        metrics.batches(worker, 1, replayed=True)
        metrics.events(worker, {"stored": 3, "removed": 1})
        metrics.skipped(worker, "token_range", 2)
        metrics.gap(worker, 7)
        metrics.wire_error(worker, "msgpack")
        metrics.reset(worker, "restart")
    metrics.ejected("a", "connect")
    metrics.route_failed(404)
    metrics.route_took(0.001)
    metrics.unknown_candidates(2)
    metrics.state_errors.labels("append").inc()
    return metrics


def test_every_documented_metric_is_there_with_its_labels_and_no_other() -> None:
    found: dict[str, set[str]] = {}
    for name, labels in series(busy()):
        if name.startswith("kvroute_") and not name.startswith("kvroute_route_seconds"):
            found.setdefault(name.removeprefix("kvroute_"), set()).update(key for key, _ in labels)
    assert found == DOCUMENTED


def test_route_seconds_sees_a_quarter_of_a_millisecond_and_five_seconds() -> None:
    bounds = {float(dict(labels)["le"]) for name, labels in series(busy()) if name == "kvroute_route_seconds_bucket"}
    assert {0.00025, 0.0005, 0.001, 5.0, float("inf")} <= bounds


def test_process_metrics_are_there_once() -> None:
    text = Metrics().exposition().decode()
    assert text.count("# TYPE process_resident_memory_bytes") == 1
    assert text.count("# TYPE python_info") == 1
    assert "_created" not in text


def test_two_registries_do_not_share_anything() -> None:
    first, second = busy(), Metrics()
    assert value(first, "unknown_candidates_total") == 2
    assert value(second, "unknown_candidates_total") == 0


def test_counts_add_up() -> None:
    metrics = busy()
    assert value(metrics, "route_requests_total", model="m", reason="prefix") == 2
    assert value(metrics, "prompt_tokens_total", model="m") == 200
    assert value(metrics, "matched_tokens_total", model="m") == 128
    assert value(metrics, "reusable_tokens_total", model="n") == 48
    assert value(metrics, "events_total", instance="a/ü", dp_rank="1", type="stored") == 3
    assert value(metrics, "event_missing_batches_total", instance="b", dp_rank="0") == 7
    assert value(metrics, "route_errors_total", status="404") == 1


def test_text_that_was_not_tokenised_counts_as_a_request_without_tokens() -> None:
    metrics = Metrics()
    metrics.routed("m", "fallback", None)
    assert value(metrics, "route_requests_total", model="m", reason="fallback") == 1
    assert value(metrics, "prompt_tokens_total", model="m") is None


@pytest.mark.parametrize(
    ("cached", "predicted", "undelivered", "unpredicted"),
    [(0, 8, 8, 0), (8, 0, 0, 8), (5, 5, 0, 0), (5, None, None, None)],
)
def test_the_difference_between_promise_and_delivery_shows_by_instance(
    cached: int, predicted: int | None, undelivered: int | None, unpredicted: int | None
) -> None:
    metrics = Metrics()
    metrics.delivered("m", "a", 10, cached, predicted)
    assert value(metrics, "delivered_tokens_total", model="m") == cached
    assert value(metrics, "delivered_prompt_tokens_total", model="m") == 10
    assert value(metrics, "promised_tokens_total", instance="a") == predicted
    assert value(metrics, "undelivered_tokens_total", instance="a") == undelivered
    assert value(metrics, "unpredicted_tokens_total", instance="a") == unpredicted


def test_a_removed_instance_takes_its_series_with_it_and_no_others() -> None:
    metrics, rows = busy(), [ROW._replace(worker=B0)]
    other = Metrics()
    other.watch(lambda: FleetRows(rows, {}, 0))
    before = {key for key in series(metrics) if ("instance", "a/ü") not in key[1]}
    metrics.forget_instance("a/ü")
    counters = {name.removeprefix("kvroute_") for name, labels in series(metrics) if ("instance", "a/ü") in labels}
    assert {name for name in counters if name.endswith("_total")} == set()
    assert before <= set(series(metrics))
    assert value(other, "worker_state", instance="b", dp_rank="0", state="live") == 1
    rows.clear()
    assert not [name for name, labels in series(other) if ("instance", "b") in labels]


def test_a_model_without_instances_takes_its_series_with_it() -> None:
    metrics = busy()
    metrics.forget_model("m")
    assert not [name for name, labels in series(metrics) if ("model", "m") in labels]
    assert value(metrics, "prompt_tokens_total", model="n") == 100


def test_forgetting_what_was_never_there_is_fine() -> None:
    metrics = busy()
    before = set(series(metrics))
    metrics.forget_instance("c")
    metrics.forget_model("c")
    assert set(series(metrics)) == before


def test_exactly_one_state_and_one_trust_is_current() -> None:
    metrics = Metrics()
    metrics.watch(lambda: FleetRows([ROW._replace(state=State.REFUSED, trust=Trust.NONE, hash_mismatch=True)], {}, 0))
    current = {
        (name, dict(labels).get("state") or dict(labels).get("trust"))
        for (name, labels), number in series(metrics).items()
        if name in ("kvroute_worker_state", "kvroute_worker_trust") and number == 1
    }
    assert current == {("kvroute_worker_state", "refused"), ("kvroute_worker_trust", "none")}
    assert value(metrics, "hash_mismatch", instance="a/ü", dp_rank="0") == 1


def test_blocks_show_by_medium_and_lag_only_when_known() -> None:
    metrics = Metrics()
    metrics.watch(lambda: FleetRows([ROW, ROW._replace(worker=B0, lag_s=None)], {}, 7))
    blocks = {
        dict(labels)["medium"]: count
        for (name, labels), count in series(metrics).items()
        if name == "kvroute_index_blocks"
    }
    assert blocks == {"gpu": 5, "cpu": 4, "disk": 3, "other": 2}
    assert value(metrics, "event_lag_seconds", instance="a/ü", dp_rank="0") == 0.5
    assert value(metrics, "event_lag_seconds", instance="b", dp_rank="0") is None
    assert value(metrics, "index_bytes") == 7


def test_one_rank_with_another_block_size_marks_its_instance() -> None:
    metrics = Metrics()
    metrics.watch(lambda: FleetRows([ROW._replace(block_size_differs=True), ROW._replace(worker=A1)], {}, 0))
    assert value(metrics, "block_size_mismatch", instance="a/ü") == 1


def test_draining_marks_an_instance_and_no_other() -> None:
    metrics = Metrics()
    metrics.watch(lambda: FleetRows([ROW, ROW._replace(worker=B0, draining=True)], {}, 0))
    assert value(metrics, "instance_draining", instance="a/ü") == 0
    assert value(metrics, "instance_draining", instance="b") == 1
