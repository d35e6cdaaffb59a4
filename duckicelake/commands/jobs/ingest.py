"""`duckicelake pipeline …`: one Spark session, one job, its progress on the terminal and its report in a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from duckicelake.commands.jobs.session import CATALOG, Machine, opening_desk, read_machine, to_catalog
from duckicelake.commands.jobs.start import FAILED, UNKNOWN, Find, complain, write_report
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.ingest.job import SPARK_FAILURES, ingest
from duckicelake.pipeline.ingest.options import IngestOptions, read_options
from duckicelake.pipeline.ingest.report import Report, Status
from duckicelake.pipeline.jars import JarUnavailable
from duckicelake.pipeline.java import NoJava
from duckicelake.pipeline.spark import RestCatalog


@dataclass(frozen=True, slots=True)
class IngestCall:
    """The command's arguments: the job's, and where everything is."""

    options: IngestOptions
    machine: Machine
    dry_run: bool
    report: Path | None
    uri: str | None
    warehouse: str | None
    credential: Callable[[], str | None]


def read_call(given: Mapping[str, Any]) -> IngestCall:
    """Return the call; `given` has the command's parameters by name.

    Raises: BadRequest: they contradict each other, or one cannot be read
    """
    options = read_options(given["source"], given["table"], given)
    names = ("dry_run", "report", "uri", "warehouse", "credential")
    return IngestCall(options, read_machine(given), **{name: given[name] for name in names})


def find_catalog(call: IngestCall, find: Find) -> RestCatalog:
    """Return the catalog named, else the one that the settings and the server that runs here tell of."""
    if call.uri is None:
        return to_catalog(find()[0])
    return RestCatalog(call.uri, call.warehouse or CATALOG, credential=call.credential())


def run_ingest(catalog: RestCatalog, call: IngestCall, console: Console) -> Report:
    """Run the job; what it is about to do is on the terminal."""
    with opening_desk(call.machine, catalog, console) as desk:
        return ingest(desk, call.options, dry_run=call.dry_run)


def report_ingest(call: IngestCall, find: Find) -> int:
    """Run the job, say how it ended, write the report, and return the status for the shell."""
    console, options = Console(), call.options
    try:
        catalog = find_catalog(call, find)
        done = run_ingest(catalog, call, Console(stderr=True))
    except (CatalogError, NoJava, JarUnavailable, *SPARK_FAILURES) as error:
        status = Status.unknown if isinstance(error, CommitStateUnknown) else Status.failed
        done = Report("", str(options.table), options.source, options.mode, status, message=str(error))
    write_report(call.report, done.format_json())
    if done.message:
        return complain(done.message, UNKNOWN if done.status is Status.unknown else FAILED)
    console.print(format_report(done), markup=False, highlight=False, soft_wrap=True)
    return 0


def format_report(report: Report) -> str:
    """Return how a run ended, for people."""
    if report.status is Status.planned:
        return "\n".join(report.plan)
    if report.status is Status.nothing_new:
        return f"{report.source}: nothing new for {report.table}"
    more = f", {report.rows_superseded} superseded" if report.rows_superseded else ""
    bad = f"{report.rows_quarantined} to {report.table}__quarantine" if report.rows_quarantined else "none quarantined"
    return f"{report.table}: {report.files} files, {report.rows_in} rows = {report.rows_out} in, {bad}{more} (run {report.run_id})"
