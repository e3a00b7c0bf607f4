"""A brute-force model of one vLLM fleet's holdings, by content and not by hash, to check the block-hash index against.

Blocks are `SIZE` tokens. A block's content is the whole prefix up to its end: (adapter, salt, ((token, image), ...)).
A handle is (content, variant): two variants are two engine hashes of one content (an adapter loaded from another path).
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from index.event import BlockStored, EngineHash, ExtraKey
from index.prompt import MultimodalItem, Prompt
from index.worker import Medium

SIZE = 4
WINDOW = 2 * SIZE + 1
WINDOW_GROUP = 1

Slot = tuple[int, Medium]


class Content(NamedTuple):
    """A prefix of whole blocks: each block is one token repeated, with an image over it or not."""

    lora: str | None
    salt: str | None
    blocks: tuple[tuple[int, bool], ...]

    def upto(self, blocks: int) -> Content:
        return self._replace(blocks=self.blocks[:blocks])


Handle = tuple[Content, int]


@dataclass
class Parked:
    parent: Handle
    slot: Slot
    handles: list[Handle]
    gone: Counter[Handle] = field(default_factory=Counter)


@dataclass
class Domain:
    known: set[Handle] = field(default_factory=set)
    members: set[int] = field(default_factory=set)


@dataclass
class Holder:
    domain: Domain
    held: Counter[tuple[Slot, Handle]] = field(default_factory=Counter)
    parked: list[Parked] = field(default_factory=list)


class Oracle:
    """Per worker a counter of (group, medium, content); per domain the contents whose tokens somebody told."""

    def __init__(self, workers: int) -> None:
        self.fleet = Domain()
        self.holders = {number: Holder(Domain(members={number})) for number in range(workers)}

    def store(self, worker: int, slot: Slot, handles: list[Handle], parent: Handle | None) -> None:
        holder = self.holders[worker]
        if parent is not None and parent not in holder.domain.known:
            if parent not in handles:
                holder.parked.append(Parked(parent, slot, handles))
            return
        waiting = [Parked((Content(None, None, ()), 0), slot, handles)]
        filed: list[Parked] = []
        while waiting:
            event = waiting.pop(0)
            filed.append(event)
            for handle in event.handles:
                holder.domain.known.add(handle)
                holder.held[event.slot, handle] += 1
            children = [parked for parked in holder.parked if parked.parent in event.handles]
            holder.parked = [parked for parked in holder.parked if parked not in children]
            waiting.extend(children)
        for event in filed:
            for handle in event.gone.elements():
                self.remove(worker, event.slot, handle)

    def claim(self, worker: int, slot: Slot, handle: Handle, placeholder: bool = False) -> None:
        """A store by hash alone; a placeholder counts only when its meaning is known."""
        holder = self.holders[worker]
        if not placeholder or handle in holder.domain.known:
            holder.held[slot, handle] += 1

    def remove(self, worker: int, slot: Slot, handle: Handle) -> None:
        holder = self.holders[worker]
        if holder.held[slot, handle]:
            holder.held[slot, handle] -= 1
            self._forget(holder.domain)
            return
        for parked in holder.parked:
            if parked.slot == slot and parked.gone[handle] < parked.handles.count(handle):
                parked.gone[handle] += 1
                return

    def clear(self, worker: int) -> None:
        holder = self.holders[worker]
        holder.held.clear()
        holder.parked.clear()
        self._forget(holder.domain)

    def restart(self, worker: int) -> None:
        self.clear(worker)
        self.holders[worker].domain.members.discard(worker)
        self.holders[worker] = Holder(Domain(members={worker}))

    def join(self, worker: int) -> None:
        holder = self.holders[worker]
        if holder.domain is self.fleet:
            return
        told = {handle for (_, handle), count in holder.held.items() if count and handle in holder.domain.known}
        self.fleet.known |= told
        self.fleet.members.add(worker)
        holder.domain = self.fleet

    def media(self, worker: int, group: int, content: Content) -> list[Medium]:
        """Where a worker holds a content in a group, fastest first, as far as its meaning is known."""
        holder = self.holders[worker]
        return sorted(
            medium
            for ((of, medium), handle), count in holder.held.items()
            if count and of == group and handle[0] == content and handle in holder.domain.known
        )

    def matched(self, worker: int, content: Content) -> tuple[int, tuple[int, int, int, int]]:
        """Tokens of the leading run in group 0, and their split over the media."""
        split = [0, 0, 0, 0]
        for depth in range(1, len(content.blocks) + 1):
            media = self.media(worker, 0, content.upto(depth))
            if not media:
                break
            split[media[0]] += SIZE
        return sum(split), (split[0], split[1], split[2], split[3])

    def reusable(self, worker: int, content: Content, prompt_tokens: int, windowed: bool, eagle: bool) -> int:
        """Tokens skipped: the longest prefix below the prompt's length that every group can continue."""
        matched, _ = self.matched(worker, content)
        best = min(matched // SIZE, (prompt_tokens - 1) // SIZE)
        if not windowed:
            return max(0, best - eagle) * SIZE
        run = -(-(WINDOW - 1) // SIZE)
        for depth in range(best, 0, -1):
            tail = range(max(1, depth - run + 1), depth + 1)
            if all(self.media(worker, WINDOW_GROUP, content.upto(at)) for at in tail):
                return depth * SIZE
        return 0

    def _forget(self, domain: Domain) -> None:
        """A content nobody in the domain holds loses its meaning, under every hash."""
        live = {
            handle[0]
            for number in self.holders
            if self.holders[number].domain is domain
            for (_, handle), count in self.holders[number].held.items()
            if count and handle in domain.known
        }
        domain.known = {handle for handle in domain.known if handle[0] in live}


class Hashes:
    """Engine hashes: small numbers, one per handle, permuted by `salt` so that domains disagree about their meaning."""

    def __init__(self) -> None:
        self._numbers: dict[Handle, int] = {}

    def of(self, handle: Handle, salt: int) -> EngineHash:
        return self._numbers.setdefault(handle, len(self._numbers)) ^ salt


def stored(
    hashes: Hashes,
    salt: int,
    content: Content,
    start: int,
    slot: Slot,
    variant: int = 0,
    keep: list[bool] | None = None,
) -> BlockStored:
    """The event for blocks `start`.. of `content`; `keep` leaves hashes out, as vLLM does for window groups."""
    group, medium = slot
    numbers = [at for at in range(start, len(content.blocks)) if keep is None or keep[at - start]]
    return BlockStored(
        block_hashes=[hashes.of((content.upto(at + 1), variant), salt) for at in numbers],
        parent=hashes.of((content.upto(start), variant), salt) if start else None,
        tokens=tokens_of(content.blocks[start:]),
        block_size=SIZE,
        medium=medium,
        lora_name=content.lora,
        extra_keys=_extra_keys(content, numbers),
        group=group,
        kind="sliding_window" if group == WINDOW_GROUP else None,
        window=WINDOW if group == WINDOW_GROUP else None,
    )


def prompt_of(content: Content, tail: int) -> Prompt:
    """A request whose whole blocks are `content`, plus `tail` tokens."""
    items = tuple(MultimodalItem("image", at * SIZE, SIZE) for at, (_, image) in enumerate(content.blocks) if image)
    return Prompt(tokens_of(content.blocks) + array("I", [9] * tail).tobytes(), content.lora, content.salt, None, items)


def tokens_of(blocks: tuple[tuple[int, bool], ...]) -> bytes:
    return b"".join(array("I", [token] * SIZE).tobytes() for token, _ in blocks)


def _extra_keys(content: Content, numbers: list[int]) -> list[tuple[ExtraKey, ...] | None] | None:
    keys: list[tuple[ExtraKey, ...] | None] = []
    for at in numbers:
        extra: list[ExtraKey] = [content.lora] if content.lora is not None else []
        if content.blocks[at][1]:
            extra.append(("image", 0))
        if at == 0 and content.salt is not None:
            extra.append(content.salt)
        keys.append(tuple(extra) or None)
    return keys if any(keys) else None
