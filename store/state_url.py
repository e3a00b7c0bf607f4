"""From the setting `state` to a store. Texts of errors, and `shown_url`, never hold the credentials of a URL."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from store.memory_state import MemoryState
from store.redis_link import RedisLink
from store.redis_state import RedisState
from store.state import StateLimits, StateStore

_PLAIN = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
SCHEMES = ("memory", *_PLAIN, *(scheme + "+cluster" for scheme in _PLAIN))
"""What a URL can begin with. The `s` means TLS."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
"""What the query of a TLS URL can hold, as redis-py names it."""


def check_url(url: str) -> None:
    """ValueError, with what is allowed, for a URL that is not one of a store."""
    _checked(url)


def open_store(url: str, limits: StateLimits | None = None) -> StateStore:
    """The store of a URL, not connected yet; or ValueError. Must be called in a running event loop."""
    parts = _checked(url)
    if parts.scheme == "memory":
        return MemoryState()
    limits = limits or StateLimits()
    link = RedisLink(_client(parts, limits), limits.connections, limits.call_s)
    return RedisState(link, limits, uuid.uuid4().hex)


def shown_url(url: str) -> str:
    """The URL without user, password and query, for logs and pages."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(not a URL)"
    return f"{parts.scheme}://{host}{parts.path}"


def _checked(url: str) -> SplitResult:
    parts = _split(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"must begin with one of {', '.join(scheme + '://' for scheme in SCHEMES)}")
    if parts.scheme == "memory":
        if parts.netloc or parts.path or parts.query:
            raise ValueError("memory:// takes nothing more")
        return parts
    if not parts.hostname:
        raise ValueError("has no host")
    cluster, path = parts.scheme.endswith("+cluster"), parts.path.strip("/")
    if path not in ("", "0") and (cluster or not (path.isascii() and path.isdigit())):
        raise ValueError("a cluster has only database 0" if cluster else "the path must be a database's number")
    _check_options(parts)
    return parts


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("is not a URL; percent-escape special characters in user and password") from None
    if parts.fragment:
        raise ValueError("must not hold #; percent-escape it in user and password as %23")
    return parts


def _check_options(parts: SplitResult) -> None:
    options = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    allowed = TLS_OPTIONS if _PLAIN[parts.scheme.removesuffix("+cluster")] == "rediss" else ()
    if any(name not in allowed for name in options):
        raise ValueError(f"the query can hold {', '.join(allowed) or 'nothing'}")


def _client(parts: SplitResult, limits: StateLimits) -> Redis | RedisCluster:
    """No limit on single reads: the link bounds whole round trips, and cancelling one closes its connection."""
    cluster = parts.scheme.endswith("+cluster")
    plain = parts._replace(scheme=_PLAIN[parts.scheme.removesuffix("+cluster")]).geturl()
    options: Mapping[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": limits.call_s,
        "retry": Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.2), 2 if cluster else 1),
        "client_name": "kvroute",
        "driver_info": None,
        "max_connections": limits.connections + 2,
    }
    client: Redis | RedisCluster = (RedisCluster if cluster else Redis).from_url(plain, **options)
    return client
