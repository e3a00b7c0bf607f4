"""Stored bytes: what was packed comes back, and nothing else ever does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.worker import Worker
from store.format import (
    FORMAT_VERSION,
    SnapshotFields,
    Unreadable,
    entry_id,
    pack_entry,
    pack_snapshot,
    storable,
    unpack_entry,
    unpack_snapshot,
)
from store.state import MAX_NUMBER, Entry, Lineage, Snapshot
from tests.store.builders import LINEAGE, WORKER, entry, snapshot

NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, MAX_NUMBER))
WORKERS = st.builds(Worker, st.text(st.characters(codec=None), max_size=5), st.integers(0, 9))
LINEAGES = st.builds(Lineage, NUMBERS, NUMBERS)
ENTRIES = st.builds(Entry, WORKERS, LINEAGES, NUMBERS, NUMBERS, st.binary(max_size=40))
FINGERPRINTS = st.one_of(st.none(), st.text(min_size=1, max_size=10))
SNAPSHOTS = st.builds(Snapshot, WORKERS, LINEAGES, NUMBERS, NUMBERS, FINGERPRINTS, st.binary(max_size=40))


@st.composite
def damaged(draw: st.DrawFn, value: bytes) -> bytes:
    """The value cut, lengthened or with bytes changed; perhaps by nothing."""
    changed = bytearray(value)
    for place in draw(st.lists(st.integers(0, max(0, len(value) - 1)), max_size=3)):
        changed[place : place + 1] = bytes([draw(st.integers(0, 255))])
    start, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    kept = bytes(changed)[start : len(changed) - end] if draw(st.booleans()) else bytes(changed)
    return kept + draw(st.binary(max_size=2))


@given(ENTRIES)
def test_an_entry_comes_back(one: Entry) -> None:
    assert unpack_entry(one.worker, entry_id(one).encode(), pack_entry(one)) == one


@given(SNAPSHOTS)
def test_a_snapshot_comes_back(one: Snapshot) -> None:
    assert unpack_snapshot(one.worker, pack_snapshot(one)) == one


@given(st.data(), ENTRIES)
def test_a_damaged_entry_is_never_taken_for_another(data: st.DataObject, one: Entry) -> None:
    identifier = data.draw(damaged(entry_id(one).encode()))
    value = data.draw(damaged(pack_entry(one)))
    read = unpack_entry(one.worker, identifier, value)
    assert isinstance(read, Unreadable) or read == one


@given(st.data(), SNAPSHOTS)
def test_a_damaged_snapshot_is_never_taken_for_another(data: st.DataObject, one: Snapshot) -> None:
    fields = [data.draw(st.one_of(st.none(), damaged(field or b""))) for field in pack_snapshot(one)]
    read = unpack_snapshot(one.worker, SnapshotFields(*fields))
    assert isinstance(read, Unreadable) or read == one


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), min_size=6, max_size=6), st.binary(), st.binary())
def test_arbitrary_bytes_are_unreadable(fields: list[bytes | None], identifier: bytes, value: bytes) -> None:
    assert isinstance(unpack_snapshot(WORKER, SnapshotFields(*fields)), Unreadable)
    assert isinstance(unpack_entry(WORKER, identifier, value), Unreadable)


@given(ENTRIES, ENTRIES)
def test_an_entrys_bytes_count_only_in_its_place(one: Entry, two: Entry) -> None:
    read = unpack_entry(two.worker, entry_id(two).encode(), pack_entry(one))
    assert isinstance(read, Unreadable) or read == one == two._replace(lineage=one.lineage, body=one.body)


def test_other_versions_are_named() -> None:
    later = bytes([FORMAT_VERSION + 1])
    assert unpack_entry(WORKER, b"1-1", later + pack_entry(entry(1))[1:]) == Unreadable("format version 2")
    fields = pack_snapshot(snapshot(1))._replace(version=b"2")
    assert unpack_snapshot(WORKER, fields) == Unreadable("format version 2")


def test_a_version_alone_is_cut_off() -> None:
    assert unpack_entry(WORKER, b"1-1", bytes([FORMAT_VERSION])) == Unreadable("cut off")
    assert unpack_entry(WORKER, b"1-1", b"") == Unreadable("format version missing")


def test_an_empty_fingerprint_is_none() -> None:
    read = unpack_snapshot(WORKER, pack_snapshot(snapshot(1, fingerprint="")))
    assert read == snapshot(1, fingerprint=None)


@pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
@pytest.mark.parametrize("name", ["seq", "ts_ms", "lineage"])
def test_numbers_beyond_the_limits_cannot_be_stored(name: str, number: int) -> None:
    assert storable(entry(1))
    value = Lineage(number, 0) if name == "lineage" else number
    assert not storable(entry(1)._replace(**{name: value}))  # type: ignore[arg-type]
    assert not storable(snapshot(1)._replace(**{name: value}))  # type: ignore[arg-type]


def test_the_bytes_of_the_first_version_do_not_change() -> None:
    value = pack_entry(Entry(WORKER, LINEAGE, 7, 8, b"x"))
    assert value.hex() == "01be00b0f4eb18fafa00000000000000000068e5cf8b01000078"
    *fields, body = pack_snapshot(snapshot(7, fingerprint="f"))
    assert fields == [b"1", b"0-1700000000000", b"7", b"1700000000070", b"f"]
    assert body is not None
    assert body.hex() == "019ff8664600e05b76616c6c"
