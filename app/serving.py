"""The router under uvicorn, in this process."""

from __future__ import annotations

import gc
from importlib.util import find_spec

import uvicorn

from app.main import create_app
from app.settings import Settings

KEEP_ALIVE_S = 75
"""Longer than gateways keep idle connections, so that they close them first."""
STOP_WITHIN_S = 10


def run(settings: Settings, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT. False: it never started."""
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            host=host,
            port=port,
            http=http_protocol(),
            workers=1,
            lifespan="on",
            log_config=None,
            access_log=settings.log.access,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_WITHIN_S,
        )
    )
    gc.collect()
    gc.freeze()  # what is made up to here stays: going through it again and again would stop requests for 50 ms
    server.run()
    return server.started


def http_protocol() -> str:
    """For uvicorn's `http`: the protocol with the short way, where its parser is installed."""
    return "app.short_http:ShortHttp" if find_spec("httptools") is not None else "auto"
