"""`duckicelake pipeline profile`: Spark computes the statistics that tables lack, the catalog stores them, and the run is reported.

`start` calls it on the main thread. The job reads the lists of tables and files in the lake's Postgres. The report is JSON, and an HTML
page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.maintain import build_lake_settings, open_postgres
from duckicelake.commands.jobs.reports import FAILED, GetLake, Stop, get_exit_status, print_error, print_lines, run_or_report, write_report
from duckicelake.commands.jobs.session import CATALOG, SparkSettings, opening_spark, read_spark_settings, showing_progress, to_catalog
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.profile import ProfileContext, profile
from duckicelake.pipeline.profile_report import ProfileOptions, ProfileReport, format_page, read_options


@dataclass(frozen=True, slots=True)
class ProfileCall:
    """The command's arguments without those that name the lake."""

    options: ProfileOptions
    spark_settings: SparkSettings
    dry_run: bool
    report: Path | None
    html: Path | None


def read_call(given: Mapping[str, Any]) -> ProfileCall:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    names = ("dry_run", "report", "html")
    return ProfileCall(read_options(given["tables"], given), read_spark_settings(given), **{name: given[name] for name in names})


def report_profile(call: ProfileCall, find: GetLake, stop: Stop) -> int:
    """Run the job, print what it measured, write the report and the page, and return the exit status."""
    done = run_or_report(find, lambda facts, _: run_profile(facts, call, stop), lambda message: ProfileReport(message=message))
    is_written = write_report(call.report, done.format_json())
    if done.message:
        return get_exit_status(print_error(done.message, FAILED), stop)
    is_written = write_report(call.html, format_page(done), "--html") and is_written
    print_lines(done.describe())
    return get_exit_status(done.status, stop) if is_written else FAILED


def run_profile(facts: Facts, call: ProfileCall, stop: Stop) -> ProfileReport:
    """Run the job once, with its steps on the terminal."""
    with showing_progress(Console(stderr=True), "looking", stop) as tell:
        return profile(make_desk(facts, call, tell, stop), call.options, dry_run=call.dry_run)


def make_desk(facts: Facts, call: ProfileCall, tell: Progress, stop: Stop | None = None) -> ProfileContext:
    """Return the job's context. Spark is started when it is needed."""
    catalog = to_catalog(facts)
    return ProfileContext(
        connect=lambda: open_rest(catalog),
        open_postgres=partial(open_postgres, build_lake_settings(facts)),
        open_spark=partial(opening_spark, call.spark_settings, catalog, tell, stop=stop),
        catalog=CATALOG,
        progress=tell,
    )
