"""State from the store into a file, and back: one worker at a time, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, NamedTuple

from app.export_file import ExportWriter, read_export
from app.terminal import Advance
from app.version import VERSION
from index.worker import Worker
from store.state import Offer, RegisteredInstance, StateStore, Stored


class Exported(NamedTuple):
    """What was written to the file. `unreadable`: workers whose state cannot be used, so it is not in there."""

    instances: int
    workers: int
    entries: int
    unreadable: list[Worker]


class Imported(NamedTuple):
    """What was written to the store, and what is newer there and was kept."""

    instances: int
    workers: int
    kept_instances: list[str]
    kept_workers: list[Worker]


async def export_state(store: StateStore, file: IO[bytes], advance: Advance) -> Exported:
    """Write everything that is stored. Raises StateError and OSError; the file is then not complete."""
    writer = ExportWriter(file, VERSION, datetime.now(UTC).isoformat(timespec="seconds"))
    instances, workers = await store.instances(), await store.workers()
    for id in sorted(instances):
        writer.instance(_without_key(instances[id]))
    entries, unreadable = 0, []
    for done, worker in enumerate(workers):
        advance(done, len(workers))
        stored = await store.load(worker)
        if stored is None:
            unreadable.append(worker)
            continue
        writer.worker(stored)
        entries += len(stored.entries)
    writer.finish()
    return Exported(len(instances), len(workers) - len(unreadable), entries, unreadable)


def check_export(file: IO[bytes], advance: Callable[[int], None]) -> None:
    """Read a file to its end. Raises BadExport."""
    for _ in read_export(file, advance):
        pass


async def import_state(store: StateStore, file: IO[bytes], replace: bool, advance: Callable[[int], None]) -> Imported:
    """Store what a checked file holds. What is there and newer is kept, unless `replace`. Raises StateError."""
    there = await store.instances()
    counts = {RegisteredInstance: 0, Stored: 0}
    kept_instances, kept_workers = [], []
    for found in read_export(file, advance):
        if isinstance(found, RegisteredInstance):
            written = await _import_instance(store, found, there.get(found.id), replace)
            if not written:
                kept_instances.append(found.id)
        else:
            written = await _import_worker(store, found, replace)
            if not written:
                kept_workers.append(found.snapshot.worker)
        counts[type(found)] += written
    return Imported(counts[RegisteredInstance], counts[Stored], kept_instances, kept_workers)


async def _import_instance(
    store: StateStore, found: RegisteredInstance, there: RegisteredInstance | None, replace: bool
) -> bool:
    """The registry knows no time: an instance that is there counts as newer, unless it is the same."""
    if there is not None and not replace:
        return _without_key(there) == found
    if there is not None and there.settings.get("url") == found.settings.get("url"):
        found = found._replace(settings=dict(found.settings) | _key(there, found))
    await store.put_instance(found)
    await store.set_draining(found.id, found.draining)
    return True


def _key(there: RegisteredInstance, found: RegisteredInstance) -> dict[str, object]:
    """The key that the store has of the same engine."""
    key = there.settings.get("api_key")
    return {} if key is None or found.settings.get("api_key_file") else {"api_key": key}


def _without_key(instance: RegisteredInstance) -> RegisteredInstance:
    """An export is a file that is copied about: the keys of engines are not for it."""
    settings = {name: value for name, value in instance.settings.items() if name != "api_key"}
    return instance._replace(settings=settings)


async def _import_worker(store: StateStore, found: Stored, replace: bool) -> bool:
    worker = found.snapshot.worker
    there = None if replace else await store.load(worker)
    if replace:
        await store.forget(worker)
    elif there is not None and not _newer(found, there):
        return not _newer(there, found)  # neither is newer: it is the same
    answer = await store.offer(found.snapshot)
    if answer is Offer.BETTER and there is not None:  # its snapshot is, but not what follows it
        await store.forget(worker)
        answer = await store.offer(found.snapshot)
    if answer is Offer.BETTER:  # of a later release, or a running kvroute was faster
        return False
    return None not in await store.append(found.entries)


def _newer(one: Stored, other: Stored) -> bool:
    """In one lineage the higher number is newer; of two, the one whose last batch was made later."""
    if one.snapshot.lineage == other.snapshot.lineage:
        return _end(one) > _end(other)
    return _end(one)[::-1] > _end(other)[::-1]


def _end(stored: Stored) -> tuple[int, int]:
    return stored.last.seq, stored.last.ts_ms
