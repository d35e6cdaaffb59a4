"""What a signal to end makes of a job's status: one that was kept from its end is told as stopped, any other one ended as it says."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from duckicelake.commands.jobs import verify
from duckicelake.commands.jobs.reports import INTERRUPTED, Stop, get_exit_status, hearing_a_stop, serving_until
from duckicelake.commands.jobs.session import JobCall, SparkSettings, cancelled_by_stops
from duckicelake.commands.signals import hearing_stops
from duckicelake.pipeline.common.reports import PUBLISHED, Interrupted, Stopwatch
from duckicelake.pipeline.verify.job import Finding, VerifyOptions, VerifyReport, VerifyVerdict
from tests.pipeline.stopped import BusySpark, opening
from tests.support.spark import Spark
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    ("stop", "statuses"),
    [
        pytest.param(Stop(), [0, 1, 3], id="none"),
        pytest.param(Stop("Ctrl-C"), [0, 1, 3], id="in the last step"),
        pytest.param(Stop("Ctrl-C", has_cancelled=True), [0, INTERRUPTED, INTERRUPTED], id="while Spark was at work"),
        pytest.param(Stop("Ctrl-C", has_skipped_step=True), [INTERRUPTED] * 3, id="before another step"),
    ],
)
def test_a_run_that_did_all_its_work_ends_as_it_says(stop: Stop, statuses: list[int]) -> None:
    """Whatever came while it did the last of it; of what was cancelled the report says whether it was done."""
    assert [get_exit_status(status, stop) for status in (0, 1, 3)] == statuses


def test_a_difference_wins_over_a_stop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever waits for status 1 has it; that other tables were not looked at is said too."""
    found = (
        Finding("a.b", "now", VerifyVerdict.differs),
        Finding("c.d", "now", VerifyVerdict.unknown, message="stopped by SIGTERM before: c.d now"),
    )
    stop, call = Stop("SIGTERM", has_skipped_step=True), JobCall(VerifyOptions(()), SparkSettings(), dry_run=False, report=None)
    monkeypatch.setattr(verify, "run_or_report", lambda *_: VerifyReport(found))
    assert verify.report_verify(call, lambda: pytest.fail("nobody asks"), stop) == 1
    said = capsys.readouterr()
    assert ("a.b now: differs" in said.out, "stopped by SIGTERM before" in said.out, "stopped by SIGTERM;" in said.err) == (True,) * 3
    monkeypatch.setattr(verify, "run_or_report", lambda *_: VerifyReport(found[1:]))
    assert verify.report_verify(call, lambda: pytest.fail("nobody asks"), stop) == INTERRUPTED


def lose_java() -> list[int]:
    """What is answered by a Java that is gone."""
    raise Py4JNetworkError("gone")


@pytest.mark.parametrize(
    ("jobs", "has_cancelled"),
    [
        pytest.param(list[int], False, id="idle"),
        pytest.param(lambda: [7], True, id="at work"),
        pytest.param(lose_java, True, id="ended by the same signal"),
    ],
)
def test_what_was_cancelled_is_known(jobs: Callable[[], list[int]], has_cancelled: bool) -> None:
    """A step that Spark has no part in goes to its end, and was not ended by anybody."""
    spark = BusySpark(jobs)
    with hearing_a_stop() as stop, cancelled_by_stops(opening(spark), stop):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.has_cancelled or spark.cancelled.is_set(), "somebody to be asked")
    assert (stop.by, stop.has_skipped_step, stop.has_cancelled) == ("SIGTERM", False, has_cancelled)


def test_a_second_signal_cuts_no_stopping_short() -> None:
    """A service ends by the first one: while its session closes it hears no other."""
    closed = list[str]()

    @contextmanager
    def closing_slowly() -> Generator[SparkSession]:
        with opening(BusySpark(list[int])) as spark:
            try:
                yield spark
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                closed.append("wholly")

    with hearing_a_stop() as stop:
        with pytest.raises(SystemExit), serving_until(stop), cancelled_by_stops(closing_slowly(), stop):
            os.kill(os.getpid(), signal.SIGTERM)
        with serving_until(stop), cancelled_by_stops(closing_slowly(), stop), hearing_stops() as wait:
            os.kill(os.getpid(), signal.SIGTERM)
            assert wait(10)
        assert (closed, stop.by) == (["wholly", "wholly"], "")


def test_time_is_that_of_steps_that_were_begun() -> None:
    """One that was held is not in the report."""
    stop = Stop("Ctrl-C")
    watch = Stopwatch(stop.interrupting(list[str]().append))
    with pytest.raises(Interrupted):
        watch.start_step("write")
    watch.start_step(PUBLISHED)
    assert list(watch.read()) == [PUBLISHED]


@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_spark_hears_no_signals(spark: Spark) -> None:
    """Not even in the moment in which it has begun: PySpark's handler would end the job with a trace."""
    assert spark.session.sparkContext.applicationId
    handler = signal.getsignal(signal.SIGINT)
    assert handler is not None
    assert "pyspark" not in str(getattr(handler, "__module__", ""))
