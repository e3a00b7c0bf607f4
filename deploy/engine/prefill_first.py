"""SGLang's steps: prefills or decodes; prefills go first, while the cache has room for what they may become.

Mirrors `PrefillAdder` of sglang/srt/managers/schedule_policy.py and `Scheduler.get_next_batch_to_run` (0.5.22), first
come first served. Left out: the ratio by which SGLang expects outputs to end early (here every request is expected to
use its max_new_tokens, up to 4096, so nothing is retracted unless outputs are longer), and mixed chunks.
"""

from __future__ import annotations

from deploy.engine.request import Request
from deploy.engine.scheduler import Scheduler, Work

EXPECTED_AT_MOST = 4096
"""`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`."""


def plan(scheduler: Scheduler) -> list[Work]:
    """The next step of an SGLang engine."""
    return _prefills(scheduler) or _decodes(scheduler)


def _prefills(scheduler: Scheduler) -> list[Work]:
    budget = scheduler.limits.step_tokens
    works: list[Work] = []
    chunked = next((one for one in scheduler.running if _prefill_left(one)), None)
    if chunked is not None:
        count = _chunk(scheduler, _prefill_left(chunked), budget)
        assert chunked.sequence is not None
        if not scheduler.cache.extend(chunked.sequence, count):
            scheduler.preempt(chunked)
            return []
        works.append(scheduler.work(chunked))
        budget -= count
    while budget > 0 and scheduler.waiting and len(scheduler.running) < scheduler.limits.max_running:
        work = _admit(scheduler, budget)
        if work is None:
            break
        works.append(work)
        budget -= len(work.sequence.pending)
    return works


def _prefill_left(request: Request) -> int:
    """The tokens of a running request's prefill that have no slots yet."""
    sequence = request.sequence
    assert sequence is not None
    return max(0, request.prefill_end - len(sequence.slots))


def _chunk(scheduler: Scheduler, left: int, budget: int) -> int:
    """How much of a prefill goes into a step: all of it, or whole pages."""
    page = scheduler.limits.page
    return left if left <= budget else budget // page * page


def _admit(scheduler: Scheduler, budget: int) -> Work | None:
    """Start the first waiting request if there is room for it and for what the running ones may become.

    A request that runs alone always has room. The second look is SGLang's with the prefix locked; where only that one
    says no, room made for the request stays made, which SGLang would not have evicted yet.
    """
    request, cache = scheduler.waiting[0], scheduler.cache
    tokens = request.tokens
    rest = len(tokens) - cache.peek(tokens, request.namespace)
    limit = _chunk(scheduler, rest, budget)
    if limit == 0 or not _room(scheduler, request, rest):
        return None
    sequence = cache.start(tokens, request.namespace, limit=limit, prompt_length=len(request.prompt))
    if sequence is None:
        return None
    if not _room(scheduler, request, rest - limit):
        cache.finish(sequence, keep=False)
        return None
    return scheduler.begin(request, sequence)


def _room(scheduler: Scheduler, request: Request, rest: int) -> bool:
    stats = scheduler.cache.stats()
    needed = rest + _expected(request) + scheduler.limits.page
    return not scheduler.running or needed + sum(map(_reserved, scheduler.running)) <= stats.free + stats.evictable


def _expected(request: Request) -> int:
    return min(request.tokens_left, EXPECTED_AT_MOST)


def _reserved(request: Request) -> int:
    return _prefill_left(request) + _expected(request)


def _decodes(scheduler: Scheduler) -> list[Work]:
    """One token of every running request; when slots run out, the request with the least output is retracted first."""
    works: list[Work] = []
    for request in list(scheduler.running):
        while request.sequence is not None and not scheduler.cache.extend(request.sequence, 1):
            idle = [one for one in scheduler.running if one.sequence is not None and not one.sequence.pending]
            scheduler.preempt(min(idle, key=lambda one: (len(one.output), -len(one.prompt))))
        if request.sequence is not None:
            works.append(scheduler.work(request))
    return works
