"""The registry of instances in Redis: a hash of records, and a stream of changes that replicas read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal

from store.change_reader import ChangeReader, pack_record, parse_change_id, unpack_record
from store.keys import REGISTRY
from store.redis_link import RedisLink, script_call
from store.redis_scripts import CHANGE, READ_CHANGES, READ_INSTANCES
from store.state import Change, RegisteredInstance, Reread

MAX_CHANGES = 10_000
"""About as many changes are kept for replicas that are away."""

_READ_AT_ONCE = 1_000


class RedisRegistry:
    """One replica's view. `replica` marks its changes, so that they are not told back to it."""

    def __init__(self, link: RedisLink, replica: str, ttl_ms: int, poll_s: float) -> None:
        self._link = link
        self._replica = replica.encode()
        self._ttl_ms = ttl_ms
        self._poll_s = poll_s
        self._reader: ChangeReader | None = None
        self._untold: deque[Change] = deque()

    async def instances(self) -> dict[str, RegisteredInstance]:
        """All records that can be read. `changes` goes on from here."""
        newest, flat = await self._link.one("registry", script_call(READ_INSTANCES, REGISTRY))
        self._reader = ChangeReader(self._replica, parse_change_id(newest))
        self._untold.clear()
        fields = zip(flat[::2], flat[1::2], strict=True)
        records = [unpack_record(field[2:], value) for field, value in fields if field.startswith(b"i:")]
        return {record.id: record for record in records if record is not None}

    async def put(self, instance: RegisteredInstance) -> None:
        """Add or change."""
        await self._change("put", instance.id, pack_record(instance))

    async def delete(self, id: str) -> None:
        """Delete, known or not."""
        await self._change("delete", id)

    async def set_draining(self, id: str, draining: bool) -> None:
        """Set the flag of a record, and tell the others whether or not there is one."""
        await self._change("drain" if draining else "undrain", id)

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Others' changes, for ever. What was not taken yet is told by the next iteration."""
        if self._reader is None:
            await self.instances()
            self._untold.append(Reread())
        while True:
            while self._untold:
                yield self._untold.popleft()
            if await self._read() < _READ_AT_ONCE:
                await asyncio.sleep(self._poll_s)

    async def _read(self) -> int:
        reader = self._reader
        assert reader is not None
        command = script_call(READ_CHANGES, REGISTRY, reader.next_id, _READ_AT_ONCE)
        epoch, entries = await self._link.one("changes", command)
        if reader is self._reader:  # else `instances` was called meanwhile and knows more
            self._untold.extend(reader.take(epoch, entries))
        return len(entries)

    async def _change(self, op: Literal["put", "delete", "drain", "undrain"], id: str, value: bytes = b"0") -> None:
        arguments = (self._replica, op, id, value, self._ttl_ms, MAX_CHANGES)
        await self._link.one("registry", script_call(CHANGE, REGISTRY, *arguments))
