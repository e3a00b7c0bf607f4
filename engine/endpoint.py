"""ZMQ endpoints as a subscriber must dial them: a concrete host, and the port of a data-parallel rank."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_LAST_PORT = 65535


def host_of(url: str) -> str:
    """The host of an engine's URL, without brackets. ValueError when it has none."""
    try:
        host = urlsplit(url).hostname
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if not host:
        raise ValueError(f"{url!r} names no host; expected http://HOST:PORT")
    return host


def rank_endpoint(endpoint: str, rank: int, host: str) -> str:
    """Where rank `rank` publishes, given the endpoint of rank 0 and the host of the engine's URL.

    tcp: a wildcard host (*, 0.0.0.0, ::) becomes `host`, IPv6 gets brackets, the rank is added to the port after the
    last colon. inproc and ipc are local names: the first gets `_dpR` for a rank above 0, the second has rank 0 only
    (vLLM `distributed/kv_events.py`, SGLang `disaggregation/kv_events.py`). ValueError says what is wrong.
    """
    scheme, _, address = endpoint.partition("://")
    if scheme == "tcp" and address:
        bind_host, port = _split(endpoint, address)
        port += rank
        if port > _LAST_PORT:
            raise ValueError(f"{endpoint!r}: rank {rank} would be at port {port}, above {_LAST_PORT}")
        return f"tcp://{_bracketed(host if _is_wildcard(bind_host) else bind_host)}:{port}"
    if scheme == "inproc" and address:
        return f"{endpoint}_dp{rank}" if rank else endpoint
    if scheme == "ipc" and address:
        if rank:
            raise ValueError(f"{endpoint!r}: an ipc endpoint has one rank, not rank {rank}")
        return endpoint
    raise ValueError(f"{endpoint!r} is not an endpoint; expected tcp://HOST:PORT, ipc://PATH or inproc://NAME")


def offset_endpoint(base: str, number: int, first: int, told: str | None, host: str) -> str:
    """Where the rank that its engine gives `number` publishes, given one endpoint `base` for all ranks.

    The engine adds its own number to the port of rank 0, which may be a rank of another node. A `base` that has the
    very port which the engine tells (`told`) of its first rank here, number `first`, is that rank's already.
    """
    begins = first if told is not None and told.rpartition(":")[2] == base.rpartition(":")[2] else 0
    return rank_endpoint(base, number - begins, host)


def at_host_of(endpoint: str, other: str) -> str:
    """A tcp endpoint at the host of another."""
    if not (endpoint.startswith("tcp://") and other.startswith("tcp://")):
        return endpoint
    return f"{other.rpartition(':')[0]}:{endpoint.rpartition(':')[2]}"


def shared(endpoints: Mapping[int, str]) -> dict[int, int]:
    """The ranks whose endpoint another one before them has too, and which that is."""
    first: dict[str, int] = {}
    return {rank: one for rank, place in sorted(endpoints.items()) if (one := first.setdefault(place, rank)) != rank}


def port_clash(events: Mapping[int, str], replay: Mapping[int, str]) -> list[str]:
    """At most one warning: a rank's replay endpoint is another rank's event endpoint (replay port = events + 1)."""
    both = sorted(set(events.values()) & set(replay.values()))
    advice = "keep the ports further apart than there are ranks"
    return [f"{endpoint} is both an event and a replay endpoint: {advice}" for endpoint in both[:1]]


def _split(endpoint: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= _LAST_PORT):
        unbound = ", any free one, which nobody tells" if port in ("0", "*") else ""
        raise ValueError(f"{endpoint!r}: the port is {port!r}{unbound}; expected a number from 1 to {_LAST_PORT}")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or any(character in host for character in "/[] "):
        raise ValueError(f"{endpoint!r} names no host; expected tcp://HOST:PORT")
    if ":" in host and not _is_ip(host):
        raise ValueError(f"{endpoint!r}: {host!r} is not an IPv6 address; expected tcp://[ADDRESS]:PORT")
    return host, int(port)


def _is_wildcard(host: str) -> bool:
    return host == "*" or (_is_ip(host) and ip_address(host).is_unspecified)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
