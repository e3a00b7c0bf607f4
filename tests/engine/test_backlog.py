from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from engine.backlog import Applied, Backlog, Held

seqs = st.integers(0, 30)


@given(st.lists(st.tuples(seqs, st.integers(0, 3)), max_size=60), st.integers(1, 8))
def test_applied_knows_the_newest_batches_and_never_a_wrong_one(added: list[tuple[int, int]], limit: int) -> None:
    applied = Applied(limit)
    run: dict[int, bytes] = {}
    for seq, content in added:
        if run and not 0 <= seq - (max(run) + 1) <= limit:
            run = {}
        run[seq] = bytes([content])
        applied.add(seq, run[seq])
    for seq in range(31):
        for content in range(4):
            known = applied.has(seq, bytes([content]))
            truth = run.get(seq) == bytes([content])
            assert known == truth if run and max(run) - seq < limit else not known or truth


@given(st.lists(st.tuples(seqs, st.integers(1, 20)), max_size=20), st.integers(1, 8))
def test_a_run_is_remembered_as_its_batches_one_by_one(runs: list[tuple[int, int]], limit: int) -> None:
    many, one_by_one, seq = Applied(limit), Applied(limit), 0
    for skipped, count in runs:
        seq += skipped
        payloads = [bytes([number]) for number in range(count)]
        many.add_run(seq, array("Q", map(xxh3_64_intdigest, payloads)).tobytes())
        for number, payload in enumerate(payloads):
            one_by_one.add(seq + number, payload)
        seq += count
        assert (many._next, many._digests) == (one_by_one._next, one_by_one._digests)


@given(st.lists(st.tuples(st.sampled_from(["put", "pop"]), seqs, st.integers(0, 9)), max_size=60))
def test_backlog_is_a_bounded_map_that_knows_its_lowest_number(steps: list[tuple[str, int, int]]) -> None:
    backlog, model = Backlog(max_batches=5, max_bytes=20), dict[int, Held]()
    for step, seq, size in steps:
        held = Held(bytes(size), replayed=False)
        if step == "pop":
            assert backlog.pop(seq) == model.pop(seq, None)
        elif backlog.put(seq, held):
            model.setdefault(seq, held)
        else:
            assert len(model) == 5 or sum(len(h.payload) for h in model.values()) + size > 20
        assert len(backlog) == len(model) <= 5
        assert sum(len(h.payload) for h in model.values()) <= 20
        assert backlog.first() == min(model, default=None)
        assert backlog.get(seq) == model.get(seq)
