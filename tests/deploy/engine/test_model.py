"""The transformer: with cached KV it says what it says without."""

from __future__ import annotations

import random
import time

import pytest

pytest.importorskip("torch")

import torch

from deploy.engine import mixed_steps, prefill_first
from deploy.engine.block_pool import BlockPool
from deploy.engine.byte_pairs import BytePairs
from deploy.engine.cache import KVCache
from deploy.engine.model import Model, Part
from deploy.engine.radix_cache import RadixCache
from deploy.engine.request import Request, Sampling
from deploy.engine.scheduler import Limits, Planner, Scheduler
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


def test_over_http_a_hit_saves_time_and_changes_nothing() -> None:
    prompt = random.Random(3).choices(range(8192), k=3000)
    with cpu_engine("vllm", compute="torch", max_model_len=4000) as engine:
        took, answers = [], []
        for _ in range(2):
            start = time.monotonic()
            answers.append(engine.complete(prompt, max_tokens=3))
            took.append(time.monotonic() - start)
        first, second = answers
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 2992
        assert second["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
        assert took[1] < took[0] / 2
