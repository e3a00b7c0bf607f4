"""Bodies and event messages that nobody should send: the service answers, goes on, and believes none of them."""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from tests.support.engine_events import CLEARED, prompt, vllm_removed, vllm_stored
from tests.support.fleet import fleet, instance, matched, seq_of, wait_for_seq
from tests.support.golden import sglang_stream, vllm_stream
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, u32, wait_until

BODIES = 10_000
MESSAGES = 10_000
GROWTH_MB = 150
ASKED = prompt(1)
Frames = tuple[bytes, ...]
PLAIN = {"model": "m", "token_ids": ASKED[:20], "explain": True, "dry_run": False}
FULL = {
    **PLAIN, "lora": None, "cache_salt": "salt", "extra_key": "k",
    "mm_items": [{"hash": "h", "offset": 1, "length": 3}], "candidates": ["a", "http://b:1"], "exclude": ["z"],
    "selector": {"zone": "a"}, "session_id": "s", "max_tokens": 16, "priority": -1, "strict": False, "echo": True,
    "logprobs": 1,
}  # fmt: skip
ODD_VALUES = [
    "null", "true", "-1", "4294967296", "1e400", "-0.0", "1.0", "NaN", "Infinity", "9" * 400, '""', '"m"', '"\\ud800"',
    '"\\u0000"', "[]", "[[]]", "{}", '{"a":1}', "[1,2,3]", "[true]", "[1.5]", '["1"]', "[" * 300 + "]" * 300,
    '{"__proto__":[]}', '"' + "x" * 3000 + '"', '[{"hash":"h","offset":0,"length":4294967295}]', '["a","a"]', "é",
    "'m'",
]  # fmt: skip


def rss_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# Bodies


def hostile_bodies(random: Random, count: int) -> Iterator[tuple[bytes, str, str]]:
    """Bodies with their content type and query."""
    for _ in range(count):
        kind = random.random()
        if kind < 0.45:
            yield _with_an_odd_value(random), "application/json", ""
        elif kind < 0.8:
            yield mutated(random, json.dumps(random.choice((PLAIN, FULL))).encode()), "application/json", ""
        elif kind < 0.9:
            yield random.randbytes(random.randrange(200)), "application/json", ""
        else:
            octets = u32(ASKED) if random.random() < 0.5 else random.randbytes(random.randrange(80))
            yield octets, "application/octet-stream", _query(random)


def _with_an_odd_value(random: Random) -> bytes:
    members = {key: json.dumps(value) for key, value in random.choice((PLAIN, FULL)).items()}
    if random.random() < 0.1:
        members["model"] = json.dumps(
            random.choice(("n", "M", "m ", f"model-{random.random()}", "\0", "m\0", "m" * 512))
        )
    for name in random.sample([*FULL, "messages", "tools", "unknown"], random.choice((0, 1, 2))):
        members[name] = random.choice(ODD_VALUES)
    return ("{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}").encode()


def _query(random: Random) -> str:
    values = ["m", "", "%00", "%ff", "%F0%9F%98%80", "[1]", "{}", "true", "1", "NaN", "a" * 50]
    names = random.choices(["model", "explain", "candidates", "mm_items", "selector", "x", "max_tokens"], k=3)
    return "&".join(["model=m"] * (random.random() < 0.7) + [f"{name}={random.choice(values)}" for name in names])


def mutated(random: Random, data: bytes) -> bytes:
    """The bytes with a few changes: flipped, cut out, doubled, inserted, truncated."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at, size = random.randrange(len(changed) + 1), random.randrange(1, 9)
        match random.randrange(5):
            case 0 if at < len(changed):
                changed[at] = random.randrange(256)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at:at] = random.randbytes(size)
            case _ if random.random() < 0.2:
                del changed[at:]
            case _:
                pass
    return bytes(changed)


def statuses(url: str, bodies: Iterator[tuple[bytes, str, str]]) -> Counter[int]:
    """Send all bodies to `/route` over one connection, many at a time; the answers' statuses."""
    host, _, port = url.removeprefix("http://").partition(":")
    found: Counter[int] = Counter()
    with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rb") as answers:
        waiting = 0
        for body, content_type, query in bodies:
            head = f"POST /route?{query} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            waiting += 1
            if waiting == 32:
                found.update(_answer(answers) for _ in range(waiting))
                waiting = 0
        found.update(_answer(answers) for _ in range(waiting))
    return found


