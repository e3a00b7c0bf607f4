"""What is counted for every routing request, in plain numbers: counters with locks cost as much as deciding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_TOKENS = (
    ("prompt_tokens", "Prompt tokens of routed requests"),
    ("matched_tokens", "Leading tokens the chosen worker held"),
    ("reusable_tokens", "Tokens the engine should skip, by its own rule"),
)


class RouteTally(Collector):
    """Decisions and their times. Counts on the loop's thread; read in any, between two numbers at worst.

    `bounds`: the upper bounds of the buckets of times, ascending, in seconds.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._took = [0] * (len(bounds) + 1)
        self._seconds = 0.0
        self._decisions: dict[tuple[str, str], int] = {}
        self._tokens: dict[str, list[int]] = {}

    def routed(self, model: str, reason: str, tokens: tuple[int, int, int] | None) -> None:
        """A decision. `tokens`: (prompt, matched, reusable); None: text not tokenised."""
        key = model, reason
        self._decisions[key] = self._decisions.get(key, 0) + 1
        if tokens is not None:
            sums = self._tokens.get(model)
            if sums is None:
                sums = self._tokens[model] = [0, 0, 0]
            prompt, matched, reusable = tokens
            sums[0] += prompt
            sums[1] += matched
            sums[2] += reusable

    def took(self, seconds: float) -> None:
        """The time from a request's arrival to its answer."""
        self._took[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    def forget_model(self, model: str) -> None:
        """Drop a model's series."""
        self._tokens.pop(model, None)
        for key in [key for key in self._decisions if key[0] == model]:
            del self._decisions[key]

    def collect(self) -> Iterable[Metric]:
        """The same as counters and a histogram."""
        decisions = CounterMetricFamily("kvroute_route_requests", "Decisions by reason", labels=("model", "reason"))
        for key, count in list(self._decisions.items()):
            decisions.add_metric(key, count)
        yield decisions
        yield from self._token_counters()
        counts = [float(count) for count in accumulate(self._took)]
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, counts, strict=True))
        about = "From a request's arrival to its answer"
        yield HistogramMetricFamily("kvroute_route_seconds", about, buckets=buckets, sum_value=self._seconds)

    def _token_counters(self) -> Iterable[Metric]:
        sums = list(self._tokens.items())
        for number, (name, about) in enumerate(_TOKENS):
            counter = CounterMetricFamily(f"kvroute_{name}", about, labels=("model",))
            for model, of_model in sums:
                counter.add_metric((model,), of_model[number])
            yield counter
