"""Breaking engines one at a time, and watching which of them the routers choose from meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

import aiohttp

from benchmarks.availability_engines import MODEL
from benchmarks.availability_verdict import LATE_S, Fault

POLL_S: Final = 0.02
BACK_S: Final = 30.0
ASK_S: Final = 2.0


class Breakable(Protocol):
    """An engine that can be broken in ways that have names."""

    @property
    def name(self) -> str:
        """Its id for the router."""

    def kinds(self) -> list[str]:
        """What can go wrong with it."""

    def broken_for(self, kind: str, random: Random) -> float:
        """How long a fault lasts, in seconds."""

    async def break_it(self, kind: str) -> None:
        """Begin the fault."""

    async def heal(self, kind: str) -> None:
        """End it; afterwards the engine answers."""


@dataclass(eq=False)
class Watch:
    """Looks every 20 ms at which engines the routers choose from, for each of the models."""

    routers: list[str]
    models: Sequence[str] = (MODEL,)
    is_in: dict[tuple[str, str], bool] = field(default_factory=dict)
    """By router and engine, as it was last seen."""

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
            for url in self.routers:
                for model in self.models:
                    group.create_task(self._look(http, url, model))

    def chosen_from(self, engine: str) -> bool:
        """Whether some router chooses it."""
        return any(self.is_in.get((url, engine), False) for url in self.routers)

    def all_choose_from(self, engine: str) -> bool:
        """Whether all do."""
        return all(self.is_in.get((url, engine), False) for url in self.routers)

    async def _look(self, http: aiohttp.ClientSession, url: str, model: str) -> None:
        question = {"model": model, "token_ids": [1, 2, 3]}
        while True:
            began = time.monotonic()
            try:
                async with http.post(f"{url}/index/match", json=question) as answer:
                    said = await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                said = {}
            for one in said.get("candidates", []):
                self.is_in[url, one["instance"]] = one["eligible"]
            await asyncio.sleep(max(0.0, POLL_S - (time.monotonic() - began)))


@dataclass(eq=False)
class Faults:
    """Breaks and heals engines, one at a time."""

    engines: Sequence[Breakable]
    watch: Watch
    random: Random
    every_s: float
    kinds: list[str]
    made: list[Fault] = field(default_factory=list)

    async def run(self, until_s: float) -> None:
        """Until no further fault fits before `until_s`. Ends early when an engine does not come back."""
        kinds = self._drawn()
        next_s = time.monotonic() + 1.0
        while next_s + self.every_s <= until_s:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            kind = next(kinds)
            engine = self.random.choice([one for one in self.engines if kind in one.kinds()])
            if not await self.make(engine, kind):
                return
            next_s = max(next_s + self.every_s, time.monotonic())

    def _drawn(self) -> Iterator[str]:
        """Each kind once in random order, then again."""
        while True:
            yield from self.random.sample(self.kinds, len(self.kinds))

    async def make(self, engine: Breakable, kind: str) -> bool:
        """One fault, until the engine is back; whether it is."""
        fault = Fault(kind, engine.name, time.monotonic())
        self.made.append(fault)
        broken_s = engine.broken_for(kind, self.random)
        watching = asyncio.create_task(self._measure(fault))
        try:
            await engine.break_it(kind)
            await asyncio.sleep(max(0.0, fault.at_s + broken_s - time.monotonic()))
            await engine.heal(kind)
            fault.healed_s = time.monotonic()
            await self._wait_for_return(fault)
        finally:
            watching.cancel()
        back = "never" if fault.back_s is None else f"{fault.back_s - (fault.healed_s or 0.0):.2f} s"
        out = "never" if fault.out_s is None else f"{fault.out_s - fault.at_s:.2f} s"
        print(f"{kind} of {engine.name}: out after {out}, in again after {back}", flush=True)
        return fault.back_s is not None

    async def _measure(self, fault: Fault) -> None:
        """Note when all routers have left the engine out, and how long it is in although it should not be."""
        before = time.monotonic()
        while fault.healed_s is None:
            await asyncio.sleep(POLL_S / 2)
            now = time.monotonic()
            chosen = self.watch.chosen_from(fault.engine)
            if fault.out_s is None and not chosen:
                fault.out_s = now
            if chosen and now > fault.at_s + LATE_S:
                fault.in_while_broken_s += now - before
            before = now

    async def _wait_for_return(self, fault: Fault) -> None:
        assert fault.healed_s is not None
        while time.monotonic() < fault.healed_s + BACK_S:
            if self.watch.all_choose_from(fault.engine):
                fault.back_s = time.monotonic()
                return
            await asyncio.sleep(POLL_S / 2)