def _answer(answers: Any) -> int:
    status, length = int(answers.readline().split()[1]), 0
    while (line := answers.readline().strip()) != b"":
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = json.loads(answers.read(length))
    assert status == 200 or body["status"] == status
    return status


@pytest.mark.no_cover
def test_hostile_bodies_get_an_answer_and_change_nothing() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher), instance("b"))) as run:
        publisher.wait_for_subscriber()
        wait_for_seq(run, "a", publisher.publish(batch(events=[vllm_stored(ASKED)])))
        statuses(run.url, hostile_bodies(Random(0), 500))
        before = rss_mb()
        found = statuses(run.url, hostile_bodies(Random(1), BODIES))
        assert found.total() == BODIES
        assert set(found) <= {200, 400, 404, 422, 503}, found
        assert min(found[200], found[400], found[404], found[422]) > 100, found
        _still_well(run, before)
        metrics = run.http.get("/metrics").text
        assert set(re.findall(r'model="([^"]*)"', metrics)) == {"m"}
        assert set(re.findall(r'instance="([^"]*)"', metrics)) == {"a", "b"}
        errors = {int(status): run.metric(f'kvroute_route_errors_total{{status="{status}"}}') for status in found}
        assert all(errors[status] >= count for status, count in found.items() if status != 200)


def _still_well(run: Running, rss_before_mb: float) -> None:
    assert run.http.get("/healthz").status_code == 200
    assert matched(run, ASKED)["a"] == 64
    answer = run.route(ASKED, model="m", dry_run=True)
    assert (answer["instance"], answer["reusable_tokens"], answer["trust"]) == ("a", 48, "exact")
    assert rss_mb() - rss_before_mb < GROWTH_MB


# Messages


