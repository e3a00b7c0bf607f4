"""A proxy before an engine's HTTP port that can hang, answer 401 or refuse, and writes down what arrives.

It reads requests (so that it knows when one begins) and passes the answers on byte by byte. Bodies need a
content-length, as those of the gateway and the router have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

HOST: Final = "127.0.0.1"
ID_HEADER: Final = "x-availability-id"
"""The name of a request, given by the client that sends it."""

READ_BYTES: Final = 65_536
HEAD_BYTES: Final = 65_536
UNAUTHORIZED: Final = (
    b'HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n{"error":"Unauthorized"}'
)


class Mode(Enum):
    """What the proxy does with what arrives."""

    PASS = "pass"
    HANG = "hang"
    """Connections are taken and held, nothing goes through, in either direction."""
    UNAUTHORIZED = "401"
    """Every new request is answered 401; answers under way go on."""


@dataclass
class Arrival:
    """A request at the engine's port. Times are time.monotonic()."""

    method: str
    path: str
    request_id: str | None
    at_s: float
    done_s: float | None = None
    """When its connection took the next one or ended: not before the answer was complete."""

    @property
    def generates(self) -> bool:
        """Whether it asks for an answer of the model."""
        return self.method == "POST" and self.path.partition("?")[0].endswith(("/completions", "/generate"))


class _Head(NamedTuple):
    raw: bytes
    method: str
    path: str
    headers: dict[str, str]

    @property
    def body_bytes(self) -> int:
        """How much follows."""
        return int(self.headers.get("content-length", "0"))


@dataclass(eq=False)
class EngineProxy:
    """Passes on what comes to `port` to `engine_port`, both on 127.0.0.1. Not listening until `listen`."""

    port: int
    engine_port: int
    arrivals: list[Arrival] = field(default_factory=list)
    mode: Mode = Mode.PASS
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._flowing.set()

    def set_mode(self, mode: Mode) -> None:
        """From now on. What a hang has held goes on when it ends."""
        self.mode = mode
        (self._flowing.clear if mode is Mode.HANG else self._flowing.set)()

    async def listen(self) -> None:
        """Take connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, HOST, self.port, limit=HEAD_BYTES)

    def stop_listening(self) -> None:
        """Refuse new connections; those there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def refuse(self) -> None:
        """Refuse new connections and end all there are, as when the process behind has gone."""
        self.stop_listening()
        for task in self._connections:
            task.cancel()

    async def close(self) -> None:
        """End everything."""
        self.refuse()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The requests of one connection, until either side ends it. The engine's connection opens with the first."""
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        answering: asyncio.Task[None] | None = None
        arrival: Arrival | None = None
        try:
            while True:
                head = await self._next_head(reader, answering)
                if arrival is not None and arrival.done_s is None:
                    arrival.done_s = time.monotonic()
                if head is None:
                    return
                arrival = Arrival(head.method, head.path, head.headers.get(ID_HEADER), time.monotonic())
                self.arrivals.append(arrival)
                body = await reader.readexactly(head.body_bytes)
                await self._flowing.wait()
                if self.mode is Mode.UNAUTHORIZED:
                    writer.write(UNAUTHORIZED)
                    await writer.drain()
                    continue
                if upstream is None:
                    upstream = await asyncio.open_connection(HOST, self.engine_port)
                    answering = asyncio.create_task(self._pass_on(upstream[0], writer))
                upstream[1].write(head.raw + body)
                await upstream[1].drain()
        finally:
            if arrival is not None and arrival.done_s is None:
                arrival.done_s = time.monotonic()
            if answering is not None:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            if upstream is not None:
                upstream[1].transport.abort()

    async def _next_head(self, reader: asyncio.StreamReader, answering: asyncio.Task[None] | None) -> _Head | None:
        """None when the engine ends the connection first. IncompleteReadError when the client does."""
        reading = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        try:
            await asyncio.wait({reading, *([answering] if answering else [])}, return_when=asyncio.FIRST_COMPLETED)
            return _parsed(reading.result()) if reading.done() else None
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def listening(proxy: EngineProxy) -> AsyncIterator[EngineProxy]:
    """The proxy, listening; closed afterwards."""
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()


def _parsed(raw: bytes) -> _Head:
    lines = raw.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    fields = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if "chunked" in headers.get("transfer-encoding", ""):
        raise OSError("a request without content-length")
    return _Head(raw, method, path, headers)
