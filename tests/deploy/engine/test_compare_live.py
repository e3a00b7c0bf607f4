"""The comparison with real servers, tried on CPU engines: it finds what differs, and nothing where nothing does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from benchmarks.compare_engine import ComparedEngine
from benchmarks.compare_live import SPACES, Server, compare, main
from benchmarks.compare_sides import Compared, Sides
from deploy.engine.settings import Face
from tests.support.cpu_engine import cpu_engine


def run(face: Face, real: dict[str, Any], ours: dict[str, Any]) -> Generator[Compared, None, None]:
    """Section by section, as far as it is read."""
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(ComparedEngine(face, stack.enter_context(cpu_engine(face, **fields)).url)))
            for fields in (real, ours)
        )
        yield from Sides(first, second, settle_s=0.2).run(1, SPACES[face])


@pytest.mark.parametrize(
    ("face", "fields"),
    [("vllm", {"hash_algorithm": "sha256_cbor", "hash_seed": "0"}), ("sglang", {"block_size": 16, "step_tokens": 256})],
)
def test_two_alike_are_equal_also_with_other_outputs(face: Face, fields: dict[str, Any]) -> None:
    small: dict[str, Any] = {**fields, "cache_tokens": 4096}
    compared = list(run(face, {**small, "seed": 5}, small))
    assert [one.differences for one in compared] == [[]] * len(compared)
    assert sum(one.requests for one in compared) > 250
    assert all(one.real == one.ours > 0 for one in compared)
    assert sum(one.events.removed for one in compared if one.events) > 500


@pytest.mark.parametrize(
    ("real", "ours", "in_tokens"),
    [
        ({"cache_tokens": 4096}, {"cache_tokens": 2048}, True),
        ({"policy": "mru"}, {}, True),
        ({"block_size": 16}, {"block_size": 8}, True),
        ({"dynamo": True}, {}, False),
    ],
)
def test_what_differs_is_found(real: dict[str, Any], ours: dict[str, Any], in_tokens: bool) -> None:
    compared = run("sglang", {"cache_tokens": 4096, **real}, {"cache_tokens": 4096, **ours})
    with closing(compared):
        first = next(one for one in compared if one.differences)
    assert (first.real != first.ours) == in_tokens


def test_the_command_starts_an_engine_like_the_one_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    with cpu_engine("vllm", block_size=32, cache_tokens=3200, hash_algorithm="xxhash_cbor", hash_seed="7") as engine:
        assert compare(Server("v", "vllm", engine.url), 2, "7") == []
    assert "3200 tokens in blocks of 32" in capsys.readouterr().out


def test_without_servers_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVROUTE_LIVE", raising=False)
    monkeypatch.setattr("sys.argv", ["compare_live"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "--live" in capsys.readouterr().err
