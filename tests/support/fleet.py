"""Settings of a small fleet for tests, with waits short enough for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.fake_engine import FakeEngine
from tests.support.golden import Row, Stream
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, free_url, serving, wait_until

SHORT_WAITS = {
    "first_answer_s": 0.3,
    "next_answer_s": 0.3,
    "backoff_s": 0.02,
    "settle_s": 0.05,
    "idle_s": 0.3,
    "idle_max_s": 1.0,
    "fingerprint_s": 0.5,
    "resync_s": 0.1,
}
OFTEN = {"load_interval_s": 0.05, "discovery_interval_s": 0.1, "timeout_s": 3.0}
PATIENT = {"silent_s": 6.0}
"""Engines are threads beside the tests: a busy machine must not make them suspect."""


def fleet(*instances: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Settings for `serving`. `sections` replace the defaults."""
    defaults = {"listener": SHORT_WAITS, "polling": OFTEN, "availability": PATIENT, "log": {"level": "error"}}
    return {"instances": list(instances), **defaults, **sections}


def instance(
    name: str, publisher: Publisher | None = None, server: FakeEngine | None = None, **fields: Any
) -> dict[str, Any]:
    """An instance's settings. `server` is its HTTP side; without, nobody listens at its URL."""
    settings: dict[str, Any] = {"id": name, "engine": "vllm", "model": "m", "url": server.url if server else free_url()}
    if server is not None:
        settings["engine"] = server.kind.value
    if publisher is not None:
        settings["events"] = publisher.events
        if publisher.replay is not None:
            settings["replay"] = publisher.replay
    return {**settings, **fields}


@contextmanager
def two_instances(**sections: Any) -> Iterator[tuple[Running, Publisher, Publisher]]:
    """The service with vLLM instances a and b, and their publishers."""
    with (
        Publisher() as first,
        Publisher() as second,
        serving(fleet(instance("a", first), instance("b", second), **sections)) as run,
    ):
        yield run, first, second


def seq_of(run: Running, name: str, rank: int = 0) -> int | None:
    """The last batch applied of a worker, read in the process: faster than over HTTP."""
    known = run.service.around.fleet.get(name)
    return known.workers[rank].seq if known is not None and rank in known.workers else None


def wait_for_seq(run: Running, name: str, seq: int, rank: int = 0, timeout_s: float = 10.0) -> None:
    """Until the batch `seq` of a worker is applied, and what it holds counts."""
    wait_until(lambda: seq_of(run, name, rank) == seq, timeout_s, lambda: run.http.get("/instances").text)
    wait_until(lambda: counts(run, name, rank), timeout_s, lambda: run.http.get("/instances").text)
    with suppress(AssertionError):  # of some streams it never becomes sure that nothing is missing
        wait_until(lambda: not _behind(run, name, rank), 1.0)


def _behind(run: Running, name: str, rank: int) -> bool:
    known = run.service.around.fleet.get(name)
    return known is not None and rank in known.workers and known.workers[rank].behind


def counts(run: Running, name: str, rank: int = 0) -> bool:
    """Whether what a worker holds counts: no replay is being applied."""
    known = run.service.around.fleet.get(name)
    return known is not None and rank in known.workers and not known.workers[rank].catching_up


def publish(run: Running, name: str, publisher: Publisher, *events: Any, rank: int = 0) -> None:
    """Publish events as one batch to a worker and wait until it is applied."""
    publisher.wait_for_subscriber()
    wait_for_seq(run, name, publisher.publish(batch(events=events)), rank)


def matched(run: Running, tokens: list[int], **fields: Any) -> dict[str, int]:
    """The matched tokens of every instance's first rank."""
    model = fields.pop("model", "m")
    return {name: one["matched_tokens"] for name, one in run.candidates(tokens, model=model, **fields).items()}


def rows_of(
    run: Running, name: str, publisher: Publisher, stream: Stream, asked: Callable[[Row], bool] = lambda _: True
) -> Iterator[Row]:
    """Publishes a recorded stream to an instance; yields each row that is asked when it is due."""
    publisher.wait_for_subscriber()
    due = {row.after_seq for row in stream.rows if row.after_seq >= 0 and asked(row)}
    for seq, payload in sorted(stream.payloads.items()):
        publisher.publish_at(seq, payload)
        if seq in due:
            wait_for_seq(run, name, seq)
            yield from (row for row in stream.rows if row.after_seq == seq and asked(row))
    wait_for_seq(run, name, max(stream.payloads))
