"""`events` and `replay` of an instance: one endpoint for all ranks, a list of them, or a map by the engine's rank.

One endpoint is rank 0's; the engine's rank r is at port + r, on the same host. A list has one endpoint per rank of this
instance, in the order of the engine's numbers. A map names ranks by the engine's own numbers; what it leaves out is
learnt from the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from app.addresses import endpoint_port, event_endpoint
from engine.endpoint import at_host_of, host_of, offset_endpoint, rank_endpoint
from engine.facts import EngineFacts

MAX_RANKS = 1024

FORMS = ONE, LIST, MAP = "(one)", "(list)", "(map)"
"""How a fault's place names the form; app/settings_file.py leaves it out."""


def _rank_name(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and str(int(text)) == text):
        raise ValueError('must be a rank\'s number in quotes, like "0"')
    return text


def _form(value: object) -> str | None:
    forms: tuple[tuple[type, str], ...] = ((str, ONE), (list, LIST), (dict, MAP))
    return next((form for kind, form in forms if isinstance(value, kind)), None)


_Endpoint = Annotated[str, Field(max_length=2048), AfterValidator(event_endpoint)]
_Size = Field(min_length=1, max_length=MAX_RANKS)

Endpoints = Annotated[
    Annotated[_Endpoint, Tag(ONE)]
    | Annotated[list[_Endpoint], _Size, Tag(LIST)]
    | Annotated[dict[Annotated[str, AfterValidator(_rank_name)], _Endpoint], _Size, Tag(MAP)],
    Discriminator(_form),
]
Given = str | list[str] | dict[str, str]


def listed_ranks(given: Given | None) -> int | None:
    """How many ranks a list is for."""
    return len(given) if isinstance(given, list) else None


def named_ranks(given: Given | None, told: int | None) -> int:
    """How many ranks a map is for at least, where the engine tells `told`: one that names 0 and on names them all."""
    if not isinstance(given, dict):
        return 0
    return len(given) if told is None or set(given) == {str(rank) for rank in range(len(given))} else 0


class Numbers:
    """The engine's own numbers of an instance's ranks, as far as the engine or a map of endpoints tells them."""

    def __init__(self, facts: EngineFacts, events: Given | None) -> None:
        named = sorted(map(int, events)) if isinstance(events, dict) and not facts.ranks and not facts.dp_size else []
        self._facts = facts._replace(ranks=tuple(named)) if named else facts

    def __getitem__(self, rank: int) -> int:
        return self._facts.own_rank(rank)


class Place:
    """Where one rank of an instance publishes and replays. ValueError says what is wrong with what is given."""

    def __init__(self, url: str, facts: EngineFacts, numbers: Numbers, rank: int) -> None:
        self._host = host_of(url)
        self._facts = facts
        self._rank = rank
        self._number, self._first = numbers[rank], numbers[0]

    def events(self, given: Given | None) -> str | None:
        """The event endpoint; None when nothing tells it."""
        return self._of(given, self._facts.events)

    def replay(self, given: Given | None, events: Given | None) -> str | None:
        """The replay endpoint; None when nothing tells it. The engine's port is at the host where the events are."""
        told = self._facts.replay.get(self._rank)
        if given is None and told is not None and isinstance(events, list | dict):
            at = self.events(events)
            return told if at is None else at_host_of(told, at)
        return self._of(given, self._facts.replay)

    def _of(self, given: Given | None, told: Mapping[int, str]) -> str | None:
        match given:
            case None:
                return told.get(self._rank)
            case str():
                return offset_endpoint(given, self._number, self._first, told.get(0), self._host)
            case list():
                return rank_endpoint(given[self._rank], 0, self._host) if self._rank < len(given) else None
            case _:
                own = given.get(str(self._number))
                return told.get(self._rank) if own is None else rank_endpoint(own, 0, self._host)


# What settings can say wrongly


def wrong_events(url: str, events: Given | None, replay: Given | None, dp_size: int | None) -> Iterator[Any]:
    """Faults of both together, as (place, value, sentence)."""
    both = {"events": events, "replay": replay}
    ranks = dp_size or listed_ranks(events) or listed_ranks(replay) or 1
    for name, given in both.items():
        if given is not None:
            yield from _wrong_size(name, given, ranks, dp_size)
            yield from _wrong_twice(name, _places(url, name, given, ranks))
    yield from _wrong_overlap(url, events, replay, ranks)


def _wrong_size(name: str, given: Given, ranks: int, dp_size: int | None) -> Iterator[Any]:
    if isinstance(given, str):
        port = endpoint_port(given)
        if ranks > 1 and port is None:
            yield (name,), given, "an ipc endpoint has no port to count ranks on: use tcp, a list, or dp_size 1"
        if port is not None and port + ranks - 1 > 65535:
            yield (name,), given, f"with dp_size {ranks} the last rank's port is above 65535"
    elif isinstance(given, list) and len(given) != ranks:
        of = f"dp_size is {dp_size}" if dp_size else f"events has {ranks}"
        yield (name,), given, f"has {len(given)} endpoints, one for each rank, but {of}"
    elif isinstance(given, dict) and dp_size is not None and len(given) > dp_size:
        yield (name,), given, f"has endpoints of {len(given)} ranks, but dp_size is {dp_size}"


def _wrong_twice(name: str, places: Mapping[tuple[str | int, ...], str]) -> Iterator[Any]:
    first: dict[str, tuple[str | int, ...]] = {}
    for path, place in places.items():
        if first.setdefault(place, path) != path and len(path) > 1:
            yield path, None, f"two ranks on one stream: it is the same endpoint as {_dotted(first[place])}"


def _wrong_overlap(url: str, events: Given | None, replay: Given | None, ranks: int) -> Iterator[Any]:
    if events is None or replay is None:
        return
    taken = {place: path for path, place in _places(url, "events", events, ranks).items()}
    clash = next(
        ((path, place) for path, place in _places(url, "replay", replay, ranks).items() if place in taken), None
    )
    if clash is None:
        return
    path, place = clash
    if isinstance(events, str) and isinstance(replay, str):
        sentence = f"events and replay share a port: with dp_size {ranks}, rank r listens on port + r for both"
        yield (), None, sentence
    else:
        place_of_events = _dotted(taken[place][: 2 - isinstance(events, str)])
        yield path[: 2 - isinstance(replay, str)], None, f"it is also an event endpoint: {place_of_events}"


def _places(url: str, name: str, given: Given, ranks: int) -> dict[tuple[str | int, ...], str]:
    """Every rank's endpoint as it is dialled, by its place in the settings (one endpoint: by rank)."""
    match given:
        case str():
            port = endpoint_port(given)
            if port is None:
                return {(name,): given}
            base = given.rpartition(":")[0]
            return {(name, rank): _dialled(f"{base}:{port + rank}", url) for rank in range(ranks)}
        case list():
            return {(name, rank): _dialled(one, url) for rank, one in enumerate(given)}
        case _:
            return {(name, rank): _dialled(one, url) for rank, one in given.items()}


def _dialled(endpoint: str, url: str) -> str:
    try:
        return rank_endpoint(endpoint, 0, host_of(url)).lower()
    except ValueError:
        return endpoint.lower()


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
