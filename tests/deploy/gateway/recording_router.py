"""Where reports go, in place of a router: it names engines in a fixed order and writes down what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RecordingRouter:
    """`url` is where it listens; `told` has (engine's url, body of /finished) in the order of arrival."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[tuple[str, dict[str, Any]]] = []

    def errors(self) -> list[tuple[str, Any]]:
        """Of each report the engine and the error."""
        return [(url, body.get("error")) for url, body in self.told]


@contextmanager
def recording_router(engines: Sequence[str]) -> Iterator[RecordingRouter]:
    """The first of the engines that a request does not exclude has it. When none is left: 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/route":
                left = [n for n, url in enumerate(engines) if url not in body.get("exclude", [])]
                answer = {"url": engines[left[0]], "request_id": f"id-{left[0]}", "headers": {}} if left else {}
                self._answer(200 if left else 503, json.dumps(answer).encode())
            else:
                _, _, request_id, what = self.path.split("/")
                if what == "finished":
                    router.told.append((engines[int(request_id.removeprefix("id-"))], body))
                self._answer(204, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        router = RecordingRouter(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield router
        server.shutdown()
        thread.join(5.0)
