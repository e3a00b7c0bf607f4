"""Samples of chosen metrics out of a Prometheus text page."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class MetricSample(NamedTuple):
    """One line of a page. The value may be NaN or infinite."""

    name: str
    labels: dict[str, str]
    value: float


def samples(page: str, names: tuple[str, ...]) -> Iterator[MetricSample]:
    """The samples with exactly these names, in order. A line that cannot be parsed is passed over alone.

    Lines are picked before they are parsed: an engine's page has over a thousand, and parsing them all would hold up
    the event loop for tens of milliseconds.
    """
    for line in page.split("\n"):
        if line.startswith(names):
            yield from (sample for sample in _parsed(line) if sample.name in names)


def own_samples(page: str, names: tuple[str, ...], models: Collection[str]) -> list[MetricSample]:
    """The samples of the engine that serves `models`, by the label `model_name` that both engines give them.

    A page may be shared by several model servers: where it names more than one model, only rows of `models` and rows
    that name none are the engine's; where it names one, or none, all are.
    """
    found = list(samples(page, names))
    if len({sample.labels["model_name"] for sample in found if "model_name" in sample.labels}) < 2:
        return found
    return [sample for sample in found if sample.labels.get("model_name") in (None, *models)]


def _parsed(line: str) -> list[MetricSample]:
    try:
        return [
            MetricSample(sample.name, sample.labels, float(sample.value))
            for family in text_string_to_metric_families(line)
            for sample in family.samples
        ]
    except (ValueError, LookupError, OverflowError):
        return []
