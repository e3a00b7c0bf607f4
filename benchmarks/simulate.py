"""What prefix caching is worth on six classic workloads: vLLM's blocks against SGLang's radix tree.

    python -m benchmarks.simulate [--seeds 5]

One engine, its cache manager and no model: what is counted are prompt tokens, those found in the cache, and cached
tokens lost to eviction. A/B: one system prompt (1000 / 1008 tokens), then the user's text. C: a short shared prefix.
D/E/F: conversations, in which each prompt repeats all before it, on ample / 32,768 / 24,576 tokens of KV.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import KVCache, KVSequence
from deploy.engine.radix_cache import RadixCache

HOLDING: Final = 8
"""So many requests hold KV at once; the oldest ends when another one comes."""

AMPLE: Final = 400_000


class Request(NamedTuple):
    """`session` is the conversation it belongs to: its turns follow each other. `output` is what the model will say."""

    prompt: list[int]
    output: list[int]
    session: int


class Outcome(NamedTuple):
    """Tokens: all prompts', those found in the cache, those evicted."""

    prompts: int
    hits: int
    evicted: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.prompts


class Workload(NamedTuple):
    """A workload and what was published of it, of blocks and of a radix tree of page 1."""

    name: str
    requests: Callable[[Random], list[Request]]
    capacity: int
    published: str


@dataclass
class Words:
    """Tokens that occur nowhere else."""

    numbers: count[int] = field(default_factory=count)

    def take(self, length: int) -> list[int]:
        return [next(self.numbers) for _ in range(length)]


def one_prefix(
    random: Random, shared: int, suffix: tuple[int, int], output: tuple[int, int], requests: int = 256
) -> list[Request]:
    """Independent requests that begin alike."""
    words = Words()
    prefix = words.take(shared)
    return [
        Request(prefix + words.take(random.randint(*suffix)), words.take(random.randint(*output)), number)
        for number in range(requests)
    ]


def conversations(random: Random, sessions: int = 32, turns: int = 6) -> list[Request]:
    """A turn's prompt is the one before, its output and something new.

    Whose turn is next is drawn from the sessions that have turns left, each as likely as any other.
    """
    words = Words()
    system = words.take(500)
    said = dict.fromkeys(range(sessions), system)
    left = dict.fromkeys(said, turns)
    requests = []
    while left:
        session = random.choice(list(left))
        left[session] -= 1
        if not left[session]:
            del left[session]
        prompt = said[session] + words.take(random.randint(30, 200))
        output = words.take(random.randint(50, 300))
        requests.append(Request(prompt, output, session))
        said[session] = prompt + output
    return requests


WORKLOADS: Final = (
    Workload("A", lambda random: one_prefix(random, 1000, (20, 400), (32, 200)), AMPLE, "82.4 / 83.0 %"),
    Workload("B", lambda random: one_prefix(random, 1008, (20, 400), (32, 200)), AMPLE, "equal"),
    Workload("C", lambda random: one_prefix(random, 12, (20, 60), (16, 64)), AMPLE, "0 / 23.2 %"),
    Workload("D", conversations, AMPLE, "90.5 / 91.1 %"),
    Workload("E", conversations, 32_768, "-"),
    Workload("F", conversations, 24_576, "207,776 / 207,317 hit, 59,136 / 61,030 evicted"),
)

CACHES: Final[dict[str, Callable[[int], KVCache]]] = {
    "block 16": lambda capacity: BlockPool(1 + capacity // 16, 16),
    "radix page 1": RadixCache,
    "radix page 16": lambda capacity: RadixCache(capacity, 16),
}


def play(cache: KVCache, requests: list[Request]) -> Outcome:
    """Serve the requests in order. A turn waits until the one before it in its session has ended."""
    holding: deque[tuple[int, KVSequence]] = deque()
    hits = 0
    for request in requests:
        while len(holding) >= HOLDING or any(session == request.session for session, _ in holding):
            cache.finish(holding.popleft()[1])
        sequence = serve(cache, request)
        hits += sequence.cached_tokens
        holding.append((request.session, sequence))
    return Outcome(sum(len(request.prompt) for request in requests), hits, cache.stats().evicted)


def serve(cache: KVCache, request: Request) -> KVSequence:
    """Prefill in one piece, then one token a step; the request still holds its KV."""
    sequence = cache.start(request.prompt)
    assert sequence is not None, "the capacity holds all running requests"
    cache.computed(sequence)
    for token in request.output[:-1]:
        sequence.tokens.append(token)
        fits = cache.extend(sequence, 1)
        assert fits
        cache.computed(sequence)
    sequence.tokens.append(request.output[-1])
    return sequence


def outcome(workload: Workload, cache: str, seed: int) -> Outcome:
    """One workload on one cache."""
    return play(CACHES[cache](workload.capacity), workload.requests(Random(seed)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="average over so many random draws")
    seeds: int = parser.parse_args().seeds
    print(f"means of {seeds} draws (lowest - highest); hit and evicted in tokens\n")
    print(f"{'':2}{'cache':14}{'hit rate':26}{'hit':>9}{'evicted':>9}  published (block / radix)")
    for workload in WORKLOADS:
        results = {cache: [outcome(workload, cache, seed) for seed in range(seeds)] for cache in CACHES}
        for cache, outcomes in results.items():
            first = cache == next(iter(CACHES))
            published = workload.published if first else ""
            print(f"{workload.name if first else '':2}{cache:14}{_row(outcomes)}  {published}".rstrip())
        print(f"{'':16}{_comparison(results)}")


def _row(outcomes: list[Outcome]) -> str:
    rates = [100 * one.hit_rate for one in outcomes]
    spread = f"({min(rates):.1f} - {max(rates):.1f})"
    hits, evicted = fmean(one.hits for one in outcomes), fmean(one.evicted for one in outcomes)
    return f"{fmean(rates):5.1f} % {spread:18}{hits:>9,.0f}{evicted:>9,.0f}"


def _comparison(results: dict[str, list[Outcome]]) -> str:
    blocks, tokens, pages = results.values()
    gained = sorted({token.hits - block.hits for block, token in zip(blocks, tokens, strict=True)})
    same = all(block.hits == page.hits for block, page in zip(blocks, pages, strict=True))
    ahead = f"{gained[0]:+,}" if len(gained) == 1 else f"{gained[0]:+,} to {gained[-1]:+,}"
    return f"page 1 hits {ahead} tokens against blocks; page 16 {'equals' if same else 'differs from'} blocks"


if __name__ == "__main__":
    main()
