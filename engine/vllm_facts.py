"""What a vLLM server tells over HTTP: version, event sources, models, cache settings, process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

from engine.endpoint import host_of, port_clash, rank_endpoint, shared
from engine.facts import NO_REPLAY, EngineFacts
from engine.inquiry import Inquiry
from engine.loose_json import count, rank_number, text
from engine.model_cards import model_cards
from engine.prometheus_text import own_samples

_RANKS_LIMIT = 1024
_START = "process_start_time_seconds"
_CONFIG = "vllm:cache_config_info"
_RUNNING = "vllm:num_requests_running"
_LOAD_ADAPTER = "/v1/load_lora_adapter"
_ALGORITHM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""A name that can be shown."""

_EVENTS_OFF = (
    'KV events are off: start vLLM with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\''
)
_NO_SOURCES = "this vLLM does not tell where its KV events are: set `events` and `replay` of the instance"


async def vllm_facts(inquiry: Inquiry, model: str) -> EngineFacts:
    """Ask `/version`, `/kv_event_sources`, `/v1/models` and `/metrics` at once; EngineUnreachable when all fail."""
    version, sources, cards, page = await asyncio.gather(
        inquiry.ask("/version"), inquiry.ask("/kv_event_sources"), inquiry.ask("/v1/models"), inquiry.read("/metrics")
    )
    inquiry.require_answer()
    models = model_cards(cards or {})
    process = _process(page or "", (model, *models.models, *models.roots.values()))
    ranks = _ranks(sources or {}, process.ranks)
    streams = _streams(sources, ranks, host_of(inquiry.url), refused="/kv_event_sources" in inquiry.refused)
    return EngineFacts(
        version=text((version or {}).get("version")),
        events=streams.events,
        replay=streams.replay,
        topic=streams.topic,
        block_size=process.block_size,
        dp_size=len(ranks) or None,
        prefix_match_unit=process.prefix_match_unit,
        fingerprint=process.fingerprint,
        adapters=models.adapters,
        models=models.models,
        dynamo_format=None,
        warning="; ".join(filter(None, (inquiry.refusal(), *streams.warnings))) or None,
        hash_algorithm=process.hash_algorithm,
        roots=models.roots,
        ranks=ranks,
        unauthorized=bool(inquiry.refused),
        adapters_loadable=bool(models.adapters) and await _loads_adapters(inquiry),
    )


async def _loads_adapters(inquiry: Inquiry) -> bool:
    """Whether adapters can be loaded at run time: the path takes POST (`entrypoints/serve/lora/api_router.py`)."""
    await inquiry.ask(_LOAD_ADAPTER)
    return inquiry.statuses.get(_LOAD_ADAPTER) == HTTPStatus.METHOD_NOT_ALLOWED


async def vllm_fingerprint(inquiry: Inquiry) -> str | None:
    """The start time of the server process, None when it cannot be read."""
    return _process(await inquiry.read("/metrics") or "", ()).fingerprint


def _ranks(sources: Mapping[str, object], in_metrics: frozenset[int]) -> tuple[int, ...]:
    """The engine's own numbers of its ranks: global ones, where it is a node of several (vLLM `--data-parallel-*`).

    The keys of `/kv_event_sources`; the label `engine` of the metrics where these tell none.
    """
    told = frozenset(rank for rank in map(rank_number, _sources_by_key(sources)) if rank is not None)
    return tuple(sorted(told or in_metrics))[:_RANKS_LIMIT]


class _Streams(NamedTuple):
    events: dict[int, str]
    replay: dict[int, str]
    topic: str | None
    warnings: list[str]


