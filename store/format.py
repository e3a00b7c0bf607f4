"""The bytes in the store: a format version in front, a checksum over everything that gives the body its meaning.

A log entry: version (1 byte), checksum (8), origin seq (8), origin ts (8), body. A snapshot's body: version, checksum,
body; its other values are fields beside it. The checksum is XXH3-64 over worker, lineage, seq, ts, fingerprint and
body, so bytes under a wrong key or number are not taken for right. Bodies are not compressed: packed deltas of 17 bytes
per block are mostly hashes, of which zlib saves 1 to 4 % (`benchmarks/state_store.py`).
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from xxhash import xxh3_64

from index.worker import Worker
from store.state import MAX_NUMBER, Entry, Lineage, Snapshot

FORMAT_VERSION = 1
"""Rises with every change that an older release would misread."""

_ENTRY = struct.Struct("<B8sQQ")
_SNAPSHOT = struct.Struct("<B8s")
_PAIR = re.compile(rb"(\d{1,20})-(\d{1,20})", re.ASCII)
_NUMBER = re.compile(rb"\d{1,20}", re.ASCII)


class Unreadable(NamedTuple):
    """Stored bytes that are not used, and why."""

    reason: str


class SnapshotFields(NamedTuple):
    """A snapshot as it is stored, field by field, in the order of `SNAPSHOT_FIELDS`. None: the field is missing."""

    version: bytes | None
    lineage: bytes | None
    seq: bytes | None
    ts_ms: bytes | None
    fingerprint: bytes | None
    body: bytes | None


SNAPSHOT_FIELDS = ("v", "l", "s", "t", "f", "b")


def entry_id(entry: Entry) -> str:
    """The entry's id in the stream."""
    return f"{entry.ts_ms}-{entry.seq}"


def pack_lineage(lineage: Lineage) -> str:
    """As a snapshot's field."""
    return f"{lineage.origin_seq}-{lineage.origin_ts_ms}"


def pack_entry(entry: Entry) -> bytes:
    """The value of an entry's only field."""
    checksum = _checksum(Snapshot(entry.worker, entry.lineage, entry.seq, entry.ts_ms, None, entry.body))
    return _ENTRY.pack(FORMAT_VERSION, checksum, *entry.lineage) + entry.body


def unpack_entry(worker: Worker, identifier: bytes, value: bytes) -> Entry | Unreadable:
    """What `pack_entry` was given. Anything else is Unreadable, never another entry."""
    number = _pair(identifier)
    if number is None:
        return Unreadable("not an entry's id")
    if value[:1] != bytes([FORMAT_VERSION]):
        return Unreadable(f"format version {value[0] if value else 'missing'}")
    if len(value) < _ENTRY.size:
        return Unreadable("cut off")
    _, checksum, *origin = _ENTRY.unpack_from(value)
    entry = Entry(worker, Lineage(*origin), number[1], number[0], value[_ENTRY.size :])
    if checksum != _checksum(Snapshot(worker, entry.lineage, entry.seq, entry.ts_ms, None, entry.body)):
        return Unreadable("damaged")
    return entry


def pack_snapshot(snapshot: Snapshot) -> SnapshotFields:
    """The fields of a snapshot."""
    checksum = _checksum(snapshot)
    return SnapshotFields(
        str(FORMAT_VERSION).encode(),
        pack_lineage(snapshot.lineage).encode(),
        str(snapshot.seq).encode(),
        str(snapshot.ts_ms).encode(),
        (snapshot.fingerprint or "").encode("utf-8", "surrogatepass"),
        _SNAPSHOT.pack(FORMAT_VERSION, checksum) + snapshot.body,
    )


def unpack_snapshot(worker: Worker, fields: SnapshotFields) -> Snapshot | Unreadable:
    """What `pack_snapshot` was given (an empty fingerprint is None). Anything else is Unreadable."""
    if fields.version != str(FORMAT_VERSION).encode():
        return Unreadable(f"format version {(fields.version or b'missing')[:20].decode('ascii', 'replace')}")
    lineage, seq, ts_ms = _pair(fields.lineage), _number(fields.seq), _number(fields.ts_ms)
    if lineage is None or seq is None or ts_ms is None or fields.fingerprint is None or fields.body is None:
        return Unreadable("incomplete")
    if len(fields.body) < _SNAPSHOT.size or fields.body[0] != FORMAT_VERSION:
        return Unreadable("cut off")
    try:
        fingerprint = fields.fingerprint.decode("utf-8", "surrogatepass") or None
    except UnicodeDecodeError:
        return Unreadable("damaged")
    snapshot = Snapshot(worker, Lineage(*lineage), seq, ts_ms, fingerprint, fields.body[_SNAPSHOT.size :])
    if fields.body[1 : _SNAPSHOT.size] != _checksum(snapshot):
        return Unreadable("damaged")
    return snapshot


def storable(item: Entry | Snapshot) -> bool:
    """Whether the numbers are within the store's limits."""
    return all(0 <= number <= MAX_NUMBER for number in (*item.lineage, item.seq, item.ts_ms))


def _checksum(of: Snapshot) -> bytes:
    """An entry counts as a snapshot without fingerprint."""
    name = of.worker.instance.encode("utf-8", "surrogatepass")
    process = (of.fingerprint or "").encode("utf-8", "surrogatepass")
    digest = xxh3_64(struct.pack("<6Q", len(name), of.worker.dp_rank, *of.lineage, of.seq, of.ts_ms) + name)
    digest.update(struct.pack("<Q", len(process)) + process)
    digest.update(of.body)
    return digest.digest()


def _pair(text: bytes | None) -> tuple[int, int] | None:
    match = _PAIR.fullmatch(text) if text is not None else None
    numbers = (int(match[1]), int(match[2])) if match else None
    return numbers if numbers and max(numbers) <= MAX_NUMBER else None


def _number(text: bytes | None) -> int | None:
    number = int(text) if text is not None and _NUMBER.fullmatch(text) else None
    return number if number is not None and number <= MAX_NUMBER else None
