"""The settings and rules of deploy/prometheus, judged by the real promtool and held against what is really exported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.prometheus.rule_files import PROMETHEUS, ROOT, alerts, dashboard_queries, metrics_named, rules
from tests.support.cpu_engine import cpu_engine
from tests.support.fleet import fleet
from tests.support.prometheus_server import promtool
from tests.support.service import serving

HERE = Path(__file__).parent
SEVERITIES = {"critical", "warning", "info"}
NAME = re.compile(r"^[a-z_]+:[a-z_]+:[a-z0-9_]+$")
TYPES = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)


def cases_of(file: str) -> list[dict[str, Any]]:
    read = yaml.safe_load((HERE / file).read_text())
    return [case for group in read["tests"] for case in group.get("alert_rule_test", [])]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", str(PROMETHEUS / "prometheus.yml")),
        ("check", "rules", str(PROMETHEUS / "recording.rules.yml"), str(PROMETHEUS / "alerts.rules.yml")),
        ("test", "rules", str(HERE / "alerts.test.yml")),
        ("test", "rules", str(HERE / "silence.test.yml")),
    ],
    ids=["config", "rules", "alerts", "silence"],
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_every_alert_is_seen_firing_in_a_test() -> None:
    firing = {case["alertname"] for case in cases_of("alerts.test.yml") if case["exp_alerts"]}
    assert firing == {rule["alert"] for rule in alerts()}


def test_every_alert_that_waits_is_seen_waiting() -> None:
    quiet = {case["alertname"] for case in cases_of("alerts.test.yml") if not case["exp_alerts"]}
    assert {rule["alert"] for rule in alerts() if "for" in rule} <= quiet


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_what_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in SEVERITIES
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors((ROOT / page).read_text())


def test_every_runbook_is_for_an_alert() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^#### (\w+)$", text, re.MULTILINE)) == {rule["alert"] for rule in alerts()}


def test_links_within_the_runbooks_lead_somewhere() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors(text)


def test_recorded_names_are_level_metric_operations_and_unique() -> None:
    names = [rule["record"] for rule in rules("recording.rules.yml")]
    assert all(map(NAME.match, names))
    assert len(names) == len(set(names))


def test_recorded_series_that_the_docs_name_are_recorded() -> None:
    named = set(re.findall(r"`([a-z_]+:[a-z_]+:[a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert len(named) > 8
    assert named <= {rule["record"] for rule in rules("recording.rules.yml")}


@pytest.fixture(scope="module")
def exported() -> Iterator[set[str]]:
    """The names of all series that a router and both engines can have."""
    with cpu_engine("vllm") as vllm, cpu_engine("sglang") as sglang, serving(fleet()) as run:
        yield set().union(*(names_of(httpx.get(f"{one.url}/metrics").text) for one in (vllm, sglang, run)))


def test_every_metric_that_rules_and_dashboard_name_is_exported_or_recorded(exported: set[str]) -> None:
    recorded = {rule["record"] for rule in rules("recording.rules.yml")}
    expressions = [rule["expr"] for rule in rules("recording.rules.yml") + alerts()]
    expressions += [query.expression for query in dashboard_queries()]
    named = set().union(*map(metrics_named, expressions))
    assert {"kvroute_prompt_tokens_total", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"} <= named
    assert named - exported - recorded == set()


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def names_of(page: str) -> set[str]:
    """The names of the series that a page of metrics has or may have."""
    found: set[str] = set()
    for name, kind in TYPES.findall(page):
        found |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
    return found
