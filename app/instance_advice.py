"""What an operator should change about how an instance is asked and followed, in words."""

from __future__ import annotations

from collections.abc import Iterator

from app.instance import Instance, TrackedWorker
from app.rank_endpoints import named_ranks
from app.serving_names import serves_other

UNHEARD_AFTER_S = 2.0
"""How long a stream may take to be connected before that is said, while another of the instance already is."""

OTHER_HOSTS = "ranks on other hosts need `events` (and `replay`) as a list, an endpoint for each"
NO_EVENTS_TOLD = "the engine does not tell where its KV events are: set `events` and `replay` of the instance"


def warning_of(instance: Instance) -> str | None:
    """What is wrong with the instance as a whole; None when nothing is."""
    said = (
        serves_other(instance.settings.model, instance.facts),
        instance.facts.warning,
        instance.key.fault,
        _other_ranks(instance),
        *_strange_ranks(instance),
        _same_url(instance),
    )
    return "; ".join(filter(None, said)) or None


def stream_advice_of(instance: Instance, tracked: TrackedWorker, now: float) -> str | None:
    """What is wrong with a worker's event stream: not connected, or not its own. None when nothing is."""
    return tracked.stream_advice or _shared_stream(tracked) or _unheard(instance, tracked, now)


def _same_url(instance: Instance) -> str | None:
    if not instance.same_url:
        return None
    names = ", ".join(instance.same_url)
    return f"it has the same url as {names}: one engine counts as {len(instance.same_url) + 1}; delete all but one"


def _other_ranks(instance: Instance) -> str | None:
    """The settings say how many ranks there are, and the engine says otherwise."""
    own, told = instance.settings, instance.facts.dp_size
    said, named = own.rank_count, named_ranks(own.events, told)
    if told is None or said == told or (said is None and named <= told):
        return None
    said = said or named
    numbers = f" (its own numbers: {_shown(instance.facts.ranks)})" if any(instance.facts.ranks) else ""
    by = "dp_size says" if instance.settings.dp_size else "the endpoints are for"
    return f"{by} {said} rank{'s' * (said > 1)}, but the engine tells {told}{numbers}"


def _strange_ranks(instance: Instance) -> Iterator[str]:
    """The map of endpoints names ranks that are not there, as far as the engine tells."""
    own, facts = instance.settings, instance.facts
    numbers = tuple(facts.own_rank(rank) for rank in range(len(instance.workers))) if facts.dp_size else ()
    for name, given in (("events", own.events), ("replay", own.replay)):
        if isinstance(given, dict) and numbers and (strange := [key for key in given if int(key) not in numbers]):
            yield f"{name} names rank {', '.join(strange)}, but the engine's ranks are {_shown(numbers)}"


def _shown(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"


def _shared_stream(tracked: TrackedWorker) -> str | None:
    if not tracked.sharing or tracked.stream is None:
        return None
    return (
        f"{tracked.stream[0]} is also the event endpoint of {', '.join(tracked.sharing)}: one stream cannot be told "
        "from the other; give every engine an endpoint or a topic of its own"
    )


def _unheard(instance: Instance, tracked: TrackedWorker, now: float) -> str | None:
    if tracked.link_up:
        return None
    if tracked.stream is None:
        return _without_stream(instance)
    endpoint = tracked.stream[0]
    if tracked.link_lost_at is not None:
        return f"its event stream at {endpoint} was lost; it is tried again"
    others = any(one.link_up for one in instance.workers.values())
    since = tracked.stream_since
    if not instance.tried or (others and since is not None and now - since < UNHEARD_AFTER_S):
        return None
    words = f"its event stream at {endpoint} was never reached: is that the engine's address, and the port open?"
    several = len(instance.workers) > 1 and not isinstance(instance.settings.events, list)
    return f"rank {_own(instance, tracked)}: {words} {OTHER_HOSTS}" if several else words


def _without_stream(instance: Instance) -> str | None:
    if not instance.tried or not instance.reachable:
        return None
    if instance.settings.events is not None or instance.facts.events:
        return f"no event endpoint of this rank is known: {OTHER_HOSTS}"
    return None if instance.facts.warning else NO_EVENTS_TOLD


def _own(instance: Instance, tracked: TrackedWorker) -> int:
    return instance.facts.own_rank(tracked.worker.dp_rank)
