"""Counters on a page of Prometheus text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def total(page: str, metric: str) -> float:
    """The sum of a counter's series; 0 where there is none."""
    families = text_string_to_metric_families(page)
    return sum(sample.value for family in families for sample in family.samples if sample.name == metric)
