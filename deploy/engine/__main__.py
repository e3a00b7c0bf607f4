"""`python -m deploy.engine --face vllm|sglang --port P --events-port E --replay-port R ...`: one engine's server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import uvicorn
import zmq

from deploy.engine.server import create_app
from deploy.engine.settings import EngineSettings, read_settings

_STOP_S = 2


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(read_settings()))


async def serve(settings: EngineSettings) -> None:
    """Serve until SIGINT or SIGTERM; the signal then takes its usual course. SIGUSR1 kills the engine behind the
    server (`Engine.die`)."""
    try:
        app = create_app(settings)
    except ModuleNotFoundError as error:
        sys.exit(f"--compute torch needs the extra `engine` (pip install -e .[engine]): {error}")
    except zmq.ZMQError as error:
        sys.exit(f"the ports for events cannot be used: {error}")
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, app.state.engine.die)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=_STOP_S,
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    main()
