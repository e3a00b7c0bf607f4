"""A prompt's engine hashes, computed lazily, against the vectors of the real engine."""

from __future__ import annotations

from array import array

import pytest

from index.block_hash import ALGORITHMS, HashIdentity, chain, extra_keys_of, wire_uint64
from index.block_worker import BlockWorker
from index.engine_chain import EngineChain
from index.holders import new_holders
from index.prompt import MultimodalItem, Prompt
from index.worker import Medium

pytestmark = pytest.mark.usefixtures("core")

TOKENS = list(range(50))
ITEMS = (MultimodalItem("b", 30, 4), MultimodalItem("a", 3, 20))


def prompt(**parts: object) -> Prompt:
    return Prompt(array("I", TOKENS).tobytes(), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_digests_are_the_chain_of_whole_units(algorithm: str) -> None:
    identity = HashIdentity(algorithm, "0")
    made = EngineChain(prompt(), identity, 8, "")
    assert [made.digest(end) for end in range(8, 49, 8)] == chain(identity, TOKENS, 8)


@pytest.mark.parametrize("end", [0, 4, 12, 56, -8])
def test_there_is_no_digest_off_the_boundaries(end: int) -> None:
    assert EngineChain(prompt(), HashIdentity("sha256_cbor", "0"), 8, "").digest(end) is None


def test_adapter_items_and_salt_are_hashed_as_the_engine_does() -> None:
    identity = HashIdentity("sha256_cbor", "0")
    made = EngineChain(prompt(lora="sql", cache_salt="s", mm_items=ITEMS), identity, 8, "/adapters/sql")
    items = sorted(ITEMS, key=lambda item: item.offset)
    extras = extra_keys_of(len(TOKENS), 8, lora=("sql", "/adapters/sql"), mm_items=items, cache_salt="s")
    assert [made.digest(end) for end in range(8, 49, 8)] == chain(identity, TOKENS, 8, extras)


def test_a_worker_holds_a_block_in_either_wire_form_and_any_tier() -> None:
    made = EngineChain(prompt(), HashIdentity("sha256_cbor", "0"), 8, "")
    digests = [made.digest(end) for end in (8, 16)]
    holders = new_holders(8)
    worker = BlockWorker(1, holders.new_domain(pinned=False))
    holders.enter(worker)
    assert digests[0] is not None
    assert digests[1] is not None
    holders.claim(worker, (0, Medium.GPU), wire_uint64(digests[0]))
    holders.claim(worker, (1, Medium.CPU), digests[1])
    held = made.holds(holders, worker)
    assert [held(group, end) for group, end in ((0, 8), (0, 16), (1, 8), (1, 16), (0, 24), (0, 7))] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