def test_hostile_messages_cost_their_sender_only() -> None:
    random = Random(2)
    payloads = [*vllm_stream("sha256_cbor").payloads.values(), *sglang_stream("page16").payloads.values()]
    with Publisher() as honest, Publisher(buffer_steps=100) as one, Publisher(buffer_steps=100) as other:
        others = (instance("v", one), instance("s", other, engine="sglang"))
        with serving(fleet(instance("a", honest), *others)) as run:
            honest.wait_for_subscriber()
            wait_for_seq(run, "a", honest.publish(batch(events=[vllm_stored(ASKED)])))
            before = rss_mb()
            for publisher, name in ((one, "v"), (other, "s")):
                publisher.wait_for_subscriber()
                publisher.publish_all(mutated(random, random.choice(payloads)) for _ in range(MESSAGES // 4))
                for _ in range(MESSAGES // 4):
                    publisher.send_frames(*_frames(random, payloads))
                assert run.http.get("/healthz").status_code == 200
                publisher.start_over()
                publisher.publish(batch(events=[CLEARED]))
                publisher.publish(batch(events=[vllm_stored(prompt(7))]))
                _wait_until_it_holds(run, name)
            assert run.worker("v")["wire_errors"]
            assert sum(run.worker("s")["wire_errors"].values()) > 100
            _still_well(run, before)


def _wait_until_it_holds(run: Running, name: str) -> None:
    """However lost the sequence is, an honest engine is heard again."""
    wait_until(lambda: matched(run, prompt(7))[name] == 64, 15, lambda: run.worker(name))


def _frames(random: Random, payloads: list[bytes]) -> Frames:
    """A message of any shape: wrong numbers of frames, numbers of wrong length, numbers from anywhere."""
    seq = random.choice((random.randrange(50), random.randrange(1 << 64), (1 << 64) - 1)).to_bytes(8, "big")
    payload = mutated(random, random.choice(payloads))
    match random.randrange(5):
        case 0:
            return tuple(random.randbytes(random.randrange(12)) for _ in range(random.choice((1, 2, 4, 5))))
        case 1:
            return b"", random.randbytes(random.choice((0, 1, 7, 9))), payload
        case 2:
            return b"other", seq, payload
        case 3:
            return b"", seq, random.randbytes(random.randrange(60))
        case _:
            return b"", seq, payload


ODD_EVENTS: list[Any] = [
    None,
    7,
    "BlockStored",
    [],
    {},
    {"type": "BlockStored"},
    {"type": 5},
    {"type": "Unheard", "block_hashes": [1]},
    ["BlockStored", [1], None],
    vllm_stored(prompt(3)) | {"token_ids": [-1] * 64},
    vllm_stored(prompt(3)) | {"token_ids": [1 << 32] * 64},
    vllm_stored(prompt(3)) | {"token_ids": "text"},
    vllm_stored(prompt(3)) | {"block_size": -16},
    vllm_stored(prompt(3)) | {"block_hashes": [None]},
    vllm_stored(prompt(3)) | {"block_hashes": {"a": 1}},
    vllm_stored(prompt(3)) | {"parent_block_hash": [1]},
    vllm_stored(prompt(3)) | {"extra_keys": [[[[]]]] * 4},
    vllm_stored(prompt(3)) | {"group_idx": -1},
    vllm_removed(vllm_stored(prompt(3))) | {"block_hashes": 3},
]


def test_a_malformed_event_costs_that_event_only() -> None:
    for_each = [[vllm_stored(prompt(10 + number)), event] for number, event in enumerate(ODD_EVENTS)]
    with Publisher() as publisher, serving(fleet(instance("a", publisher))) as run:
        publisher.wait_for_subscriber()
        wait_for_seq(run, "a", publisher.publish(batch(events=[vllm_stored(ASKED)])))
        for events in for_each:
            publisher.publish(batch(events=[*events, vllm_stored(prompt(2)), vllm_removed(vllm_stored(prompt(2)))]))
        last = publisher.publish(batch(events=[vllm_stored(prompt(4))]))
        wait_for_seq(run, "a", last)
        kept = [1, 4, *range(10, 10 + len(ODD_EVENTS))]
        assert {number: matched(run, prompt(number))["a"] for number in kept} == dict.fromkeys(kept, 64)
        assert [matched(run, prompt(number))["a"] for number in (2, 3)] == [0, 0]
        shown = run.worker("a")
        assert shown["trust"] == "partial"
        assert shown["state"] == "live"
        assert shown["wire_errors"]["malformed"] + shown["wire_errors"]["token_range"] == len(ODD_EVENTS) - 1
        wait_for_seq(run, "a", publisher.publish(batch(events=[CLEARED])))
        assert run.worker("a")["trust"] == "exact"


def test_an_unusable_batch_costs_that_batch_and_only_such_batches_show_as_broken() -> None:
    unusable = [b"", b"\xc1", b"\x93", msgspec.msgpack.encode(5), msgspec.msgpack.encode([1.0, 5, 0]), b"\x91" * 5_000]
    with (
        Publisher() as publisher,
        Publisher() as broken,
        serving(fleet(instance("a", publisher), instance("b", broken))) as run,
    ):
        for name, sender in (("a", publisher), ("b", broken)):
            sender.wait_for_subscriber()
            for payload in unusable:
                wait_for_seq(run, name, sender.publish(payload))
        wait_for_seq(run, "a", publisher.publish(batch(events=[vllm_stored(ASKED)])))
        assert matched(run, ASKED) == {"a": 64, "b": 0}
        assert sum(run.worker("a")["wire_errors"].values()) == len(unusable)
        assert run.worker("a")["trust"] == "partial"
        assert run.worker("b")["trust"] == "none"
        assert "unusable" in run.worker("b")["advice"]
        assert seq_of(run, "b") == len(unusable) - 1
        errors = [line for line in run.http.get("/metrics").text.splitlines() if "wire_errors_total{" in line]
        assert sum(float(line.rpartition(" ")[2]) for line in errors) == 2 * len(unusable)
