"""Learn the merges of the CPU engine's tokenizer from this Python's standard library and this project's own documents.

    python -m deploy.engine.train_tokenizer [MERGES]

The result is `merges.txt`. It depends on the Python that runs it, so it is made once and kept in the repository.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from deploy.engine.byte_pairs import FIRST_BYTE, FIRST_MERGE, MERGES_FILE, Merge, pieces

DEFAULT_MERGES = 8192 - FIRST_MERGE
ROOT = Path(__file__).parents[2]
_SOURCE_SHARE = 8
"""Every so many-th source file is learnt from as code; of all others the docstrings only."""


def main() -> None:
    """Train and write the file."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MERGES
    words = Counter(piece for text in texts() for piece in pieces(text))
    merges = train({tuple(FIRST_BYTE + byte for byte in word.encode()): n for word, n in words.items() if n > 1}, count)
    lines = [f"{left:x} {right:x}" for left, right in merges]
    MERGES_FILE.write_text("# Written by deploy/engine/train_tokenizer.py\n" + "\n".join(lines) + "\n")


def texts() -> Iterator[str]:
    """What is learnt from."""
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        yield file.read_text()
    library = Path(sysconfig.get_path("stdlib"))
    for number, file in enumerate(sorted(library.glob("**/*.py"))):
        if "site-packages" in file.parts or "test" in file.parts or "tests" in file.parts:
            continue
        source = file.read_text(errors="replace")
        yield source if number % _SOURCE_SHARE == 0 else "\n\n".join(_docstrings(source))


def train(words: dict[tuple[int, ...], int], count: int) -> list[Merge]:
    """The merges of the most frequent neighbours, one after the other; of equals the smaller ids first."""
    spelt, weight = [list(word) for word in words], list(words.values())
    pairs: Counter[Merge] = Counter()
    places: defaultdict[Merge, set[int]] = defaultdict(set)
    for at, word in enumerate(spelt):
        _count(word, weight[at], at, pairs, places)
    merges: list[Merge] = []
    for _ in range(count):
        best = max(pairs, key=lambda pair: (pairs[pair], -pair.left, -pair.right))
        for at in places.pop(best):
            _count(spelt[at], -weight[at], at, pairs, places)
            spelt[at] = _joined(spelt[at], best, FIRST_MERGE + len(merges))
            _count(spelt[at], weight[at], at, pairs, places)
        del pairs[best]
        merges.append(best)
    return merges


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _count(word: list[int], weight: int, at: int, pairs: Counter[Merge], places: defaultdict[Merge, set[int]]) -> None:
    for pair in pairwise(word):
        pairs[Merge(*pair)] += weight
        if weight > 0:
            places[Merge(*pair)].add(at)


def _joined(word: list[int], merge: Merge, token: int) -> list[int]:
    joined: list[int] = []
    at = 0
    while at < len(word):
        if word[at : at + 2] == [merge.left, merge.right]:
            joined.append(token)
            at += 2
        else:
            joined.append(word[at])
            at += 1
    return joined


if __name__ == "__main__":
    main()
