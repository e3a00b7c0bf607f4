"""The demo's processes end, and say why when they end early; a promise that is not kept fails the demo."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo_engines import DemoEngine
from deploy.demo_processes import DemoFailed, DemoProcesses, free_port
from deploy.demo_prompts import Script
from tests.support.service import wait_until


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DemoProcesses]:
    with DemoProcesses(tmp_path) as running:
        yield running


def test_a_router_that_does_not_start_says_why(processes: DemoProcesses, tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text("instances: 7\n")
    processes.start_router(config, free_port())
    with pytest.raises(DemoFailed, match=r"router ended with status 2\n.*instances"):
        _check_for(processes, 20)


def test_an_engine_that_does_not_start_says_why(processes: DemoProcesses) -> None:
    DemoEngine(processes, "e", "other").start()
    with pytest.raises(DemoFailed, match=r"e ended with status 2\n(.|\n)*--face"):
        _check_for(processes, 20)


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_an_engine_is_asked_emptied_and_killed(processes: DemoProcesses, face: str) -> None:
    engine = DemoEngine(processes, "e", face)
    engine.start()
    wait_until(engine.answers, 20.0)
    before = engine.published_after(None)
    prompt = Script().body(next(ask for ask in Script().asks() if not ask.is_chat))
    cold, warm = engine.ask(prompt, {}), engine.ask(prompt, {})
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == (warm.prompt_tokens - 1) // 16 * 16
    assert warm.text == cold.text != ""
    assert engine.published_after(None) > before
    assert engine.published_after(1000) == 0
    engine.empty()
    assert engine.ask(prompt, {}).cached_tokens == 0
    engine.kill()
    assert not engine.answers()
    with pytest.raises(DemoFailed, match="e gave no answer"):
        engine.ask(prompt, {})
    processes.check()
    engine.close()


def test_an_engine_that_refuses_a_prompt_fails_the_demo(processes: DemoProcesses) -> None:
    engine = DemoEngine(processes, "e", "vllm")
    engine.start()
    wait_until(engine.answers, 20.0)
    with pytest.raises(DemoFailed, match="e answered 400"):
        engine.ask({"prompt": []}, {})
    engine.close()


def _check_for(processes: DemoProcesses, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        processes.check()
        time.sleep(0.02)
