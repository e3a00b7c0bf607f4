"""Every metric of the process, in a registry of its own. What each one means stands in docs/metrics.md.

Labels hold instance ids, configured base models and words of our own, never text from a request or from the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from app.fleet_rows import FleetCollector, FleetRows
from app.route_tally import RouteTally
from index.worker import Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counts what happens. Gauges of the fleet's state are not kept here but asked for at each scrape (`watch`)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._labelled: list[Counter] = []
        self._worker_series: dict[tuple[object, ...], Counter] = {}
        self._requests()
        self._deliveries()
        self._events()
        self.state_errors = self._counter("state_errors_total", "Failed operations of the state store", "op")
        self.state_writes = self._counter("state_writes_total", "Batches written to the state store")
        self.state_lag = Gauge(
            "kvroute_state_lag_batches", "Batches waiting for the state store", registry=self.registry
        )

    def watch(self, rows: Callable[[], FleetRows]) -> None:
        """Ask `rows` for the fleet's state at every scrape. To be called once."""
        self.registry.register(FleetCollector(rows))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format, CONTENT_TYPE."""
        return generate_latest(self.registry)

    def routed(self, model: str, reason: str, tokens: tuple[int, int, int] | None) -> None:
        """A decision for a configured base model. `tokens`: (prompt, matched, reusable); None: text not tokenised."""
        self._route_tally.routed(model, reason, tokens)

    def route_took(self, seconds: float) -> None:
        """The time from a request's arrival to its answer."""
        self._route_tally.took(seconds)

    def route_failed(self, status: int) -> None:
        """A routing request was answered with an error."""
        self._route_errors.labels(str(status)).inc()

    def tokenise_failed(self, model: str, kind: str) -> None:
        """Text of a configured base model could not be tokenised and is routed by load."""
        self._tokenise_failures.labels(model, kind).inc()

    def unknown_candidates(self, count: int) -> None:
        """Candidates of a request that name no instance."""
        self._unknown_candidates.inc(count)

    def delivered(self, model: str, instance: str, prompt: int, cached: int, predicted: int | None) -> None:
        """An engine's report: `cached` of `prompt` tokens came from its cache, where `predicted` were promised."""
        self._delivered.labels(model).inc(cached)
        self._delivered_prompt.labels(model).inc(prompt)
        if predicted is not None:
            self._promised.labels(instance).inc(predicted)
            self._undelivered.labels(instance).inc(max(0, predicted - cached))
            self._unpredicted.labels(instance).inc(max(0, cached - predicted))

    def ejected(self, instance: str, reason: str) -> None:
        """An instance is left out for a while, for what gateways reported."""
        self._ejections.labels(instance, reason).inc()

    def follow(self, worker: Worker) -> None:
        """A worker's counters begin at 0: one that appears with its first count never seems to grow."""
        for counter in (self._batches, self._replayed, self._gaps, self._missing):
            counter.labels(*_names(worker))
        self._resets.labels(*_names(worker), "gap")

    def batches(self, worker: Worker, count: int, replayed: bool) -> None:
        """Event batches were taken in."""
        self._of_worker(self._batches, worker).inc(count)
        if replayed:
            self._of_worker(self._replayed, worker).inc(count)

    def events(self, worker: Worker, counts: Mapping[str, int]) -> None:
        """Events of a batch were applied, by type."""
        for kind, count in counts.items():
            self._of_worker(self._applied, worker, kind).inc(count)

    def skipped(self, worker: Worker, reason: str, count: int = 1) -> None:
        """Events could not be used, or had nothing to say to the index."""
        self._skipped.labels(worker.instance, reason).inc(count)

    def verified(self, worker: Worker, matched: int, mismatched: int, unchecked: int) -> None:
        """Stored blocks were checked against their tokens. All three series appear with the first."""
        for outcome, count in (("match", matched), ("mismatch", mismatched), ("unchecked", unchecked)):
            self._of_worker(self._verified, worker, outcome).inc(count)

    def gap(self, worker: Worker, missing: int) -> None:
        """Sequence numbers were missing, whether or not replay fills them."""
        self._gaps.labels(*_names(worker)).inc()
        self._missing.labels(*_names(worker)).inc(missing)

    def wire_error(self, worker: Worker, reason: str) -> None:
        """A frame or a payload could not be used."""
        self._wire_errors.labels(worker.instance, reason).inc()

    def reset(self, worker: Worker, reason: str) -> None:
        """The worker's index was emptied."""
        self._resets.labels(*_names(worker), reason).inc()

    def forget_instance(self, instance: str) -> None:
        """Drop all series of a removed instance. What is counted for it afterwards would show again."""
        self._forget("instance", instance)

    def forget_model(self, model: str) -> None:
        """Drop all series of a base model that no instance is configured for any more."""
        self._forget("model", model)
        self._route_tally.forget_model(model)

    def _requests(self) -> None:
        self._route_tally = RouteTally(_SECONDS)
        self.registry.register(self._route_tally)
        self._route_errors = self._counter("route_errors_total", "Routing requests answered with an error", "status")
        self._tokenise_failures = self._counter(
            "tokenise_failures_total", "Texts that could not be tokenised", "model", "kind"
        )
        self._unknown_candidates = self._counter("unknown_candidates_total", "Candidates that name no instance")

    def _deliveries(self) -> None:
        self._delivered = self._counter("delivered_tokens_total", "Tokens engines took from their cache", "model")
        self._delivered_prompt = self._counter(
            "delivered_prompt_tokens_total", "Prompt tokens of requests with such a report", "model"
        )
        self._promised = self._counter(
            "promised_tokens_total", "Tokens promised in requests with such a report", "instance"
        )
        self._undelivered = self._counter(
            "undelivered_tokens_total", "Tokens promised that the engine computed after all", "instance"
        )
        self._unpredicted = self._counter(
            "unpredicted_tokens_total", "Tokens the engine had that were not promised", "instance"
        )

        self._ejections = self._counter(
            "ejections_total",
            "Times an instance was left out for failures that gateways reported",
            "instance",
            "reason",
        )

    def _events(self) -> None:
        worker = ("instance", "dp_rank")
        self._applied = self._counter("events_total", "Events applied", *worker, "type")
        self._batches = self._counter("event_batches_total", "Event batches taken in", *worker)
        self._replayed = self._counter("event_replayed_batches_total", "Event batches taken from replay", *worker)
        self._gaps = self._counter("event_gaps_total", "Gaps in sequence numbers", *worker)
        self._missing = self._counter("event_missing_batches_total", "Batches missing in gaps when seen", *worker)
        self._skipped = self._counter("events_skipped_total", "Single events not applied", "instance", "reason")
        self._verified = self._counter(
            "blocks_verified_total", "Stored blocks checked against their tokens", *worker, "outcome"
        )
        self._wire_errors = self._counter("event_wire_errors_total", "Unusable messages", "instance", "reason")
        self._resets = self._counter("worker_resets_total", "Times a worker's index was emptied", *worker, "reason")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        counter = Counter(f"kvroute_{name}", about, labels, registry=self.registry)
        if labels:
            self._labelled.append(counter)
        return counter

    def _of_worker(self, counter: Counter, worker: Worker, *further: str) -> Counter:
        """A worker's series, looked up by its labels once: every batch counts here."""
        key = (counter, worker, *further)
        series = self._worker_series.get(key)
        if series is None:
            series = self._worker_series[key] = counter.labels(*_names(worker), *further)
        return series

    def _forget(self, label: str, value: str) -> None:
        self._worker_series.clear()
        for counter in self._labelled:
            if label in counter._labelnames:
                counter.remove_by_labels({label: value})


def _names(worker: Worker) -> tuple[str, str]:
    return worker.instance, str(worker.dp_rank)
