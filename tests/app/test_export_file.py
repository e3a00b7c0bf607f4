"""The file of an export: what was written comes back, and nothing else is ever taken for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from io import BytesIO

import msgspec
import pytest

from app.export_file import BadExport, ExportWriter, read_export
from index.worker import Worker
from store.state import Entry, Lineage, RegisteredInstance, Snapshot, Stored

INSTANCES = [
    RegisteredInstance("vllm/0 ü", {"id": "vllm/0 ü", "weight": 1.5, "labels": {"zone": "a"}}, "http", True),
    RegisteredInstance("sglang-0", {"id": "sglang-0"}, "file"),
]


def stored(instance: str, rank: int, first: int, entries: int) -> Stored:
    worker, lineage = Worker(instance, rank), Lineage(first, 1_000 + first)
    snapshot = Snapshot(worker, lineage, first, 2_000, "boot 17" if rank else None, random.Random(first).randbytes(300))
    log = [Entry(worker, lineage, first + 1 + at, 2_000 + at, b"delta %d" % at) for at in range(entries)]
    return Stored(snapshot, log)


WORKERS = [stored("vllm/0 ü", 0, 7, 3), stored("vllm/0 ü", 1, 0, 0), stored("sglang-0", 0, 2**53 - 9, 5)]


def written(instances: Sequence[RegisteredInstance] = INSTANCES, workers: Sequence[Stored] = WORKERS) -> bytes:
    file = BytesIO()
    writer = ExportWriter(file, "0.1.0", "2026-01-01T00:00:00+00:00")
    for instance in instances:
        writer.instance(instance)
    for worker in workers:
        writer.worker(worker)
    writer.finish()
    return file.getvalue()


def read(content: bytes) -> list[RegisteredInstance | Stored]:
    return list(read_export(BytesIO(content)))


def test_what_was_written_is_read() -> None:
    assert read(written()) == [*INSTANCES, *WORKERS]
    assert read(written([], [])) == []


def test_a_file_can_be_read_twice_and_tells_how_far_it_is() -> None:
    file, told = BytesIO(written()), list[int]()
    assert list(read_export(file, told.append)) == list(read_export(file))
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] <= len(written())


def test_any_changed_byte_is_noticed() -> None:
    content = written()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        with pytest.raises(BadExport):
            read(bytes(changed))


def test_a_file_cut_anywhere_or_longer_than_its_end_is_noticed() -> None:
    content = written()
    for size in range(len(content)):
        with pytest.raises(BadExport):
            read(content[:size])
    with pytest.raises(BadExport, match="follows its end"):
        read(content + b"\x00")


def test_a_removed_record_is_noticed() -> None:
    """Its neighbours are whole, and each alone could be read."""
    content, at = written(), 0
    while at < len(content):
        end = at + 5 + int.from_bytes(content[at + 1 : at + 5], "big")
        with pytest.raises(BadExport):
            read(content[:at] + content[end:])
        at = end


@pytest.mark.parametrize(
    "content", [b"", b"\xc6", b"instances: []\n", b"\xc6\x00\x00\x00\x01\x90", b"\xc6\x00\x00\x00\x01\xc1"]
)
def test_another_file_is_called_so(content: bytes) -> None:
    with pytest.raises(BadExport, match="not a file of kvroute state export"):
        read(content)


def test_another_format_version_is_refused_by_its_number() -> None:
    body = msgspec.msgpack.encode(("kvroute state", 2, {"later": "header"}))
    content = b"\xc6" + len(body).to_bytes(4, "big") + body + b"anything"
    with pytest.raises(BadExport, match="format version is 2; this release reads version 1"):
        read(content)


def test_it_is_a_stream_that_any_messagepack_reader_takes_apart() -> None:
    """Every object is a byte string whose content is MessagePack, too."""
    content, at, kinds = written(), 0, []
    while at < len(content):
        end = at + 5 + int.from_bytes(content[at + 1 : at + 5], "big")
        kinds.append(msgspec.msgpack.decode(msgspec.msgpack.decode(content[at:end], type=bytes))[0])
        at = end
    assert kinds[:4] == ["kvroute state", "instance", "instance", "snapshot"]
    assert kinds[-1] == "end"
