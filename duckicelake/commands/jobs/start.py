"""Start of the job commands. PySpark is an extra, so a job's module is imported only when its command runs.

`cli_pipeline` calls the `start_` functions on the main thread. Errors in the arguments are reported before Spark is started, and an earlier
report of that name is deleted.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from duckicelake.commands.jobs.reports import (
    FAILED,
    MISUSED,
    UNKNOWN,
    GetLake,
    Stop,
    check_report,
    hearing_a_stop,
    print_error,
    remove_old_report,
)
from duckicelake.errors import BadRequest

Call = TypeVar("Call")
_NO_SPARK = "Jobs need Spark, which is not installed: .venv/bin/pip install -e '.[spark]'"


def start_ingest(given: Mapping[str, Any], find: GetLake) -> int:
    """Run the command with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.ingest import read_call, report_ingest  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_run_with_stop, report_ingest, find), MISUSED)


def start_verify(given: Mapping[str, Any], find: GetLake) -> int:
    """Run the command with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, UNKNOWN)
    from duckicelake.commands.jobs.verify import read_call, report_verify  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_run_with_stop, report_verify, find), UNKNOWN)


def start_maintain(given: Mapping[str, Any], find: GetLake) -> int:
    """Run the command with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.maintain import read_call, report_maintain  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_run_with_stop, report_maintain, find), MISUSED)


def start_profile(given: Mapping[str, Any], find: GetLake) -> int:
    """Run the command with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.profile import read_call, report_profile  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_run_with_stop, report_profile, find), MISUSED)


def start_publish(given: Mapping[str, Any], find: GetLake) -> int:
    """Run the command with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.publish import read_call, report_publish  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, given), partial(_run_with_stop, report_publish, find), MISUSED)


def start_transfer(job: str, given: Mapping[str, Any], find: GetLake) -> int:
    """Run `import` or `export` with its parameters by name, and return the exit status."""
    if find_spec("pyspark") is None:
        return print_error(_NO_SPARK, FAILED)
    from duckicelake.commands.jobs.transfer import read_call, report_transfer  # noqa: PLC0415  PySpark is an extra

    return _start(given, partial(read_call, job, given), partial(_run_with_stop, report_transfer, find), MISUSED)


def _start(given: Mapping[str, Any], read: Callable[[], Call], run: Callable[[Call], int], no_place: int) -> int:
    """Parse the arguments and run the command. `no_place` is the exit status if the report cannot be written."""
    try:
        call = read()
    except BadRequest as error:
        return print_error(error.message, MISUSED)
    try:
        check_report(given["report"])
        check_report(given.get("html"), "--html")
    except BadRequest as error:
        return print_error(error.message, no_place)
    remove_old_report(given["report"])
    return run(call)


def _run_with_stop(report: Callable[[Call, GetLake, Stop], int], find: GetLake, call: Call) -> int:
    with hearing_a_stop() as stop:
        return report(call, find, stop)
