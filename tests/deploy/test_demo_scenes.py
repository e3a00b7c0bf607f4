"""A promise of the router that an engine does not keep fails the demo."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from deploy.demo_client import RouterClient
from deploy.demo_processes import DemoFailed, DemoProcesses
from deploy.demo_prompts import Script
from deploy.demo_scenes import Scenes
from tests.support.ports import free_port


def test_an_engine_that_was_emptied_behind_the_routers_back_fails_the_demo(tmp_path: Path) -> None:
    """vLLM tells of a reset with its next step only: until then the router is wrong, and the demo must notice."""
    port = free_port()
    with (
        DemoProcesses(tmp_path) as processes,
        RouterClient(f"http://127.0.0.1:{port}") as router,
    ):
        scenes = Scenes(Console(quiet=True), processes, router, tmp_path)
        try:
            scenes.start(port)
            script = Script()
            ask = next(ask for ask in script.asks() if not ask.is_chat)
            for _ in range(2):
                routed = scenes.route(ask, script.body(ask), only=["vllm-0"])
            assert routed.delivered.cached_tokens > 0
            scenes.engines["vllm-0"].empty()
            with pytest.raises(DemoFailed, match=r"tokens reusable at vllm-0, it reused 0"):
                scenes.route(ask, script.body(ask), only=["vllm-0"])
        finally:
            scenes.close()
