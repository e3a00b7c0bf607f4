"""The availability benchmark's pieces: its proxy does what it says, and its verdict lets nothing pass."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.availability_load import Asked
from benchmarks.availability_proxy import ID_HEADER, Arrival, EngineProxy, Mode, listening
from benchmarks.availability_verdict import Fault, Run, table, totals
from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED
from tests.support.cpu_engine import cpu_engine
from tests.support.ports import free_port

BODY = {"prompt": list(range(300, 340)), "max_tokens": 4, "ignore_eos": True}
HANGS_S = 0.5
KINDS = ["kill", "401"]


@asynccontextmanager
async def through_proxy(**fields: Any) -> AsyncIterator[tuple[EngineProxy, aiohttp.ClientSession]]:
    """An engine, its proxy, and a client of the proxy."""
    with cpu_engine("vllm", **fields) as engine:
        proxy = EngineProxy(free_port(), int(engine.url.rpartition(":")[2]))
        async with listening(proxy), aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as http:
            yield proxy, http


async def completion(http: aiohttp.ClientSession, request_id: str = "r") -> int:
    async with http.post("/v1/completions", json=BODY, headers={ID_HEADER: request_id}) as answer:
        await answer.read()
        return answer.status


async def test_it_passes_on_and_writes_down() -> None:
    async with through_proxy() as (proxy, http):
        async with http.get("/v1/models") as answer:
            assert answer.status == 200
        assert [await completion(http, name) for name in ("a", "b")] == [200, 200]
    seen = [(arrival.method, arrival.path, arrival.request_id, arrival.generates) for arrival in proxy.arrivals]
    assert seen[0] == ("GET", "/v1/models", None, False)
    assert seen[1:] == [("POST", "/v1/completions", name, True) for name in ("a", "b")]
    assert all(arrival.done_s is not None and arrival.done_s >= arrival.at_s for arrival in proxy.arrivals)


async def test_what_it_holds_in_a_hang_goes_on_afterwards() -> None:
    async with through_proxy() as (proxy, http):
        assert await completion(http) == 200
        proxy.set_mode(Mode.HANG)
        held = [asyncio.create_task(completion(http, name)) for name in ("old connection", "new connection")]
        done, _ = await asyncio.wait(held, timeout=HANGS_S)
        assert not done
        assert [arrival.request_id for arrival in proxy.arrivals[1:]] == ["old connection", "new connection"]
        proxy.set_mode(Mode.PASS)
        assert await asyncio.gather(*held) == [200, 200]


async def test_a_hang_stops_an_answer_that_has_begun() -> None:
    async with through_proxy(decode_us=10_000.0) as (proxy, http):
        body = BODY | {"max_tokens": 100, "stream": True}
        async with http.post("/v1/completions", json=body) as answer:
            await answer.content.readany()
            proxy.set_mode(Mode.HANG)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.content.read(), HANGS_S)
            proxy.set_mode(Mode.PASS)
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_it_answers_401_in_the_engines_stead_and_ends_with_that() -> None:
    async with through_proxy() as (proxy, http):
        assert await completion(http) == 200
        proxy.set_mode(Mode.UNAUTHORIZED)
        assert await completion(http) == 401
        async with http.get("/v1/models") as answer:
            assert (answer.status, await answer.json()) == (401, {"error": "Unauthorized"})
        proxy.set_mode(Mode.PASS)
        assert await completion(http) == 200


async def test_it_refuses_as_if_the_process_had_gone_and_comes_back() -> None:
    async with through_proxy(decode_us=10_000.0) as (proxy, http):
        async with http.post("/v1/completions", json=BODY | {"max_tokens": 100, "stream": True}) as answer:
            await answer.content.readany()
            proxy.refuse()
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await completion(http)
        await proxy.listen()
        assert await completion(http) == 200


async def test_an_engine_that_is_away_looks_so_through_it() -> None:
    proxy = EngineProxy(free_port(), free_port())
    async with listening(proxy), aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as http:
        with pytest.raises(aiohttp.ClientError):
            await completion(http)


# The verdict. One fault of the engine `a` from second 100 to 110.


def fault(**fields: Any) -> Fault:
    return replace(Fault(KINDS[0], "a", 100.0, healed_s=110.0, out_s=101.0, back_s=111.0), **fields)


def asked(began_s: float, ended_s: float, **fields: Any) -> Asked:
    return replace(Asked("r1", "chat", began_s, ended_s, instance="a"), **fields)


def arrival(at_s: float, done_s: float | None = None, path: str = "/v1/completions", method: str = "POST") -> Arrival:
    return Arrival(method, path, "r1", at_s, done_s)


def run(*asked_ones: Asked, a: list[Arrival] | None = None, b: list[Arrival] | None = None, **fields: Any) -> Run:
    good = asked(50.0, 51.0, request_id="good")
    return Run([fault(**fields)], [good, *asked_ones], {"a": a or [], "b": b or []}, 180.0)


def test_a_run_without_errors_is_as_it_must_be() -> None:
    assert run().problems() == []


def test_an_error_of_what_the_broken_engine_was_answering_is_allowed() -> None:
    broken = asked(99.0, 100.5, error="cut off")
    seen = run(broken, a=[arrival(99.1, 100.1)])
    assert seen.problems() == []
    assert totals(seen)["errors_allowed"] == 1
    assert table(seen, KINDS)[0]["errors_allowed"] == 1


@pytest.mark.parametrize(
    ("error", "a", "b"),
    [
        pytest.param(asked(100.1, 101.0, error="502"), [arrival(100.2)], [], id="sent after the fault"),
        pytest.param(asked(99.0, 100.5, error="502"), [], [arrival(99.1)], id="at another engine"),
        pytest.param(
            asked(99.0, 100.5, error="502"), [arrival(99.1, 99.5)], [arrival(99.6)], id="tried elsewhere since"
        ),
        pytest.param(asked(99.0, 100.5, error="502"), [], [], id="at no engine"),
        pytest.param(asked(20.0, 21.0, error="502"), [arrival(20.1)], [], id="long before"),
        pytest.param(asked(150.0, 151.0, error="502"), [arrival(150.1)], [], id="long after"),
    ],
)
def test_other_errors_are_not(error: Asked, a: list[Arrival], b: list[Arrival]) -> None:
    seen = run(error, a=a, b=b)
    assert len(seen.problems()) == 1
    assert totals(seen)["errors_others"] == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/v1/completions?a=1"])
def test_a_request_to_an_engine_that_broke_long_ago_is_a_problem(path: str) -> None:
    seen = run(a=[arrival(102.0, path=path), arrival(103.1, path=path)])
    assert len(seen.problems()) == 1
    assert "the last 3.1 s" in seen.problems()[0]
    assert table(seen, KINDS)[0]["late_requests"] == 1


def test_polls_and_requests_before_and_after_are_none() -> None:
    polls = [arrival(104.0, path="/health", method="GET"), arrival(104.0, path="/tokenize")]
    seen = run(a=[*polls, arrival(99.0), arrival(102.9), arrival(110.1)], b=[arrival(105.0)])
    assert seen.problems() == []
    assert table(seen, KINDS)[0]["late_tokenize"] == 1


def test_an_engine_in_the_choice_although_it_broke_long_ago_is_a_problem_though_nobody_was_sent_there() -> None:
    assert "2.0 s in the choice" in run(in_while_broken_s=2.0).problems()[0]
    assert run(in_while_broken_s=0.05).problems() == []


def test_a_fault_that_was_never_healed_has_no_end() -> None:
    seen = run(a=[arrival(170.0)], healed_s=None, back_s=None)
    assert len(seen.problems()) == 2  # the request, and that it did not come back


def test_an_engine_that_does_not_come_back_is_a_problem() -> None:
    assert "did not come back" in run(back_s=None).problems()[0]


def test_more_promised_than_delivered_is_a_problem_but_for_requests_that_the_fault_met() -> None:
    late = asked(112.0, 113.0, promised=32, cached=16)
    assert run(late).problems() == ["r1 on a: promised 32, 16 delivered"]
    assert table(run(late), KINDS)[0]["overpromised"] == 1
    assert run(asked(109.9, 110.5, promised=32, cached=16)).problems() == []  # healed meanwhile
    assert run(asked(109.9, 110.5, promised=32, cached=16, instance="b")).problems() != []
    assert run(asked(112.0, 113.0, promised=16, cached=32)).problems() == []


def test_a_run_without_faults_or_answers_proves_nothing() -> None:
    assert Run([], [asked(1.0, 2.0)], {}, 180.0).problems() == ["no fault was made"]
    failed = asked(99.0, 100.5, error="cut off")
    assert Run([fault()], [failed], {"a": [arrival(99.1, 100.1)]}, 180.0).problems() == [
        "none of 1 requests was answered"
    ]


def test_a_kind_that_was_not_drawn_has_an_empty_row() -> None:
    rows = {row["fault"]: row for row in table(run(), KINDS)}
    assert rows["kill"]["out_s"] == {"median": 1.0, "max": 1.0}
    assert rows["401"]["number"] == 0
    assert rows["401"]["out_s"] is None


# The whole, with two kinds of fault.


@pytest.mark.skipif(not IS_INSTALLED, reason=INSTALL)
def test_a_short_run(tmp_path: Path) -> None:
    """Without bounds in time: the machine may be loaded. The gateway waits for a router as long as that takes."""
    out = tmp_path / "found.json"
    options = ["--seconds", "25", "--kinds", "kill,hang HTTP", "--patient", "--json", str(out)]
    command = [sys.executable, "-m", "benchmarks.availability", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    assert done.returncode == (1 if found["problems"] else 0)
    rows = {row["fault"]: row for row in found["table"]}
    for kind in ("kill", "hang HTTP"):
        assert (rows[kind]["number"], rows[kind]["never_out"]) == (1, 0), done.stdout
        assert rows[kind]["back_s"] is not None, done.stdout
    total = found["totals"]
    assert (total["errors_others"], total["overpromised"], total["fallbacks"]) == (0, 0, {}), done.stdout
    assert total["promised_tokens"] > 0
