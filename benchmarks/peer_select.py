"""Routing beside a peer: `python -m benchmarks.peer_select PYTHON [seconds] [rounds]`, as root.

The peer is `python -m dynamo.select_service` of the package ai-dynamo-runtime, installed where PYTHON is. It listens on
all addresses and asks for no token, so all of this runs in a network namespace of its own, which has loopback alone.
Both know 64 workers x 10,240 blocks of 16 tokens, the peer by events over ZMQ, and are asked for prompts that one
worker holds, by 16 connections: requests per second, latency and CPU time per request, and the ratio.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import zmq

from benchmarks.load_client import NAME, Request
from benchmarks.route_http import CONNECTIONS, Cost, cost, server
from benchmarks.route_server import BLOCKS, RUN, WORKERS
from benchmarks.waiting import wait_for_port
from benchmarks.workload import BLOCK, payload, prompts
from tests.support.ports import free_port

SETTLE_S = 3.0


def main() -> None:
    """Enter a namespace, measure both, print."""
    if "--inside" not in sys.argv:
        os.execvp(
            "unshare", ["unshare", "--net", sys.executable, "-m", "benchmarks.peer_select", *sys.argv[1:], "--inside"]
        )
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    arguments = [argument for argument in sys.argv[1:] if argument != "--inside"]
    seconds = float(arguments[1]) if len(arguments) > 1 else 2.0
    rounds = int(arguments[2]) if len(arguments) > 2 else 3
    print(f"client: {NAME}, {CONNECTIONS} connections; load average {os.getloadavg()[0]:.1f}")
    ours: dict[int, Cost] = {}
    with server("short") as (port, pid, prompt):
        for tokens in (1_024, 8_192, 32_768):
            body = json.dumps({"model": "m", "token_ids": prompt[:tokens], "dry_run": True}).encode()
            ours[tokens] = _median(port, pid, Request("/route", "application/json", body), seconds, rounds)
    with _peer(arguments[0]) as (port, pid, prompt):
        for tokens, own in ours.items():
            body = json.dumps({"model_name": "m", "token_ids": prompt[:tokens]}).encode()
            peer = _median(port, pid, Request("/select", "application/json", body), seconds, rounds)
            print(f"{tokens:>6} tokens  kvroute {_shown(own)}")
            print(f"{'':>13}  peer    {_shown(peer)}; kvroute {own.rate / peer.rate:.2f} x the peer", flush=True)


def _median(port: int, pid: int, request: Request, seconds: float, rounds: int) -> Cost:
    costs = [cost(port, pid, request, seconds) for _ in range(rounds)]
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def _shown(of: Cost) -> str:
    return (
        f"{of.rate:>7.0f} req/s, p50 {of.p50_ms:6.2f} ms, p99 {of.p99_ms:6.2f} ms, {of.cpu_us:6.0f} us CPU per request"
    )


@contextmanager
def _peer(python: str) -> Iterator[tuple[int, int, list[int]]]:
    """The peer's port and process, and a prompt that one of its workers holds."""
    port, context = free_port(), zmq.Context()
    quiet = {**os.environ, "DYN_LOG": "error"}  # else it writes a line per request
    process = subprocess.Popen([python, "-m", "dynamo.select_service", "--port", str(port)], env=quiet)
    try:
        wait_for_port(port, process)
        yield port, process.pid, _fill(port, context)
    finally:
        process.terminate()
        process.wait(20)
        context.destroy(linger=0)


def _fill(port: int, context: zmq.Context[zmq.Socket[bytes]]) -> list[int]:
    sockets = []
    for number in range(WORKERS):
        socket = context.socket(zmq.PUB)
        socket.set(zmq.SNDHWM, 0)
        events = socket.bind_to_random_port("tcp://127.0.0.1")
        sockets.append(socket)
        worker = {
            "worker_id": number + 1,
            "model_name": "m",
            "endpoint": f"http://127.0.0.1:9/{number}",
            "block_size": BLOCK,
            "data_parallel_start_rank": 0,
            "data_parallel_size": 1,
            "kv_events_endpoints": {"0": f"tcp://127.0.0.1:{events}"},
        }
        _post(port, "/workers", worker)
    time.sleep(SETTLE_S)
    dice, held = random.Random(1), list[int]()
    for number, socket in enumerate(sockets):
        seq = count()
        for tokens in prompts(number, BLOCKS // RUN, RUN):
            hashes = [dice.getrandbits(64) for _ in range(RUN)]
            parent = None
            for at in range(0, RUN, 128):
                part = payload(tokens[at * BLOCK : (at + 128) * BLOCK], hashes[at : at + 128], parent)
                socket.send_multipart([b"", next(seq).to_bytes(8, "big"), part])
                parent = hashes[at + 127]
            held = tokens
    return _held(port, held)


def _held(port: int, prompt: list[int]) -> list[int]:
    """The prompt, once the peer says that a worker holds all of it. SystemExit when it does not within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = _post(port, "/select", {"model_name": "m", "token_ids": prompt})
        if json.loads(answer)["overlap"]["longest_matched"] >= len(prompt) - BLOCK:
            return prompt
        time.sleep(0.5)
    raise SystemExit(f"the peer does not hold what was published: {answer!r}")


def _post(port: int, path: str, body: object) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            said: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path}: {error.code} {error.read()[:500]!r}") from None
    return said


if __name__ == "__main__":
    main()
