"""What an SGLang server tells over HTTP: version, event publisher, page size, adapters, process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from engine.endpoint import host_of, port_clash, rank_endpoint
from engine.facts import NO_REPLAY, EngineFacts
from engine.inquiry import Inquiry
from engine.loose_json import count, items, mapping, measure, text
from engine.model_cards import ModelCards, model_cards
from engine.wire import sglang_usable

_RANKS_LIMIT = 1024
_DEFAULT_ENDPOINT = "tcp://*:5557"

_EVENTS_OFF = (
    'KV events are off: start SGLang with --kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5657"}\''
)
_ADAPTERS = (
    'the events do not tell LoRA adapters from the base model: set "format": "dynamo" in --kv-events-config '
    "(SGLang 0.5.22 or later)"
)


async def sglang_facts(inquiry: Inquiry) -> EngineFacts:
    """Ask `/server_info` (or its older name), `/v1/models` and `/model_info`; EngineUnreachable when all fail."""
    answer, cards, model = await asyncio.gather(
        _server_info(inquiry), inquiry.ask("/v1/models"), inquiry.ask("/model_info")
    )
    inquiry.require_answer()
    info = answer or {}
    config = _events_config(info.get("kv_events_config"))
    publisher = _publisher(info, config)
    streams = _streams(publisher, host_of(inquiry.url))
    models = _models(model_cards(cards or {}), model or {}, info)
    dynamo = None if config is None else config.get("format") == "dynamo"
    lora = bool(models.adapters) or info.get("enable_lora") is True
    warning = _warning(answer, publisher, streams, lora=lora and dynamo is False)
    return EngineFacts(
        version=text(info.get("version")),
        events=streams.events,
        replay=streams.replay,
        topic=publisher.topic if publisher else None,
        block_size=(publisher.block_size if publisher else None) or count(info.get("page_size")) or None,
        dp_size=(publisher.dp_size if publisher else None) or count(info.get("dp_size")) or None,
        prefix_match_unit=None,
        fingerprint=_fingerprint(info),
        adapters=models.adapters,
        models=models.models,
        dynamo_format=dynamo,
        warning="; ".join(filter(None, (inquiry.refusal(), warning))) or None,
        roots=models.roots,
        unauthorized=bool(inquiry.refused),
    )


async def sglang_fingerprint(inquiry: Inquiry) -> str | None:
    """The durations of the server's start, which differ from process to process; None when they cannot be read."""
    return _fingerprint(await _server_info(inquiry) or {})


class _Publisher(NamedTuple):
    """The event publisher of rank 0; other ranks are at the next ports."""

    endpoint: str
    replay: str | None
    topic: str
    block_size: int | None
    dp_size: int | None


class _Streams(NamedTuple):
    events: dict[int, str]
    replay: dict[int, str]
    warnings: list[str]


def _models(cards: ModelCards, model: Mapping[str, object], info: Mapping[str, object]) -> ModelCards:
    """The cards, with what they leave out: a base card's root is its own name, `model_path` is told elsewhere.

    `/model_info` follows a weight update, `/server_info` says what the server was started with.
    """
    told = model if text(model.get("model_path")) else info
    name, path = text(told.get("served_model_name")), text(told.get("model_path"))
    if name is None and told is model and len(cards.models) == 1:  # before it was told
        name = cards.models[0]
    if name is None or path is None or (cards.models and name not in cards.models):
        return cards
    if told is info and not cards.models:
        return cards
    return cards._replace(models=cards.models or (name,), roots={**cards.roots, name: path})


async def _server_info(inquiry: Inquiry) -> dict[str, object] | None:
    answer = await inquiry.ask("/server_info")
    older = answer is None and inquiry.reached and "/server_info" not in inquiry.refused
    return await inquiry.ask("/get_server_info") if older else answer


def _events_config(value: object) -> dict[str, object] | None:
    """`--kv-events-config` as it was given: JSON text. None when not given or not readable."""
    if isinstance(value, dict):
        return value
    try:
        config = msgspec.json.decode(text(value) or "")
    except (msgspec.DecodeError, RecursionError):
        return None
    return mapping(config) or None


def _publisher(info: Mapping[str, object], config: Mapping[str, object] | None) -> _Publisher | None:
    """The `kv_events` block; servers from before it existed show only their `--kv-events-config`."""
    if "kv_events" not in info:
        return _configured_publisher(config or {})
    block = mapping(info["kv_events"])
    host, port = text(block.get("endpoint_host")), count(block.get("endpoint_port_base"))
    if host is None or port is None:
        return None
    replay = count(block.get("replay_endpoint_port_base"))
    return _Publisher(
        endpoint=f"tcp://{host}:{port}",
        replay=None if replay is None else f"tcp://{host}:{replay}",
        topic=text(block.get("topic")) or "",
        block_size=count(block.get("block_size")) or None,
        dp_size=count(block.get("dp_size")) or None,
    )


def _configured_publisher(config: Mapping[str, object]) -> _Publisher | None:
    if config.get("publisher") != "zmq":
        return None
    endpoint = text(config.get("endpoint")) or _DEFAULT_ENDPOINT
    return _Publisher(endpoint, text(config.get("replay_endpoint")), text(config.get("topic")) or "", None, None)


def _streams(publisher: _Publisher | None, host: str) -> _Streams:
    events: dict[int, str] = {}
    replay: dict[int, str] = {}
    if publisher is None:
        return _Streams(events, replay, [])
    ranks = publisher.dp_size or 1
    many = [f"it tells {ranks} ranks, of which {_RANKS_LIMIT} are followed"] if ranks > _RANKS_LIMIT else []
    try:
        for rank in range(min(ranks, _RANKS_LIMIT)):
            events[rank] = rank_endpoint(publisher.endpoint, rank, host)
            if publisher.replay is not None:
                replay[rank] = rank_endpoint(publisher.replay, rank, host)
    except ValueError as error:
        return _Streams(events, replay, [*many, str(error)])
    return _Streams(events, replay, [*many, *port_clash(events, replay)])


def _fingerprint(info: Mapping[str, object]) -> str | None:
    """`startup_time` of `/server_info` (SGLang `observability/startup_time.py`); no start time or id is exposed."""
    places = [info, *map(mapping, items(info.get("internal_states")))]
    for times in (mapping(place.get("startup_time")) for place in places):
        durations = {name: measure(times.get(name)) for name in ("scheduler_e2e", "tokenizer_e2e")}
        if durations["scheduler_e2e"] is not None:
            return ",".join(f"{name}={value!r}" for name, value in durations.items() if value is not None)
    return None


def _warning(
    info: Mapping[str, object] | None, publisher: _Publisher | None, streams: _Streams, *, lora: bool
) -> str | None:
    """`lora`: adapters are served while events have the default format."""
    if info is None:
        return None
    refused = sglang_usable(text(info.get("version")) or "")
    warnings = [refused] if refused else []
    if publisher is None:
        warnings.append(_EVENTS_OFF)
    elif publisher.replay is None:
        warnings.append(NO_REPLAY)
    if lora:
        warnings.append(_ADAPTERS)
    return "; ".join([*warnings, *streams.warnings]) or None
