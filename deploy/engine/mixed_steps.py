"""vLLM's steps: decodes and chunks of prefills together, within one budget of tokens.

Mirrors `Scheduler.schedule` of vllm/v1/core/sched/scheduler.py (0.32.0), first come first served, synchronous: running
requests first; when one cannot grow, the last that came is preempted; then waiting ones, if none was preempted.
"""

from __future__ import annotations

from deploy.engine.request import Request
from deploy.engine.scheduler import Scheduler, Work


def plan(scheduler: Scheduler) -> list[Work]:
    """The next step of a vLLM engine."""
    works: list[Work] = []
    budget = scheduler.limits.step_tokens
    preemptions = scheduler.counts.preemptions
    while len(works) < len(scheduler.running) and budget > 0:
        request = scheduler.running[len(works)]
        count = _grow(scheduler, request, budget)
        if count is None:
            return works
        works.append(scheduler.work(request))
        budget -= count
    if scheduler.counts.preemptions == preemptions:
        works += _admit(scheduler, budget)
    return works


def _grow(scheduler: Scheduler, request: Request, budget: int) -> int | None:
    """Slots for a running request's next tokens, if need be at the cost of later ones. None: it was preempted too."""
    sequence = request.sequence
    assert sequence is not None
    count = min(len(sequence.tokens) - sequence.computed_tokens, budget)
    while not scheduler.cache.extend(sequence, count):
        victim = scheduler.running[-1]
        scheduler.preempt(victim)
        if victim is request:
            return None
    return count


def _admit(scheduler: Scheduler, budget: int) -> list[Work]:
    works: list[Work] = []
    while scheduler.waiting and budget > 0 and len(scheduler.running) < scheduler.limits.max_running:
        request = scheduler.waiting[0]
        sequence = scheduler.cache.start(
            request.tokens, request.namespace, limit=budget, prompt_length=len(request.prompt)
        )
        if sequence is None:
            break
        works.append(scheduler.begin(request, sequence))
        budget -= len(sequence.pending)
    return works