def _streams(sources: Mapping[str, object] | None, ranks: Sequence[int], host: str, *, refused: bool) -> _Streams:
    """`/kv_event_sources`: per rank, with the rank's own ports already; only hosts may be wildcards.

    `refused`: the question wants a key.
    """
    if sources is None:
        return _Streams({}, {}, None, [] if refused else [_NO_SOURCES])
    events: dict[int, str] = {}
    replay: dict[int, str] = {}
    topics: list[str] = []
    warnings = _left_out(sources, ranks)
    unusable: dict[str, list[int]] = {}
    for rank, source in _live_sources(sources, ranks):
        try:
            events[rank] = rank_endpoint(text(source.get("endpoint")) or "", 0, host)
            if endpoint := text(source.get("replay_endpoint")):
                replay[rank] = rank_endpoint(endpoint, 0, host)
        except ValueError as error:
            unusable.setdefault(str(error), []).append(ranks[rank])
        topics.append(text(source.get("topic")) or "")
    warnings += [f"{_named(of)}: {reason}" for reason, of in unusable.items()]
    if not events and not warnings:
        warnings.append(_EVENTS_OFF)
    if events and not replay:
        warnings.append(NO_REPLAY)
    warnings += port_clash(events, replay)
    for rank, first in shared(events).items():
        warnings.append(
            f"ranks {ranks[first]} and {ranks[rank]} publish their events at one endpoint, {events[rank]}: it is "
            f"followed as rank {ranks[first]}'s; give every rank a port of its own"
        )
        del events[rank]
    return _Streams(events, replay, topics[0] if topics else None, warnings)


def _left_out(sources: Mapping[str, object], ranks: Sequence[int]) -> list[str]:
    """Sources that are followed as no rank's."""
    keys = _sources_by_key(sources)
    odd = next((key for key in keys if rank_number(key) is None), None)
    warnings = [] if odd is None else [f"/kv_event_sources tells of a rank {odd[:40]!r}, which is no rank's number"]
    if len(keys) > len(ranks) == _RANKS_LIMIT:
        warnings.append(f"it tells {len(keys)} ranks, of which {_RANKS_LIMIT} are followed")
    return warnings


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _sources_by_key(sources: Mapping[str, object]) -> dict[str, dict[str, object]]:
    return {key: source for key, source in sources.items() if isinstance(source, dict)}


def _live_sources(sources: Mapping[str, object], ranks: Sequence[int]) -> list[tuple[int, dict[str, object]]]:
    """The sources that publish, by the position of their rank."""
    by_number = {rank_number(key): source for key, source in _sources_by_key(sources).items()}
    return [
        (rank, source)
        for rank, source in ((rank, by_number.get(number, {})) for rank, number in enumerate(ranks))
        if source.get("enable_kv_cache_events") is not False
        and source.get("publisher") not in ("null", "NULL")
        and source.get("endpoint")
    ]


class _Process(NamedTuple):
    """What `/metrics` says that does not change while the process lives."""

    fingerprint: str | None
    block_size: int | None
    prefix_match_unit: int | None
    hash_algorithm: str | None
    ranks: frozenset[int]


def _process(page: str, models: Collection[str]) -> _Process:
    """`models` are the names that the server serves, where the page has rows of several."""
    starts: set[float] = set()
    ranks: set[int] = set()
    configs: list[dict[str, str]] = []
    for sample in own_samples(page, (_START, _CONFIG, _RUNNING), models):
        if sample.name == _START:
            starts.add(sample.value)
        elif sample.name == _CONFIG:
            configs.append(sample.labels)
        elif (rank := rank_number(sample.labels.get("engine", "0"))) is not None:
            ranks.add(rank)
    fingerprint = ",".join(map(repr, sorted(starts))) or None
    block_size = count(_agreed(configs, "block_size"))
    unit = count(_agreed(configs, "prefix_match_unit"))
    algorithm = _agreed(configs, "prefix_caching_hash_algo") or "None"
    told = algorithm if algorithm != "None" and _ALGORITHM.fullmatch(algorithm) else None
    return _Process(fingerprint, block_size or None, unit or None, told, frozenset(ranks))


def _agreed(configs: Sequence[Mapping[str, str]], label: str) -> str | None:
    """What all of the rows say; None when they differ: they do not name their model, and a page may be shared."""
    values = {config.get(label) for config in configs}
    return values.pop() if len(values) == 1 else None
