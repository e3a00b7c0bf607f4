"""A recorded stream played by a real publisher, and asked for at its stops; it begins anew at its end."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tests.support.fleet import instance
from tests.support.golden import Row, Stream
from tests.support.publisher import Publisher
from tests.support.router_process import RouterProcess

LATER_S = 3600.0


@dataclass
class RecordedPlay:
    """One engine. Its model and id are `name`; each process's batches are later than the one's before it."""

    name: str
    stream: Stream
    publisher: Publisher
    processes: int = 1
    was_restarted: bool = False
    """Whether the last segment is the first of a process."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its instance."""
        own = instance(self.name, self.publisher, model=self.name, topic=self.stream.topic, **self.stream.settings)
        return {**own, "engine": self.stream.engine}

    @property
    def seq(self) -> int:
        """The last batch published."""
        return self.publisher.next_seq - 1

    def segment(self) -> list[bytes]:
        """The payloads up to the next number that rows are asked after. At the end the engine starts over."""
        stops = sorted({row.after_seq for row in self.stream.rows if row.after_seq > self.seq})
        self.was_restarted = not stops
        if not stops:
            self.restart()
            stops = sorted({row.after_seq for row in self.stream.rows if row.after_seq >= 0})
        wanted = range(self.seq + 1, stops[0] + 1)
        return [later(self.stream.payloads[seq], self.processes * LATER_S) for seq in wanted]

    def restart(self) -> None:
        """Another process at the same endpoints."""
        self.publisher.restart()
        self.processes += 1

    @property
    def rows(self) -> list[Row]:
        """What is asked now. Adapters loaded from another path need an engine's HTTP side: left out."""
        return [row for row in self.stream.rows if row.after_seq == self.seq and row.adapter_path != "/adapters/sql-v2"]

    def is_exact(self, router: RouterProcess) -> int:
        """Every row due is answered as the engine did, by this instance; returns their number."""
        for row in self.rows:
            answer = router.route(row.tokens, model=self.name, **row.fields)
            own = next(one for one in answer["candidates"] if one["instance"] == self.name)
            got = {**own, **own["by_medium"]}
            assert {key: got[key] for key in row.expected} == row.expected, (self.name, self.seq, row)
            assert own["trust"] == "exact", own
        return len(self.rows)


def later(payload: bytes, shift_s: float) -> bytes:
    """The payload of a process that lived later: nothing but its time differs."""
    assert payload[1] == 0xCB, "the time is a float64"
    (ts,) = struct.unpack_from(">d", payload, 2)
    return payload[:2] + struct.pack(">d", ts + shift_s) + payload[10:]
