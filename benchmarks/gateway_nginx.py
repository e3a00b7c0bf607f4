"""What the nginx gateway adds to a request: its CPU time, and latency against the engine alone; prompts of token ids.

Needs nginx and libnginx-mod-http-js. CPU engine without compute, so that nothing but the way is measured; one client,
requests one after the other. Usage: python -m benchmarks.gateway_nginx [REQUESTS]
"""

from __future__ import annotations

import statistics
import sys
import time

import httpx

from benchmarks.readings import cpu_s
from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED, NginxProcess
from tests.deploy.gateway.stack import HASHES, addresses, completion, instance, prompt, router, urls
from tests.support.cpu_engine import cpu_engine

LENGTHS = (100, 1000, 8000)
UNCOUNTED = 5


def main() -> None:
    """Print a table: median and 90th percentile in ms."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    if not IS_INSTALLED:
        raise SystemExit(INSTALL)
    with cpu_engine("vllm", **HASHES) as engine, router([instance("vllm-0", engine)]) as asked:
        asked.wait_until_ready()
        with NginxProcess(addresses(urls([asked]), [engine.url])) as gateway:
            print("prompt tokens | engine alone p50, p90 | POST /route p50, p90 | through it p50, p90 | nginx CPU (ms)")
            for length in LENGTHS:
                body = completion(prompt(length, length), max_tokens=1)
                question = {"model": "tiny", "token_ids": body["prompt"], "dry_run": True}
                alone = timed(engine.http, "/v1/completions", body, requests)
                route = timed(asked.http, "/route", question, requests)
                before = _cpu_s(gateway)
                through = timed(gateway.http, "/v1/completions", body, requests)
                cpu_ms = (_cpu_s(gateway) - before) * 1e3 / (requests + UNCOUNTED)
                print(f"{length:13} | {alone:>21} | {route:>20} | {through:>19} | {cpu_ms:.2f}")


def _cpu_s(gateway: NginxProcess) -> float:
    """CPU time of the workers so far."""
    return sum(map(cpu_s, gateway.workers()))


def timed(client: httpx.Client, path: str, body: dict[str, object], requests: int) -> str:
    """Median and 90th percentile of so many requests, in ms, after a few that do not count."""
    took = []
    for number in range(requests + UNCOUNTED):
        began = time.perf_counter()
        answer = client.post(path, json=body)
        if number >= UNCOUNTED:
            took.append((time.perf_counter() - began) * 1e3)
        assert answer.status_code == 200, answer.text
        assert "x-kvroute-fallback" not in answer.headers
    return f"{statistics.median(took):.1f}, {statistics.quantiles(took, n=10)[8]:.1f}"


if __name__ == "__main__":
    main()
