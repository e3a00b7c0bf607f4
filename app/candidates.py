"""From the fleet to candidates: every worker of a model with its match, load, trust, and why it may not be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import NamedTuple

from app.addresses import address_key
from app.availability import Choice, State, Verdict, worker_verdict
from app.fleet import Target
from app.instance import Instance, TrackedWorker
from app.route_request import RouteRequest
from app.serving_names import why_not_served
from index.prompt import WorkerMatch
from index.worker import Trust, Worker
from router.candidate import UNKNOWN_LOAD, Candidate, WorkerLoad

NOTHING = (0, 0, 0, 0)


class Row(NamedTuple):
    """One worker of a model, and the candidate it would be for a prompt of which it holds nothing.

    `verdict` is the worker's; `barred`: the request keeps its instance from being chosen, whatever the verdict.
    """

    instance: Instance
    tracked: TrackedWorker
    candidate: Candidate
    verdict: Verdict
    barred: bool

    @property
    def last(self) -> bool:
        """Whether it may be chosen only when no other can be."""
        return self.verdict.choice in (Choice.LAST, Choice.LEAST)


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
        matched(row, matches.get(row.tracked.worker), reads_cache=request.reads_cache) if matches else row.candidate
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
    return _last_resorts(rows) if any(row.last for row in rows) else rows


def row_of(instance: Instance, tracked: TrackedWorker, why: str | None, now: float) -> Row:
    """A worker's row; `why` its instance may not be chosen."""
    judged = worker_verdict(instance, tracked, now)
    candidate = Candidate(
        worker=tracked.worker,
        url=instance.settings.url,
        weight=instance.settings.weight,
        matched=0,
        reusable=0,
        by_medium=NOTHING,
        trust=trust_of(instance, tracked),
        load=load_of(tracked),
        why=why or (in_words(judged) if judged.choice is Choice.NEVER else None),
    )
    return Row(instance, tracked, candidate, judged, why is not None)


def matched(row: Row, match: WorkerMatch | None, *, reads_cache: bool) -> Candidate:
    """The row's candidate for a prompt of which its worker holds `match`."""
    if match is None or row.tracked.uncertain:
        return row.candidate
    reusable = match.reusable if reads_cache else 0
    return row.candidate._replace(matched=match.matched, reusable=reusable, by_medium=match.by_medium)


def _last_resorts(rows: list[Row]) -> list[Row]:
    """An engine that perhaps cannot answer may be chosen, but only while no other can be."""
    best = min((row.verdict.choice for row in rows if row.candidate.why is None), default=Choice.NEVER)
    return [
        row._replace(candidate=row.candidate._replace(why=row.candidate.why or in_words(row.verdict)))
        if row.verdict.choice > best
        else row
        for row in rows
    ]


def in_words(judged: Verdict) -> str:
    """Why somebody with this verdict is not chosen."""
    if judged.why is None or judged.why.startswith(judged.state.value):
        return judged.why or judged.state.value
    return f"{judged.state.value}: {judged.why}"


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


def judgement(instance: Instance, rank: int) -> Verdict | None:
    """What is to be said of a worker at this moment; None: the rank is gone."""
    tracked = instance.workers.get(rank)
    return None if tracked is None else worker_verdict(instance, tracked, monotonic())


def remark(judged: Verdict) -> str | None:
    """What is to be said of a worker although it may be chosen; None when nothing is."""
    return None if judged.state in (State.LIVE, State.CONNECTING) else in_words(judged)


def trust_of(instance: Instance, tracked: TrackedWorker) -> Trust:
    """None while nothing usable comes or what is held does not count; partial while something may be missing.

    Partial, too, where the engine's default format hides adapters or extra_keys.
    """
    if tracked.broken or instance.unusable is not None or tracked.uncertain:
        return Trust.NONE
    if tracked.trust is Trust.EXACT and (tracked.behind or _hides_namespaces(instance, tracked)):
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
    if wanted.only is not None and instance.id not in wanted.only:
        return "not among the request's candidates"
    if instance.id in wanted.exclude:
        return "excluded by the request"
    if any(instance.settings.labels.get(key) != value for key, value in wanted.selector.items()):
        return "its labels do not match the request's selector"
    return why_not_served(instance, wanted.target.asked, wanted.lora, wanted.target.instances)


def _hides_namespaces(instance: Instance, tracked: TrackedWorker) -> bool:
    """Whether the worker's blocks may be of adapters or extra_keys that its events do not show."""
    told_so = bool(instance.adapters) and instance.facts.dynamo_format is False
    return instance.sends_unmarked and (told_so or tracked.mixes_namespaces)
