"""vLLM's `/metrics`, under its names (vllm/v1/metrics/loggers.py, 0.32.0)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deploy.engine.engine import Engine
from deploy.engine.metric_page import Readings, families, histograms, page
from deploy.engine.rank import Rank
from deploy.engine.request import FinishReason

_GAUGES: Readings = {
    "vllm:num_requests_running": ("Requests that hold KV.", lambda rank: len(rank.scheduler.running)),
    "vllm:num_requests_waiting": ("Requests that wait.", lambda rank: len(rank.scheduler.waiting)),
    "vllm:kv_cache_usage_perc": (
        "Share of the KV cache that running requests hold, 0 to 1.",
        lambda rank: rank.cache.stats().used / rank.cache.stats().total,
    ),
}
_COUNTERS: Readings = {
    "vllm:prefix_cache_queries": ("Tokens looked up.", lambda rank: rank.scheduler.counts.queried),
    "vllm:prefix_cache_hits": ("Tokens found cached.", lambda rank: rank.scheduler.counts.hit),
    "vllm:prompt_tokens": ("Prompt tokens.", lambda rank: rank.scheduler.counts.prompt),
    "vllm:prompt_tokens_cached": ("Prompt tokens found cached.", lambda rank: rank.scheduler.counts.hit),
    "vllm:generation_tokens": ("Sampled tokens.", lambda rank: rank.scheduler.counts.generated),
    "vllm:num_preemptions": ("Preemptions.", lambda rank: rank.scheduler.counts.preemptions),
}
_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")


def vllm_metrics(engine: Engine) -> bytes:
    """The page."""
    return page(_VllmCollector(engine))


class _VllmCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        model = self._engine.settings.model
        ranks, labels = self._engine.ranks, ["model_name", "engine"]

        def values(rank: Rank) -> list[str]:
            return [model, str(rank.number)]

        yield from families(GaugeMetricFamily, _GAUGES, ranks, labels, values)
        yield from families(CounterMetricFamily, _COUNTERS, ranks, labels, values)
        yield from histograms("vllm", ranks, labels, values)
        yield self._sleep_state(model)
        yield self._finished(model)
        yield self._config()

    def _sleep_state(self, model: str) -> Metric:
        """`awake` 1 while it is; level 1 is `weights_offloaded`, level 2 `discard_all` (`record_sleep_state`)."""
        level = self._engine.sleep_level
        states = {"awake": level is None, "weights_offloaded": level == 1, "discard_all": level == 2}
        family = GaugeMetricFamily(
            "vllm:engine_sleep_state", "How it sleeps.", labels=["model_name", "engine", "sleep_state"]
        )
        for rank in self._engine.ranks:
            for state, on in states.items():
                family.add_metric([model, str(rank.number), state], float(on))
        return family

    def _finished(self, model: str) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Requests ended.", labels=["model_name", "engine", "finished_reason"]
        )
        for rank in self._engine.ranks:
            for reason in _REASONS:
                family.add_metric([model, str(rank.number), reason], rank.scheduler.counts.finished[reason])
        return family

    def _config(self) -> Metric:
        settings = self._engine.settings
        labels = {
            "block_size": str(settings.block_size),
            "effective_attention_block_size": str(settings.block_size),
            "enable_prefix_caching": "True",
            "engine": "0",
            "hash_block_size": "None",
            "num_gpu_blocks": str((settings.cache_tokens // settings.block_size + 1) * settings.dp_size),
            "prefix_caching_hash_algo": settings.hash_algorithm,
            "prefix_match_unit": "None",
            "sliding_window": "None",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "The cache's settings.", labels=list(labels))
        family.add_metric(list(labels.values()), 1.0)
        return family
