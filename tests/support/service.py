"""The real service for tests: the application under a real uvicorn on a free port of 127.0.0.1, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from app.main import create_app
from app.service import Service
from app.serving import http_protocol
from app.settings import Settings
from app.short_route import ShortRoute
from tests.support.ports import free_port

READY_S = 10.0


class Running:
    """A running service and a client for it."""

    def __init__(self, url: str, service: Service, short_route: ShortRoute) -> None:
        self.url = url
        self.service = service
        self.short_route = short_route
        self.http = httpx.Client(base_url=url, timeout=10.0, trust_env=False)

    def route(self, tokens: list[int], **fields: Any) -> dict[str, Any]:
        """`POST /route` with explanation; the answer of a 200."""
        answer = self.http.post("/route", json={"token_ids": tokens, "explain": True, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def candidates(self, tokens: list[int], **fields: Any) -> dict[str, dict[str, Any]]:
        """`POST /index/match`: the first rank's candidate by instance."""
        answer = self.http.post("/index/match", json={"token_ids": tokens, **fields})
        assert answer.status_code == 200, answer.text
        return {one["instance"]: one for one in answer.json()["candidates"] if one["dp_rank"] == 0}

    def instance(self, instance_id: str) -> dict[str, Any]:
        """One instance as the service shows it."""
        answer = self.http.get(f"/instances/{instance_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def worker(self, instance_id: str) -> dict[str, Any]:
        """The first rank of an instance."""
        worker: dict[str, Any] = self.instance(instance_id)["workers"][0]
        return worker

    def metric(self, line_start: str) -> float:
        """The value of the only series whose text starts so; 0 when there is none."""
        lines = [line for line in self.http.get("/metrics").text.splitlines() if line.startswith(line_start)]
        assert len(lines) <= 1, lines
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    def wait_for_seq(self, instance_id: str, seq: int, timeout_s: float = 10.0) -> None:
        """Until the batch `seq` of an instance's first rank is applied."""
        wait_until(lambda: self.worker(instance_id)["seq"] == seq, timeout_s, lambda: self.worker(instance_id))

    def wait_for_trust(self, instance_id: str, trust: str, timeout_s: float = 10.0) -> None:
        """Until an instance's first rank has this trust: `exact` comes with the end of the replay asked for."""
        wait_until(lambda: self.worker(instance_id)["trust"] == trust, timeout_s, lambda: self.worker(instance_id))

    def wait_for_state(self, instance_id: str, state: str, timeout_s: float = 10.0) -> None:
        """Until an instance's first rank is in a state."""
        wait_until(lambda: self.worker(instance_id)["state"] == state, timeout_s, lambda: self.worker(instance_id))


@contextmanager
def serving(settings: Settings | dict[str, Any], http: str | None = None, **config: Any) -> Iterator[Running]:
    """Run the service with these settings; everything is closed afterwards.

    `http` and `config` are uvicorn's: the protocol (the one that `kvroute serve` takes, when None), and further ones.
    """
    app = create_app(settings if isinstance(settings, Settings) else Settings.model_validate(settings))
    listening = socket.create_server(("127.0.0.1", 0))
    config = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": 2, **config}
    server = uvicorn.Server(uvicorn.Config(app, http=http or http_protocol(), lifespan="on", **config))
    thread = threading.Thread(target=server.run, args=([listening],), name="service", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, READY_S, lambda: "the service did not start")
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        running = Running(url, app.state.service, app.state.short_route)
        try:
            yield running
        finally:
            running.http.close()
    finally:
        server.should_exit = True
        thread.join(READY_S)
        listening.close()
        assert not thread.is_alive()


def wait_until(true: Callable[[], bool], timeout_s: float, about: Callable[[], object] = lambda: "") -> None:
    """Poll until `true`; fails with `about` after the time limit."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, about()
        time.sleep(0.005)


def free_url() -> str:
    """A URL of this machine where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def u32(tokens: list[int]) -> bytes:
    """Token ids as the octet-stream form of a body."""
    return array("I", tokens).tobytes()
