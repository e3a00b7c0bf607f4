"""The demo's processes end, and say why when they end early."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.demo_processes import DemoFailed, DemoProcesses, free_port
from deploy.recording import RECORDINGS


def test_a_router_that_does_not_start_says_why(tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text("instances: 7\n")
    with DemoProcesses(tmp_path) as processes:
        processes.start_router(config, free_port())
        with pytest.raises(DemoFailed, match=r"router ended with status 2\n.*instances"):
            _check_for(processes, 20)


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with DemoProcesses(tmp_path) as processes:
        processes.start_engine("vllm-0", tmp_path / "missing.jsonl", "m")
        with pytest.raises(DemoFailed, match=r"vllm-0 did not start(.|\n)*missing\.jsonl"):
            processes.engine_url("vllm-0", 20)


def test_orders_to_an_engine_that_has_ended_fail(tmp_path: Path) -> None:
    with DemoProcesses(tmp_path) as processes:
        processes.start_engine("vllm-0", RECORDINGS / "vllm.jsonl", "m")
        processes.engine_url("vllm-0", 20)
        processes.publish("vllm-0", 10_000)  # more than there is
        with pytest.raises(DemoFailed, match="vllm-0 ended with status 1"):
            _check_for(processes, 20)


def _check_for(processes: DemoProcesses, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        processes.check()
        time.sleep(0.02)
