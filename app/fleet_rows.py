"""The fleet's state as gauges, read when Prometheus asks: a series lives exactly as long as its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.availability import State
from index.worker import Medium, Trust, Worker

_WORKER = ("instance", "dp_rank")


class WorkerRow(NamedTuple):
    """One worker at this moment. `blocks`: by medium (gpu, cpu, disk, other). `lag_s`: None before any live batch.

    `draining` is its instance's.
    """

    worker: Worker
    state: State
    trust: Trust
    hash_mismatch: bool
    blocks: tuple[int, int, int, int]
    lag_s: float | None
    parked: int
    block_size_differs: bool
    draining: bool = False


class FleetRows(NamedTuple):
    """All workers at this moment, the states of instances by id, and the index's memory (estimated bytes)."""

    workers: Sequence[WorkerRow]
    states: Mapping[str, State]
    index_bytes: int


class FleetCollector(Collector):
    """Turns rows into gauges at every scrape."""

    def __init__(self, rows: Callable[[], FleetRows]) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Metric]:
        """All gauges of the fleet."""
        rows = self._rows()
        yield from _states(rows.workers)
        yield from _contents(rows.workers)
        yield from _instances(rows.workers)
        yield _instance_states(rows.states)
        yield GaugeMetricFamily("kvroute_index_bytes", "Memory of the index, estimated", value=rows.index_bytes)


def _states(rows: Sequence[WorkerRow]) -> Iterable[Metric]:
    state = _gauge("worker_state", "1 for the worker's state", *_WORKER, "state")
    trust = _gauge("worker_trust", "1 for the worker's trust", *_WORKER, "trust")
    mismatch = _gauge("hash_mismatch", "1 while the worker's hash identity is not the expected one", *_WORKER)
    for row in rows:
        names = _names(row.worker)
        for name in State:
            state.add_metric([*names, name.value], float(row.state is name))
        for degree in Trust:
            trust.add_metric([*names, degree.value], float(row.trust is degree))
        mismatch.add_metric(names, float(row.hash_mismatch))
    return state, trust, mismatch


def _instance_states(states: Mapping[str, State]) -> Metric:
    gauge = _gauge("instance_state", "1 for the instance's state", "instance", "state")
    for instance, state in states.items():
        for name in State:
            gauge.add_metric([instance, name.value], float(state is name))
    return gauge


def _contents(rows: Sequence[WorkerRow]) -> Iterable[Metric]:
    blocks = _gauge("index_blocks", "Blocks or pages held", *_WORKER, "medium")
    lag = _gauge(
        "event_lag_seconds", "Age of the newest live batch when it was applied, by the engine's clock", *_WORKER
    )
    parked = _gauge("worker_parked", "Blocks waiting for a parent that was never announced", *_WORKER)
    for row in rows:
        names = _names(row.worker)
        for medium in Medium:
            blocks.add_metric([*names, medium.name.lower()], row.blocks[medium])
        if row.lag_s is not None:
            lag.add_metric(names, row.lag_s)
        parked.add_metric(names, row.parked)
    return blocks, lag, parked


def _instances(rows: Sequence[WorkerRow]) -> Iterable[Metric]:
    """By instance, which has what any of its ranks has."""
    differs = _gauge("block_size_mismatch", "1 when events show another block size than the settings", "instance")
    draining = _gauge("instance_draining", "1 while the instance gets no new requests on purpose", "instance")
    for gauge, marked in (
        (differs, {row.worker.instance for row in rows if row.block_size_differs}),
        (draining, {row.worker.instance for row in rows if row.draining}),
    ):
        for name in dict.fromkeys(row.worker.instance for row in rows):
            gauge.add_metric([name], float(name in marked))
    return differs, draining


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kvroute_{name}", about, labels=labels)


def _names(worker: Worker) -> list[str]:
    return [worker.instance, str(worker.dp_rank)]
