"""Faults of real processes raise their alerts. When these fire, after their time, promtool tests: alerts.test.yml."""

from __future__ import annotations

from tests.deploy.prometheus.observed_stack import MODEL, observed_stack, watched
from tests.support.cpu_engine import cpu_engine
from tests.support.prometheus_server import PrometheusServer

RAISED_S = 60.0
OWN = {"__name__", "alertname", "alertstate", "severity"}
"""Labels that every alert has."""


def raised(prometheus: PrometheusServer, alert: str, **labels: str) -> None:
    """Until the alert is pending with exactly these labels beside its name and severity."""

    def is_raised() -> bool:
        found = prometheus.query(f'ALERTS{{alertname="{alert}"}}')
        shown = [{name: text for name, text in one.labels.items() if name not in OWN} for one in found]
        return labels in shown

    prometheus.wait_for(f'ALERTS{{alertname="{alert}"}}', lambda _: is_raised(), RAISED_S)


def test_an_odd_engine_an_ill_store_and_a_dead_router_each_raise_their_alert() -> None:
    with observed_stack() as stack, watched(stack) as prometheus:
        stack.serve(6)
        with cpu_engine("vllm", hash_algorithm="sha256_cbor", hash_seed="42") as odd:
            settings = {"id": "odd", "engine": "vllm", "model": MODEL, "url": odd.url}
            stack.routers["router-0"].http.post("/instances", json=settings).raise_for_status()
            odd.complete(list(range(100, 200)))
            raised(prometheus, "KvrouteHashMismatch", instance="odd", dp_rank="0")
        stack.redis.kill()
        stack.serve(2)
        raised(prometheus, "KvrouteStateErrors", replica="router-0", op="append")
        stack.routers["router-1"].kill()
        raised(prometheus, "KvrouteRouterDown", job="kvroute", instance="router-1", replica="router-1")
        raised(prometheus, "KvrouteWorkerDown", instance="odd", dp_rank="0")
