"""The process: every object is built here and passed in; the lifespan owns every task."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import zmq
import zmq.asyncio
from fastapi import FastAPI

from app.adapters import AdapterLabels
from app.api_instances import instances_api
from app.api_operations import operations_api
from app.api_route import route_api
from app.availability import verdict, worker_verdict
from app.candidates import trust_of
from app.fleet import Fleet
from app.fleet_rows import FleetRows, WorkerRow
from app.identities import Identities
from app.instance import Instance, TrackedWorker
from app.logs import configure_logs
from app.metrics import Metrics
from app.problems import answer_problems
from app.routing import Routing
from app.service import Service
from app.settings import Settings
from app.settings_file import SettingsError, load_settings
from app.short_route import STATE_KEY, ShortRoute
from app.surroundings import Surroundings
from app.version import VERSION
from engine.http_client import HttpClient
from index.index import Index
from index.native import FAULT
from router.route import Router

MAX_SOCKETS = 65_535
MAX_FILES = 65_535
IO_THREADS = 4
"""ZMQ's threads. One may be busy with a host name that does not resolve; streams on the others go on."""


def create_app(settings: Settings) -> FastAPI:
    """The ASGI application for these settings. Nothing runs before its lifespan begins.

    CoreError when KVROUTE_CORE asks for a core that cannot serve.
    """
    if FAULT is not None:
        raise FAULT
    service = build(settings)
    short_route = ShortRoute(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, ShortRoute]]:
        del app
        await service.start()
        try:
            yield {STATE_KEY: short_route}
        finally:
            await service.stop()
            await service.around.client.aclose()
            service.around.context.destroy(linger=0)

    app = FastAPI(title="kvroute", version=VERSION, lifespan=lifespan, description=DESCRIPTION)
    app.state.service, app.state.short_route = service, short_route
    answer_problems(app)
    for api in (route_api(service), instances_api(service), operations_api(service)):
        app.include_router(api)
    return app


DESCRIPTION = "Which engine holds the longest reusable prefix of a prompt. Errors are RFC 9457 problem documents."


def build(settings: Settings) -> Service:
    """All objects of a process, wired."""
    metrics, fleet, index = Metrics(), Fleet(settings.models), Index()
    client = HttpClient()
    around = Surroundings(
        settings=settings,
        limits=settings.listener.listener(),
        fleet=fleet,
        index=index,
        identities=Identities(settings),
        adapters=AdapterLabels(),
        metrics=metrics,
        client=client,
        context=_context(),
    )
    router, ejection = Router(settings.router.router()), settings.availability.ejection()
    routing = Routing(fleet, index, around.adapters, router, metrics, client, settings.limits, ejection)
    service = Service(settings, around, routing)
    metrics.watch(lambda: rows_of(service))
    return service


def _context() -> zmq.asyncio.Context:
    """ZMQ with room for three sockets a worker; files likewise, as far as the system allows."""
    context = zmq.asyncio.Context(io_threads=IO_THREADS)
    context.set(zmq.MAX_SOCKETS, min(MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return context


def rows_of(service: Service) -> FleetRows:
    """The fleet's state for a scrape."""
    index, rows = service.around.index, []
    now, states = time.monotonic(), {}
    for instance in service.around.fleet:
        states[instance.id] = verdict(instance, now).state
        rows += [_row(service, instance, tracked, now) for tracked in instance.workers.values()]
    return FleetRows(rows, states, sum(pool.size_bytes for pool in index.stats()))


def _row(service: Service, instance: Instance, tracked: TrackedWorker, now: float) -> WorkerRow:
    index, worker = service.around.index, tracked.worker
    declared, seen = instance.settings.block_size, index.block_size(worker)
    return WorkerRow(
        worker,
        worker_verdict(instance, tracked, now).state,
        trust_of(instance, tracked),
        tracked.hash.status == "mismatch",
        index.counts(worker),
        tracked.lag_s,
        index.parked(worker),
        declared is not None and seen is not None and declared != seen,
        instance.draining,
    )


def settings_from_environment() -> Settings:
    """Settings for `uvicorn app.main:app`: the file that KVROUTE_CONFIG names, if any. Wrong ones: exit status 2."""
    file = os.environ.get("KVROUTE_CONFIG")
    try:
        settings = load_settings(Path(file) if file else None, os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    configure_logs(settings.log)
    return settings


def __getattr__(name: str) -> FastAPI:
    """`app` for `uvicorn app.main:app`, made when it is asked for, so that importing this module reads no settings."""
    if name == "app":
        return create_app(settings_from_environment())
    raise AttributeError(name)
