"""What the two engines' `/metrics` have in common: numbers of each rank, under names and labels of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from deploy.engine.latencies import Latencies
from deploy.engine.rank import Rank

Reading = Callable[[Rank], float]
Readings = Mapping[str, tuple[str, Reading]]
"""By the metric's name: its help text, and where its number comes from."""


def page(collector: Collector) -> bytes:
    """The page, with the process's own metrics first."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(collector)
    return generate_latest(registry)


def families(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    readings: Readings,
    ranks: Sequence[Rank],
    labels: Sequence[str],
    values: Callable[[Rank], Sequence[str]],
) -> Iterator[Metric]:
    """A family for each reading, with a sample for each rank; `values` are the rank's label values."""
    for name, (text, reading) in readings.items():
        family = kind(name, text, labels=labels)
        for rank in ranks:
            family.add_metric(values(rank), reading(rank))
        yield family


def histograms(
    prefix: str, ranks: Sequence[Rank], labels: Sequence[str], values: Callable[[Rank], Sequence[str]]
) -> Iterator[Metric]:
    """The durations that both engines have under equal names."""
    reads: dict[str, tuple[str, Callable[[Rank], Latencies]]] = {
        "time_to_first_token_seconds": ("From arrival to the first token.", lambda rank: rank.first_token_s),
        "e2e_request_latency_seconds": ("From arrival to the end.", lambda rank: rank.end_s),
    }
    for name, (text, reading) in reads.items():
        family = HistogramMetricFamily(f"{prefix}:{name}", text, labels=labels)
        for rank in ranks:
            one = reading(rank)
            family.add_metric(values(rank), buckets=one.cumulative(), sum_value=one.sum_s)
        yield family
