"""What is said of instances that are not followed as they should be: never nothing, and no longer than it is true."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import main
from index.block_hash import HashIdentity
from index.worker import EngineKind
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, Reply
from tests.support.fleet import fleet, instance, publish
from tests.support.ports import free_port
from tests.support.publisher import Publisher, ranks
from tests.support.service import Running, serving, wait_until

runner = CliRunner()


def said(run: Running, name: str, rank: int = 0) -> str:
    """A worker's advice."""
    workers: list[dict[str, Any]] = run.instance(name)["workers"]
    return workers[rank]["advice"] or "" if rank < len(workers) else ""


def is_said(run: Running, words: str, name: str = "a", rank: int = 0, timeout_s: float = 8.0) -> None:
    wait_until(lambda: words in said(run, name, rank), timeout_s, lambda: run.instance(name))


def ready(run: Running) -> None:
    wait_until(lambda: run.http.get("/readyz").status_code == 200, 8)


# Streams that are not heard


@pytest.mark.parametrize("kind", EngineKind)
def test_a_rank_on_another_host_is_named_with_its_endpoint_and_the_setting(kind: EngineKind) -> None:
    with ExitStack() as stack:
        publisher, elsewhere = (stack.enter_context(one) for one in ranks(2))
        elsewhere.stop()
        engine = stack.enter_context(FakeEngine(kind, dp_size=2))
        engine.events, engine.replay = f"tcp://*:{publisher.port}", None
        run = stack.enter_context(serving(fleet(instance("a", server=engine))))
        is_said(run, f"rank 1: its event stream at tcp://127.0.0.1:{publisher.port + 1} was never reached", rank=1)
        assert "`events`" in said(run, "a", 1)
        assert "never reached" not in said(run, "a", 0)


def test_no_instance_is_connecting_in_silence_once_the_service_is_ready() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, FakeEngine(EngineKind.SGLANG) as quiet:
        quiet.spoil(HTML, "/server_info", "/get_server_info")
        nowhere = f"tcp://127.0.0.1:{free_port()}"
        hung = Reply("{}", delay_s=30)
        with FakeEngine(EngineKind.VLLM, replies={"*": hung}) as hanging:
            instances = [
                instance("a", server=engine, events=nowhere),
                instance("b", server=engine, events=[nowhere.replace("127.0.0.1", "127.0.0.2")]),
                instance("c"),
                instance("d", events=nowhere.replace("127.0.0.1", "127.0.0.3")),
                instance("e", server=hanging),
                instance("f", server=quiet),
            ]
            with serving(fleet(*instances)) as run:
                ready(run)
                silent = [
                    one["id"]
                    for one in run.http.get("/instances").json()["instances"]
                    for worker in one["workers"]
                    if worker["state"] == "connecting" and not worker["advice"]
                ]
                assert silent == []
                assert "set `events`" in said(run, "f")


def test_a_stream_that_is_found_later_is_advised_about_no_more() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as engine:
        publisher.stop()
        with serving(fleet(instance("a", publisher, engine))) as run:
            is_said(run, "was never reached")
            publisher.start()
            publish(run, "a", publisher, vllm_stored(prompt(1)))
            assert "never reached" not in said(run, "a")


def test_an_event_port_that_nobody_tells_is_named() -> None:
    for kind in EngineKind:
        with (
            FakeEngine(kind, events="tcp://*:0", replay="tcp://*:0") as engine,
            serving(fleet(instance("a", server=engine))) as run,
        ):
            is_said(run, "the port is '0', any free one, which nobody tells")


# Ranks


def test_another_number_of_ranks_than_the_engine_tells_is_said() -> None:
    with FakeEngine(EngineKind.VLLM, own_ranks=(2, 3), events="tcp://*:7000") as engine:
        nowhere = f"tcp://127.0.0.1:{free_port()}"
        sources: list[tuple[dict[str, Any], str]] = [
            ({"dp_size": 4}, "dp_size says 4 ranks, but the engine tells 2 (its own numbers: 2, 3)"),
            ({"events": [nowhere]}, "the endpoints are for 1 rank, but the engine tells 2"),
            (
                {"events": {"7": nowhere}},
                "events names rank 7, but the engine's ranks are 2, 3",
            ),
        ]
        for fields, words in sources:
            with serving(fleet(instance("a", server=engine, **fields))) as run:
                wait_until(lambda: words in (run.instance("a")["warning"] or ""), 5, lambda: run.instance("a"))  # noqa: B023


# Two of one


def test_two_ids_with_one_url_name_each_other_until_one_goes() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine))) as run:
        assert "same url" not in (run.instance("a")["warning"] or "")
        for url in (engine.url, engine.url + "/", engine.url.replace("http", "HTTP")):
            assert run.http.post("/instances", json=instance("b", url=url)).status_code == 201
            assert "it has the same url as b" in run.instance("a")["warning"]
            assert "it has the same url as a" in run.instance("b")["warning"]
            assert run.http.delete("/instances/b").status_code == 204
            assert "same url" not in (run.instance("a")["warning"] or "")
        names = ["tcp.example", "TCP.example:80", "tcp.example:80/"]
        for number, name in enumerate(names):
            assert run.http.post("/instances", json=instance(f"n{number}", url=f"http://{name}")).status_code == 201
        assert "it has the same url as n0, n2" in run.instance("n1")["warning"]
        run.http.delete("/instances/n0")
        assert "it has the same url as n2:" in run.instance("n1")["warning"]


def test_config_check_names_two_ids_with_one_url(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    first, second = instance("a", url="http://Engine:80/"), instance("b", url="http://engine")
    file.write_text(json.dumps({"instances": [first, second, instance("c")]}))
    told = runner.invoke(main, ["config-check", str(file)])
    assert told.exit_code == 0
    assert "instances a and b have one url" in " ".join(told.output.split())


def test_two_instances_on_one_stream_name_each_other_until_one_goes() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher), instance("b", publisher))) as run:
        is_said(run, f"{publisher.events} is also the event endpoint of b", "a")
        is_said(run, f"{publisher.events} is also the event endpoint of a", "b")
        run.http.delete("/instances/a").raise_for_status()
        assert "also the event endpoint" not in said(run, "b")


# doctor


def test_doctor_does_not_fail_for_a_mismatch_that_translate_allows() -> None:
    for policy, status in (("translate", 0), ("enforce", 1)):
        with ExitStack() as stack:
            publishers = [stack.enter_context(Publisher()) for _ in range(2)]
            engines = [stack.enter_context(FakeEngine(EngineKind.VLLM)) for _ in range(2)]
            trios = zip("ab", publishers, engines, strict=True)
            both = [instance(name, publisher, engine) for name, publisher, engine in trios]
            run = stack.enter_context(serving(fleet(*both, hash={"policy": policy})))
            publish(run, "a", publishers[0], vllm_stored(prompt(1)))
            publish(run, "b", publishers[1], vllm_stored(prompt(1), HashIdentity("sha256", "7")))
            assert run.worker("b")["hash"]["status"] == "mismatch"
            assert run.worker("b")["hash_policy"] == policy
            for engine, publisher in zip(engines, publishers, strict=True):
                engine.events, engine.replay = publisher.events, publisher.replay
            wait_until(lambda: run.instance("a")["warning"] is None, 5)  # noqa: B023
            told = runner.invoke(main, ["doctor", "--url", run.url])
            assert told.exit_code == status, told.output
            assert "mismatch" in told.output
