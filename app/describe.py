"""How an instance looks from outside: the answer of `GET /instances/{id}`."""

from __future__ import annotations

import time

from app.availability import State, verdict, worker_verdict
from app.candidates import trust_of
from app.instance import Instance, TrackedWorker
from app.instance_advice import stream_advice_of, warning_of
from engine.identity import HashReport
from index.block_hash import HashIdentity
from index.index import Index

BROKEN = "every batch of its event stream was unusable: see wire_errors; is this engine's release supported?"

SILENT = "cannot answer: is it running?"

MIXED = (
    "requests with an adapter or an extra_key were sent here, and the events do not tell their blocks from others: "
    'set "format": "dynamo" in --kv-events-config (SGLang 0.5.22 or later)'
)

UNREACHED = "was never reached, neither at its url nor with events: is the url right?"

UNCERTAIN = "what it holds counts for nothing until its event stream is heard again"


def describe(instance: Instance, index: Index) -> dict[str, object]:
    """One instance with its workers. Every value is JSON; None is null."""
    own, now = instance.settings, time.monotonic()
    judged = verdict(instance, now)
    return {
        "id": own.id,
        "engine": own.engine.value,
        "version": instance.facts.version,
        "model": own.model,
        "adapters": dict(instance.adapters),
        "url": own.url,
        "labels": own.labels,
        "weight": own.weight,
        "draining": instance.draining,
        "reachable": instance.reachable,
        "state": judged.state.value,
        "since": _elapsed(judged.since, now),
        "why": judged.why,
        "unauthorized": instance.facts.unauthorized,
        "warning": warning_of(instance),
        "workers": [_worker(instance, tracked, index, now) for tracked in instance.workers.values()],
    }


def advice_for(instance: Instance, tracked: TrackedWorker, now: float) -> str | None:
    """What to change, in words; None when nothing is wrong."""
    judged = worker_verdict(instance, tracked, now)
    if judged.state in (State.DOWN, State.STARTING):
        return f"{SILENT} ({judged.why})"
    if instance.unusable is not None:
        return instance.unusable
    if tracked.broken:
        return BROKEN
    if tracked.uncertain and not tracked.link_up:
        return UNCERTAIN
    given = tracked.advice or tracked.hash.advice or tracked.stream_advice
    if given is None and tracked.mixes_namespaces and instance.sends_unmarked:
        return MIXED
    unasked = instance.reachable is False or (instance.tried and not instance.reachable)
    if given is None and unasked and judged.state is State.CONNECTING:
        return UNREACHED
    return given or stream_advice_of(instance, tracked, now) or warning_of(instance)


def _worker(instance: Instance, tracked: TrackedWorker, index: Index, now: float) -> dict[str, object]:
    worker = tracked.worker
    gpu, cpu, disk, other = index.counts(worker)
    judged = worker_verdict(instance, tracked, now)
    return {
        "dp_rank": worker.dp_rank,
        "engine_rank": instance.facts.own_rank(worker.dp_rank),
        "state": judged.state.value,
        "since": _elapsed(judged.since, now),
        "why": judged.why,
        "events": None if tracked.stream is None else tracked.stream[0],
        "trust": trust_of(instance, tracked).value,
        "block_size": index.block_size(worker) or instance.settings.block_size or instance.facts.block_size,
        "seq": tracked.seq,
        "lag_s": None if tracked.lag_s is None else round(tracked.lag_s, 3),
        "blocks": {"gpu": gpu, "cpu": cpu, "disk": disk, "other": other},
        "hash": _hash(tracked.hash),
        "hash_policy": None if tracked.hash.status == "none" else "enforce" if tracked.enforced else "translate",
        "advice": advice_for(instance, tracked, now),
        "gaps": tracked.gaps,
        "replayed_batches": tracked.replayed_batches,
        "resets": dict(tracked.resets),
        "wire_errors": dict(tracked.wire_errors),
        "parked": index.parked(worker),
        "asleep": tracked.asleep,
    }


def _elapsed(since: float, now: float) -> float | None:
    """Seconds; None for what never began."""
    return round(max(0.0, now - since), 3) if since else None


def _hash(report: HashReport) -> dict[str, object]:
    identity = report.identity
    return {
        "status": report.status,
        "algorithm": identity.algorithm if identity else None,
        "seed": _seed(identity),
        "expected": _identity(report.expected),
        "advice": report.advice,
    }


def _identity(identity: HashIdentity | None) -> dict[str, object] | None:
    return None if identity is None else {"algorithm": identity.algorithm, "seed": _seed(identity)}


def _seed(identity: HashIdentity | None) -> str | None:
    """The PYTHONHASHSEED text; "none" for an engine that runs without it (its fixed default text)."""
    return None if identity is None else "none" if identity.seed is None else identity.seed
