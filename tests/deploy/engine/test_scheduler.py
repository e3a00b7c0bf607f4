"""Both planners on both caches: every request ends as it should, within the limits, and nothing is left held."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from deploy.engine import mixed_steps, prefill_first
from deploy.engine.block_pool import BlockPool
from deploy.engine.byte_pairs import END, BytePairs
from deploy.engine.cache import KVCache
from deploy.engine.radix_cache import RadixCache
from deploy.engine.request import Output, Request, Sampling
from deploy.engine.scheduler import Limits, Planner, Scheduler, Work
from deploy.engine.text_output import TextOutput

BYTES = BytePairs([])
WORD = 100
PAIRS = pytest.mark.parametrize(
    ("planner", "new_cache", "page"),
    [
        (mixed_steps.plan, lambda: BlockPool(33, 8), 8),
        (prefill_first.plan, lambda: RadixCache(256, 1), 1),
        (prefill_first.plan, lambda: RadixCache(256, 8), 8),
        (mixed_steps.plan, lambda: BlockPool(33, 8, overlap=True), 8),
        (prefill_first.plan, lambda: RadixCache(256, 1, overlap=True), 1),
        (prefill_first.plan, lambda: RadixCache(256, 8, overlap=True), 8),
    ],
    ids=["vllm", "sglang", "sglang pages", "vllm overlap", "sglang overlap", "sglang pages overlap"],
)
NewCache = Callable[[], KVCache]


def request(prompt: list[int], max_tokens: int, stop_tokens: tuple[int, ...] = ()) -> Request:
    return Request(prompt, Sampling(max_tokens, stop_tokens=frozenset(stop_tokens)), TextOutput(BYTES))


class Run:
    """A scheduler stepped by hand; `token` chooses what is sampled."""

    def __init__(self, planner: Planner, cache: KVCache, limits: Limits) -> None:
        self.scheduler = Scheduler(cache, limits, planner)
        self.outputs: dict[Request, list[Output]] = {}
        self.token: Callable[[Request], int] = lambda one: WORD + len(one.output)

    def add(self, one: Request) -> Request:
        self.outputs[one] = []
        self.scheduler.add(one)
        return one

    def step(self) -> list[Work]:
        works = self.scheduler.plan()
        counted = [len(work.sequence.pending) for work in works if self.counts_against_budget(work)]
        assert sum(counted) <= self.scheduler.limits.step_tokens
        assert len(self.scheduler.running) <= self.scheduler.limits.max_running
        assert all(work.sequence.pending for work in works)
        held = [slot for one in self.scheduler.running for slot in _own(one)]
        assert len(held) == len(set(held)), "no slot is written by two"
        tokens = [self.token(work.request) for work in works if work.samples]
        for one, output in self.scheduler.done(works, tokens):
            self.outputs[one].append(output)
        return works

    def counts_against_budget(self, work: Work) -> bool:
        return not work.decode or isinstance(self.scheduler.cache, BlockPool)

    def steps(self) -> Iterator[list[Work]]:
        while works := self.step():
            yield works

    def idle(self) -> bool:
        return self.scheduler.cache.stats().used == 0 and not self.scheduler.waiting and not self.scheduler.running


def _own(one: Request) -> list[int]:
    assert one.sequence is not None
    return [one.sequence.slots[at] for at in one.sequence.pending]


@PAIRS
def test_any_mix_of_requests_is_served_to_its_end(planner: Planner, new_cache: NewCache, page: int) -> None:
    for seed in range(15):
        chance = random.Random(seed)
        run = Run(planner, new_cache(), Limits(chance.randint(1, 6), chance.choice([8, 20, 64]), page))
        pending = [
            request(chance.choices(range(4), k=chance.randint(1, 120)), chance.randint(1, 100)) for _ in range(20)
        ]
        wanted = list(pending)
        for _ in range(20_000):
            if pending and chance.random() < 0.3:
                run.add(pending.pop())
            if not run.step() and not pending:
                break
        assert run.idle()
        for one in wanted:
            assert one.finish == "length"
            assert [output.token for output in run.outputs[one]] == [WORD + n for n in range(one.sampling.max_tokens)]
            assert [output.finish for output in run.outputs[one]][:-1] == [None] * (one.sampling.max_tokens - 1)


@PAIRS
def test_a_prompt_comes_in_chunks_and_then_a_token_a_step(planner: Planner, new_cache: NewCache, page: int) -> None:
    run = Run(planner, new_cache(), Limits(4, 32, page))
    one = run.add(request(list(range(100)), 3))
    sizes = []
    while not one.finish:
        works = run.scheduler.plan()
        sizes.append([(len(work.sequence.pending), work.decode, work.samples) for work in works])
        run.scheduler.done(works, [WORD] * sum(work.samples for work in works))
    assert sizes == [[(32, False, False)]] * 3 + [[(4, False, True)], [(1, True, True)], [(1, True, True)]]


@PAIRS
def test_a_second_request_reuses_what_the_first_left(planner: Planner, new_cache: NewCache, page: int) -> None:
    run = Run(planner, new_cache(), Limits(4, 64, page))
    first = run.add(request(list(range(64)), 17))
    assert list(run.steps())
    assert first.cached_tokens == 0
    second = run.add(request(first.tokens, 2))
    assert list(run.steps())
    assert second.cached_tokens == 80, "prompt and output but for the last token, which has no KV"
    assert run.scheduler.counts.hit == 80
    assert run.scheduler.counts.queried == 64 + 81


def test_vllm_mixes_decodes_with_a_prefill_and_sglang_does_not() -> None:
    for planner, cache, both in (
        (mixed_steps.plan, BlockPool(33, 8), True),
        (prefill_first.plan, RadixCache(256, 1), False),
    ):
        run = Run(planner, cache, Limits(4, 64))
        run.add(request([1, 2, 3], 50))
        run.step()
        run.add(request([4, 5, 6], 5))
        assert len(run.step()) == (2 if both else 1)
        assert len(run.step()) == 2


def test_a_full_pool_preempts_who_came_last_and_it_loses_nothing() -> None:
    run = Run(mixed_steps.plan, BlockPool(9, 8), Limits(4, 64))
    first, second = run.add(request(list(range(30)), 30)), run.add(request(list(range(50, 62)), 30))
    for _ in run.steps():
        if run.scheduler.counts.preemptions:
            assert list(run.scheduler.waiting) == [second]
            break
    assert list(run.steps())
    assert run.scheduler.counts.preemptions >= 1
    assert (len(first.output), len(second.output)) == (30, 30)
    assert second.cached_tokens == 0, "what its first scheduling found"


def test_sglang_starts_nothing_that_could_run_out_of_slots() -> None:
    run = Run(prefill_first.plan, RadixCache(256, 1), Limits(8, 256))
    for number in range(6):
        run.add(request([number] * 40, 60))
    run.step()
    assert len(run.scheduler.running) == 2
    assert list(run.steps())
    assert run.scheduler.counts.preemptions == 0
    assert run.idle()


@PAIRS
def test_an_aborted_request_lets_go_at_once_or_after_its_step(planner: Planner, new_cache: NewCache, page: int) -> None:
    run = Run(planner, new_cache(), Limits(2, 64, page))
    running, waiting, last = (run.add(request([n] * 20, 50)) for n in range(3))
    run.step()
    run.step()
    run.scheduler.abort(last)
    assert last not in run.scheduler.waiting
    works = run.scheduler.plan()
    run.scheduler.abort(running)
    assert running in run.scheduler.running, "its step is being computed"
    news = run.scheduler.done(works, [WORD] * sum(work.samples for work in works))
    assert running not in [one for one, _ in news]
    assert run.scheduler.running == [waiting]
    run.scheduler.abort(waiting)
    run.scheduler.abort(waiting)
    assert run.idle()
    assert run.scheduler.counts.finished == {"abort": 3}


@PAIRS
def test_generation_ends_at_the_end_token_or_a_stop_token(planner: Planner, new_cache: NewCache, page: int) -> None:
    run = Run(planner, new_cache(), Limits(4, 64, page))
    run.token = lambda one: END if len(one.output) == 5 else 7
    ended, stopped = run.add(request([1] * 9, 50)), run.add(request([2] * 9, 50, stop_tokens=(7,)))
    assert list(run.steps())
    assert (ended.finish, ended.stop_reason, len(ended.output)) == ("stop", None, 6)
    assert (stopped.finish, stopped.stop_reason, len(stopped.output)) == ("stop", 7, 1)


@PAIRS
def test_aborts_at_any_time_leave_nothing_held(planner: Planner, new_cache: NewCache, page: int) -> None:
    for seed in range(15):
        chance = random.Random(seed)
        run = Run(planner, new_cache(), Limits(4, 24, page))
        for number in range(200):
            if number < 120 and chance.random() < 0.4:
                run.add(request(chance.choices(range(3), k=chance.randint(1, 90)), chance.randint(1, 60)))
            works = run.scheduler.plan()
            living = [one for one in run.outputs if one.finish is None]
            for one in chance.sample(living, min(len(living), chance.randint(0, 1) + (number > 150) * 9)):
                run.scheduler.abort(one)
            run.scheduler.done(works, [WORD] * sum(work.samples for work in works))
        for _ in run.steps():
            pass
        assert run.idle()
        ended = run.scheduler.counts.finished
        assert ended["abort"] > 0
        assert sum(ended.values()) == len(run.outputs)


def test_with_overlap_a_block_that_decoding_fills_is_stored_after_the_next_one_took_its_slots() -> None:
    """Two blocks to use: the request's third evicts the other's first, before its second is announced."""
    cache = BlockPool(4, 8, overlap=True)
    run = Run(mixed_steps.plan, cache, Limits(4, 100))
    run.add(request(list(range(9)), 1))
    list(run.steps())
    cache.take_events()
    one = run.add(request(list(range(50, 62)), 9))
    for _ in run.steps():
        pass
    kinds = [type(event).__name__ for event in cache.take_events()]
    assert one.finish == "length"
    assert kinds == ["BlockStored", "BlockRemoved", "BlockStored"]


def test_with_overlap_a_prompt_is_found_when_the_step_after_its_own_is_planned() -> None:
    cache = RadixCache(256, 1, overlap=True)
    run = Run(prefill_first.plan, cache, Limits(4, 100))
    run.add(request(list(range(40)), 9))
    run.step()
    during = run.add(request([*range(40), 77], 9))
    run.step()
    later = run.add(request([*range(40), 78], 9))
    run.step()
    assert (during.cached_tokens, later.cached_tokens) == (0, 40)
    list(run.steps())
    assert run.idle()
