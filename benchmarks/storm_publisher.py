"""Engines that publish events as fast as told: `python -m benchmarks.storm_publisher HTTP_PORT PORT ...`.

One PUB socket per port. The first batch has a block with a true hash (sha256_cbor, seed "0"), by which a router
verifies the engine; the others' hashes mean nothing. A batch stores 16 blocks of 16 tokens, the next of the same engine
removes them, so that what is held stays bounded. Each line on stdin is a rate in batches per second over all ports; 0,
as at first: none. Over HTTP, one port for all, they tell their version and nothing else.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import msgspec
import zmq

from benchmarks.state_fleet import stored_payload, tokens_of
from benchmarks.workload import BLOCK, payload

RUN = 16
KEPT = 64
_ENCODER = msgspec.msgpack.Encoder()


def main(http_port: int, ports: list[int]) -> None:
    """Publish until stdin ends."""
    http = ThreadingHTTPServer(("127.0.0.1", http_port), _Version)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    context = zmq.Context()
    sockets = []
    for port in ports:
        socket = context.socket(zmq.PUB)
        socket.set(zmq.SNDHWM, 0)
        socket.bind(f"tcp://127.0.0.1:{port}")
        sockets.append(socket)
    wanted = [0.0]
    threading.Thread(target=_listen, args=(wanted,), daemon=True).start()
    payloads, first = [_payloads(number) for number in range(len(ports))], stored_payload(tokens_of(0, 1))
    sent = 0
    for seq in count():
        for number, socket in enumerate(sockets):
            while wanted[0] == 0:
                time.sleep(0.01)
            if wanted[0] < 0:
                return
            body = first if seq == 0 else payloads[number][(seq - 1) % (2 * KEPT)]
            socket.send_multipart([b"", seq.to_bytes(8, "big"), body])
            sent += 1
            if sent % 16 == 0 and wanted[0] > 0:
                time.sleep(16 / wanted[0])


class _Version(BaseHTTPRequestHandler):
    """Tells the version, so that the engine counts as reached and is not asked all the time."""

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # who asked may have given up
            if self.path.endswith("/version"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"version": "0.32.0"}')
            else:
                self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _listen(wanted: list[float]) -> None:
    for line in sys.stdin:
        wanted[0] = float(line)
    wanted[0] = -1.0


def _payloads(seed: int) -> list[bytes]:
    """Stores and removals in turn; a cycle of them holds nothing in the end."""
    dice = random.Random(seed)
    made: list[bytes] = []
    for _ in range(KEPT):
        hashes = [dice.getrandbits(64) for _ in range(RUN)]
        made.append(payload([dice.randrange(128_000) for _ in range(RUN * BLOCK)], hashes))
        removal = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
        made.append(_ENCODER.encode([1.0, [removal], 0]))
    return made


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
