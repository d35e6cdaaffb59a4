"""A plugin for the pytest that runs PyIceberg's own tests: it leaves out other catalogs' tests, and notes each result.

The tests' Python loads it from a copy, so it imports nothing of this repository.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

SEEN: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what needs a REST catalog alone."""
    left_out = os.environ["OUTSIDE_LEFT_OUT"].split(",")
    dropped = [item for item in items if any(part in _describe(item) for part in left_out)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def _describe(item: pytest.Item) -> str:
    """Return the test's name, with the fixtures that it asks for itself or through a parameter."""
    parameters: Sequence[object] = list(getattr(getattr(item, "callspec", None), "params", {}).values())
    return " ".join((item.nodeid, *getattr(item, "fixturenames", ()), *map(repr, parameters)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a failure in any phase, and the result of the test itself, as a line of JSON."""
    lines = str(report.longrepr).strip().splitlines() if report.longrepr else [""]
    outcome = "passed" if report.passed and report.when == "call" else None
    outcome = report.outcome if report.failed or report.skipped else outcome
    if outcome is None or report.nodeid in SEEN:
        return
    SEEN.add(report.nodeid)
    with Path(os.environ["OUTSIDE_RESULTS"]).open("a") as results:
        results.write(json.dumps([report.nodeid, outcome, "\n".join(lines[-40:])]) + "\n")
