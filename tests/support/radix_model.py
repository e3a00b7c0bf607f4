"""What the radix index must answer, page by page and by brute force: dicts of whole prefixes, no tree, no table."""

from __future__ import annotations

from dataclasses import dataclass, field

from index.delta import Delta
from index.worker import Medium

Path = tuple[str, bytes]
"""A page: its namespace and all token bytes up to its end."""


@dataclass
class Waiting:
    """A store whose parent is not known."""

    parent: int
    hashes: list[int]
    tokens: bytes
    medium: Medium
    gone: set[int] = field(default_factory=set)


@dataclass
class ModelWorker:
    """One worker: counted holdings per page, what its odd handles mean, parked stores."""

    holds: dict[Path, dict[Medium, int]] = field(default_factory=dict)
    meaning: dict[int, Path] = field(default_factory=dict)
    foreign: bool = False
    parked: list[Waiting] = field(default_factory=list)


class RadixModel:
    """The promises of RadixIndex in their plainest form."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.workers: dict[int, ModelWorker] = {}
        self.pages: dict[Path, int | None] = {}  # every page of the tree, and the handle it is listed under
        self.table: dict[int, Path] = {}

    def store(
        self,
        slot: int,
        hashes: list[int],
        tokens: bytes,
        parent: int | None,
        medium: Medium,
        namespace: str,
        delta: Delta,
    ) -> None:
        base: Path | None = (namespace, b"") if parent is None else self.find(slot, parent)
        if base is None:
            assert parent is not None
            delta.orphans += len(hashes)
            self.workers[slot].parked.append(Waiting(parent, hashes, tokens, medium))
            return
        self._place(slot, hashes, tokens, base, medium, delta)
        waiting = self._adopt(slot, hashes)
        while waiting:
            run = waiting.pop(0)
            base = self.find(slot, run.parent)
            if base is not None:
                self._place(slot, run.hashes, run.tokens, base, run.medium, delta)
                self.remove(slot, sorted(run.gone), run.medium, delta)
                waiting += self._adopt(slot, run.hashes)

    def store_known(self, slot: int, hashes: list[int], medium: Medium, delta: Delta) -> None:
        found = [self.find(slot, handle) for handle in hashes]
        for path in found:
            if path is not None:
                self._hold(slot, path, medium, delta)
        if None in found:
            delta.skip("placeholder")

    def remove(self, slot: int, hashes: list[int], medium: Medium, delta: Delta) -> None:
        worker = self.workers[slot]
        for handle in hashes:
            path = self.find(slot, handle)
            if path is not None and medium in worker.holds.get(path, {}):
                self._release(slot, path, medium, delta)
                continue
            for run in worker.parked:
                if run.medium == medium and handle in run.hashes and handle not in run.gone:
                    run.gone.add(handle)
                    break

    def clear(self, slot: int) -> int:
        count = sum(self.pages_of(slot))
        self.workers[slot] = ModelWorker()
        self._prune()
        return count

    def pages_of(self, slot: int) -> tuple[int, ...]:
        holds = self.workers[slot].holds.values()
        return tuple(sum(medium in media for media in holds) for medium in Medium)

    def match(self, slot: int, tokens: bytes, namespace: str) -> tuple[int, tuple[int, ...]]:
        """Pages held from the start of `tokens`, and how many of them per (fastest) medium."""
        by_medium = [0, 0, 0, 0]
        for end in range(self.page_bytes, len(tokens) + 1, self.page_bytes):
            media = self.workers[slot].holds.get((namespace, tokens[:end]))
            if not media:
                break
            by_medium[min(media)] += 1
        return sum(by_medium), tuple(by_medium)

    def find(self, slot: int, handle: int) -> Path | None:
        worker = self.workers[slot]
        path = worker.meaning.get(handle, self.table.get(handle))
        return None if worker.foreign and path not in worker.holds else path

    def _place(self, slot: int, hashes: list[int], tokens: bytes, base: Path, medium: Medium, delta: Delta) -> None:
        placed, lost = set(), []
        for index, handle in enumerate(hashes):
            path = (base[0], base[1] + tokens[: (index + 1) * self.page_bytes])
            if path not in self.pages:
                self.pages[path] = None if handle in self.table else handle
                self.table.setdefault(handle, path)
            self._hold(slot, path, medium, delta)
            lost += self._mean(slot, handle, path)
            placed.add(path)
        for path in lost:
            if path not in placed:
                for tier, count in list(self.workers[slot].holds.get(path, {}).items()):
                    for _ in range(count):
                        self._release(slot, path, tier, delta)

    def _mean(self, slot: int, handle: int, path: Path) -> list[Path]:
        """From now on the worker means `path`; what it meant before is given up."""
        worker = self.workers[slot]
        odd = worker.meaning.pop(handle, None)
        listed = self.table.get(handle)
        if listed != path:
            worker.meaning[handle] = path
            if odd is None and listed is not None:
                worker.foreign = True
        before = odd
        if odd is None and listed not in worker.meaning.values():
            before = listed
        return [before] if before is not None and before != path and before in worker.holds else []

    def _hold(self, slot: int, path: Path, medium: Medium, delta: Delta) -> None:
        media = self.workers[slot].holds.setdefault(path, {})
        if medium not in media:
            media[medium] = 1
            delta.stored += 1
        elif medium is Medium.GPU:
            media[medium] += 1

    def _release(self, slot: int, path: Path, medium: Medium, delta: Delta) -> None:
        worker = self.workers[slot]
        media = worker.holds[path]
        media[medium] -= 1
        if media[medium]:
            return
        del media[medium]
        delta.removed += 1
        if not media:
            del worker.holds[path]
            worker.meaning = {handle: meant for handle, meant in worker.meaning.items() if meant != path}
        self._prune()

    def _adopt(self, slot: int, hashes: list[int]) -> list[Waiting]:
        worker = self.workers[slot]
        found = [run for handle in hashes for run in worker.parked if run.parent == handle]
        worker.parked = [run for run in worker.parked if run not in found]
        return found

    def _prune(self) -> None:
        needed = set()
        for worker in self.workers.values():
            for namespace, tokens in worker.holds:
                needed |= {
                    (namespace, tokens[:end]) for end in range(self.page_bytes, len(tokens) + 1, self.page_bytes)
                }
        for path in self.pages.keys() - needed:
            handle = self.pages.pop(path)
            if handle is not None:
                del self.table[handle]
