"""An engine that publishes a known number of stored blocks: `python -m benchmarks.event_publisher PORT RUN BATCHES`.

One PUB socket; all batches are made before it binds. For each line on stdin it sends all of them once, each a store of
RUN blocks of 16 tokens under the hashes of an engine with sha256_cbor and seed 0, and continues its numbers. Prints
`ready` once it is bound, and `sent` after each turn.
"""

from __future__ import annotations

import sys
from itertools import count

import zmq

from benchmarks.state_fleet import stored_payload, tokens_of


def main(port: int, run: int, batches: int) -> None:
    """Publish until stdin ends."""
    made = [stored_payload(tokens_of(number, run)) for number in range(batches)]
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.set(zmq.SNDHWM, 0)
    socket.bind(f"tcp://127.0.0.1:{port}")
    print("ready", flush=True)
    seq = count()
    for _ in sys.stdin:
        for one in made:
            socket.send_multipart([b"", next(seq).to_bytes(8, "big"), one])
        print("sent", flush=True)
    context.destroy(linger=0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
