"""How busy an engine says it is, per data-parallel rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, assert_never

from engine.address import EngineAddress
from engine.http_client import HttpClient
from engine.inquiry import Inquiry
from engine.loose_json import items, mapping, measure, rank_number
from engine.prometheus_text import own_samples
from index.worker import EngineKind


class EngineLoad(NamedTuple):
    """One rank's load: requests running and waiting, the used share of the KV cache (0..1), whether it sleeps.

    None means the engine did not say, or said NaN; never zero. A sleeping engine holds no KV.
    """

    running: float | None
    waiting: float | None
    kv_usage: float | None
    asleep: bool | None


async def read_load(
    client: HttpClient, address: EngineAddress, timeout_s: float, models: Collection[str] = ()
) -> dict[int, EngineLoad]:
    """The load of every rank that the engine reports, by its own numbers; empty when nothing could be read.

    `models` are the names it serves: of a page with rows of several models only theirs count.
    """
    return await load(Inquiry(client, address, timeout_s), models)


async def load(inquiry: Inquiry, models: Collection[str] = ()) -> dict[int, EngineLoad]:
    """`read_load` by questions of which the caller keeps how they went."""
    match inquiry.kind:
        case EngineKind.VLLM:
            return _vllm_load(await inquiry.read("/metrics") or "", models)
        case EngineKind.SGLANG:
            loads = _sglang_load(await inquiry.ask("/v1/loads?include=core") or {})
            page = await inquiry.read("/metrics") if not loads and inquiry.reached else None
            return loads or _sglang_metrics(page or "", models)
        case _:
            assert_never(inquiry.kind)


def of_ranks(loads: Mapping[int, EngineLoad], ranks: Sequence[int]) -> dict[int, EngineLoad]:
    """The loads by position in `ranks`, the engine's own numbers of all its ranks.

    A page that numbers them otherwise is read in order, if it tells as many.
    """
    if not loads.keys() >= set(ranks) and len(loads) == len(ranks):
        return dict(enumerate(loads[number] for number in sorted(loads)))
    return {rank: loads[number] for rank, number in enumerate(ranks) if number in loads}


_VLLM_FIELDS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:engine_sleep_state": "awake",
}
_SGLANG_FIELDS = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_usage",
}


def _vllm_load(page: str, models: Collection[str]) -> dict[int, EngineLoad]:
    """Gauges by the label `engine`; the sleep state is one gauge per state, of which `awake` is 0 or 1."""
    ranks: dict[int, dict[str, float | None]] = {}
    for sample in own_samples(page, tuple(_VLLM_FIELDS), models):
        rank = rank_number(sample.labels.get("engine", "0"))
        field = _VLLM_FIELDS[sample.name]
        if rank is None or (field == "awake" and sample.labels.get("sleep_state") != "awake"):
            continue
        _keep_largest(ranks.setdefault(rank, {}), field, measure(sample.value))
    return _loads(ranks)


def _sglang_load(answer: dict[str, object]) -> dict[int, EngineLoad]:
    """`/v1/loads` (SGLang `managers/load_snapshot.py`)."""
    loads: dict[int, EngineLoad] = {}
    for row in map(mapping, items(answer.get("loads"))):
        rank = rank_number(row.get("dp_rank", 0))
        if row and rank is not None:
            running, waiting = measure(row.get("num_running_reqs")), measure(row.get("num_waiting_reqs"))
            loads[rank] = EngineLoad(running, waiting, measure(row.get("token_usage")), None)
    return loads


def _sglang_metrics(page: str, models: Collection[str]) -> dict[int, EngineLoad]:
    """Gauges by the label `dp_rank`, which one-rank servers leave out; of several tensor ranks the largest counts."""
    ranks: dict[int, dict[str, float | None]] = {}
    for sample in own_samples(page, tuple(_SGLANG_FIELDS), models):
        rank = rank_number(sample.labels.get("dp_rank", "0"))
        if rank is not None:
            _keep_largest(ranks.setdefault(rank, {}), _SGLANG_FIELDS[sample.name], measure(sample.value))
    return _loads(ranks)


def _keep_largest(fields: dict[str, float | None], field: str, value: float | None) -> None:
    present = fields.get(field)
    if present is None or (value is not None and value > present):
        fields[field] = value


def _loads(ranks: dict[int, dict[str, float | None]]) -> dict[int, EngineLoad]:
    return {
        rank: EngineLoad(
            fields.get("running"),
            fields.get("waiting"),
            fields.get("kv_usage"),
            None if (awake := fields.get("awake")) is None else awake == 0,
        )
        for rank, fields in ranks.items()
    }
