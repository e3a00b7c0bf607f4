"""What a vLLM server tells over HTTP: version, event sources, models, cache settings, process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple

from engine.endpoint import host_of, port_clash, rank_endpoint
from engine.facts import NO_REPLAY, EngineFacts
from engine.inquiry import Inquiry
from engine.loose_json import count, mapping, text
from engine.model_cards import model_cards
from engine.prometheus_text import samples

_START = "process_start_time_seconds"
_CONFIG = "vllm:cache_config_info"
_RUNNING = "vllm:num_requests_running"
_ALGORITHM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""A name that can be shown."""

_EVENTS_OFF = (
    'KV events are off: start vLLM with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\''
)
_NO_SOURCES = "this vLLM does not tell where its KV events are: set `events` and `replay` of the instance"


async def vllm_facts(inquiry: Inquiry) -> EngineFacts:
    """Ask `/version`, `/kv_event_sources`, `/v1/models` and `/metrics` at once; EngineUnreachable when all fail."""
    version, sources, cards, page = await asyncio.gather(
        inquiry.ask("/version"), inquiry.ask("/kv_event_sources"), inquiry.ask("/v1/models"), inquiry.read("/metrics")
    )
    inquiry.require_answer()
    streams = _streams(sources, host_of(inquiry.url))
    process = _process(page or "")
    models = model_cards(cards or {})
    return EngineFacts(
        version=text((version or {}).get("version")),
        events=streams.events,
        replay=streams.replay,
        topic=streams.topic,
        block_size=process.block_size,
        dp_size=len(streams.events) or process.ranks or None,
        prefix_match_unit=process.prefix_match_unit,
        fingerprint=process.fingerprint,
        adapters=models.adapters,
        models=models.models,
        dynamo_format=None,
        warning=streams.warning,
        hash_algorithm=process.hash_algorithm,
        roots=models.roots,
    )


async def vllm_fingerprint(inquiry: Inquiry) -> str | None:
    """The start time of the server process, None when it cannot be read."""
    return _process(await inquiry.read("/metrics") or "").fingerprint


class _Streams(NamedTuple):
    events: dict[int, str]
    replay: dict[int, str]
    topic: str | None
    warning: str | None


def _streams(sources: Mapping[str, object] | None, host: str) -> _Streams:
    """`/kv_event_sources`: per rank, with the rank's own ports already; only hosts may be wildcards."""
    if sources is None:
        return _Streams({}, {}, None, _NO_SOURCES)
    events: dict[int, str] = {}
    replay: dict[int, str] = {}
    topics: list[str] = []
    warnings: list[str] = []
    for rank, source in _live_sources(sources):
        try:
            events[rank] = rank_endpoint(text(source.get("endpoint")) or "", 0, host)
            if endpoint := text(source.get("replay_endpoint")):
                replay[rank] = rank_endpoint(endpoint, 0, host)
        except ValueError as error:
            warnings.append(str(error))
        topics.append(text(source.get("topic")) or "")
    if not events and not warnings:
        warnings.append(_EVENTS_OFF)
    if events and not replay:
        warnings.append(NO_REPLAY)
    warnings.extend(port_clash(events, replay))
    return _Streams(events, replay, topics[0] if topics else None, "; ".join(warnings) or None)


def _live_sources(sources: Mapping[str, object]) -> list[tuple[int, dict[str, object]]]:
    found = [(count(rank), mapping(source)) for rank, source in sources.items()]
    return [
        (rank, source)
        for rank, source in found
        if rank is not None
        and source.get("enable_kv_cache_events") is not False
        and source.get("publisher") not in ("null", "NULL")
        and source.get("endpoint")
    ]


class _Process(NamedTuple):
    """What `/metrics` says that does not change while the process lives."""

    fingerprint: str | None
    block_size: int | None
    prefix_match_unit: int | None
    hash_algorithm: str | None
    ranks: int


def _process(page: str) -> _Process:
    starts: set[float] = set()
    ranks: set[str] = set()
    config: dict[str, str] = {}
    for sample in samples(page, (_START, _CONFIG, _RUNNING)):
        if sample.name == _START:
            starts.add(sample.value)
        elif sample.name == _CONFIG:
            config = config or sample.labels
        else:
            ranks.add(sample.labels.get("engine", "0"))
    fingerprint = ",".join(map(repr, sorted(starts))) or None
    block_size, unit = count(config.get("block_size")), count(config.get("prefix_match_unit"))
    algorithm = config.get("prefix_caching_hash_algo", "None")
    told = algorithm if algorithm != "None" and _ALGORITHM.fullmatch(algorithm) else None
    return _Process(fingerprint, block_size or None, unit or None, told, len(ranks))
