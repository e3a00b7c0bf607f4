"""Whether a vLLM worker's stored blocks have the hashes that follow from their tokens and their parents.

A block's hash can be derived where its parent's full digest is known: of the first blocks of a prompt, of what follows
them in the same event, and of any block whose event names its parent by a whole digest. Digests are not kept from one
event to the next, so what follows a parent of 64 bits stays unchecked.

A wrong hash counts as such only when nothing else explains it: a block of this size has had the right hash before, so
the engine hashes whole blocks by this identity, and the event says of every block that it has no extra keys (a release
that does not send them may have hashed some). Not looked at: adapters, extra keys, tiers below the GPU (connectors may
hash in their own way), workers with other groups than one of full attention, blocks smaller than that group's.
"""

from __future__ import annotations

from itertools import takewhile

from index.block_hash import HashIdentity, digest_size, none_hash, run_digests, wire_matches
from index.block_worker import BlockWorker
from index.delta import Delta
from index.event import BlockStored
from index.worker import Medium

LONGEST_BLOCK = 8192
"""Tokens; longer blocks are not looked at, in either core."""


class BlockCheck:
    """One worker's check. `proven_size`: a block of so many tokens had the right hash; 0: none had."""

    def __init__(self, identity: HashIdentity) -> None:
        self.identity = identity
        self.proven_size = 0

    def passed(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> BlockStored | None:
        """The event as far as it may be filed, counted in `delta`: without a block of a wrong hash and what follows.

        None when that is its first block. What is cut off is lost: `hash_mismatch` among the skipped.
        """
        count = len(event.block_hashes)
        matched, certain = self._matched(event) if _is_looked_at(worker, event) else (0, False)
        if matched:
            self.proven_size = event.block_size
        delta.matched += matched
        if matched == count or not certain:
            delta.unchecked += count - matched
            return event
        delta.mismatched += 1
        delta.unchecked += count - matched - 1
        delta.lose("hash_mismatch")
        return _first(event, matched) if matched else None

    def _matched(self, event: BlockStored) -> tuple[int, bool]:
        """How many leading blocks have the right hash, and whether the next one has certainly a wrong one."""
        parent, extras, bare = self._parent(event), event.extra_keys, len(event.block_hashes)
        if parent is None:
            return 0, False
        told = extras is not None and len(extras) == bare
        if extras is not None and told:
            bare = sum(1 for _ in takewhile(lambda keys: not keys, extras))
        tokens = event.tokens[: bare * event.block_size * 4]
        digests = run_digests(self.identity.algorithm, parent, tokens, event.block_size)
        pairs = zip(digests, event.block_hashes, strict=False)
        matched = sum(1 for _ in takewhile(lambda pair: wire_matches(*pair), pairs))
        proven = matched > 0 or self.proven_size == event.block_size
        return matched, matched < bare and proven and told

    def _parent(self, event: BlockStored) -> bytes | None:
        """The full digest of what precedes the event's first block."""
        if event.parent is None:
            return none_hash(self.identity)
        whole = isinstance(event.parent, bytes) and len(event.parent) == digest_size(self.identity.algorithm)
        return event.parent if isinstance(event.parent, bytes) and whole else None


def _is_looked_at(worker: BlockWorker, event: BlockStored) -> bool:
    size = event.block_size
    return (
        worker.plain
        and event.group in worker.groups
        and 0 < size == worker.groups[event.group].block_size <= LONGEST_BLOCK
        and len(event.block_hashes) * size * 4 == len(event.tokens)
        and event.medium is Medium.GPU
        and event.lora_name is None
        and not event.bigrams
    )


def _first(event: BlockStored, count: int) -> BlockStored:
    extras = None if event.extra_keys is None else event.extra_keys[:count]
    tokens = event.tokens[: count * event.block_size * 4]
    return event._replace(block_hashes=event.block_hashes[:count], tokens=tokens, extra_keys=extras)
