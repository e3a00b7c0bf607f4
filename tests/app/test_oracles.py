"""Every row of the recorded oracles through the real service: published over ZMQ, asked over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.golden import Row, Stream, sglang_stream, vllm_stream, vllm_streams
from tests.support.publisher import Publisher
from tests.support.service import Running, free_url, serving

SGLANG_EXACT = ["page1", "page16", "page1_dynamo", "page16_eagle", "fuzz_page1", "page16_host_tier"]


def settings(stream: Stream, publisher: Publisher) -> dict[str, Any]:
    instance = {
        "id": "one",
        "engine": stream.engine,
        "model": "m",
        "url": free_url(),
        "events": publisher.events,
        "replay": publisher.replay,
        "topic": stream.topic,
        **stream.settings,
    }
    return {"instances": [instance], "log": {"level": "error"}}


def play(stream: Stream, ask: Any) -> int:
    """Publish batch by batch; after each, `ask` the rows that follow it. Returns the number of rows."""
    asked = 0
    with Publisher(topic=stream.topic) as publisher, serving(settings(stream, publisher)) as running:
        publisher.wait_for_subscriber()
        running.wait_for_state("one", "live")
        for seq in sorted({-1, *stream.payloads}):
            if seq >= 0:
                publisher.publish_at(seq, stream.payloads[seq])
                running.wait_for_seq("one", seq)
            for row in stream.rows:
                if row.after_seq == seq:
                    ask(running, row)
                    asked += 1
        worker = running.worker("one")
        assert worker["trust"] == "exact"
        assert worker["gaps"] == 0
        assert worker["wire_errors"] == {}
    return asked


def equals_the_engine(running: Running, row: Row) -> None:
    answer = running.route(row.tokens, model="m", dry_run=True, **row.fields)
    got = {**answer, **answer["candidates"][0]["by_medium"]}
    assert {key: got[key] for key in row.expected} == row.expected, row


def stays_bounded(running: Running, row: Row) -> None:
    answer = running.route(row.tokens, model="m", dry_run=True, **row.fields)
    assert 0 <= answer["reusable_tokens"] <= answer["matched_tokens"] <= len(row.tokens)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", vllm_streams())
def test_every_row_of_a_vllm_stream_is_exact_over_http(name: str) -> None:
    stream = vllm_stream(name)
    known_adapters = [row for row in stream.rows if row.adapter_path != "/adapters/sql-v2"]
    assert play(stream._replace(rows=known_adapters), equals_the_engine) > 50


@pytest.mark.no_cover
@pytest.mark.parametrize("name", SGLANG_EXACT)
def test_every_row_of_an_sglang_stream_is_exact_over_http(name: str) -> None:
    assert play(sglang_stream(name), equals_the_engine) > 50


def test_streams_that_no_index_can_follow_stay_bounded() -> None:
    assert play(vllm_stream("report_full"), stays_bounded) > 50
    assert play(sglang_stream("page1_extra_key"), stays_bounded) > 50
