"""Prometheus pages: chosen lines are read, bad ones cost only themselves."""

from __future__ import annotations

from math import isnan

from hypothesis import given
from hypothesis import strategies as st

from engine.prometheus_text import MetricSample, samples

PAGE = """# HELP x:running Running.
# TYPE x:running gauge
x:running{engine="0",model_name="a}b,\\"c\\" d"} 3.0
x:running{engine="1"} NaN
x:running{engine="2" 4
x:running{engine="3"} four
x:running_by_reason{engine="0"} 9
x:running
y_total 5 1700000000000
x:running{engine="4"} +Inf
"""


def test_samples_of_the_named_metrics_are_read_and_bad_lines_passed_over() -> None:
    found = list(samples(PAGE, ("x:running", "y_total")))
    assert found[0] == MetricSample("x:running", {"engine": "0", "model_name": 'a}b,"c" d'}, 3.0)
    assert isnan(found[1].value)
    assert [(s.name, s.labels, s.value) for s in found[2:]] == [
        ("y_total", {}, 5.0),
        ("x:running", {"engine": "4"}, float("inf")),
    ]


def test_a_page_that_is_no_page_has_no_samples() -> None:
    assert list(samples("<html>\n</html>", ("x",))) == []
    assert list(samples("", ("x",))) == []


@given(st.text(alphabet='x{}="\\, \t0159.eE+-_#\n\u2028é'))
def test_no_line_is_fatal(rest: str) -> None:
    page = f"x{rest}\nx 1\n"
    assert list(samples(page, ("x",)))[-1] == MetricSample("x", {}, 1.0)
