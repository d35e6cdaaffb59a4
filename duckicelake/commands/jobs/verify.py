"""`duckicelake pipeline verify`: compare the tables that DuckDB reads as DuckLake with those that Spark reads as Iceberg.

`start` calls it on the main thread. DuckDB attaches the lake read-only, with the lake's own Postgres address. The job changes nothing in
the lake; a load may publish a table. This module writes the report file.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.reports import UNKNOWN, GetLake, Stop, get_exit_status, print_error, print_lines, run_or_report, write_report
from duckicelake.commands.jobs.session import JobCall, open_duckdb, opening_desk, read_job_call, to_catalog
from duckicelake.embedded.home import Home
from duckicelake.pipeline.verify.job import VerifyContext, VerifyOptions, VerifyReport, VerifyVerdict, read_options, verify


def read_call(given: Mapping[str, Any]) -> JobCall[VerifyOptions]:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    options = read_options(given["tables"], given["snapshot"], given)
    return read_job_call(options, given)


def report_verify(call: JobCall[VerifyOptions], find: GetLake, stop: Stop) -> int:
    """Run the job, print its findings, write the report, and return the exit status."""
    done = run_or_report(find, lambda facts, home: run_verify(facts, home, call, stop), lambda message: VerifyReport(message=message))
    is_written = write_report(call.report, done.format_json())
    if done.message:
        print_error(done.message, done.status)
    else:
        print_lines(done.describe())
    status = done.status if is_written else done.status or UNKNOWN
    ended = get_exit_status(status, stop)
    # A difference that was found decides the status, even if a signal stopped the run.
    return status if done.verdict is VerifyVerdict.differs else ended


def run_verify(facts: Facts, home: Home, call: JobCall[VerifyOptions], stop: Stop) -> VerifyReport:
    """Run the job once, with its steps on the terminal."""
    catalog = to_catalog(facts)
    open_lake = partial(open_duckdb, facts, home, read_only=True)
    with opening_desk(call.spark_settings, catalog, Console(stderr=True), stop) as desk:
        return verify(VerifyContext(desk, open_lake, facts.ducklake_metadata_schema), call.options, dry_run=call.dry_run)
