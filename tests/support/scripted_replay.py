"""A replay socket whose answers are written down in advance, by start number; other starts as told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

import zmq

from tests.support.publisher import bound_port

END_SEQ = b"\xff" * 8
END_MARKER = (b"", b"", END_SEQ, b"")

Manner = Literal["engine", "bare", "silent"]
"""What a start that is not in the script gets: the buffer and an end marker, the marker alone, or nothing at all."""

Frames = tuple[bytes, ...]


class ScriptedReplay:
    """A ROUTER in a thread, bound when the constructor returns. `script` and `buffer` may be changed at any time."""

    def __init__(self, port: int | None, manner: Manner) -> None:
        self.script: dict[int, list[Frames]] = {}
        self.buffer: list[tuple[int, bytes]] = []
        self._manner = manner
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        try:
            if port is None:
                bound_port(self._router, "127.0.0.1")
            else:
                self._router.bind(f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError:
            self._context.destroy(0)
            raise
        self.endpoint = self._router.get_string(zmq.LAST_ENDPOINT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="replay", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2])

    def close(self) -> None:
        """End the thread and close the socket. May be called twice."""
        self._ended.set()
        self._thread.join(10)
        self._context.destroy(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            if self._router.poll(20):
                frames = self._router.recv_multipart()
                if len(frames) == 3:  # as the engines: a request without the empty delimiter gets no answer
                    self._answer(frames[0], int.from_bytes(frames[2], "big"))

    def _answer(self, client: bytes, start: int) -> None:
        for frames in self._frames(start):
            self._router.send_multipart((client, *frames))

    def _frames(self, start: int) -> Sequence[Frames]:
        scripted = self.script.get(start)
        if scripted is not None:
            return scripted
        if self._manner == "silent":
            return []
        buffer = self.buffer if self._manner == "engine" else []
        answer = [replay_frames(seq, payload) for seq, payload in buffer if seq >= start]
        return [*answer, END_MARKER]


def replay_frames(seq: int, payload: bytes) -> Frames:
    """One batch of an answer, in the current form."""
    return b"", b"", seq.to_bytes(8, "big"), payload
