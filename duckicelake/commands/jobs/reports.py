"""A job's report as metrics of Prometheus, for the folder of node_exporter's textfile collector."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, TypeVar

import psycopg
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Console

from duckicelake.backends.home import Home
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.interruption import INTERRUPTED, Stop
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.failures.gone import explain_postgres, hide_passwords

FAILED, MISUSED, UNKNOWN = 1, 2, 3
"""The statuses for the shell; `verify` has 1 for a difference alone, so all that goes wrong there is unknown."""

JobReport = TypeVar("JobReport")
GetLake = Callable[[], tuple[Facts, Home]]
SUFFIX = ".prom"
"""How a report's name ends that is to be written so."""
PREFIX = "duckicelake_job_"
Labels = tuple[tuple[str, str], ...]
PARTS = ("tables", "steps", "findings", "moved")
"""What reports call the list of what a run is made of."""
SIZES = "total"
"""What they call how big a table is."""
_NO_SUMS = ("snapshot_id", "at_ms")


def run_or_report(find: GetLake, run: Callable[[Facts, Home], JobReport], tell: Callable[[str], JobReport]) -> JobReport:
    """Return the report of a run, or what is told when it cannot be begun, or breaks: people get a message, no trace."""
    try:
        return run(*find())
    except CatalogError as error:
        return tell(error.message)
    except psycopg.Error as error:
        return tell(explain_postgres(error))
    except Exception as error:  # noqa: BLE001  a service goes on whatever it is, and `verify` ends in no difference
        return tell(f"{type(error).__name__}: {hide_passwords(str(error))}")


def get_exit_status(status: int, stop: Stop) -> int:
    """Return the status of a run over tables; one that was ended before it was done is told as that."""
    if not stop.has_interrupted(status):
        return status
    return print_error(f"stopped by {stop.by}; what was done stays done, and another run does the rest", INTERRUPTED)


def print_error(message: str, status: int) -> int:
    """Say what is wrong; the status is returned."""
    Console(stderr=True).print(f"duckicelake: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return status


def check_report(report: Path | None, option: str = "--report") -> None:
    """Raises: BadRequest: no file can be written there; nothing is written to see it."""
    if report is None:
        return
    # Metrics take the place of the file that is there.
    place = report if report.exists() and report.suffix != SUFFIX else report.parent
    if report.is_dir() or not (report.exists() or place.is_dir()) or not os.access(place, os.W_OK):
        raise BadRequest(f"{option} {report}: no file can be written there")


def write_report(report: Path | None, text: str, option: str = "--report") -> bool:
    """Write a report, if one is asked for; whether that went well. JSON becomes metrics where the name asks for them."""
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
    """Remove the report of an earlier run, which may be taken for that of one that dies; metrics stay, and say when they are from."""
    if report is None or report.suffix == SUFFIX or not _is_plain(report):
        return
    try:
        report.unlink()
    except OSError:
        # The folder is somebody else's.
        with suppress(OSError):
            report.write_text("")


def _put(report: Path, text: str) -> None:
    """Whoever reads it finds all of it; what is no file of its own, such as a pipe, is written to. Raises: OSError"""
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
    """Tell whether a file is there, and no link to one: `/dev/stdout` may be that."""
    return report.is_file() and not report.is_symlink()


def write_metrics(path: Path, report: Mapping[str, Any]) -> None:
    """Write what `--report` has as JSON; whoever reads the file finds all of it, or the one before.

    Numbers are gauges by command and table, those of several parts of a table added up; ends are counted by `verdict`, seconds by the first
    word of the step.
    Raises: OSError: it cannot be written
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
    """The numbers of a run and of its parts: what each is called, and the table."""
    for part in (report, *_list_parts(report)):
        table = part.get("table") or part.get("subject") or ""
        sizes: Mapping[str, Any] = part.get(SIZES) or {}
        for name, number in {**part, **sizes}.items():
            if isinstance(number, int | float) and not isinstance(number, bool) and name not in _NO_SUMS:
                yield name, str(table), number


def _add(registry: CollectorRegistry, name: str, words: str, values: Mapping[Labels, float], job: str) -> None:
    """One metric; its values are by the labels beside the command's."""
    if not values:
        return
    gauge = Gauge(PREFIX + name, words, ["command", *(label for label, _ in next(iter(values)))], registry=registry)
    for labels, value in values.items():
        gauge.labels(job, *(text for _, text in labels)).set(value)
