"""Names of keys: one tag per worker, no two workers alike, whatever the names hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from index.worker import Worker
from store.keys import REGISTRY, worker_keys, worker_of

NAMES = st.text(st.one_of(st.sampled_from("{}/%:* \n\x00é☃"), st.characters(codec=None)), max_size=20)
WORKERS = st.builds(Worker, NAMES, st.integers(0, 10_000))


@pytest.mark.parametrize(
    ("worker", "tag"),
    [
        (Worker("vllm-0", 0), "kvroute:{vllm-0/0}"),
        (Worker("a/b", 12), "kvroute:{a%2Fb/12}"),
        (Worker("{x} y%", 1), "kvroute:{%7Bx%7D%20y%25/1}"),
        (Worker("é☃", 0), "kvroute:{%C3%A9%E2%98%83/0}"),
        (Worker("registry", 0), "kvroute:{registry/0}"),
    ],
)
def test_names_are_readable_and_escaped(worker: Worker, tag: str) -> None:
    assert worker_keys(worker) == (tag + ":snap", tag + ":log")


@given(WORKERS)
def test_a_workers_keys_lie_in_one_slot(worker: Worker) -> None:
    snapshot, log = worker_keys(worker)
    assert key_slot(snapshot.encode()) == key_slot(log.encode())
    assert snapshot.count("{") == snapshot.count("}") == 1


def test_the_registrys_keys_lie_in_one_slot() -> None:
    assert len({key_slot(key.encode()) for key in REGISTRY}) == 1


@given(WORKERS, WORKERS)
def test_two_workers_never_share_a_key(one: Worker, two: Worker) -> None:
    shared = {*worker_keys(one), *REGISTRY} & {*worker_keys(two)}
    assert bool(shared) == (one == two)


@given(WORKERS)
def test_the_worker_is_known_by_its_snapshots_key(worker: Worker) -> None:
    assert worker_of(worker_keys(worker).snapshot.encode()) == worker


@given(st.one_of(st.binary(max_size=40), st.from_regex(rb"kvroute:\{[a%/0-9]{0,8}\}:snap", fullmatch=True)))
def test_foreign_keys_are_nobodys(key: bytes) -> None:
    worker = worker_of(key)
    assert worker is None or worker_keys(worker).snapshot.encode() == key


@pytest.mark.parametrize("inside", ["a", "a/b", "a/-1", "a/01", "%FF/1", "%/1", "/", "a/" + "9" * 5000])
def test_keys_that_we_would_write_otherwise_are_nobodys(inside: str) -> None:
    assert worker_of(f"kvroute:{{{inside}}}:snap".encode()) is None
