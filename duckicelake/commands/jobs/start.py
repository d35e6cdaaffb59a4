"""How a job's command begins and ends: what is wrong with the call is said before Spark is imported."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from rich.console import Console

from duckicelake.backends.home import Home
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.metrics import SUFFIX, write_metrics
from duckicelake.commands.jobs.stopping import INTERRUPTED, Stop, hearing_a_stop
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.failures.gone import explain_postgres, hide_passwords

FAILED, MISUSED, UNKNOWN = 1, 2, 3
"""The statuses for the shell; `verify` has 1 for a difference alone, so all that goes wrong there is unknown."""

Call = TypeVar("Call")
Told = TypeVar("Told")
Find = Callable[[], tuple[Facts, Home]]
_NO_SPARK = "Jobs need Spark, which is not installed: .venv/bin/pip install -e '.[spark]'"


def start_ingest(given: Mapping[str, Any], find: Find) -> int:
    """Run the command, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.ingest import read_call, report_ingest  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_turn, report_ingest, find), MISUSED)


def start_verify(given: Mapping[str, Any], find: Find) -> int:
    """Run the command, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, UNKNOWN)
    from duckicelake.commands.jobs.verify import read_call, report_verify  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_turn, report_verify, find), UNKNOWN)


def start_maintain(given: Mapping[str, Any], find: Find) -> int:
    """Run the command, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.maintain import read_call, report_maintain  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_turn, report_maintain, find), MISUSED)


def start_profile(given: Mapping[str, Any], find: Find) -> int:
    """Run the command, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.profile import read_call, report_profile  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_turn, report_profile, find), MISUSED)


def start_publish(given: Mapping[str, Any], find: Find) -> int:
    """Run the command, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.publish import read_call, report_publish  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_turn, report_publish, find), MISUSED)


def start_transfer(job: str, given: Mapping[str, Any], find: Find) -> int:
    """Run `import` or `export`, whose parameters are given by name, and return the status for the shell."""
    if find_spec("pyspark") is None:
        return complain(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.transfer import read_call, report_transfer  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, job, given), partial(_turn, report_transfer, find), MISUSED)


def _start(given: Mapping[str, Any], read: Callable[[], Call], run: Callable[[Call], int], no_place: int) -> int:
    """Read the call and run it; `no_place` is the status when the report cannot be written."""
    try:
        call = read()
    except BadRequest as error:
        return complain(error.message, MISUSED)
    try:
        check_report(given["report"])
        check_report(given.get("html"), "--html")
    except BadRequest as error:
        return complain(error.message, no_place)
    forget_report(given["report"])
    return run(call)


def _turn(report: Callable[[Call, Find, Stop], int], find: Find, call: Call) -> int:
    with hearing_a_stop() as stop:
        return report(call, find, stop)


def run_or_tell(find: Find, run: Callable[[Facts, Home], Told], tell: Callable[[str], Told]) -> Told:
    """Return the report of a run, or what is told when it cannot be begun, or breaks: people get a message, no trace."""
    try:
        return run(*find())
    except CatalogError as error:
        return tell(error.message)
    except psycopg.Error as error:
        return tell(explain_postgres(error))
    except Exception as error:  # noqa: BLE001  a service goes on whatever it is, and `verify` ends in no difference
        return tell(f"{type(error).__name__}: {hide_passwords(str(error))}")


def end(status: int, stop: Stop) -> int:
    """Return the status of a run over tables; one that was ended before it was done is told as that."""
    if not stop.has_cut(status):
        return status
    return complain(f"stopped by {stop.by}; what was done stays done, and another run does the rest", INTERRUPTED)


def complain(message: str, status: int) -> int:
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
        complain(f"{option} {report} was not written: {error}", FAILED)
        return False
    return True


def forget_report(report: Path | None) -> None:
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
    beside = report.with_name(f".{report.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(report)
    except PermissionError:
        report.write_text(text, "utf-8")
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _is_plain(report: Path) -> bool:
    """Tell whether a file is there, and no link to one: `/dev/stdout` may be that."""
    return report.is_file() and not report.is_symlink()
