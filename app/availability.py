"""The one place that judges whether an engine may be chosen: its state, the reason, and what that means for a request.

Documented as a state machine in docs/operations.md.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from app.contact import Condition

if TYPE_CHECKING:
    from app.instance import Instance, TrackedWorker


class State(StrEnum):
    """Of an instance and of each of its workers, as `GET /instances` shows it."""

    CONNECTING = "connecting"
    LIVE = "live"
    SUSPECT = "suspect"
    DOWN = "down"
    EJECTED = "ejected"
    STARTING = "starting"
    ASLEEP = "asleep"
    DRAINING = "draining"
    REFUSED = "refused"


class Choice(IntEnum):
    """Whether requests may be sent there.

    LAST: only when no other engine can be chosen; LEAST: nor any of these.
    """

    YES = 0
    LAST = 1
    LEAST = 2
    NEVER = 3


class Verdict(NamedTuple):
    """State, why, since when (seconds of the loop's clock), and what it means for a request."""

    state: State
    why: str | None
    since: float
    choice: Choice


def verdict(instance: Instance, now: float) -> Verdict:
    """An instance's. What keeps all requests away comes first, then what keeps its index from being used."""
    by_ranks = _by_ranks(instance)
    if instance.contact.condition is Condition.UNTRIED and by_ranks is not None and by_ranks.state is State.REFUSED:
        return by_ranks  # what it is, although it was never asked
    return (
        _by_contact(instance)
        or _by_decision(instance, now)
        or by_ranks
        or Verdict(State.LIVE, None, instance.contact.since, Choice.YES)
    )


def worker_verdict(instance: Instance, tracked: TrackedWorker, now: float) -> Verdict:
    """A rank's: its instance's, where that concerns all ranks, else its own."""
    never_reached = instance.contact.condition is Condition.UNTRIED
    common = (None if never_reached else _by_contact(instance)) or _by_decision(instance, now)
    own = common or _of_rank(instance, tracked) or Verdict(State.LIVE, None, instance.contact.since, Choice.YES)
    if not never_reached or own.choice is not Choice.YES or instance.contact.why is None:
        return own
    if tracked.link_up:
        return own._replace(why=_untried(instance).why, choice=Choice.LAST)
    why = "not reached yet, neither its event stream nor its HTTP port"
    return own._replace(state=State.CONNECTING, why=why, choice=Choice.LEAST)


def _by_contact(instance: Instance) -> Verdict | None:
    contact = instance.contact
    match contact.condition:
        case Condition.UNTRIED:
            return _untried(instance)
        case Condition.DOWN:
            return Verdict(State.DOWN, contact.why, contact.since, Choice.NEVER)
        case Condition.STARTING:
            return Verdict(State.STARTING, contact.why, contact.since, Choice.NEVER)
        case Condition.DOUBTED | Condition.UNWELCOME if not instance.draining:
            return Verdict(State.SUSPECT, contact.why, contact.since, Choice.LAST)
    return None


def _untried(instance: Instance) -> Verdict:
    """Nobody knows yet. Once a question was refused or not answered, others go first."""
    why = instance.contact.why
    if why is None:
        return Verdict(State.CONNECTING, "not asked yet", instance.contact.since, Choice.YES)
    return Verdict(State.CONNECTING, f"not reached over HTTP yet: {why}", instance.contact.since, Choice.LAST)


def _by_decision(instance: Instance, now: float) -> Verdict | None:
    """What an operator or the gateways' reports decided."""
    if instance.draining:
        return Verdict(State.DRAINING, "draining", instance.draining_since, Choice.NEVER)
    ejection = instance.ejection
    if ejection.times:
        if ejection.bars(now):
            return Verdict(State.EJECTED, ejection.why, ejection.at, Choice.LAST)
        return Verdict(State.EJECTED, f"{ejection.why}; the next request is a trial", ejection.at, Choice.YES)
    return None


def _by_ranks(instance: Instance) -> Verdict | None:
    """What its ranks come to: one that is refused or cut off is said of the whole, sleep only when all sleep."""
    ranks = [_of_rank(instance, tracked) for tracked in instance.workers.values()]
    found = [rank for rank in ranks if rank is not None]
    for state in (State.REFUSED, State.SUSPECT, State.CONNECTING):
        some = [rank for rank in found if rank.state is state]
        if some and (state is not State.CONNECTING or len(some) == len(ranks)):
            return some[0]
    asleep = [rank for rank in found if rank.state is State.ASLEEP]
    return asleep[0] if asleep and len(asleep) == len(ranks) else None


def _of_rank(instance: Instance, tracked: TrackedWorker) -> Verdict | None:
    """What is to be said of a rank of an instance that answers; None: nothing."""
    if tracked.asleep:
        return Verdict(State.ASLEEP, "asleep", tracked.asleep_since, Choice.NEVER)
    if tracked.refused or instance.unusable is not None:
        told = "its events are not used, it gets requests by load alone"
        why = f"refused: {told if instance.unusable is None else instance.unusable}"
        return Verdict(State.REFUSED, why, tracked.refused_since, Choice.YES)
    if tracked.link_up or not instance.has_events(tracked):
        return None
    if tracked.link_lost_at is not None:
        why = "its event stream is lost, HTTP answers: it gets requests by load alone"
        return Verdict(State.SUSPECT, why, tracked.link_lost_at, Choice.YES)
    why = "its event stream was not reached yet: it gets requests by load alone"
    return Verdict(State.CONNECTING, why, instance.contact.since, Choice.YES)
