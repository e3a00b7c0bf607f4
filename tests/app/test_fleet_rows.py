"""Gauges of the running service's fleet: how late events come, who drains; and what engines report on promises."""

from __future__ import annotations

import time

from tests.support.fleet import fleet, instance, two_instances
from tests.support.publisher import Publisher, batch
from tests.support.service import serving, wait_until

HOUR_S = 3600.0
LAG = 'kvroute_event_lag_seconds{dp_rank="0",instance="a"}'


def test_a_replayed_batch_is_old_but_not_late() -> None:
    with Publisher() as publisher:
        publisher.publish(batch(time.time() - HOUR_S))
        with serving(fleet(instance("a", publisher))) as run:
            run.wait_for_seq("a", 0)
            assert run.worker("a")["lag_s"] is None
            assert LAG not in run.http.get("/metrics").text
            publisher.wait_for_subscriber()
            publisher.publish(batch(time.time() - 30.0))
            run.wait_for_seq("a", 1)
            assert 30.0 <= run.metric(LAG) < 60.0
            assert run.worker("a")["lag_s"] >= 30.0


def test_a_draining_instance_is_marked_until_it_is_back() -> None:
    with two_instances() as (run, *_):
        marks = [run.metric(f'kvroute_instance_draining{{instance="{name}"}}') for name in "ab"]
        run.http.post("/instances/a/drain").raise_for_status()
        marks += [run.metric(f'kvroute_instance_draining{{instance="{name}"}}') for name in "ab"]
        run.http.post("/instances/a/undrain").raise_for_status()
        marks += [run.metric(f'kvroute_instance_draining{{instance="{name}"}}') for name in "ab"]
        assert marks == [0, 0, 1, 0, 0, 0]


def test_promised_tokens_are_those_of_requests_that_were_reported_on() -> None:
    with two_instances() as (run, *_):
        wait_until(lambda: run.http.get("/readyz").status_code == 200, 10.0)
        asked = [run.route([1, 2, 3], model="m") for _ in range(2)]
        assert "kvroute_promised_tokens_total{" not in run.http.get("/metrics").text
        report = {"cached_tokens": 2, "prompt_tokens": 3}
        run.http.post(f"/requests/{asked[0]['request_id']}/finished", json=report).raise_for_status()
        chosen = asked[0]["instance"]
        assert f'kvroute_promised_tokens_total{{instance="{chosen}"}} 0.0' in run.http.get("/metrics").text
        assert run.metric(f'kvroute_unpredicted_tokens_total{{instance="{chosen}"}}') == 2


def test_counters_of_a_worker_begin_at_zero_and_vanish_with_it() -> None:
    counters = ("event_batches", "event_replayed_batches", "event_gaps", "event_missing_batches")
    with two_instances() as (run, *_):
        begun = [f'kvroute_{name}_total{{dp_rank="0",instance="a"}} 0.0' for name in counters]
        begun.append('kvroute_worker_resets_total{dp_rank="0",instance="a",reason="gap"} 0.0')
        assert set(begun) <= set(run.http.get("/metrics").text.splitlines())
        run.http.delete("/instances/a").raise_for_status()
        assert 'instance="a"' not in run.http.get("/metrics").text
