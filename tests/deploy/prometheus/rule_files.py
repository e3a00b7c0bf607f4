"""What deploy/prometheus and deploy/grafana say, as values: rules, and the metrics that expressions name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "kvroute.json"

_STRINGS = re.compile(r'"[^"]*"')
_NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*(?::[a-zA-Z0-9_]+)*")
_OURS = re.compile(r"(kvroute_|process_|vllm:|sglang:)|[a-z_]+:[a-z_]+:[a-z0-9_]+$")


class Query(NamedTuple):
    """A query of the dashboard, with its variables in place; `panel` is the title of where it stands."""

    panel: str
    expression: str


def rules(file: str) -> list[dict[str, Any]]:
    """All rules of a file in deploy/prometheus."""
    read = yaml.safe_load((PROMETHEUS / file).read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """All alerts."""
    return rules("alerts.rules.yml")


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def dashboard_queries() -> list[Query]:
    """Every query of the dashboard, for all models and engines over five minutes."""
    return [
        Query(panel["title"], _filled(target["expr"]))
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def metrics_named(expression: str) -> set[str]:
    """The metrics in an expression: kvroute's, the engines', the process's, and recorded ones."""
    return {name for name in _NAMES.findall(_STRINGS.sub("", expression)) if _OURS.match(name)}


def _filled(expression: str) -> str:
    filled = expression.replace("$__rate_interval", "5m").replace("$model", ".*").replace("$instance", ".*")
    assert "$" not in filled, f"a variable that the dashboard does not have: {expression}"
    return filled
