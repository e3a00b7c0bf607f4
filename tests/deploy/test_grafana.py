"""The dashboard's form, and that its provisioning fits. What its queries answer: prometheus/test_watched.py."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import Any

import yaml

from tests.deploy.prometheus.rule_files import GRAFANA, PROMETHEUS, alerts, dashboard

KINDS = {"row", "timeseries", "stat", "state-timeline"}
WIDTH = 24


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def provisioned(file: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / file).read_text())
    return read


def test_the_dashboard_uses_the_provisioned_data_source_everywhere() -> None:
    source = provisioned("datasources/prometheus.yml")["datasources"][0]
    wanted = {"type": source["type"], "uid": source["uid"]}
    own = dashboard()
    used = [panel["datasource"] for panel in own["panels"] if panel["type"] != "row"]
    used += [target["datasource"] for panel in own["panels"] for target in panel.get("targets", [])]
    used += [variable["datasource"] for variable in own["templating"]["list"]]
    used += [one["datasource"] for one in own["annotations"]["list"] if not one.get("builtIn")]
    assert used
    assert [one for one in used if one != wanted] == []
    assert source["url"] == "http://prometheus:9090"


def test_the_data_source_knows_how_often_prometheus_scrapes() -> None:
    source = provisioned("datasources/prometheus.yml")["datasources"][0]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_the_provider_reads_a_folder_of_files() -> None:
    provider = provisioned("dashboards/kvroute.yml")["providers"][0]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/var/lib/grafana/dashboards")


def test_ids_are_unique_and_the_dashboard_can_be_linked_to() -> None:
    own = dashboard()
    assert own["uid"] == "kvroute"
    assert own["id"] is None, "an id belongs to one Grafana"
    assert own["schemaVersion"] >= 39
    assert [number for number, count in Counter(panel["id"] for panel in panels()).items() if count > 1] == []


def test_panels_lie_side_by_side_in_the_grid() -> None:
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] >= 0, panel["title"]
        assert place["x"] + place["w"] <= WIDTH, panel["title"]
        assert place["w"] > 0 < place["h"], panel["title"]
    overlapping = [
        (one["title"], other["title"])
        for one, other in combinations(panels(), 2)
        if overlap(one["gridPos"], other["gridPos"])
    ]
    assert overlapping == []


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[side] < other[side] + other[size] and other[side] < one[side] + one[size]
        for side, size in (("x", "w"), ("y", "h"))
    )


def test_every_panel_says_what_it_shows_in_which_unit() -> None:
    assert {panel["type"] for panel in panels()} <= KINDS
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0, panel["title"]
        if panel["type"] != "stat":
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_the_rows_are_there_in_their_order() -> None:
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Hit rate", "Routes", "Engines", "Events", "State store", "Router process"]


def test_the_variables_are_those_that_queries_use() -> None:
    text = " ".join(target["expr"] for panel in panels() for target in panel.get("targets", []))
    used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}
    assert used == {variable["name"] for variable in dashboard()["templating"]["list"]} == {"model", "instance"}


def test_lines_that_name_an_alert_stand_at_its_threshold() -> None:
    limits = {rule["alert"]: rule["expr"] for rule in alerts()}
    checked = 0
    for panel in panels():
        named = re.search(r"Above the line(?: \(p99\))?: (\w+)", panel.get("description", ""))
        if named is None:
            continue
        line = panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        assert re.search(rf"> {re.escape(str(line))}\b", limits[named[1]]), panel["title"]
        checked += 1
    assert checked >= 5
