"""How long a match takes: `python -m benchmarks.index_match`.

In both cores: 64 workers x 10,000 blocks of 16 tokens; prompts of 64, 512 and 2,048 blocks that one worker holds whole,
and that all hold. Prints CPU microseconds per match (median of rounds), of one prompt again and again and of one prompt
of each worker in turn, and the ratio of the first to a reference in the same run: XXH3 of every block and one dict
look-up per block, with nothing per worker.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from functools import partial
from itertools import cycle

from xxhash import xxh3_64_digest

from benchmarks.readings import us_per_call
from benchmarks.workload import cores, filled, worker_named
from index.index import Index
from index.prompt import Prompt
from index.worker import Worker

WORKERS = 64
CALLS = 50
ROUNDS = 5


def main() -> None:
    """Fill, match, print."""
    only = frozenset(worker_named(number) for number in range(WORKERS))
    for blocks in (64, 512, 2048):
        for shared in (False, True):
            for core in cores():
                index, held = filled(WORKERS, 9_984 // blocks * blocks, run=blocks, shared=shared, core=core)
                prompt = Prompt(array("I", held[-1]).tobytes())
                matches = index.match("m", prompt, only)
                assert max(match.matched for match in matches.values()) == blocks * 16
                mine = us_per_call(partial(index.match, "m", prompt, only), ROUNDS, CALLS, time.process_time)
                in_turn = us_per_call(_in_turn(index, held, only), ROUNDS, len(held), time.process_time)
                other = us_per_call(_reference(prompt), ROUNDS, CALLS, time.process_time)
                who = f"{core.name}, {'all hold it' if shared else 'one holds it'}"
                print(
                    f"{blocks:>5} blocks, {who:<20}: {mine:>7.1f} us; {len(held)} prompts in turn {in_turn:>7.1f} us; "
                    f"reference {other:>6.1f} us; {mine / other:.2f}"
                )


def _in_turn(index: Index, held: list[list[int]], only: frozenset[Worker]) -> Callable[[], object]:
    """Another prompt with every call: what it needs of the index lies in no cache."""
    prompts = cycle([Prompt(array("I", tokens).tobytes()) for tokens in held])
    return lambda: index.match("m", next(prompts), only)


def _reference(prompt: Prompt) -> Callable[[], object]:
    table: dict[bytes, int] = {}

    def walk() -> None:
        key = b""
        for at in range(0, len(prompt.tokens), 64):
            key = xxh3_64_digest(key + prompt.tokens[at : at + 64])
            table.get(key)

    return walk


if __name__ == "__main__":
    main()
