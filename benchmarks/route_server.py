"""The server side of benchmarks.route_http: the real application with 64 workers x 10,000 blocks already indexed.

Also serves `POST /reference`: what a plain FastAPI endpoint with a pydantic list[int] does with the same body.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from app.logs import configure_logs
from app.main import create_app
from app.service import Service
from app.serving import http_protocol
from app.settings import Settings
from benchmarks.workload import prompts, stored, worker_named
from engine.load import EngineLoad
from index.event import EventBatch
from index.worker import Trust

WORKERS = 64
BLOCKS = 10_240
RUN = 2048


class PlainBody(BaseModel):
    """The reference's body."""

    model: str
    token_ids: list[int]


def main(port: int, prompt_file: Path, short: bool) -> None:
    """Serve on `port`; a prompt of 2,048 blocks that one worker holds goes to `prompt_file`.

    `short`: with the short way that `kvroute serve` has; else under uvicorn's own protocol.
    """
    instances = [
        {"id": f"worker-{number}", "engine": "vllm", "model": "m", "url": f"http://127.0.0.1:{9}/{number}"}
        for number in range(WORKERS)
    ]
    quiet = {"load_interval_s": 3600.0, "discovery_interval_s": 3600.0}
    settings = Settings.model_validate({"instances": instances, "polling": quiet, "log": {"level": "error"}})
    app = create_app(settings)
    service: Service = app.state.service
    own_lifespan = app.router.lifespan_context
    configure_logs(settings.log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        async with own_lifespan(app) as state:
            await service.stop()  # nobody asks engines that are not there
            prompt_file.write_text(json.dumps(_fill(service)))  # noqa: ASYNC240
            reports = asyncio.create_task(_report(service))
            yield state or {}
            reports.cancel()

    app.router.lifespan_context = lifespan

    @app.post("/reference")
    async def reference(body: PlainBody) -> dict[str, int]:
        return {"tokens": len(body.token_ids)}

    http = http_protocol() if short else "auto"
    uvicorn.run(app, host="127.0.0.1", port=port, http=http, log_config=None, access_log=False)


def _fill(service: Service) -> list[int]:
    dice, held = random.Random(1), []
    for number in range(WORKERS):
        for tokens in prompts(number, BLOCKS // RUN, RUN):
            hashes = [dice.getrandbits(64) for _ in range(RUN)]
            service.around.index.apply(worker_named(number), EventBatch(1.0, [stored(tokens, hashes)], 0))
            held = tokens
    return held


async def _report(service: Service) -> None:
    """What watching the engines would set: their streams are up, and each reports its load once a second."""
    dice = random.Random(2)
    for instance in service.around.fleet:
        instance.contact = instance.contact.looked(time.monotonic())
        for tracked in instance.workers.values():
            tracked.link_up, tracked.trust = True, Trust.EXACT
    while True:
        for instance in service.around.fleet:
            for tracked in instance.workers.values():
                tracked.load = EngineLoad(float(dice.randint(2, 12)), 0.0, 0.5, False)
                tracked.load_at = time.monotonic()
        await asyncio.sleep(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "short")
