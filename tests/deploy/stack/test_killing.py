"""Whatever process of the stack is killed, requests are answered meanwhile, and it comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.deploy.stack.running import RunningStack, Traffic

pytestmark = pytest.mark.xdist_group("stack")

BACK_S = 60.0
LONGEST_S = 15.0
BEFORE_S, AFTER_S = 1.0, 1.0


@pytest.mark.parametrize(
    "service", ["cpu-vllm-0", "cpu-vllm-1", "cpu-sglang-0", "router-0", "router-1", "redis", "prometheus"]
)
def test_killing_it_leaves_every_request_answered_and_it_comes_back(stack: RunningStack, service: str) -> None:
    with Traffic(stack.url("gateway")) as traffic:
        time.sleep(BEFORE_S)
        killed_at, killed = time.monotonic(), stack.kill(service)
        stack.wait(lambda: stack.is_back(service, killed), BACK_S)
        time.sleep(AFTER_S)
    _check(traffic, killed_at)
    assert [answer for answer in traffic.answers if answer.status != 200] == []


def test_killing_a_worker_of_nginx_costs_at_most_the_requests_in_its_hands(stack: RunningStack) -> None:
    master: int = stack.facts()["gateway"]["pid"]
    before = _children(master)
    with Traffic(stack.url("gateway")) as traffic:
        time.sleep(BEFORE_S)
        killed_at = time.monotonic()
        os.kill(min(before), signal.SIGKILL)
        stack.wait(lambda: len(_children(master) - {min(before)}) == len(before), BACK_S)
        time.sleep(AFTER_S)
    _check(traffic, killed_at)
    wrong = [answer for answer in traffic.answers if answer.status != 200]
    assert [answer for answer in wrong if answer.status is not None] == []
    assert [answer for answer in wrong if not answer.began < killed_at + 0.1 <= answer.ended + 0.2] == []
    assert stack.facts()["gateway"]["pid"] == master


def _check(traffic: Traffic, killed_at: float) -> None:
    """There were requests before and after, and none took too long."""
    assert [answer for answer in traffic.answers if answer.ended < killed_at]
    assert [answer for answer in traffic.answers if answer.began > killed_at]
    assert [answer for answer in traffic.answers if answer.ended - answer.began > LONGEST_S] == []


def _children(pid: int) -> set[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return {int(word) for word in listed.stdout.split()}
