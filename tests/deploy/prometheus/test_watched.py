"""A real Prometheus with the repository's settings watches real routers and engines: it answers what they counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.deploy.prometheus.observed_stack import FACES, MODEL, ObservedStack, observed_stack, watched
from tests.deploy.prometheus.rule_files import Query, dashboard_queries, rules
from tests.support.prometheus_server import PrometheusServer
from tests.support.service import wait_until

pytestmark = pytest.mark.xdist_group("watched")  # one process sets it up once

TOKENS = ("prompt", "reusable", "delivered", "delivered_prompt")
REPLICAS = {"router-0", "router-1"}
NEARLY = 0.05
"""Of two routers one may have been scraped once more, and weighs more in a rate over both for that."""

MAY_BE_EMPTY = {
    ("Errors", "kvroute_tokenise_failures_total"): "no text is sent that cannot be tokenised",
    ("Errors", "kvroute_state_errors_total"): "the store is well",
    ("Errors and resets", "kvroute_event_wire_errors_total"): "the engines' messages are understood",
    ("Errors and resets", "kvroute_events_skipped_total"): "and so are their events",
}
"""Queries of the dashboard, by panel and metric, that have no series in this stack, and why."""


class World(NamedTuple):
    """The stack after traffic, who watched it, and what each router had counted before and after that."""

    stack: ObservedStack
    prometheus: PrometheusServer
    before: dict[tuple[str, str], float]
    after: dict[tuple[str, str], float]

    def grown(self, name: str) -> float:
        """By how much a counter of tokens grew while it was watched, over both routers."""
        return sum(self.after[replica, name] - self.before[replica, name] for replica in REPLICAS)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with observed_stack() as stack:
        stack.serve(40)  # more than later: else Prometheus guesses how a counter came from 0 to its first sample
        for router in stack.routers.values():
            assert router.http.post("/route", json={"model": "none", "token_ids": [1]}).status_code == 404
        before = counted(stack)
        with watched(stack) as prometheus:
            stack.serve(20)
            for router in stack.routers.values():
                assert router.http.post("/route", json={"model": "none", "token_ids": [1]}).status_code == 404
            seen = World(stack, prometheus, before, counted(stack))
            wait_until(lambda: is_scraped(seen), 30.0, lambda: (seen.after, prometheus.targets()))
            wait_until(lambda: is_evaluated(seen), 60.0, prometheus.rules)
            yield seen


def counted(stack: ObservedStack) -> dict[tuple[str, str], float]:
    return {
        (name, kind): router.metric(f"kvroute_{kind}_tokens_total{{")
        for name, router in stack.routers.items()
        for kind in TOKENS
    }


def is_scraped(world: World) -> bool:
    return all(
        [one.value for one in world.prometheus.query(f'kvroute_{kind}_tokens_total{{replica="{replica}"}}')] == [value]
        for (replica, kind), value in world.after.items()
    )


def is_evaluated(world: World) -> bool:
    """Whether every recording rule was evaluated after the traffic, those that read others too."""
    wanted = pytest.approx(world.grown("delivered") / world.grown("delivered_prompt"), rel=NEARLY)
    recorded = world.prometheus.query("job:kvroute_delivered_hits:ratio_rate5m")
    return [one.value for one in recorded] == [wanted] and world.prometheus.query(
        "instance:engine_hits:ratio_rate5m"
    ) != []


def test_every_target_of_the_settings_is_up(world: World) -> None:
    found = {(one["labels"]["job"], one["labels"]["instance"]): one["health"] for one in world.prometheus.targets()}
    wanted = {("kvroute", replica) for replica in REPLICAS} | {(face, name) for name, face in FACES.items()}
    assert found == dict.fromkeys(wanted, "up")


@pytest.mark.parametrize(("hits", "prompt"), [("reusable", "prompt"), ("delivered", "delivered_prompt")])
def test_a_hit_rate_is_what_the_router_counted(world: World, hits: str, prompt: str) -> None:
    for replica in REPLICAS:
        own = f'{{replica="{replica}"}}[5m]'
        rate = world.prometheus.value(
            f"rate(kvroute_{hits}_tokens_total{own}) / rate(kvroute_{prompt}_tokens_total{own})"
        )
        grown = {kind: world.after[replica, kind] - world.before[replica, kind] for kind in (hits, prompt)}
        assert grown[hits] > 0
        assert rate == pytest.approx(grown[hits] / grown[prompt], rel=1e-9)


@pytest.mark.parametrize(
    ("record", "hits", "prompt"), [("hits", "reusable", "prompt"), ("delivered_hits", "delivered", "delivered_prompt")]
)
def test_the_recorded_hit_rate_is_that_of_both_routers_together(
    world: World, record: str, hits: str, prompt: str
) -> None:
    wanted = [pytest.approx(world.grown(hits) / world.grown(prompt), rel=NEARLY)]
    for series in (f"job:kvroute_{record}:ratio_rate5m", f'model:kvroute_{record}:ratio_rate5m{{model="{MODEL}"}}'):
        world.prometheus.wait_for(series, lambda samples: [one.value for one in samples] == wanted)


def test_no_rule_fails_and_no_alert_fires(world: World) -> None:
    evaluated = world.prometheus.rules()
    names = {rule.get("record", rule.get("alert")) for rule in rules("recording.rules.yml") + rules("alerts.rules.yml")}
    assert {rule["name"] for rule in evaluated} == names
    assert [(rule["name"], rule["lastError"]) for rule in evaluated if rule["health"] != "ok"] == []
    assert [sample.labels for sample in world.prometheus.query('ALERTS{alertstate="firing"}')] == []


def test_an_engine_has_one_name_and_each_router_speaks_of_it(world: World) -> None:
    server = world.prometheus
    assert server.query('{exported_instance!=""}') == []
    for name in FACES:
        live = server.query(f'kvroute_worker_state{{instance="{name}", state="live"}}')
        assert {sample.labels["replica"] for sample in live} == REPLICAS
        joined = server.query(f'up{{instance="{name}"}} * on (instance) max by (instance) (kvroute_worker_state == 1)')
        assert [sample.value for sample in joined] == [1.0]


def test_what_both_routers_see_of_an_engine_is_counted_once(world: World) -> None:
    for name in FACES:
        held = world.stack.routers["router-0"].worker(name)["blocks"]["gpu"]
        assert held > 0
        series = f'instance_medium:kvroute_index_blocks:sum{{instance="{name}", medium="gpu"}}'
        world.prometheus.wait_for(series, lambda samples, held=held: [one.value for one in samples] == [held])  # type: ignore[misc]


def test_every_query_of_the_dashboard_shows_something(world: World) -> None:
    assert [fault for query in dashboard_queries() if (fault := fault_of(query, world.prometheus)) is not None] == []


def fault_of(query: Query, prometheus: PrometheusServer) -> str | None:
    samples = prometheus.query(query.expression)
    excused = any(panel == query.panel and metric in query.expression for panel, metric in MAY_BE_EMPTY)
    if not samples and not excused:
        return f"no data: {query}"
    if samples and excused:
        return f"has data, take it off the list: {query}"
    return f"not a number: {query}" if any(math.isnan(sample.value) for sample in samples) else None


def test_every_excuse_is_for_a_query_of_the_dashboard() -> None:
    queries = dashboard_queries()
    for panel, metric in MAY_BE_EMPTY:
        assert any(query.panel == panel and metric in query.expression for query in queries), (panel, metric)
