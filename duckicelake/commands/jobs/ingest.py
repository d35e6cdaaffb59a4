"""`duckicelake pipeline …`: one Spark session, one job, its progress on the terminal and its report in a file."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.ingest.job import Desk, ingest
from duckicelake.pipeline.ingest.options import IngestOptions
from duckicelake.pipeline.ingest.report import Report, Status
from duckicelake.pipeline.rest import open_rest
from duckicelake.pipeline.spark import RestCatalog, SparkPlan, add_catalog, spark_session

CATALOG = "lake"
UNKNOWN = 3
"""The status of a run of which nobody knows whether it landed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where Spark runs, and what it is told beside our settings."""

    master: str = "local[*]"
    memory: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


def find_catalog(find_facts: Callable[[], Facts], uri: str | None, warehouse: str | None, credential: str | None) -> RestCatalog:
    """Return the catalog named, else the one that the settings and the server that runs here tell of."""
    if uri is not None:
        return RestCatalog(uri, warehouse or CATALOG, credential=credential)
    facts = find_facts()
    if credential is not None:
        return RestCatalog(facts.catalog_uri, facts.warehouse, facts.s3_endpoint, facts.s3_region, credential=credential)
    keys = facts.s3_access_key_id, facts.s3_secret_access_key
    return RestCatalog(facts.catalog_uri, facts.warehouse, facts.s3_endpoint, facts.s3_region, *keys)


def find_cache() -> Path:
    """Return where fetched jars are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duckicelake"


def run_ingest(catalog: RestCatalog, options: IngestOptions, machine: Machine, console: Console, *, dry_run: bool) -> Report:
    """Run the job; what it is about to do is on the terminal. A failure is a report too."""
    with tempfile.TemporaryDirectory(prefix="duckicelake-") as scratch, console.status("starting Spark") as status:

        def tell(step: str) -> None:
            status.update(step)
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False, soft_wrap=True)

        open_rest(catalog)
        plan = SparkPlan(find_cache(), Path(scratch), driver_memory=machine.memory, master=machine.master, conf=machine.conf)
        with spark_session(plan, os.environ, tell) as spark:
            add_catalog(spark, CATALOG, catalog)
            return ingest(Desk(spark, CATALOG, lambda: open_rest(catalog), tell), options, dry_run=dry_run)


def report_ingest(catalog: RestCatalog, options: IngestOptions, machine: Machine, *, dry_run: bool, report: Path | None) -> int:
    """Run the job, say how it ended, write the report, and return the status for the shell."""
    console, errors = Console(), Console(stderr=True)
    try:
        done = run_ingest(catalog, options, machine, errors, dry_run=dry_run)
    except CatalogError as error:
        status = Status.unknown if isinstance(error, CommitStateUnknown) else Status.failed
        done = Report("", str(options.table), options.source, options.mode, status, message=error.message)
    if report is not None:
        report.write_text(done.format_json(), "utf-8")
    if done.message:
        errors.print(f"duckicelake: {done.message}", style="red", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(format_report(done), markup=False, highlight=False, soft_wrap=True)
    return {Status.failed: 1, Status.unknown: UNKNOWN}.get(done.status, 0)


def format_report(report: Report) -> str:
    """Return how a run ended, for people."""
    if report.status is Status.planned:
        return "\n".join(report.plan)
    if report.status is Status.nothing_new:
        return f"{report.source}: nothing new for {report.table}"
    more = f", {report.rows_superseded} superseded" if report.rows_superseded else ""
    bad = f"{report.rows_quarantined} to {report.table}__quarantine" if report.rows_quarantined else "none quarantined"
    return f"{report.table}: {report.files} files, {report.rows_in} rows = {report.rows_out} in, {bad}{more} (run {report.run_id})"
