"""Who holds which pages of the radix tree: placing runs, taking them back, and what each worker calls a page."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

from index.delta import Delta
from index.parked_runs import Run
from index.radix_holder import Holder
from index.radix_node import NOBODY, Masks, Node, shared_run
from index.radix_tree import RUN_BYTES, RadixTree
from index.worker import Medium

Place = tuple[Node, int]
"""A node and an index into its pages, or its length for the place below it."""


class Holdings:
    """The tree and its workers, kept in step: a worker holds a whole node or nothing of it, medium by medium."""

    def __init__(self, page_bytes: int, run_bytes: int = RUN_BYTES) -> None:
        self.tree = RadixTree(page_bytes, run_bytes)
        self.holders: dict[int, Holder] = {}
        self._invented = 0

    @property
    def size_bytes(self) -> int:
        """Our own memory, estimated."""
        return self.tree.size_bytes + sum(holder.size_bytes for holder in self.holders.values())

    def add(self, slot: int) -> None:
        """Admit a worker."""
        assert slot not in self.holders
        self.holders[slot] = Holder()
        self.tree.holdings[slot] = set()

    def drop(self, slot: int) -> None:
        """Forget a worker."""
        self.clear(slot)
        del self.holders[slot]
        del self.tree.holdings[slot]

    def clear(self, slot: int) -> int:
        """Empty a worker; answers its (page, medium) holdings."""
        count = sum(self.holders[slot].pages)
        self.holders[slot] = Holder()
        nodes = list(self.tree.holdings[slot])
        for node in nodes:
            gpu, cpu, disk, other = node.masks
            others = ~(1 << slot)
            self.tree.set_masks(node, (gpu & others, cpu & others, disk & others, other & others))
        self.tree.settle_all(nodes)
        assert not self.tree.holdings[slot]
        self.tree.holdings[slot] = set()  # one that was emptied stays as slow to go through as it was large
        return count

    def below(self, slot: int, parent: int | None, namespace: str) -> Place | None:
        """Where a run with this parent goes; None when the parent is not known."""
        if parent is None:
            return self.tree.root(namespace), 0
        place = self._find(slot, parent)
        return None if place is None else (place[0], place[1] + 1)

    def store(self, slot: int, run: Run, place: Place, delta: Delta) -> None:
        """Hold a run that continues at `place`: along the pages that are there already, then on new ones."""
        done, total = 0, len(run.hashes)
        touched: list[Node] = []
        placed: list[array[int]] = []
        rebound: list[int] = []
        while done < total:
            place, count = self._advance(slot, run, done, place, delta)
            node, end = place
            pages = node.hashes[end - count : end]
            rebound += self._bind(slot, pages, run.hashes[done : done + count])
            placed.append(pages)
            touched.append(node)
            done += count
        for node in touched:
            self.tree.settle(node)
        for page in rebound:
            if not any(page in pages for pages in placed):
                self._evict(slot, page, delta)

    def store_known(self, slot: int, hashes: array[int], medium: Medium, delta: Delta) -> bool:
        """Hold pages named by their handles alone; False when one is not known (the others are held)."""
        complete = True
        for handle in hashes:
            place = self._find(slot, handle)
            if place is None:
                complete = False
            else:
                node, _ = self._hold(slot, medium, place, 1, delta)
                self.tree.settle(node)
        return complete

    def remove(self, slot: int, hashes: array[int], medium: Medium, delta: Delta) -> None:
        """Take pages back from a worker in one medium, run by run; those it does not hold there do not matter."""
        holder, at, total = self.holders[slot], 0, len(hashes)
        while at < total:
            place = self._find(slot, hashes[at])
            if place is None or not place[0].masks[medium] >> slot & 1:
                holder.parked.lose(hashes[at], medium)
                at += 1
                continue
            node, index = place
            limit = 1 if holder.meaning else min(total - at, len(node.hashes) - index)
            count = shared_run(node.hashes[index : index + limit], hashes[at : at + limit], 1) or 1
            if medium is Medium.GPU and holder.copies:
                pages = node.hashes[index : index + count]
                if copies := holder.drop_copies(pages):
                    at += copies
                    continue
                count = holder.single(pages)
            self._release(slot, medium, place, count, delta)
            at += count

    def _find(self, slot: int, handle: int) -> Place | None:
        """The page a handle means to this worker."""
        holder = self.holders[slot]
        place = self.tree.table.find(holder.meaning.get(handle, handle))
        if place is not None and holder.foreign and not place[0].held >> slot & 1:
            return None
        return place

    def _advance(self, slot: int, run: Run, done: int, place: Place, delta: Delta) -> tuple[Place, int]:
        """Hold the longest part of a run, from page `done` on, that fits one node; answers its end and its length."""
        node, at = place
        page_bytes = self.tree.page_bytes
        start = done * page_bytes
        if at == len(node.hashes):
            child = node.children.get(run.tokens[start : start + page_bytes])
            if child is None:
                return self._grow(slot, run, done, node, delta)
            node, at = child, 0
        limit = min(len(node.hashes) - at, len(run.hashes) - done) * page_bytes
        there = node.tokens[at * page_bytes : at * page_bytes + limit]
        same = shared_run(there, run.tokens[start : start + limit], page_bytes)
        if same:
            return self._hold(slot, run.medium, (node, at), same, delta), same
        head, _ = self.tree.split(node, at)
        return self._grow(slot, run, done, head, delta)

    def _grow(self, slot: int, run: Run, done: int, node: Node, delta: Delta) -> tuple[Place, int]:
        """Add the rest of a run below `node`: in place, if that is a short leaf with the very same holders."""
        tokens, hashes = run.tokens[done * self.tree.page_bytes :], run.hashes[done:]
        masks = _with(NOBODY, run.medium, 1 << slot)
        is_alike = node.parent is not None and not node.children and node.masks == masks
        if is_alike and self.tree.takes(node, len(tokens)):
            taken = self.tree.extend(node, tokens, hashes)
        else:
            node, taken = self.tree.grow(node, tokens, hashes)
            self.tree.set_masks(node, masks)
        for index in taken:
            self._invent_handle(node, index)
        self.holders[slot].pages[run.medium] += len(hashes)
        delta.stored += len(hashes)
        return (node, len(node.hashes)), len(hashes)

    def _invent_handle(self, node: Node, index: int) -> None:
        """Enter a page whose own handle means another page in the table."""
        free = False
        while not free:
            self._invented += 1
            digest = hashlib.blake2b(b"page %d" % self._invented, digest_size=8).digest()
            node.hashes[index] = int.from_bytes(digest, "big", signed=True)
            free = not self.tree.table.insert(node, index, index + 1)

    def _bind(self, slot: int, pages: array[int], handles: array[int]) -> list[int]:
        """Let a worker's handles mean these pages; answers other pages that it holds and that it called so before."""
        holder = self.holders[slot]
        if pages == handles and (not holder.meaning or holder.meaning.keys().isdisjoint(handles)):
            return []
        rebound = []
        for page, handle in zip(pages, handles, strict=True):
            odd = handle in holder.meaning
            if page == handle and not odd:
                continue
            before = holder.bind(handle, page)
            if before is not None:
                rebound.append(before)
            elif not odd and (place := self.tree.table.find(handle)) is not None:
                holder.foreign = True
                if place[0].held >> slot & 1 and handle not in holder.named:
                    rebound.append(handle)
        return rebound

    def _hold(self, slot: int, medium: Medium, place: Place, count: int, delta: Delta) -> Place:
        """Hold `count` pages of a node from an index on, cutting it to fit; answers the place after them."""
        node, at = place
        holder = self.holders[slot]
        if node.masks[medium] >> slot & 1:
            if medium is Medium.GPU:
                holder.copy(node.hashes[at : at + count])
            return node, at + count
        node = self._isolate(node, at, at + count)
        self.tree.set_masks(node, _with(node.masks, medium, node.masks[medium] | 1 << slot))
        holder.pages[medium] += count
        delta.stored += count
        return node, count

    def _release(self, slot: int, medium: Medium, place: Place, count: int, delta: Delta) -> None:
        """Take `count` pages of a node from an index on back from a worker that holds them in that medium once."""
        node, at = self.tree.narrow(*place, place[1] + count)
        holder = self.holders[slot]
        masks = _with(node.masks, medium, node.masks[medium] & ~(1 << slot))
        if not _union(masks) >> slot & 1:
            holder.unbind(node.hashes[at : at + count])
        holder.pages[medium] -= count
        delta.removed += count
        if at and at + count == len(node.hashes) and not node.children and not _union(masks):
            self.tree.cut(node, at)
            return
        node = self._isolate(node, at, at + count)
        self.tree.set_masks(node, masks)
        self.tree.settle(node)

    def _evict(self, slot: int, page: int, delta: Delta) -> None:
        """Take a page back from a worker in every medium."""
        self.holders[slot].copies.pop(page, None)
        for medium in Medium:
            place = self.tree.table.find(page)
            if place is not None and place[0].masks[medium] >> slot & 1:
                self._release(slot, medium, place, 1, delta)

    def _isolate(self, node: Node, first: int, last: int) -> Node:
        """The node of exactly the pages `first` to `last` of a node."""
        count = last - first
        node, first = self.tree.narrow(node, first, last)
        if first:
            _, node = self.tree.split(node, first)
        if count < len(node.hashes):
            node, _ = self.tree.split(node, count)
        return node


def _with(masks: Masks, medium: Medium, holders: int) -> Masks:
    values = list(masks)
    values[medium] = holders
    gpu, cpu, disk, other = values
    return gpu, cpu, disk, other


def _union(masks: Iterable[int]) -> int:
    gpu, cpu, disk, other = masks
    return gpu | cpu | disk | other
