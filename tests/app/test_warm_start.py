"""The router as a process is killed and started again: what it knows afterwards is what the engines hold."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.support.fleet import OFTEN, SHORT_WAITS
from tests.support.golden import Stream, sglang_stream, vllm_stream
from tests.support.publisher import Publisher
from tests.support.recorded_play import RecordedPlay
from tests.support.redis_server import RedisServer
from tests.support.router_process import RouterProcess, sleep_up_to

KILLS = 25
BUFFER = 60
"""Batches that an engine can replay: fewer than it has published after a while."""


def around(server: RedisServer, plays: list[RecordedPlay], **sections: object) -> dict[str, object]:
    return {
        "state": server.url,
        "state_store": {"poll_s": 0.05},
        "instances": [play.settings for play in plays],
        "listener": SHORT_WAITS,
        "polling": OFTEN,
        "log": {"level": "info"},
        **sections,
    }


def test_after_50_kills_at_random_moments_every_row_is_exact() -> None:
    fleets = [
        [vllm_stream("sha256"), vllm_stream("swa_two_windows"), vllm_stream("bytes_hash_dp1_topic")],
        [sglang_stream("page1"), sglang_stream("fuzz_page1"), sglang_stream("page16_eagle")],
    ]
    with ThreadPoolExecutor(len(fleets)) as pool:
        asked = list(pool.map(killed_and_started, fleets, range(len(fleets))))
    assert all(rows > 500 for rows in asked), asked


def killed_and_started(streams: list[Stream], seed: int) -> int:
    """Kill a router of these engines again and again; returns how many rows were asked."""
    draw = random.Random(seed)
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        plays = [
            RecordedPlay(f"m{number}", stream, stack.enter_context(Publisher(stream.topic, buffer_steps=BUFFER)))
            for number, stream in enumerate(streams)
        ]
        router = stack.enter_context(RouterProcess(around(server, plays)))
        router.wait_until_ready()
        asked = 0
        started_over = 0
        for _ in range(KILLS):
            segments = [play.segment() for play in plays]
            part_of(plays, segments, draw)
            sleep_up_to(draw.random, draw.choice([0.0, 0.1]))
            router.kill()
            part_of(plays, segments, draw)
            router.start()
            part_of(plays, segments, draw)
            for play, segment in zip(plays, segments, strict=True):
                play.publisher.publish_all(segment)
            router.wait_until_ready()
            for play in plays:
                router.wait_for_seq(play.name, play.seq)
                asked += play.is_exact(router)
                started_over += not play.was_restarted and router.worker(play.name)["resets"] != {}
        assert started_over <= KILLS // 5, "on a slow machine a proof may come late, then all is replayed; that is rare"
        return asked


def part_of(plays: list[RecordedPlay], segments: list[list[bytes]], draw: random.Random) -> None:
    """Publish some of what is left of each segment."""
    for play, segment in zip(plays, segments, strict=True):
        count = draw.randint(0, len(segment))
        play.publisher.publish_all(segment[:count])
        del segment[:count]
