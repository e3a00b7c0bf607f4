"""Names of keys. Those of one worker, and those of the registry, share a hash tag: one slot of a Redis Cluster each."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from index.worker import Worker

PREFIX = "kvroute:"
SNAPSHOT_PATTERN = PREFIX + "{*}:snap"
"""Matches every snapshot's key, for SCAN."""


class WorkerKeys(NamedTuple):
    """One worker's two keys."""

    snapshot: str
    log: str


class RegistryKeys(NamedTuple):
    """The registry's two keys."""

    instances: str
    changes: str


REGISTRY = RegistryKeys(PREFIX + "{registry}:instances", PREFIX + "{registry}:changes")


def worker_keys(worker: Worker) -> WorkerKeys:
    """Different workers never share a key, whatever characters the instance's id has: it is percent-escaped."""
    tag = f"{PREFIX}{{{quote(worker.instance, safe='', errors='surrogatepass')}/{worker.dp_rank}}}"
    return WorkerKeys(tag + ":snap", tag + ":log")


def worker_of(snapshot_key: bytes) -> Worker | None:
    """The worker whose snapshot's key this is. None: not one of ours."""
    name = snapshot_key.decode("ascii", "replace").removeprefix(PREFIX + "{").removesuffix("}:snap")
    instance, slash, rank = name.partition("/")
    if not slash or not (rank.isascii() and rank.isdigit()):
        return None
    try:
        worker = Worker(unquote(instance, errors="surrogatepass"), int(rank))
    except (UnicodeDecodeError, ValueError):
        return None
    return worker if worker_keys(worker).snapshot.encode() == snapshot_key else None
