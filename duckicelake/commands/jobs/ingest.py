"""`duckicelake pipeline ingest`: one run of the job, or a service that follows a source.

`start` imports it if PySpark is installed, and calls it on the main thread of the command, which is Spark's driver. The job reads the
source, writes over REST, and has no connection to the lake's Postgres. This module writes the report file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from duckicelake.commands.jobs.reports import (
    FAILED,
    INTERRUPTED,
    UNKNOWN,
    GetLake,
    Stop,
    print_error,
    serving_until,
    taking_all_or_nothing,
    write_report,
)
from duckicelake.commands.jobs.session import CATALOG, SparkSettings, opening_desk, read_spark_settings, to_catalog
from duckicelake.commands.signals import hearing_stops
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.common.failures import SPARK_FAILURES
from duckicelake.pipeline.common.java import JarUnavailable, NoJava
from duckicelake.pipeline.common.reports import Interrupted, hide_passwords
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.ingest.job import (
    FollowBroken,
    FollowOptions,
    FollowReport,
    begin,
    begin_follow,
    check_followed,
    follow,
    ingest,
    read_follow,
)
from duckicelake.pipeline.ingest.options import DATABASE, IngestOptions, IngestReport, Run, Status, read_options


@dataclass(frozen=True, slots=True)
class IngestCall:
    """The command's arguments. `follow` None: one run."""

    options: IngestOptions
    follow: FollowOptions | None
    spark_settings: SparkSettings
    dry_run: bool
    report: Path | None
    uri: str | None
    warehouse: str | None
    credential: Callable[[], str | None]


def read_call(given: Mapping[str, Any]) -> IngestCall:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    options, how = read_options(given["source"], given["table"], given), read_follow(given)
    if how is not None:
        check_followed(options)
    names = ("dry_run", "report", "uri", "warehouse", "credential")
    return IngestCall(options, how, read_spark_settings(given), **{name: given[name] for name in names})


def get_catalog(call: IngestCall, find: GetLake) -> RestCatalog:
    """Return the catalog of `--uri`, else that of the settings and the running server."""
    if call.uri is None:
        return to_catalog(find()[0])
    return RestCatalog(call.uri, call.warehouse or CATALOG, credential=call.credential())


def run_ingest(catalog: RestCatalog, call: IngestCall, run: Run, stop: Stop) -> IngestReport:
    """Run the job once, with its steps on the terminal."""
    opening = opening_desk(call.spark_settings, catalog, Console(stderr=True), stop, call.options.source)
    with taking_all_or_nothing(stop), opening as desk:
        return ingest(desk, call.options, dry_run=call.dry_run, run=run)


def run_follow(catalog: RestCatalog, call: IngestCall, how: FollowOptions, stop: Stop) -> FollowReport:
    """Follow the source. A stop signal ends the service after the current batch, which is committed."""
    console = Console()

    def heard(report: FollowReport) -> None:
        write_report(call.report, report.format_json())
        console.print(format_batch(report), markup=False, highlight=False, soft_wrap=True)

    # A stop signal cancels Spark's work during the start, and not within a batch.
    with (
        serving_until(stop),
        opening_desk(call.spark_settings, catalog, Console(stderr=True), stop, call.options.source) as desk,
        hearing_stops() as wait,
    ):
        return follow(desk, call.options, how, wait, heard)


def report_ingest(call: IngestCall, find: GetLake, stop: Stop) -> int:
    """Run the job, print its outcome, write the report, and return the exit status."""
    run, failed = begin(call.options), FAILED
    try:
        catalog = get_catalog(call, find)
        how = call.follow
        done = run_ingest(catalog, call, run, stop) if how is None else run_follow(catalog, call, how, stop)
    except FollowBroken as broken:
        done = replace(broken.report, status=Status.failed, message=explain(broken.__cause__ or broken, call.options))
    except Exception as error:  # noqa: BLE001  the outermost layer: any error becomes a message and a report
        status = Status.unknown if isinstance(error, CommitStateUnknown) else Status.failed
        failed = INTERRUPTED if isinstance(error, Interrupted) else FAILED
        begun = run.report if call.follow is None else replace(begin_follow(call.options), failures=1)
        done = replace(begun, status=status, message=explain(error, call.options))
    is_written = write_report(call.report, done.format_json())
    text = format_report(done) if isinstance(done, IngestReport) else format_totals(done)
    if text:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if done.message:
        return print_error(done.message, UNKNOWN if done.status is Status.unknown else failed)
    return 0 if is_written else FAILED


def explain(error: BaseException, options: IngestOptions) -> str:
    """Return the error's message without secrets; for an unexpected error with its type."""
    if isinstance(error, (CatalogError, NoJava, JarUnavailable, *SPARK_FAILURES)):
        return str(error)
    return options.hide(hide_passwords(f"{type(error).__name__}: {error}"))


def format_batch(report: FollowReport) -> str:
    """Return a line for a batch, or for a failed attempt."""
    if report.message or report.last is None:
        return f"{report.table}: failed: {report.message}"
    return f"batch {report.batches}: {format_report(report.last)}"


def format_totals(report: FollowReport) -> str:
    """Return the totals of all batches as text."""
    bad = f"{report.rows_quarantined} to {report.table}__quarantine" if report.rows_quarantined else "none quarantined"
    sums = f"{report.batches} batches, {_format_files(report)}{report.rows_in} rows = {report.rows_out} in, {bad}"
    return f"{report.table}: {sums}{_format_superseded(report.rows_superseded)} (run {report.follow_id})"


def format_report(report: IngestReport) -> str:
    """Return the outcome of a run as text, empty if it failed."""
    if report.message:
        return ""
    if report.status is Status.planned:
        return "\n".join(report.plan)
    if report.status is Status.nothing_new:
        return f"{report.source}: nothing new for {report.table}"
    bad = f"{report.rows_quarantined} to {report.table}__quarantine" if report.rows_quarantined else "none quarantined"
    more = _format_superseded(report.rows_superseded)
    return f"{report.table}: {_format_files(report)}{report.rows_in} rows = {report.rows_out} in, {bad}{more} (run {report.run_id})"


def _format_files(report: IngestReport | FollowReport) -> str:
    """Return the number of ingested files as text; empty for a database."""
    return "" if report.source.lower().startswith(DATABASE) else f"{report.files} files, "


def _format_superseded(rows: int) -> str:
    return f", {rows} superseded" if rows else ""
