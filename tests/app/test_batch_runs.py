"""Batches that are applied together: in order, of one kind, and no more than a turn has room for."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from app.batch_runs import RUN_BYTES, leading_batches
from engine.stream import Batch, Gap, Signal

batches = st.builds(Batch, st.integers(0, 9), st.sampled_from([b"x", b"x" * (RUN_BYTES // 3)]), st.booleans())


@given(batches, st.lists(st.one_of(batches, st.just(Gap(1))), max_size=12))
def test_a_run_is_the_longest_beginning_that_may_go_together(first: Batch, rest: list[Signal]) -> None:
    signals: deque[Signal] = deque([first, *rest])
    run = leading_batches(signals)
    assert list(signals)[: len(run)] == run
    assert all(batch.replayed == first.replayed for batch in run)
    assert sum(len(batch.payload) for batch in run[:-1]) < RUN_BYTES
    if len(run) < len(signals):
        behind = signals[len(run)]
        full = sum(len(batch.payload) for batch in run) >= RUN_BYTES
        assert full or not isinstance(behind, Batch) or behind.replayed != first.replayed
