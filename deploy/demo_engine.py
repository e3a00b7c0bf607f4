"""A stand-in for an engine: publishes a recorded event stream and says over HTTP what an engine says about itself.

    python -m deploy.demo_engine deploy/recordings/vllm.jsonl MODEL

It prints its URL. Each line on standard input names a batch up to which to publish; at the end of the input it ends,
so it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import zmq

from deploy.recording import Recording, published_at, read_recording

END_MARKER = b"\xff" * 8
PACE_MS = 5
Socket = zmq.Socket[bytes]


def main() -> None:
    """Serve the recording and model named on the command line."""
    file, model = sys.argv[1:]
    recording = read_recording(Path(file))
    context: zmq.Context[Socket] = zmq.Context()
    publisher = EventPublisher(recording, context)
    http = http_server(answers(recording, model, publisher))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{http.server_port}", flush=True)
    publisher.run(sys.stdin.fileno())
    context.destroy(linger=0)


class EventPublisher:
    """PUB and replay ROUTER as both engines have them: `[topic, seq, payload]`, every batch kept for replay."""

    def __init__(self, recording: Recording, context: zmq.Context[Socket]) -> None:
        self._recording = recording
        self._topic = recording.topic.encode()
        self._published: list[bytes] = []
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")

    def run(self, orders: int) -> None:
        """Publish up to the batches that lines on the file descriptor `orders` name, until it ends."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(orders, zmq.POLLIN)
        target, unread = -1, b""
        while True:
            behind = len(self._published) <= target
            ready = dict(poller.poll(PACE_MS if behind else None))
            if behind:
                self._publish_next()
            if self._router in ready:
                self._answer(self._router.recv_multipart())
            if orders in ready:
                read = os.read(orders, 4096)
                if not read:
                    return
                *lines, unread = (unread + read).split(b"\n")
                target = max([target, *map(int, lines)])

    def _publish_next(self) -> None:
        seq = len(self._published)
        payload = published_at(self._recording.payloads[seq], time.time())
        self._published.append(payload)
        self._pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload))

    def _answer(self, request: list[bytes]) -> None:
        client, _, start = request
        for seq in range(int.from_bytes(start, "big"), len(self._published)):
            self._router.send_multipart((client, b"", self._topic, seq.to_bytes(8, "big"), self._published[seq]))
        self._router.send_multipart((client, b"", b"", END_MARKER, b""))


def answers(recording: Recording, model: str, publisher: EventPublisher) -> dict[str, str]:
    """Path to body: the part of an engine's HTTP interface that tells where its events are and how busy it is."""
    card = {"id": model, "object": "model", "root": model, "parent": None, "max_model_len": 8192}
    models = {"/v1/models": json.dumps({"object": "list", "data": [card]})}
    if recording.engine == "sglang":
        return models | _sglang_answers(recording, publisher)
    return models | _vllm_answers(recording, publisher)


def _vllm_answers(recording: Recording, publisher: EventPublisher) -> dict[str, str]:
    source = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{publisher.port}",
        "replay_endpoint": f"tcp://*:{publisher.replay_port}",
        "topic": recording.topic,
    }
    metrics = (
        f"process_start_time_seconds {time.time()}",
        f'vllm:cache_config_info{{engine="0",block_size="{recording.block_size}"}} 1.0',
        'vllm:num_requests_running{engine="0"} 0.0',
        'vllm:num_requests_waiting{engine="0"} 0.0',
    )
    return {
        "/version": json.dumps({"version": recording.version}),
        "/kv_event_sources": json.dumps({"0": source}),
        "/metrics": "\n".join(metrics) + "\n",
    }


def _sglang_answers(recording: Recording, publisher: EventPublisher) -> dict[str, str]:
    events = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": publisher.port,
        "replay_endpoint_port_base": publisher.replay_port,
        "topic": recording.topic,
        "block_size": recording.block_size,
        "dp_size": 1,
    }
    facts = {"version": recording.version, "page_size": recording.block_size, "dp_size": 1, "kv_events": events}
    load = {"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}
    return {
        "/server_info": json.dumps(facts | {"startup_time": {"scheduler_e2e": time.time()}}),
        "/v1/loads": json.dumps({"loads": [load]}),
    }


def http_server(bodies: dict[str, str]) -> ThreadingHTTPServer:
    """A server on a free port of this machine that answers GET with these bodies by path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = bodies.get(self.path.partition("?")[0])
            content = (body or "not found").encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/plain" if self.path == "/metrics" else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        log_message: Callable[..., None] = lambda *_: None

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


if __name__ == "__main__":
    main()
