"""The event publisher of one data-parallel rank: a PUB socket, and a ROUTER that replays what is still buffered.

Mirrors `ZmqEventPublisher` of vllm/distributed/kv_events.py (SGLang's is its copy): frames `[topic, seq, payload]`, a
sequence number from 0 for each batch, the last `buffer_steps` batches for replay, requests from DEALER or REQ sockets.
Unlike there, publishing happens on the event loop; a full PUB queue drops as in the engines.
"""

from __future__ import annotations

import asyncio
from collections import deque

import zmq
import zmq.asyncio

END_MARKER = b"\xff" * 8
"""The sequence number that ends an answer."""

SEND_LIMIT = 100_000
"""The `hwm` of both engines: messages that wait for a slow subscriber."""


class EventPublisher:
    """Publishes batches. The ports are bound when the constructor returns; zmq.ZMQError when one is taken."""

    def __init__(
        self, context: zmq.asyncio.Context, host: str, port: int, replay_port: int, topic: str, buffer_steps: int
    ) -> None:
        self.next_seq = 0
        self._topic = topic.encode()
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        """What can be replayed: number and payload."""
        self._pub = zmq.Context(context).socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        try:
            self._pub.set(zmq.SNDHWM, SEND_LIMIT)
            self._pub.bind(f"tcp://{host}:{port}")
            self._router.bind(f"tcp://{host}:{replay_port}")
        except zmq.ZMQError:
            self.close()
            raise

    def publish(self, payload: bytes) -> None:
        """Send a batch to whoever is subscribed, and keep it."""
        seq = self.next_seq
        self.next_seq += 1
        self.buffer.append((seq, payload))
        self._pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload))

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled. One without the empty delimiter is ignored."""
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) == 3 and not frames[1]:
                await self._replay(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, client: bytes, start: int) -> None:
        """A client that reads too slowly loses batches at ZMQ's default limit of 1000, as with the engines."""
        for number, (seq, payload) in enumerate(list(self.buffer)):
            if seq >= start:
                await self._router.send_multipart((client, b"", self._topic, seq.to_bytes(8, "big"), payload))
            if number % 64 == 0:
                await asyncio.sleep(0)
        await self._router.send_multipart((client, b"", b"", END_MARKER, b""))

    def close(self) -> None:
        """Close the sockets; nothing waits for subscribers."""
        self._pub.close(0)
        self._router.close(0)
