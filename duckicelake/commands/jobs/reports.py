"""The end of a job command: a signal's request to stop, the exit status, error messages, and the report as JSON or as Prometheus metrics.

`start` and the modules of the jobs call this on the main thread. After Ctrl-C or SIGTERM a run ends before its next step, and its report
lists what is done. Signals arrive on the main thread; `session.cancelled_by_stops` cancels Spark's jobs from another thread. Metrics are
for the folder of node_exporter's textfile collector.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import FrameType
from typing import Any, TypeVar

import psycopg
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.signals import handling, stopping_on_signals
from duckicelake.embedded.home import Home
from duckicelake.errors import BadRequest, CatalogError, CommitStateUnknown
from duckicelake.pipeline.common.reports import PUBLISHED, Interrupted, Progress, explain_postgres, hide_passwords

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ends."""
STOPS: Mapping[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""The signals that end a run, with their names in messages."""


@dataclass(slots=True)
class Stop:
    """The request to end a run. `by`: the signal's name, empty if none has arrived.

    `has_skipped_step`: a step was not started because of it. `has_cancelled`: running Spark jobs were cancelled.
    """

    by: str = ""
    has_skipped_step: bool = False
    has_cancelled: bool = False

    def has_interrupted(self, status: int) -> bool:
        """True if the run is incomplete because of the signal. A run with status 0 whose Spark jobs had ended in time is complete."""
        return self.has_skipped_step or (self.has_cancelled and bool(status))

    def interrupting(self, show_step: Progress) -> Progress:
        """Return a progress function that raises Interrupted before the next step after a signal."""

        def checked(step: str) -> None:
            # After the publication the run is complete, so a signal changes nothing.
            if self.by and step != PUBLISHED:
                self.has_skipped_step = True
                raise Interrupted(f"stopped by {self.by} before: {step}")
            show_step(step)

        return checked

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Record a signal; a second Ctrl-C interrupts at once."""
        if self.by and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        self.by = self.by or STOPS[number]


@contextmanager
def hearing_a_stop() -> Generator[Stop]:
    """Within the block, a signal is only recorded in the yielded Stop."""
    stop = Stop()
    with handling(dict.fromkeys(STOPS, stop.hear)):
        yield stop


@contextmanager
def serving_until(stop: Stop) -> Generator[None]:
    """Within the block, a signal ends the program through every `finally` block, and so does a signal that was recorded before."""
    with stopping_on_signals():
        if stop.by:
            raise SystemExit(0)
        yield


@contextmanager
def taking_all_or_nothing(stop: Stop) -> Generator[None]:
    """Within the block, turn an error that a cancelled Spark job causes into Interrupted.

    Raises: Interrupted: a signal ended the run, and nothing was committed
    """
    try:
        yield
    except CommitStateUnknown:
        raise
    except CatalogError as error:
        if stop.has_interrupted(1):
            raise Interrupted(f"stopped by {stop.by}; nothing was taken") from error
        raise


FAILED, MISUSED, UNKNOWN = 1, 2, 3
"""The exit statuses. `verify` returns 1 only for a difference, so its errors are UNKNOWN."""

JobReport = TypeVar("JobReport")
GetLake = Callable[[], tuple[Facts, Home]]
SUFFIX = ".prom"
"""The suffix of a report's name that selects metrics instead of JSON."""
PREFIX = "duckicelake_job_"
Labels = tuple[tuple[str, str], ...]
PARTS = ("tables", "steps", "findings", "moved")
"""The members of a report that list the parts of a run."""
SIZES = "total"
"""The member of a part that holds a table's sizes."""
_NO_SUMS = ("snapshot_id", "at_ms")


def run_or_report(find: GetLake, run: Callable[[Facts, Home], JobReport], build_failed: Callable[[str], JobReport]) -> JobReport:
    """Return the report of a run; if the run fails, the report that `build_failed` returns for the error's message."""
    try:
        return run(*find())
    except CatalogError as error:
        return build_failed(error.message)
    except psycopg.Error as error:
        return build_failed(explain_postgres(error))
    except Exception as error:  # noqa: BLE001  a service must go on after any error, and `verify` must not report a difference
        return build_failed(f"{type(error).__name__}: {hide_passwords(str(error))}")


def get_exit_status(status: int, stop: Stop) -> int:
    """Return the exit status of a run over tables; INTERRUPTED, with a message, if a signal ended it early."""
    if not stop.has_interrupted(status):
        return status
    return print_error(f"stopped by {stop.by}; what was done stays done, and another run does the rest", INTERRUPTED)


def print_error(message: str, status: int) -> int:
    """Print an error message, and return the status."""
    Console(stderr=True).print(f"duckicelake: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return status


def print_lines(lines: Iterable[str]) -> None:
    """Print a report for people."""
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def check_report(report: Path | None, option: str = "--report") -> None:
    """Check that a report can be written, without writing. Raises: BadRequest: it cannot."""
    if report is None:
        return
    # Metrics replace the existing file by a rename, so the folder must be writable.
    place = report if report.exists() and report.suffix != SUFFIX else report.parent
    if report.is_dir() or not (report.exists() or place.is_dir()) or not os.access(place, os.W_OK):
        raise BadRequest(f"{option} {report}: no file can be written there")


def write_report(report: Path | None, text: str, option: str = "--report") -> bool:
    """Write the report if one is requested, and return True unless that failed. The suffix `.prom` selects metrics."""
    try:
        if report is not None and report.suffix == SUFFIX and option == "--report":
            write_metrics(report, json.loads(text))
        elif report is not None:
            _put(report, text)
    except OSError as error:
        print_error(f"{option} {report} was not written: {error}", FAILED)
        return False
    return True


def remove_old_report(report: Path | None) -> None:
    """Remove an earlier run's report, which could be mistaken for this run's. Metrics stay, because they hold their time."""
    if report is None or report.suffix == SUFFIX or not _is_plain(report):
        return
    try:
        report.unlink()
    except OSError:
        # The folder belongs to another user, so the file cannot be removed.
        with suppress(OSError):
            report.write_text("")


def _put(report: Path, text: str) -> None:
    """Write the report atomically, by a rename; a pipe or link is written to directly. Raises: OSError"""
    if not _is_plain(report) and os.path.lexists(report):
        report.write_text(text, "utf-8")
        return
    temporary = report.with_name(f".{report.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(report)
    except PermissionError:
        report.write_text(text, "utf-8")
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _is_plain(report: Path) -> bool:
    """True if the report is an existing regular file, and not a link such as `/dev/stdout`."""
    return report.is_file() and not report.is_symlink()


def write_metrics(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as metrics. The file is replaced by a rename, so a reader never sees a part of it.

    Numbers are gauges by command and table, summed over the parts of a table. Parts are counted by `verdict`, seconds by the first word of
    the step.
    Raises: OSError: the file cannot be written
    """
    registry, job = CollectorRegistry(), str(report["job"])
    _add(registry, "ended_timestamp_seconds", "When the job last ended or was heard of.", {(): time()}, job)
    _add(registry, "status", "How it ended.", {(("status", str(report["status"])),): 1}, job)
    ends = Counter((("verdict", str(part["verdict"])),) for part in _list_parts(report))
    _add(registry, "parts", "How its parts ended.", ends, job)
    seconds: dict[Labels, float] = {}
    for step, spent in report.get("seconds", {}).items():
        label = (("step", str(step).partition(" ")[0]),)
        seconds[label] = seconds.get(label, 0.0) + spent
    _add(registry, "seconds", "How long its steps took.", seconds, job)
    sums: dict[str, dict[Labels, float]] = {}
    for name, table, number in _list_numbers(report):
        by_table, label = sums.setdefault(name, {}), (("table", table),)
        by_table[label] = by_table.get(label, 0.0) + number
    for name, by_table in sums.items():
        _add(registry, name, f"The report's `{name}`.", by_table, job)
    write_to_textfile(str(path), registry)


def _list_parts(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part for name in PARTS if isinstance(report.get(name), list) for part in report[name]]


def _list_numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of a run and of its parts: name, table, number."""
    for part in (report, *_list_parts(report)):
        table = part.get("table") or part.get("subject") or ""
        sizes: Mapping[str, Any] = part.get(SIZES) or {}
        for name, number in {**part, **sizes}.items():
            if isinstance(number, int | float) and not isinstance(number, bool) and name not in _NO_SUMS:
                yield name, str(table), number


def _add(registry: CollectorRegistry, name: str, words: str, values: Mapping[Labels, float], job: str) -> None:
    """Add a gauge with a value for each combination of labels; the label `command` is added."""
    if not values:
        return
    gauge = Gauge(PREFIX + name, words, ["command", *(label for label, _ in next(iter(values)))], registry=registry)
    for labels, value in values.items():
        gauge.labels(job, *(text for _, text in labels)).set(value)
