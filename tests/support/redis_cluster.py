"""A real Redis Cluster of three masters for tests, on free ports of 127.0.0.1: slots can move and masters fail."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from redis.crc import key_slot

from tests.support.redis_server import Options, RedisServer, wait_until

SLOTS = 16_384


class RedisCluster:
    """Three masters that share the slots, and `replicas` of the first one."""

    def __init__(self, replicas: int = 0) -> None:
        self.nodes = [RedisServer(Options(cluster=True)) for _ in range(3 + replicas)]
        self._stack = ExitStack()

    @property
    def masters(self) -> list[RedisServer]:
        """Those that got slots at the start."""
        return self.nodes[:3]

    @property
    def url(self) -> str:
        """Of the last master: the first may be killed."""
        return f"redis+cluster://127.0.0.1:{self.nodes[2].port}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def owner(self, key: str) -> RedisServer:
        """The node that has a key's slot."""
        slot = key_slot(key.encode())
        for first, last, master in self._slot_rows():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master)
        raise LookupError(key)

    def move_slot(self, key: str, target: RedisServer) -> None:
        """Migrate a key's slot with all its keys, as redis-cli --cluster reshard does."""
        self.begin_move(key, target)
        self.move_keys(key, target)
        self.end_move(key, target)

    def begin_move(self, key: str, target: RedisServer) -> None:
        """The slot of a key migrates from now on: for keys that are not there (any more), its owner says ASK."""
        slot, source = key_slot(key.encode()), self.owner(key)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _node_id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _node_id(target))

    def move_keys(self, key: str, target: RedisServer) -> None:
        """Move the keys of a slot that migrates."""
        slot, source = key_slot(key.encode()), self.owner(key)
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, key: str, target: RedisServer) -> None:
        """The slot has migrated: its former owner says MOVED."""
        for node in sorted(self.masters, key=lambda node: node is not target):
            node.command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", _node_id(target))

    def fail_over(self) -> None:
        """Make the first master's replica the master."""
        replica = self.nodes[3]
        replica.command("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: "master" in str(replica.command("ROLE")[0]))

    def _slot_rows(self) -> list[tuple[int, int, int]]:
        rows = []
        for line in _text(self.nodes[2].command("CLUSTER", "NODES")).splitlines():
            _, address, _, _, _, _, _, _, *ranges = line.split()
            port = int(address.split("@")[0].rpartition(":")[2])
            for one in ranges:
                if not one.startswith("["):
                    first, _, last = one.partition("-")
                    rows.append((int(first), int(last or first), port))
        return rows

    def _join(self) -> None:
        bounds = [SLOTS * number // 3 for number in range(4)]
        for number, node in enumerate(self.masters):
            node.command("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        wait_until(lambda: all(len(_known_nodes(node)) == len(self.nodes) for node in self.nodes))
        for node in self.nodes[3:]:
            node.command("CLUSTER", "REPLICATE", _node_id(self.nodes[0]))
        wait_until(self._is_whole)

    def _is_whole(self) -> bool:
        replicas = [node.command("ROLE") for node in self.nodes[3:]]
        return all("connected" in map(_text, role) for role in replicas) and all(
            "cluster_state:ok" in _text(node.command("CLUSTER", "INFO")) for node in self.nodes
        )


def _known_nodes(node: RedisServer) -> list[str]:
    return [line for line in _text(node.command("CLUSTER", "NODES")).splitlines() if "handshake" not in line]


def _node_id(node: RedisServer) -> str:
    return _text(node.command("CLUSTER", "MYID"))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
