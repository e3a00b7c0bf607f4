"""The file of `kvroute state export`: a MessagePack stream of byte strings (bin 32), each with one record in it.

First the header with the format version, then the registry's instances, then per worker its snapshot and the log
entries that join it, at last the end with counts and a checksum (XXH3-64) of everything before it. The whole file is
read once before any of it is used, so that a damaged or cut file changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Literal

import msgspec
from xxhash import xxh3_64

from index.worker import Worker
from store.state import Entry, Lineage, RegisteredInstance, Snapshot, Stored

FILE_VERSION = 1
"""Rises with every change that an older release would misread."""

MAGIC = "kvroute state"
MAX_RECORD_BYTES = 512 << 20
"""The longest value that Redis holds."""

_BIN32 = b"\xc6"
_ENCODER = msgspec.msgpack.Encoder()


class BadExport(Exception):
    """The file cannot be used; the text says why."""


class _Instance(msgspec.Struct, tag="instance", array_like=True):
    id: str
    settings: dict[str, Any]
    source: Literal["file", "http"]
    draining: bool


class _Snapshot(msgspec.Struct, tag="snapshot", array_like=True):
    instance: str
    dp_rank: int
    lineage: Lineage
    seq: int
    ts_ms: int
    fingerprint: str | None
    body: bytes


class _Entry(msgspec.Struct, tag="entry", array_like=True):
    seq: int
    ts_ms: int
    body: bytes


class _End(msgspec.Struct, tag="end", array_like=True):
    records: int
    checksum: bytes


_DECODER = msgspec.msgpack.Decoder(_Instance | _Snapshot | _Entry | _End)


class ExportWriter:
    """Writes one file. It is complete only after `finish`."""

    def __init__(self, file: IO[bytes], release: str, made_at: str) -> None:
        self._file = file
        self._sum = xxh3_64()
        self._records = 0
        self._put((MAGIC, FILE_VERSION, release, made_at))

    def instance(self, one: RegisteredInstance) -> None:
        """All instances come before all workers."""
        self._put(_Instance(one.id, dict(one.settings), one.source, one.draining))

    def worker(self, stored: Stored) -> None:
        """A worker's snapshot and log."""
        worker, lineage, seq, ts_ms, fingerprint, body = stored.snapshot
        self._put(_Snapshot(worker.instance, worker.dp_rank, lineage, seq, ts_ms, fingerprint, body))
        for entry in stored.entries:
            self._put(_Entry(entry.seq, entry.ts_ms, entry.body))

    def finish(self) -> None:
        """Write the end."""
        self._put(_End(self._records, self._sum.digest()))

    def _put(self, record: object) -> None:
        body = _ENCODER.encode(record)
        framed = _BIN32 + len(body).to_bytes(4, "big") + body
        self._file.write(framed)
        self._sum.update(framed)
        self._records += 1


def read_export(
    file: IO[bytes], advance: Callable[[int], None] = lambda position: None
) -> Iterator[RegisteredInstance | Stored]:
    """What was written, worker by worker, from the file's beginning. Raises BadExport, at the latest at the end.

    `advance` is told how many bytes are read.
    """
    stored: Stored | None = None
    for record in _records(file, advance):
        match record:
            case _Instance(id, settings, source, draining):
                yield RegisteredInstance(id, settings, source, draining)
            case _Snapshot():
                if stored is not None:
                    yield stored
                stored = Stored(_snapshot(record), [])
            case _Entry():
                if stored is None or record.seq != stored.snapshot.seq + len(stored.entries) + 1:
                    raise BadExport("it is damaged: a log entry does not follow the one before it")
                worker, lineage = stored.snapshot.worker, stored.snapshot.lineage
                stored.entries.append(Entry(worker, lineage, record.seq, record.ts_ms, record.body))
    if stored is not None:
        yield stored


def _snapshot(record: _Snapshot) -> Snapshot:
    worker = Worker(record.instance, record.dp_rank)
    return Snapshot(worker, record.lineage, record.seq, record.ts_ms, record.fingerprint, record.body)


def _records(file: IO[bytes], advance: Callable[[int], None]) -> Iterator[_Instance | _Snapshot | _Entry]:
    file.seek(0)
    checksum, count = xxh3_64(), 1
    _check_header(_framed(file, checksum))
    while True:
        before = checksum.digest()
        body = _framed(file, checksum)
        try:
            record = _DECODER.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BadExport("it is damaged: a record cannot be read") from None
        if isinstance(record, _End):
            if record.records != count or record.checksum != before:
                raise BadExport("it is damaged: its checksum does not fit")
            if file.read(1):
                raise BadExport("it is damaged: something follows its end")
            return
        count += 1
        advance(file.tell())
        yield record


def _framed(file: IO[bytes], checksum: xxh3_64) -> bytes:
    head = file.read(5)
    if len(head) < 5:
        raise BadExport("it is cut off" if checksum.digest() != xxh3_64().digest() else _NOT_OURS)
    size = int.from_bytes(head[1:], "big")
    if head[:1] != _BIN32 or size > MAX_RECORD_BYTES:
        raise BadExport(_NOT_OURS if checksum.digest() == xxh3_64().digest() else "it is damaged: no record begins")
    body = file.read(size)
    if len(body) < size:
        raise BadExport("it is cut off")
    checksum.update(head)
    checksum.update(body)
    return body


_NOT_OURS = "it is not a file of kvroute state export"


def _check_header(body: bytes) -> None:
    try:
        header = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadExport(_NOT_OURS) from None
    if not isinstance(header, list) or len(header) < 2 or header[0] != MAGIC:
        raise BadExport(_NOT_OURS)
    if header[1] != FILE_VERSION:
        raise BadExport(f"its format version is {header[1]!r:.20}; this release reads version {FILE_VERSION}")
