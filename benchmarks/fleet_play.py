"""Discrete-event play of a trace over simulated engines, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import fmean, quantiles
from typing import NamedTuple

from benchmarks.fleet_engine import Costs, Job, SimulatedEngine
from benchmarks.fleet_policies import LOAD_INTERVAL_S, KVRoute, LeastLoaded, Policy, RoundRobin, TextPrefix
from benchmarks.fleet_trace import UNIT_TOKENS, Arrival

POLICIES = ("round robin", "least loaded", "text prefix", "kvroute", "bound")


class Setting(NamedTuple):
    """One fleet under one load. `costs` are those of one engine; `rate` multiplies the trace's arrival rate."""

    engines: int
    costs: Costs
    rate: float


class Result(NamedTuple):
    """TTFT in seconds from arrival, `ttft_cuts_s` its percentiles 1 to 99.

    Spreads are the largest of an engine over the mean of all: of computed tokens, of mean time in the queue. `busy` is
    the share of the time that prefills take. `kept`: of kvroute's promises, the share delivered to the token.
    """

    hit_rate: float
    ttft_mean_s: float
    ttft_cuts_s: list[float]
    compute_spread: float
    queue_spread: float
    busy: float
    kept: float | None = None

    def ttft_s(self, percent: int) -> float:
        """A percentile, 1 to 99."""
        return self.ttft_cuts_s[percent - 1]


def play(arrivals: Sequence[Arrival], setting: Setting, policy: str, **options: object) -> Result:
    """One policy's result. Deterministic."""
    costs, count = setting.costs, setting.engines
    if policy == "bound":  # one engine, as fast and as big as the fleet
        costs = Costs(
            costs.prefill_us / count,
            costs.decode_us,
            costs.capacity_tokens * count,
            costs.step_tokens * count,
            costs.max_running * count,
        )
        count = 1
    engines = [SimulatedEngine(costs) for _ in range(count)]
    chooser = _POLICIES[policy](engines, **options)
    placed = _Play(engines, chooser).run(arrivals, setting.rate)
    return _result(engines, placed, chooser)


_POLICIES: dict[str, Callable[..., Policy]] = {
    "round robin": lambda engines: RoundRobin(len(engines)),
    "least loaded": lambda engines: LeastLoaded(len(engines)),
    "text prefix": lambda engines, **options: TextPrefix(len(engines), engines[0].costs.capacity_tokens, **options),
    "kvroute": KVRoute,
    "bound": lambda engines: RoundRobin(len(engines)),
}


class _Play:
    """The clock: the next of arrivals, engines' steps and ticks."""

    def __init__(self, engines: Sequence[SimulatedEngine], policy: Policy) -> None:
        self._engines = engines
        self._policy = policy
        self._next_tick_s = 0.0

    def run(self, arrivals: Sequence[Arrival], rate: float) -> list[tuple[int, Job]]:
        """Every request with the number of its engine."""
        placed = []
        for number, arrival in enumerate(arrivals):
            now = arrival.at_s / rate
            self._until(now)
            job = Job(arrival._replace(at_s=now), number)
            engine = self._policy.choose(job, now)
            self._engines[engine].submit(job, now)
            placed.append((engine, job))
        self._until(inf)
        return placed

    def _until(self, now: float) -> None:
        while True:
            engine = min(range(len(self._engines)), key=lambda number: self._engines[number].wakes_s)
            wakes_s = self._engines[engine].wakes_s
            if wakes_s == inf and now == inf:
                return
            if self._next_tick_s <= min(wakes_s, now):
                self._policy.tick(self._next_tick_s)
                self._next_tick_s += LOAD_INTERVAL_S
            elif wakes_s <= now:
                self._step(engine, wakes_s)
            else:
                return

    def _step(self, engine: int, now: float) -> None:
        progress = self._engines[engine].step_ended(now)
        for job in progress.first_tokens:
            self._policy.first_token(job, engine, now)
        for job in progress.finished:
            self._policy.finished(job, engine, now)


def _result(engines: Sequence[SimulatedEngine], placed: list[tuple[int, Job]], policy: Policy) -> Result:
    jobs = [job for _, job in placed]
    ttfts = [job.first_token_s - job.arrival.at_s for job in jobs]
    cuts = quantiles(ttfts, n=100, method="inclusive")
    queues = [
        fmean([job.started_s - job.arrival.at_s for at, job in placed if at == number] or [0.0])
        for number in range(len(engines))
    ]
    end = max(job.finished_s for job in jobs)
    busy_us = sum(one.computed_tokens * one.costs.prefill_us for one in engines) / len(engines)
    return Result(
        hit_rate=sum(job.cached_tokens for job in jobs) / sum(job.arrival.prompt_tokens for job in jobs),
        ttft_mean_s=fmean(ttfts),
        ttft_cuts_s=cuts,
        compute_spread=_spread([one.computed_tokens for one in engines]),
        queue_spread=_spread(queues),
        busy=busy_us / 1e6 / end,
        kept=_kept(jobs, policy),
    )


def _spread(parts: Sequence[float]) -> float:
    mean = fmean(parts)
    return max(parts) / mean if mean else 1.0


def _kept(jobs: Sequence[Job], policy: Policy) -> float | None:
    if not isinstance(policy, KVRoute):
        return None
    return fmean(job.cached_tokens == policy.promised[job] * UNIT_TOKENS for job in jobs)
