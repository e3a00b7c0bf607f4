"""SGLang's `/metrics`, under its names (sglang/srt/observability/metrics_collector.py, 0.5.22)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deploy.engine.engine import Engine
from deploy.engine.metric_page import Readings, families, histograms, page
from deploy.engine.rank import Rank

_GAUGES: Readings = {
    "sglang:num_running_reqs": ("Requests that hold KV.", lambda rank: len(rank.scheduler.running)),
    "sglang:num_queue_reqs": ("Requests that wait.", lambda rank: len(rank.scheduler.waiting)),
    "sglang:num_used_tokens": ("Tokens held by running requests.", lambda rank: rank.cache.stats().used),
    "sglang:token_usage": (
        "Share of the KV cache that running requests hold, 0 to 1.",
        lambda rank: rank.cache.stats().used / rank.cache.stats().total,
    ),
    "sglang:cache_hit_rate": (
        "Share of the looked up tokens that were cached, since the start.",
        lambda rank: rank.scheduler.counts.hit / max(1, rank.scheduler.counts.queried),
    ),
    "sglang:max_total_num_tokens": ("Size of the KV cache.", lambda rank: rank.cache.stats().total),
    "sglang:kv_evictable_tokens": ("Cached tokens held by nobody.", lambda rank: rank.cache.stats().evictable),
}
_COUNTERS: Readings = {
    "sglang:prompt_tokens": ("Prompt tokens.", lambda rank: rank.scheduler.counts.prompt),
    "sglang:generation_tokens": ("Sampled tokens.", lambda rank: rank.scheduler.counts.generated),
    "sglang:evicted_tokens": ("Cached tokens lost to reuse.", lambda rank: rank.cache.stats().evicted),
    "sglang:num_requests": ("Requests ended.", lambda rank: sum(rank.scheduler.counts.finished.values())),
}


def sglang_metrics(engine: Engine) -> bytes:
    """The page."""
    return page(_SglangCollector(engine))


class _SglangCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = ["model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"]
        self._names += ["dp_rank"] if len(engine.ranks) > 1 else []

    def collect(self) -> Iterator[Metric]:
        yield from families(GaugeMetricFamily, _GAUGES, self._engine.ranks, self._names, self._labels)
        yield from families(CounterMetricFamily, _COUNTERS, self._engine.ranks, self._names, self._labels)
        yield from histograms("sglang", self._engine.ranks, self._names, self._labels)
        cached = CounterMetricFamily("sglang:cached_tokens", "Tokens found.", labels=[*self._names, "cache_source"])
        for rank in self._engine.ranks:
            cached.add_metric([*self._labels(rank), "device"], rank.scheduler.counts.hit)
        yield cached
        size: Readings = {"sglang:page_size": ("Tokens per page.", lambda rank: self._engine.settings.block_size)}
        yield from families(GaugeMetricFamily, size, self._engine.ranks, self._names, self._labels)

    def _labels(self, rank: Rank) -> list[str]:
        labels = [self._engine.settings.model, "unified", "0", "0", "0"]
        return [*labels, str(rank.number)] if len(self._engine.ranks) > 1 else labels
