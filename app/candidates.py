"""From the fleet to candidates: every worker of a model with its match, load, trust, and why it may not be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from app.addresses import address_key
from app.fleet import Target
from app.instance import Instance, TrackedWorker, WorkerState
from app.route_request import RouteRequest
from app.serving_names import why_not_served
from index.prompt import WorkerMatch
from index.worker import EngineKind, Trust, Worker
from router.candidate import UNKNOWN_LOAD, Candidate, WorkerLoad

NOTHING = (0, 0, 0, 0)


class Row(NamedTuple):
    """One worker of a model, and the candidate it would be for a prompt of which it holds nothing.

    `barred`: its instance may not be chosen, whatever the worker's own state.
    """

    instance: Instance
    tracked: TrackedWorker
    candidate: Candidate
    never_reached: bool
    barred: bool


class _Wanted(NamedTuple):
    """What a request narrows the fleet to: sets of instance ids, labels, the adapter named besides the model."""

    only: set[str] | None
    exclude: set[str]
    selector: Mapping[str, str]
    lora: str | None
    target: Target


def candidates_for(
    request: RouteRequest, target: Target, matches: Mapping[Worker, WorkerMatch], now: float
) -> list[Candidate]:
    """All workers of the target, eligible or not. `now` is the loop's monotonic clock in seconds."""
    rows = rows_for(request, target, now)
    return [
        matched(row, matches.get(row.tracked.worker), now, reads_cache=request.reads_cache)
        if matches
        else row.candidate
        for row in rows
    ]


def rows_for(request: RouteRequest, target: Target, now: float) -> list[Row]:
    """All workers of the target, and who of them may be chosen for such a request."""
    wanted = _Wanted(
        None if request.candidates is None else named(request.candidates, target.instances),
        named(request.exclude, target.instances),
        request.selector,
        request.lora,
        target,
    )
    rows = []
    for instance in target.instances:
        why = _why_not(instance, wanted)
        rows += [row_of(instance, tracked, why, now) for tracked in instance.workers.values()]
    return _reached_first(rows) if any(row.never_reached for row in rows) else rows


def row_of(instance: Instance, tracked: TrackedWorker, why: str | None, now: float) -> Row:
    """A worker's row; `why` its instance may not be chosen."""
    state = instance.state_of(tracked, now)
    candidate = Candidate(
        worker=tracked.worker,
        url=instance.settings.url,
        weight=instance.settings.weight,
        matched=0,
        reusable=0,
        by_medium=NOTHING,
        trust=trust_of(instance, tracked, now),
        load=load_of(tracked),
        why=why or _why_not_worker(tracked, state),
    )
    never_reached = state is WorkerState.CONNECTING and instance.reachable is False
    return Row(instance, tracked, candidate, never_reached, why is not None)


def matched(row: Row, match: WorkerMatch | None, now: float, *, reads_cache: bool) -> Candidate:
    """The row's candidate for a prompt of which its worker holds `match`."""
    if match is None or row.tracked.uncertain(now):
        return row.candidate
    reusable = match.reusable if reads_cache else 0
    return row.candidate._replace(matched=match.matched, reusable=reusable, by_medium=match.by_medium)


def _reached_first(rows: list[Row]) -> list[Row]:
    """An instance that was never reached may be chosen, but only while no other can be."""
    if all(row.candidate.why is not None or row.never_reached for row in rows):
        return rows
    why = "not reached yet, neither its event stream nor its HTTP port"
    return [
        row._replace(candidate=row.candidate._replace(why=row.candidate.why or why)) if row.never_reached else row
        for row in rows
    ]


def named(names: Iterable[str], instances: Iterable[Instance]) -> set[str]:
    """The ids of the instances that are named, by id or by url (with or without scheme and trailing slash)."""
    ids = set(names)
    known = list(instances)
    found = {one.id for one in known if one.id in ids}
    if len(found) < len(ids):
        addresses = {key for name in ids - found if (key := address_key(name)) is not None}
        found |= {one.id for one in known if address_key(one.settings.url) in addresses}
    return found


def unknown_names(names: Iterable[str], instances: Iterable[Instance]) -> list[str]:
    """Those names that fit no instance, by id or by url."""
    known = list(instances)
    ids = {one.id for one in known}
    rest = [name for name in names if name not in ids]
    addresses = {address_key(one.settings.url) for one in known} if rest else set()
    return [name for name in rest if address_key(name) not in addresses]


def remark(instance: Instance, rank: int) -> str | None:
    """What is to be said of a worker although it may be chosen; None when nothing is."""
    tracked = instance.workers.get(rank)
    refused = instance.unusable is not None or (tracked is not None and tracked.refused)
    return "refused: its events are not used, it gets requests by load alone" if refused else None


def trust_of(instance: Instance, tracked: TrackedWorker, now: float) -> Trust:
    """Partial where the engine's default format hides adapters or extra_keys; none while nothing usable comes."""
    if tracked.broken or instance.unusable is not None or tracked.uncertain(now):
        return Trust.NONE
    if tracked.trust is Trust.EXACT and instance.settings.engine is EngineKind.SGLANG:
        dynamo = instance.facts.dynamo_format
        if (instance.adapters and dynamo is False) or (tracked.mixes_namespaces and dynamo is not True):
            return Trust.PARTIAL
    return tracked.trust


def load_of(tracked: TrackedWorker) -> WorkerLoad:
    """The engine's last report."""
    load = tracked.load
    if load is None:
        return UNKNOWN_LOAD
    return WorkerLoad(load.running, load.waiting, load.kv_usage, tracked.load_at)


def _why_not(instance: Instance, wanted: _Wanted) -> str | None:
    """Why an instance gets nothing, in words; None when it may."""
    if instance.draining:
        return "draining"
    if wanted.only is not None and instance.id not in wanted.only:
        return "not among the request's candidates"
    if instance.id in wanted.exclude:
        return "excluded by the request"
    if any(instance.settings.labels.get(key) != value for key, value in wanted.selector.items()):
        return "its labels do not match the request's selector"
    return why_not_served(instance, wanted.target.asked, wanted.lora, wanted.target.instances)


def _why_not_worker(tracked: TrackedWorker, state: WorkerState) -> str | None:
    if state is WorkerState.GONE:
        return "gone: neither its event stream nor its HTTP port answers"
    return "asleep" if tracked.asleep else None
