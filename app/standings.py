"""The eligible workers of a model kept from request to request, so that a request costs what changed since the last.

What is kept is what `app.candidates.rows_for` finds anew. It is found anew when an instance changed, when another
worker may be chosen now, and at times that are known beforehand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from math import inf

from app.candidates import Row, matched, row_of, rows_for, unknown_names
from app.fleet import Fleet, Target
from app.instance import Instance
from app.route_request import RouteRequest
from index.prompt import WorkerMatch
from index.worker import Worker
from router.candidate import Candidate
from router.load_guard import next_time
from router.route import Router
from router.standing import Standing

KEPT = 64
"""Ways to ask (model, candidates, exclude, selector, adapter) that are remembered; those used last."""
KEPT_NAMES = 256
"""Instances named in a request, above which its way is not remembered."""


class Standings:
    """The workers that requests may be sent to, by what the requests ask for."""

    def __init__(self, fleet: Fleet, router: Router) -> None:
        self._fleet = fleet
        self._router = router
        self._kept: OrderedDict[object, Eligible] = OrderedDict()

    def eligible(self, request: RouteRequest, target: Target, now: float) -> Eligible:
        """Those of the target that this request may be sent to now."""
        names = request.candidates
        selector = tuple(request.selector.items()) if request.selector else ()
        way = request.model, request.lora, request.lora_path, names, request.exclude, selector
        kept = self._kept.get(way)
        if kept is not None and kept.target is target:
            self._kept.move_to_end(way)
            kept.refresh(now)
            return kept
        kept = Eligible(request, target, self._fleet, self._router, now)
        if len(names or ()) + len(request.exclude) <= KEPT_NAMES:
            self._kept[way] = kept
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept


class Eligible:
    """The eligible workers of one target for one way to ask.

    `standing` is None when there are none. `unknown` is how many of the request's candidates name no instance.
    """

    def __init__(self, request: RouteRequest, target: Target, fleet: Fleet, router: Router, now: float) -> None:
        self.target = target
        self.standing: Standing | None = None
        self.unknown = len(unknown_names(request.candidates or (), target.instances))
        self._request = request._replace(tokens=None, prompt=None, messages=None)  # a prompt is not to be kept
        self._changes = fleet.changes
        self._router = router
        self._rows: dict[Worker, Row] = {}
        self._seen = 0
        self._found_at, self._until = inf, -inf
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Take over what changed until `now`."""
        if not self._found_at <= now < self._until:
            self._find(now)
        elif self._changes.count != self._seen:
            changed = self._changes.since(self._seen)
            self._seen = self._changes.count
            if changed is None or not all(self._takes_over(what, now) for what in set(changed)):
                self._find(now)

    def chosen(self, worker: Worker, match: WorkerMatch | None, *, reads_cache: bool) -> Candidate:
        """One of the eligible workers as a candidate for a prompt of which it holds `match`."""
        return matched(self._rows[worker], match, reads_cache=reads_cache)

    def instance(self, worker: Worker) -> Instance:
        """The instance of one of the eligible workers."""
        return self._rows[worker].instance

    def _find(self, now: float) -> None:
        self._seen, self._found_at = self._changes.count, now
        rows = rows_for(self._request, self.target, now)
        self._rows = {row.tracked.worker: row for row in rows}
        self._until = min((next_time(_times(row), now) for row in rows), default=inf)
        eligible = [row.candidate for row in rows if row.candidate.why is None]
        self.standing = self._router.standing(eligible) if eligible else None

    def _takes_over(self, what: Worker | str, now: float) -> bool:
        """False: who is eligible may have changed."""
        if isinstance(what, str):
            return not any(instance.id == what for instance in self.target.instances)
        row = self._rows.get(what)
        if row is None or row.barred:
            return True
        again = row_of(row.instance, row.tracked, None, now)
        if row.last or again.last or again.candidate.why != row.candidate.why:
            return False
        if next_time(_times(again), now) < self._until:
            return False
        self._rows[what] = again
        if again.candidate.why is None and self.standing is not None:
            self.standing.replace(again.candidate)
        return True


def _times(row: Row) -> Iterator[float]:
    """When the passing of time alone changes what the row says."""
    ejection = row.instance.ejection
    if ejection.times:
        yield ejection.until
        yield ejection.trial_until
