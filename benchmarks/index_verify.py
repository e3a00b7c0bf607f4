"""What checking every stored block costs (`hash.verify: all`): `python -m benchmarks.index_verify`.

Genuinely hashed vLLM payloads go from their bytes into the index as app/ingest.py applies them, with and without the
check, for each of the four algorithms and for prompts of 16 and of 128 blocks. The reference, in the same run, is the
chain of the same tokens by Python's hashlib, pickle, cbor2 and xxhash, which the check must do at least.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks.workload import BLOCK, prompts
from engine.wire import decode
from index import native
from index.block_hash import ALGORITHMS, HashIdentity, none_hash, run_digests
from index.index import Index
from index.native import Core, chosen
from index.pool import WorkerSpec
from index.worker import EngineKind, Worker
from tests.support.engine_events import vllm_stored
from tests.support.publisher import batch

BLOCKS = 16_384
ROUNDS = 5
WORKER = Worker("worker-0", 0)


class Rates(NamedTuple):
    """Million blocks per CPU-second, each the median over rounds."""

    bare: float
    checked: float
    python_chain: float


def main() -> None:
    """Measure and print, in the native core; in the Python one where that was not built."""
    core = chosen("auto")
    print(f"core: {core.name}; {BLOCKS:,} blocks of {BLOCK} tokens a round, median of {ROUNDS}; million blocks/CPU-s")
    heads = f"{'without':>9}{'checked':>9}{'ratio':>7}{'Python chain':>14}{'checked / chain':>17}"
    print(f"{'algorithm':<12}{'blocks':>7}{heads}")
    for algorithm in ALGORITHMS:
        for run in (16, 128):
            rates = measured(HashIdentity(algorithm, "0"), run, core)
            print(
                f"{algorithm:<12}{run:>7}{rates.bare:>9.2f}{rates.checked:>9.2f}{rates.checked / rates.bare:>7.2f}"
                f"{rates.python_chain:>14.2f}{rates.checked / rates.python_chain:>17.1f}"
            )


def measured(identity: HashIdentity, run: int, core: Core) -> Rates:
    """One algorithm and one length of prompts; every block that is checked must match."""
    made = list(prompts(run, BLOCKS // run, run))
    payloads = [batch(1.0, [vllm_stored(tokens, identity)]) for tokens in made]
    packed = [array("I", tokens).tobytes() for tokens in made]
    rates: list[Rates] = []
    for _ in range(ROUNDS):
        bare, checked = new_index(identity, core, verify=False), new_index(identity, core, verify=True)
        rates.append(
            Rates(
                mblocks_per_s(partial(applied, bare, payloads, 0)),
                mblocks_per_s(partial(applied, checked, payloads, BLOCKS)),
                mblocks_per_s(partial(chained, identity, packed)),
            )
        )
    return Rates(*map(statistics.median, zip(*rates, strict=True)))


def new_index(identity: HashIdentity, core: Core, verify: bool) -> Index:
    """An index with one worker, whose identity was verified and whose layout is known."""
    index = Index(core)
    index.add(WORKER, WorkerSpec("m", EngineKind.VLLM, verify=verify))
    index.identify(WORKER, identity, shared=True)
    first = list(range(1_000_000, 1_000_000 + 2 * BLOCK))
    index.apply(WORKER, decode(batch(1.0, [vllm_stored(first, identity)]), EngineKind.VLLM))
    return index


def applied(index: Index, payloads: list[bytes], expected: int) -> None:
    """As app/ingest.py does it for a worker whose identity is known."""
    matched = 0
    for payload in payloads:
        done = index.apply_payload(WORKER, payload)
        if done is None or done.done < done.events:
            matched += index.apply(WORKER, decode(payload, EngineKind.VLLM), applied=done).matched
        else:
            matched += done.delta.matched
    assert matched == expected, (matched, expected)


def chained(identity: HashIdentity, packed: list[bytes]) -> None:
    """The digests alone, without the native core."""
    serving, native.CORE = native.CORE, chosen("python")
    try:
        for tokens in packed:
            run_digests(identity.algorithm, none_hash(identity), tokens, BLOCK)
    finally:
        native.CORE = serving


def mblocks_per_s(work: Callable[[], None]) -> float:
    """Of all BLOCKS, by CPU time."""
    began = time.process_time()
    work()
    return BLOCKS / (time.process_time() - began) / 1e6


if __name__ == "__main__":
    main()
