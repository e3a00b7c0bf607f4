"""What is saved of a worker, as bytes: the body of a snapshot, and of a log entry. MessagePack, read strictly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from index.block_hash import HashIdentity
from index.dump import BlockDump, Dump, RadixDump, Recorded
from index.worker import Trust


class Unreadable(Exception):
    """The bytes are not what this version writes. The reason is a short text without any of them."""


class SavedWorker(msgspec.Struct, frozen=True):
    """A worker after batch `seq` of its snapshot. `digest` is that batch's (xxh3_64 of its payload, 8 bytes).

    `identity` is what its root blocks were verified with, `shared` whether that was the fleet's; `adapters` are the
    labels by which its adapters' blocks are found. `block` or `radix`: neither before its first store.
    """

    trust: Trust
    digest: bytes | None
    identity: HashIdentity | None
    shared: bool
    block: BlockDump | None = None
    radix: RadixDump | None = None

    @property
    def dump(self) -> Dump | None:
        """What it held."""
        return self.block if self.block is not None else self.radix


class SavedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One applied batch: the trust after it, its digest, and what was applied."""

    trust: Trust
    digest: bytes | None
    operations: list[list[Any]]


_ENCODER = msgspec.msgpack.Encoder()
_WORKER = msgspec.msgpack.Decoder(SavedWorker)
_BATCH = msgspec.msgpack.Decoder(SavedBatch)


def pack_worker(
    trust: Trust, digest: bytes | None, identity: HashIdentity | None, *, shared: bool, dump: Dump | None
) -> bytes:
    """A snapshot's body."""
    block = dump if isinstance(dump, BlockDump) else None
    radix = dump if isinstance(dump, RadixDump) else None
    return _ENCODER.encode(SavedWorker(trust, digest, identity, shared, block, radix))


def unpack_worker(body: bytes) -> SavedWorker:
    """A snapshot's body read. Raises Unreadable."""
    try:
        return _WORKER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a snapshot of this version ({type(error).__name__})") from None


def pack_batch(trust: Trust, digest: bytes | None, operations: Sequence[Recorded]) -> bytes:
    """A log entry's body."""
    return _ENCODER.encode((trust, digest, operations))


def unpack_batch(body: bytes) -> SavedBatch:
    """A log entry's body read. Raises Unreadable."""
    try:
        return _BATCH.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a log entry of this version ({type(error).__name__})") from None
