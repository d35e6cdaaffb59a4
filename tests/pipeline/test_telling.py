"""What people see of a job that is at work: on a terminal the step under way, elsewhere a line for each."""

from io import StringIO

import pytest
from rich.console import Console

from duckicelake.commands.jobs.reports import Interrupted, Stop
from duckicelake.commands.jobs.session import showing_progress
from tests.support.waiting import wait_for

STEPS = ("list drop/[a-z]/", "[main].t now", "[/] now", "count rows")
ERASED = "\x1b[2K"
"""How a terminal is told to take a line away."""


def test_a_terminal_shows_the_step_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in the place of the one before, nothing of it taken for markup, and none is left at the end."""
    monkeypatch.setenv("TERM", "xterm")
    said = StringIO()
    with showing_progress(Console(force_terminal=True, file=said, width=80), "starting Spark", Stop()) as tell:
        wait_for(lambda: "starting Spark" in said.getvalue(), "the first words")
        for step in STEPS:
            tell(step)
            wait_for(lambda step=step: step in said.getvalue(), step)
            assert "\n" not in said.getvalue()
    shown = said.getvalue()
    assert shown.count(ERASED) > len(STEPS)
    assert shown.rindex(ERASED) > shown.rindex(STEPS[-1])


def test_elsewhere_each_step_has_a_line() -> None:
    """As it is, however long."""
    said = StringIO()
    with showing_progress(Console(file=said, width=10), "starting Spark", Stop()) as tell:
        for step in STEPS:
            tell(step)
    assert said.getvalue().splitlines() == list(STEPS)


def test_no_step_is_shown_after_a_stop() -> None:
    """It is not begun."""
    said, stop = StringIO(), Stop()
    with showing_progress(Console(file=said), "starting Spark", stop) as tell:
        tell(STEPS[0])
        stop.by = "SIGTERM"
        with pytest.raises(Interrupted, match="stopped by SIGTERM before: count rows"):
            tell("count rows")
    assert said.getvalue().splitlines() == [STEPS[0]]
