"""Texts of containers as they must read on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy.ports import free_ports, taken_ports
from deploy.stack.compose_file import HealthCheck, Mount, Service
from deploy.stack.loopback import Loopback
from tests.support.ports import free_port

ROOT = Path("/somewhere")


def service(name: str, ports: tuple[int, ...], hosts: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> Service:
    mounts = tuple(Mount(Path("x"), path) for path in paths)
    return Service(name, (name, *hosts), (), {}, mounts, ("/tmp",), ports, HealthCheck((), 1.0, 1.0, 1))


GATEWAY = service("gateway", (8080,), paths=("/etc/nginx/nginx.conf", "/data"))
ENGINE = service("cpu-vllm-0", (8000, 5557), ("vllm-0",))
LOOPBACK = Loopback([GATEWAY, ENGINE], 20_000)


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("http://vllm-0:8000/v1", "http://127.0.0.1:20001/v1"),
        ("tcp://cpu-vllm-0:5557;", "tcp://127.0.0.1:20002;"),
        ("server vllm-0:8000 max_fails=3;", "server 127.0.0.1:20001 max_fails=3;"),
        ("http://vllm-0:8001", "http://vllm-0:8001"),
        ("http://my-vllm-0:8000 http://vllm-0:80001", "http://my-vllm-0:8000 http://vllm-0:80001"),
        ("listen 8080;", "listen 127.0.0.1:20000;"),
        ("listen 0.0.0.0:8080;", "listen 127.0.0.1:20000;"),
        ("--port=8080 --other=8000", "--port=20000 --other=8000"),
        ("http://127.0.0.1:8080/healthz", "http://127.0.0.1:20000/healthz"),
        ("18080 8080x 1.8080", "18080 8080x 1.8080"),
        ("pid /tmp/nginx.pid; /tmpfiles /var/tmp", "pid /somewhere/tmp/nginx.pid; /tmpfiles /var/tmp"),
        ("-c /etc/nginx/nginx.conf", "-c /somewhere/etc/nginx/nginx.conf"),
        ("--dir=/data", "--dir=/somewhere/data"),
        ("10.0.0.0 0.0.0.0/0", "10.0.0.0 127.0.0.1/0"),
    ],
)
def test_a_text_names_addresses_and_paths_of_this_machine(text: str, here: str) -> None:
    assert LOOPBACK.rewriting(GATEWAY, ROOT)(text) == here


def test_programs_of_our_images_are_those_of_this_python() -> None:
    rewritten = LOOPBACK.rewriting(ENGINE, ROOT)
    assert rewritten("/opt/kvroute/bin/python") == str(Path(sys.executable).parent / "python")


def test_addresses_are_told_in_the_order_of_the_file() -> None:
    assert LOOPBACK.addresses(ENGINE) == ["127.0.0.1:20001", "127.0.0.1:20002"]


def test_a_free_run_of_ports_is_free_and_a_taken_port_is_told() -> None:
    assert taken_ports(free_ports(12), 12) == []
    import socket

    with socket.create_server(("127.0.0.1", free_port())) as server:
        port = server.getsockname()[1]
        assert taken_ports(port, 1) == [port]
    assert taken_ports(70_000, 1) == [70_000]
