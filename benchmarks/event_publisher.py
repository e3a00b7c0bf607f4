"""An engine that publishes a known number of stored blocks: `python -m benchmarks.event_publisher PORT RUN BATCHES`.

One PUB socket; all batches are made before it binds. For an empty line on stdin it sends all of them once, each a store
of RUN blocks of 16 tokens under the hashes of an engine with sha256_cbor and seed 0; for the line `clear`, one batch
that says that the cache was emptied. Numbers and times go on. Prints `ready` once it is bound, and `sent` after each
turn.
"""

from __future__ import annotations

import struct
import sys
import time
from itertools import count

import msgspec
import zmq

from benchmarks.state_fleet import stored_payload, tokens_of

TIME_AT = 2
"""Where a payload `[ts, events, rank]` has its time: behind the array's head and the number's."""
CLEARED = msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}], 0])


def main(port: int, run: int, batches: int) -> None:
    """Publish until stdin ends."""
    made = [stored_payload(tokens_of(number, run)) for number in range(batches)]
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.set(zmq.SNDHWM, 0)
    socket.bind(f"tcp://127.0.0.1:{port}")
    print("ready", flush=True)
    seq = count()
    for line in sys.stdin:
        for one in [CLEARED] if line.strip() == "clear" else made:
            socket.send_multipart([b"", next(seq).to_bytes(8, "big"), _now(one)])
        print("sent", flush=True)
    context.destroy(linger=0)


def _now(payload: bytes) -> bytes:
    """The payload as if made now: an engine's clock does not go back."""
    return payload[:TIME_AT] + struct.pack(">d", time.time()) + payload[TIME_AT + 8 :]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
