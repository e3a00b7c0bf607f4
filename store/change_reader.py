"""Changes of the registry, from the stream's entries to what a replica is told: what was missed or lost is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import structlog

from store.state import Change, Deleted, Drained, Lost, Put, RegisteredInstance, Reread

_log = structlog.stdlib.get_logger("kvroute.store")


class ChangeId(NamedTuple):
    """When the registry was made, and the change's number in it: 1, 2, ... without a hole."""

    epoch: int
    number: int


class _Record(msgspec.Struct):
    source: Literal["file", "http"]
    settings: dict[str, Any]


class ChangeReader:
    """Where one replica is in the stream. `newest` is the last change that it knows of, None in an empty registry."""

    def __init__(self, replica: bytes, newest: ChangeId | None) -> None:
        self._replica = replica
        self._seen = newest
        self._reported: bytes | None = None

    @property
    def next_id(self) -> str:
        """The first id to read."""
        return "-" if self._seen is None else f"{self._seen.epoch}-{self._seen.number + 1}"

    def take(self, epoch: bytes, entries: Sequence[tuple[bytes, list[bytes]]]) -> list[Change]:
        """Others' changes, in order. `epoch` is the one kept beside the instances, empty when they are gone.

        A hole gives `Reread` in its place; another epoch gives `Lost` after the changes (perhaps once more when the
        registry is made anew).
        """
        before = None if self._seen is None else str(self._seen.epoch).encode()
        changes: list[Change] = []
        for identifier, flat in entries:
            change_id = parse_change_id(identifier)
            if change_id is None or not self._follows(change_id):
                changes.append(Reread())
            self._seen = change_id or self._seen
            fields = dict(zip(flat[::2], flat[1::2], strict=False))
            if fields.get(b"r") != self._replica:
                changes.append(_change(fields))
        if before is not None and epoch not in (before, self._reported):
            changes.append(Lost())
            self._reported = epoch
        elif epoch == before:
            self._reported = None
        return changes

    def _follows(self, change_id: ChangeId) -> bool:
        if self._seen is None or change_id.epoch != self._seen.epoch:
            return change_id.number == 1
        return change_id.number == self._seen.number + 1


def parse_change_id(identifier: bytes) -> ChangeId | None:
    """An id in the stream; None when there is none."""
    epoch, _, number = identifier.partition(b"-")
    return ChangeId(int(epoch), int(number)) if epoch.isdigit() and number.isdigit() else None


def pack_record(instance: RegisteredInstance) -> bytes:
    """The draining flag, then JSON. Equal instances are equal bytes."""
    record = _Record(instance.source, dict(instance.settings))
    return (b"1" if instance.draining else b"0") + msgspec.json.encode(record, order="deterministic")


def unpack_record(id: bytes, value: bytes) -> RegisteredInstance | None:
    """What `pack_record` was given; None (logged) for anything else."""
    try:
        record = msgspec.json.decode(value[1:], type=_Record)
        name = id.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("registered instance ignored", id=id[:200], reason=type(error).__name__)
        return None
    return RegisteredInstance(name, record.settings, record.source, value[:1] == b"1")


def _change(fields: dict[bytes, bytes]) -> Change:
    id = fields.get(b"i", b"")
    match fields.get(b"o"):
        case b"put":
            instance = unpack_record(id, fields.get(b"d", b""))
            return Reread() if instance is None else Put(instance)
        case b"delete":
            return Deleted(id.decode(errors="replace"))
        case b"drain" | b"undrain" as op:
            return Drained(id.decode(errors="replace"), op == b"drain")
    return Reread()  # a later release's kind of change
