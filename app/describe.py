"""How an instance looks from outside: the answer of `GET /instances/{id}`."""

from __future__ import annotations

import time

from app.candidates import trust_of
from app.instance import Instance, TrackedWorker, WorkerState
from app.instance_advice import stream_advice_of, warning_of
from engine.identity import HashReport
from index.block_hash import HashIdentity
from index.index import Index

BROKEN = "every batch of its event stream was unusable: see wire_errors; is this engine's release supported?"

SILENT = "does not answer, neither at its url nor with events: is it running?"

UNREACHED = "was never reached, neither at its url nor with events: is the url right?"

UNCERTAIN = "what it holds counts for nothing until its event stream is heard again"


def describe(instance: Instance, index: Index) -> dict[str, object]:
    """One instance with its workers. Every value is JSON; None is null."""
    own, now = instance.settings, time.monotonic()
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
        "state": instance.state(now).value,
        "unauthorized": instance.facts.unauthorized,
        "warning": warning_of(instance),
        "workers": [_worker(instance, tracked, index, now) for tracked in instance.workers.values()],
    }


def advice_for(instance: Instance, tracked: TrackedWorker, now: float) -> str | None:
    """What to change, in words; None when nothing is wrong."""
    if instance.state_of(tracked, now) is WorkerState.GONE:
        return SILENT
    if instance.unusable is not None:
        return instance.unusable
    if tracked.broken:
        return BROKEN
    if tracked.uncertain(now):
        return UNCERTAIN
    given = tracked.advice or tracked.hash.advice or tracked.stream_advice
    unasked = instance.reachable is False or (instance.tried and not instance.reachable)
    if given is None and unasked and instance.state_of(tracked, now) is WorkerState.CONNECTING:
        return UNREACHED
    return given or stream_advice_of(instance, tracked, now) or warning_of(instance)


def _worker(instance: Instance, tracked: TrackedWorker, index: Index, now: float) -> dict[str, object]:
    worker = tracked.worker
    gpu, cpu, disk, other = index.counts(worker)
    return {
        "dp_rank": worker.dp_rank,
        "engine_rank": instance.facts.own_rank(worker.dp_rank),
        "state": instance.state_of(tracked, now).value,
        "events": None if tracked.stream is None else tracked.stream[0],
        "trust": trust_of(instance, tracked, now).value,
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
