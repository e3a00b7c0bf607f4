"""The transformer: with cached KV it says what it says without."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.flop_counter import FlopCounterMode

from deploy.engine import mixed_steps, prefill_first
from deploy.engine.block_pool import BlockPool
from deploy.engine.byte_pairs import BytePairs
from deploy.engine.cache import KVCache
from deploy.engine.model import WIDTH, Model, Part
from deploy.engine.radix_cache import RadixCache
from deploy.engine.request import Request, Sampling
from deploy.engine.scheduler import Limits, Planner, Scheduler
from deploy.engine.settings import Face
from deploy.engine.slot_vectors import tensor_vector
from deploy.engine.text_output import TextOutput
from deploy.engine.torch_compute import TorchCompute
from tests.support.cpu_engine import cpu_engine

VOCABULARY = 300
BYTES = BytePairs([])
PROMPT = [7 * number % 290 for number in range(70)]
SAME = {"atol": 1e-4, "rtol": 1e-4}


def test_chunks_and_scattered_slots_do_not_change_the_logits() -> None:
    slots = random.Random(1).sample(range(200), 70)
    whole = Model(VOCABULARY, 200).forward([Part(PROMPT, 0, list(range(70)))])
    pieces = Model(VOCABULARY, 200)
    pieces.forward([Part(PROMPT[:33], 0, slots[:33])])
    torch.testing.assert_close(pieces.forward([Part(PROMPT[33:], 33, slots)]), whole, **SAME)


def test_parts_of_a_step_do_not_see_each_other() -> None:
    other = [5, 6, 7]
    model = Model(VOCABULARY, 200)
    both = model.forward([Part(PROMPT, 0, list(range(70))), Part(other, 0, [100, 101, 102])])
    alone = torch.cat(
        [
            Model(VOCABULARY, 200).forward([Part(PROMPT, 0, list(range(70)))]),
            Model(VOCABULARY, 200).forward([Part(other, 0, [0, 1, 2])]),
        ]
    )
    torch.testing.assert_close(both, alone, **SAME)


def test_the_kv_in_the_slots_is_what_is_attended_to() -> None:
    model = Model(VOCABULARY, 200)
    model.forward([Part(PROMPT, 0, list(range(70)))])
    right = model.forward([Part([9], 70, list(range(71)))])
    model.forward([Part([1, 2, 3], 0, [10, 11, 12])])
    wrong = model.forward([Part([9], 70, list(range(71)))])
    assert not torch.allclose(right, wrong, **SAME), "a cache that gives away held slots would be noticed"


@pytest.mark.parametrize(
    ("planner", "cache"),
    [
        (mixed_steps.plan, BlockPool(31, 8)),
        (prefill_first.plan, RadixCache(240, 1)),
        (prefill_first.plan, RadixCache(240, 8)),
    ],
)
async def test_reuse_eviction_and_sharing_leave_outputs_as_they_are_without(planner: Planner, cache: KVCache) -> None:
    """Conversations that share prefixes, run together in a small cache, against each prompt alone in a fresh one."""
    chance = random.Random(2)
    scheduler = Scheduler(cache, Limits(3, 40, 8), planner)
    compute = TorchCompute(VOCABULARY, cache.slots_total)
    requests: list[Request] = []
    for _ in range(3):
        for number in range(6):
            former = requests[-6].tokens if len(requests) >= 6 else PROMPT[:40]
            prompt = former[: chance.randint(20, len(former))] + chance.choices(range(290), k=chance.randint(1, 20))
            requests.append(_request(prompt[:90], 5 + number))
            scheduler.add(requests[-1])
        await _run(scheduler, compute)
    assert sum(request.cached_tokens or 0 for request in requests) > 200
    assert cache.stats().evicted > 0
    assert len({token for request in requests for token in request.output}) > 20, "outputs tell something"
    for request in requests:
        fresh = Scheduler(BlockPool(30, 8), Limits(1, 1000), mixed_steps.plan)
        alone = _request(request.prompt, request.sampling.max_tokens)
        fresh.add(alone)
        await _run(fresh, TorchCompute(VOCABULARY, 240))
        assert request.output == alone.output


def _request(prompt: list[int], max_tokens: int) -> Request:
    return Request(prompt, Sampling(max_tokens, ignore_eos=True), TextOutput(BYTES))


async def _run(scheduler: Scheduler, compute: TorchCompute) -> None:
    while works := scheduler.plan():
        scheduler.done(works, await compute.run(works))


@pytest.mark.parametrize(
    "new_cache",
    [
        lambda: BlockPool(31, 8),
        lambda: RadixCache(240, 1, vector=tensor_vector),
        lambda: RadixCache(240, 8, vector=tensor_vector),
    ],
    ids=["blocks", "tree", "tree of pages"],
)
def test_logits_with_reuse_equal_those_without_and_cost_what_is_left(new_cache: Callable[[], KVCache]) -> None:
    cache = new_cache()
    model = Model(VOCABULARY, cache.slots_total)
    prefill(model, cache, PROMPT)
    for prompt in ([*PROMPT[:48], *range(200, 220)], PROMPT, [*PROMPT, 9], PROMPT[:30]):
        warm = prefill(model, cache, prompt)
        cold = prefill(Model(VOCABULARY, 240), BlockPool(30, 8), prompt)
        assert warm.cached >= 24
        assert cold.cached == 0
        torch.testing.assert_close(warm.logits, cold.logits, **SAME)
        assert warm.logits.argmax() == cold.logits.argmax()
        assert warm.flops < cold.flops * (len(prompt) - warm.cached) / len(prompt) + HEAD_FLOPS


HEAD_FLOPS = 2 * VOCABULARY * WIDTH
"""Of the output head, which runs for the last token whatever is reused."""


class Prefill(NamedTuple):
    """A prompt computed: what came out, what was found, and the floating point operations of it."""

    logits: torch.Tensor
    cached: int
    flops: int


def prefill(model: Model, cache: KVCache, prompt: list[int]) -> Prefill:
    sequence = cache.start(prompt)
    assert sequence is not None
    pending = sequence.pending
    with FlopCounterMode(display=False) as counter:
        logits = model.forward([Part(prompt[pending.start :], pending.start, sequence.slots)])
    cache.computed(sequence)
    cache.finish(sequence)
    return Prefill(logits, sequence.cached_tokens, counter.get_total_flops())


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_over_http_a_hit_changes_no_token(face: Face) -> None:
    prompt = random.Random(3).choices(range(8192), k=600)
    with cpu_engine(face, compute="torch", max_model_len=1000, block_size=16) as engine:
        first, second = (engine.generated(prompt, 12) for _ in range(2))
        assert (first.cached_tokens, second.cached_tokens) == (0, 592)
        assert first.output == second.output
        assert len(first.output) == 12
