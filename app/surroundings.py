"""What every watched instance shares: settings, the fleet, the index, and the ways to the outside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import zmq.asyncio

from app.adapters import AdapterLabels
from app.fleet import Fleet
from app.identities import Identities
from app.metrics import Metrics
from app.settings import Settings
from app.state_writer import StateWriter
from app.turns import Turns
from engine.bells import Bells
from engine.http_client import HttpClient
from engine.listener import ListenerLimits
from index.index import Index
from index.worker import Worker

POLLS_AT_ONCE = 32
"""Engines that are asked over HTTP at the same time; more of them would only wait for one another."""


@dataclass(slots=True)
class Surroundings:
    """One object per process. `writer` is set when the service starts, the rest never changes."""

    settings: Settings
    limits: ListenerLimits
    fleet: Fleet
    index: Index
    identities: Identities
    adapters: AdapterLabels
    metrics: Metrics
    client: HttpClient
    context: zmq.asyncio.Context
    polls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(POLLS_AT_ONCE))
    doubts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(POLLS_AT_ONCE))
    """Likewise of those that perhaps do not answer: they must not hold up questions to others."""
    turns: Turns = field(default_factory=Turns)
    """For reading and applying events, whatever all engines send."""
    bells: Bells = field(default_factory=Bells)
    """Of all event sockets."""
    writer: StateWriter | None = None
    """Who keeps the state; None when nothing outlives the process."""

    def began(self, worker: Worker) -> None:
        """A worker's holdings were changed by something else than its batches: what follows is another lineage."""
        if self.writer is not None:
            self.writer.began(worker)

    def discard(self, worker: Worker) -> None:
        """What is stored of a worker must go."""
        if self.writer is not None:
            self.writer.discard(worker)

    def forget(self, worker: Worker) -> None:
        """A worker is followed no more; what is stored of it stays."""
        if self.writer is not None:
            self.writer.forget(worker)
