"""`duckicelake pipeline maintain`: one run with its plan or report, or a service that repeats it.

`start` calls it on the main thread. It passes the job functions that open the REST catalog, Postgres, sessions of DuckDB that may write,
and Spark, and one that deletes objects which nothing names (`commands.check`). It writes the report file.
"""

from collections.abc import Container, Mapping
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from time import sleep
from typing import Any

import psycopg
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from duckicelake.commands.check import remove_orphans, repair_lake
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.reports import (
    FAILED,
    GetLake,
    Stop,
    get_exit_status,
    print_error,
    print_lines,
    run_or_report,
    serving_until,
    write_report,
)
from duckicelake.commands.jobs.session import (
    CATALOG,
    JobCall,
    open_duckdb,
    opening_spark,
    read_job_call,
    showing_progress,
    to_catalog,
)
from duckicelake.commands.prepare import connect_postgres
from duckicelake.config import LakeSettings
from duckicelake.embedded.home import Home
from duckicelake.lake.install import format_search_path
from duckicelake.pipeline.common.reports import Progress, Verdict
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake, MaintainContext
from duckicelake.pipeline.maintain.planning import MaintainReport
from duckicelake.pipeline.maintain.policy import MaintainOptions, read_options


def read_call(given: Mapping[str, Any]) -> JobCall[MaintainOptions]:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    return read_job_call(read_options(given["tables"], given), given)


def report_maintain(call: JobCall[MaintainOptions], find: GetLake, stop: Stop) -> int:
    """Run the job once or as a service, and return the exit status: that of the run, or 0 if a signal stopped the service."""
    every = call.options.watch_seconds
    with nullcontext() if every is None else serving_until(stop):
        status = _run_round(call, find, stop)
        while every is not None:
            sleep(every)
            _run_round(call, find, stop)
    return status


def _run_round(call: JobCall[MaintainOptions], find: GetLake, stop: Stop) -> int:
    done = run_or_report(find, lambda facts, home: run_maintain(facts, home, call, stop), lambda message: MaintainReport(message=message))
    is_written = write_report(call.report, done.format_json())
    if done.message:
        print_error(done.message, FAILED)
    elif call.dry_run:
        Console().print(format_plan(done))
    else:
        print_lines(done.describe())
    return get_exit_status(done.status, stop) if is_written else FAILED


def run_maintain(facts: Facts, home: Home, call: JobCall[MaintainOptions], stop: Stop) -> MaintainReport:
    """Run the job once, with its steps on the terminal."""
    with showing_progress(Console(stderr=True), "looking", stop) as tell:
        return maintain(make_desk(facts, home, call, tell, stop), call.options, dry_run=call.dry_run)


def make_desk(facts: Facts, home: Home, call: JobCall[MaintainOptions], tell: Progress, stop: Stop | None = None) -> MaintainContext:
    """Return the job's context. Spark is started when it is needed."""
    catalog = to_catalog(facts)
    lake = build_lake_settings(facts)
    return MaintainContext(
        connect=lambda: open_rest(catalog),
        open_postgres=partial(open_postgres, lake),
        lake=DuckLake(partial(open_duckdb, facts, home, read_only=False)),
        open_spark=partial(opening_spark, call.spark_settings, catalog, tell, stop=stop),
        catalog=CATALOG,
        sweep=partial(sweep, lake),
        progress=tell,
        pause=sleep,
    )


def build_lake_settings(facts: Facts) -> LakeSettings:
    """Return the lake's settings, for functions that work on its objects."""
    secret = facts.s3_secret_access_key
    return LakeSettings(
        name=facts.warehouse,
        postgres_dsn=SecretStr(facts.ducklake_dsn),
        metadata_schema=facts.ducklake_metadata_schema,
        s3_endpoint=facts.s3_endpoint,
        s3_region=facts.s3_region,
        s3_access_key_id=facts.s3_access_key_id,
        s3_secret_access_key=None if secret is None else SecretStr(secret),
    )


def open_postgres(lake: LakeSettings) -> psycopg.Connection:
    """Return a new connection whose search path has the lake's schema."""
    conn = connect_postgres(lake)
    conn.execute(format_search_path(lake.metadata_schema))
    return conn


def sweep(lake: LakeSettings, before: datetime, spared: Container[tuple[str, str]]) -> list[str]:
    """Remove unreferenced objects in the tables' locations, as `duckicelake check --repair` does, and return their URIs."""
    removed = remove_orphans(lake, before, spared)
    if removed:
        # A server may have referenced an object meanwhile that is removed now.
        repair_lake(lake)
    return removed


def format_plan(report: MaintainReport) -> Table:
    """Return the planned steps as a table for the terminal."""
    table = Table(title=f"{report.tables} tables looked at", title_justify="left")
    for name in ("table", "step", "files", "bytes", "why"):
        table.add_column(name, justify="right" if name in ("files", "bytes") else "left", overflow="fold")
    for step in report.steps:
        why = step.reason if step.verdict is Verdict.planned else f"{step.verdict}: {step.message}"
        cells = (step.subject, step.kind or "", f"{step.removed or ''}", f"{step.bytes or ''}", why)
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table
