"""Endpoints: what an engine binds becomes what a subscriber can dial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.endpoint import at_host_of, host_of, offset_endpoint, port_clash, rank_endpoint, shared


@pytest.mark.parametrize(
    ("endpoint", "rank", "url", "expected"),
    [
        ("tcp://*:5557", 0, "http://[fd00::5]:8000", "tcp://[fd00::5]:5557"),
        ("tcp://0.0.0.0:5557", 0, "http://10.0.0.7:8000", "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", 3, "http://vllm-0:8000", "tcp://vllm-0:5560"),
        ("tcp://:::5557", 1, "http://vllm-0", "tcp://vllm-0:5558"),
        ("tcp://[0:0:0:0:0:0:0:0]:5557", 0, "http://a/", "tcp://a:5557"),
        ("tcp://10.0.0.9:6000", 2, "http://a:1", "tcp://10.0.0.9:6002"),
        ("tcp://[fd00::9]:6000", 2, "http://a:1", "tcp://[fd00::9]:6002"),
        ("tcp://fd00::9:6000", 0, "http://a:1", "tcp://[fd00::9]:6000"),
        ("tcp://[::ffff:127.0.0.1]:18001", 0, "http://a:1", "tcp://[::ffff:127.0.0.1]:18001"),
        ("ipc:///run/kv", 0, "http://a:1", "ipc:///run/kv"),
        ("inproc://kv", 0, "http://a:1", "inproc://kv"),
        ("inproc://kv", 2, "http://a:1", "inproc://kv_dp2"),
    ],
)
def test_an_endpoint_is_made_dialable(endpoint: str, rank: int, url: str, expected: str) -> None:
    assert rank_endpoint(endpoint, rank, host_of(url)) == expected


@pytest.mark.parametrize(
    ("endpoint", "rank", "message"),
    [
        ("", 0, "expected tcp://HOST:PORT"),
        ("10.0.0.1:5557", 0, "expected tcp://HOST:PORT"),
        ("udp://10.0.0.1:5557", 0, "expected tcp://HOST:PORT"),
        ("tcp://", 0, "expected tcp://HOST:PORT"),
        ("tcp://a", 0, "the port is 'a'"),
        ("tcp://a:*", 0, "the port is '\\*'"),
        ("tcp://a:0", 0, "the port is '0'"),
        ("tcp://a:70000", 0, "the port is '70000'"),
        ("tcp://a:1000000000000000000000", 0, "the port is"),
        ("tcp://a:5557/x", 0, "the port is '5557/x'"),
        ("tcp://:5557", 0, "names no host"),
        ("tcp://[]:5557", 0, "names no host"),
        ("tcp://fd00:::x:5557", 0, "not an IPv6 address"),
        ("tcp://a:65535", 1, "rank 1 would be at port 65536"),
        ("ipc:///run/kv", 1, "one rank"),
    ],
)
def test_a_malformed_endpoint_is_refused_in_words(endpoint: str, rank: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_endpoint(endpoint, rank, "a")


@pytest.mark.parametrize("url", ["", "vllm-0:8000", "http://", "/path", "http://[::1"])
def test_a_url_without_a_host_is_refused_in_words(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|names no host"):
        host_of(url)


@given(st.text(max_size=40), st.integers(0, 70_000))
def test_any_text_gives_an_endpoint_or_a_value_error(text: str, rank: int) -> None:
    for endpoint in (text, f"tcp://{text}", f"tcp://{text}:5557"):
        try:
            found = rank_endpoint(endpoint, rank, "a")
        except ValueError:
            continue
        assert found.startswith(("tcp://", "ipc://", "inproc://"))


def test_a_replay_port_next_to_the_event_port_clashes_with_the_next_rank() -> None:
    events = {rank: rank_endpoint("tcp://*:5557", rank, "a") for rank in range(2)}
    replay = {rank: rank_endpoint("tcp://*:5558", rank, "a") for rank in range(2)}
    assert port_clash({0: events[0]}, {0: replay[0]}) == []
    assert "tcp://a:5558 is both" in port_clash(events, replay)[0]


@pytest.mark.parametrize(
    ("number", "first", "told", "port"),
    [
        (0, 0, None, 5557),
        (3, 3, None, 5560),
        (3, 2, "tcp://h:5559", 5560),
        (2, 2, "tcp://h:5557", 5557),
        (3, 2, "tcp://h:5557", 5558),
        (3, 2, "tcp://h:9000", 5560),
    ],
)
def test_a_rank_is_as_far_from_rank_0_as_its_engine_numbers_it(
    number: int, first: int, told: str | None, port: int
) -> None:
    assert offset_endpoint("tcp://*:5557", number, first, told, "h") == f"tcp://h:{port}"


def test_an_endpoint_at_the_host_of_another() -> None:
    assert at_host_of("tcp://a:5657", "tcp://[fd00::1]:5557") == "tcp://[fd00::1]:5657"
    assert at_host_of("ipc:///run/kv", "tcp://b:1") == "ipc:///run/kv"


def test_ranks_that_share_an_endpoint_are_named_with_the_first() -> None:
    assert shared({0: "a", 1: "b", 2: "a", 3: "a"}) == {2: 0, 3: 0}
