"""What all tests share.

No example is timed, and reports can be sent between processes whatever text they hold. Tests that run the same lines
for thousands of examples do so without the measuring of coverage, which doubles their time; others reach those lines.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import is_hypothesis_test, settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(config.option, "loadgroup", False) and item.get_closest_marker("xdist_group"):
            assert "@" in item.nodeid, "pytest-xdist does not group tests with this pytest"
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("no_cover")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured text may hold lone surrogates, on purpose; a report goes to the parent process as UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
