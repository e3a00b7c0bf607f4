"""The native radix index against the Python one: the same answers, counts, skips and dumps over random histories."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from index.delta import Delta
from index.dump import RadixDump
from index.event import BlockRemoved, BlockStored, EngineHash
from index.radix import RadixIndex
from index.radix_native import AnyRadixIndex, NativeRadixIndex
from index.worker import Medium
from tests.support.cores import native_radix, need_native

SLOTS = (0, 3, 63, 64, 130)  # of the bit sets in place, and of those beside
ALL = sum(1 << slot for slot in SLOTS)

slots = st.sampled_from(SLOTS)
media = st.sampled_from([Medium.GPU, Medium.GPU, *Medium])
namespaces = st.sampled_from(["", "=4:salt", "ünï"])
seeds = st.integers(0, 2**32)


def hash_of(draw: random.Random) -> EngineHash:
    """Mostly one of few, so that they collide; sometimes of a form that must be folded."""
    kind = draw.random()
    if kind < 0.9:
        return draw.randrange(400)
    if kind < 0.95:
        return draw.choice([-1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**70])
    return bytes([draw.randrange(8)]) * draw.choice([1, 8, 32])


def same(left: RadixDump, right: RadixDump) -> bool:
    """Equal up to the order of runs of equal depth."""
    key: Callable[[object], str] = repr
    return left._replace(runs=sorted(left.runs, key=key)) == right._replace(runs=sorted(right.runs, key=key))


class Cores(RuleBasedStateMachine):
    """Both cores are told the same. Runs are long enough for splits, joins and cuts of every kind."""

    @initialize(page_size=st.sampled_from([1, 1, 3, 16]), unit_bytes=st.sampled_from([4, 8]))
    def start(self, page_size: int, unit_bytes: int) -> None:
        self.page_bytes = page_size * unit_bytes
        self.page_size, self.unit_bytes = page_size, unit_bytes
        self.cores: list[AnyRadixIndex] = [RadixIndex(page_size, unit_bytes), native_radix(page_size, unit_bytes)]
        self.deltas = [Delta(), Delta()]
        for slot in SLOTS:
            for core in self.cores:
                core.add(slot)

    def _tokens(self, draw: random.Random, pages: int) -> bytes:
        return b"".join(bytes([draw.choice([0, 0, 0, 0, 1])]) * self.page_bytes for _ in range(pages))

    def _store(self, slot: int, event: BlockStored, namespace: str) -> None:
        for core, delta in zip(self.cores, self.deltas, strict=True):
            core.store(slot, event, namespace, delta)

    @rule(slot=slots, seed=seeds, medium=media, namespace=namespaces, pages=st.integers(1, 40))
    def store_as_an_engine(self, slot: int, seed: int, medium: Medium, namespace: str, pages: int) -> None:
        """Consecutive handles, on a path that many runs share."""
        draw = random.Random(seed)
        first = draw.choice([0, 0, 100, 200])
        parent = draw.choice([None, first - 1 if first else None, draw.randrange(300)])
        event = BlockStored(
            list(range(first, first + pages)), parent, self._tokens(draw, pages), self.page_size, medium,
            bigrams=self.unit_bytes == 8,
        )  # fmt: skip
        self._store(slot, event, namespace)

    @rule(slot=slots, seed=seeds, medium=media, namespace=namespaces)
    def store_made_up(self, slot: int, seed: int, medium: Medium, namespace: str) -> None:
        draw = random.Random(seed)
        pages = draw.randrange(0, 8)
        parent = draw.choice([None, hash_of(draw)])
        hashes = [hash_of(draw) for _ in range(max(0, pages + draw.choice([0, 0, 0, 0, -1, 1])))]
        bigrams = (self.unit_bytes == 8) is (draw.random() < 0.95)
        event = BlockStored(hashes, parent, self._tokens(draw, pages), self.page_size, medium, bigrams=bigrams)
        self._store(slot, event, namespace)

    @rule(slot=slots, seed=seeds, medium=media, backwards=st.booleans())
    def remove(self, slot: int, seed: int, medium: Medium, backwards: bool) -> None:
        draw = random.Random(seed)
        first = draw.randrange(300)
        hashes: list[EngineHash] = list(range(first, first + draw.randrange(60)))
        if draw.random() < 0.3:
            hashes = [hash_of(draw) for _ in range(20)]
        for core, delta in zip(self.cores, self.deltas, strict=True):
            core.remove(slot, BlockRemoved(hashes[::-1] if backwards else hashes, medium), delta)

    @rule(slot=slots)
    def clear(self, slot: int) -> None:
        assert len({core.clear(slot) for core in self.cores}) == 1

    @rule(slot=slots, which=st.integers(0, 1))
    def restore(self, slot: int, which: int) -> None:
        """One core's dump into both: where handles contradict each other, the order of equally deep runs counts."""
        dumps = [core.dump(slot) for core in self.cores]
        assert same(*dumps)
        for core in self.cores:
            core.drop(slot)
            core.add(slot)
            core.restore(slot, dumps[which])

    @rule(seed=seeds)
    def match(self, seed: int) -> None:
        draw = random.Random(seed)
        names = draw.sample(["", "=4:salt", "ünï", "nobody"], draw.randrange(5))
        for _ in range(20):
            prompt = self._tokens(draw, draw.randrange(45)) + b"\0" * draw.randrange(4)
            some = draw.choice([ALL, draw.getrandbits(140)])
            found = [sorted(core.match(prompt, names, some)) for core in self.cores]
            assert found[0] == found[1]

    @invariant()
    def same_counts(self) -> None:
        python, native = self.cores
        assert isinstance(native, NativeRadixIndex)
        assert native._core.fault() == ""
        assert self.deltas[0] == self.deltas[1]
        assert (python.page_count, python.node_count) == (native.page_count, native.node_count)
        for slot in SLOTS:
            assert (python.pages(slot), python.parked(slot)) == (native.pages(slot), native.parked(slot))

    def teardown(self) -> None:
        for slot in SLOTS:
            assert same(*(core.dump(slot) for core in self.cores))
            for core in self.cores:
                core.drop(slot)
        for core in self.cores:
            assert (core.page_count, core.node_count, core.size_bytes) == (0, 0, 0)


TestCores = need_native(Cores.TestCase)
TestCores.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
