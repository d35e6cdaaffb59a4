"""`duckicelake pipeline …`: one Spark session, one job, its progress on the terminal and its report in a file."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.start import FAILED, UNKNOWN, Find, complain, write_report
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.ingest.job import SPARK_FAILURES, Desk, ingest
from duckicelake.pipeline.ingest.options import IngestOptions, read_options, read_pairs
from duckicelake.pipeline.ingest.report import Report, Status
from duckicelake.pipeline.jars import JarUnavailable
from duckicelake.pipeline.java import NoJava
from duckicelake.pipeline.rest import open_rest
from duckicelake.pipeline.spark import RestCatalog, SparkPlan, add_catalog, spark_session

CATALOG = "lake"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where Spark runs, and what it is told beside our settings."""

    master: str = "local[*]"
    memory: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class IngestCall:
    """The command's arguments: the job's, and where everything is."""

    options: IngestOptions
    machine: Machine
    dry_run: bool
    report: Path | None
    uri: str | None
    warehouse: str | None
    credential: str | None


def read_machine(given: Mapping[str, Any]) -> Machine:
    """Return where Spark runs. Raises: BadRequest: a setting has no `=`."""
    return Machine(given["master"], given["memory"], read_pairs(given["conf"]))


def read_call(given: Mapping[str, Any]) -> IngestCall:
    """Return the call; `given` has the command's parameters by name.

    Raises: BadRequest: they contradict each other, or one cannot be read
    """
    options = read_options(given["source"], given["table"], given)
    names = ("dry_run", "report", "uri", "warehouse", "credential")
    return IngestCall(options, read_machine(given), **{name: given[name] for name in names})


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


def make_scratch() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder for Spark; what cannot be removed in the end changes nothing of what was done."""
    return tempfile.TemporaryDirectory(prefix="duckicelake-", ignore_cleanup_errors=True)


def run_ingest(catalog: RestCatalog, call: IngestCall, console: Console) -> Report:
    """Run the job; what it is about to do is on the terminal."""
    machine = call.machine
    with make_scratch() as scratch, console.status("starting Spark") as status:

        def tell(step: str) -> None:
            status.update(step)
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False, soft_wrap=True)

        open_rest(catalog)
        plan = SparkPlan(find_cache(), Path(scratch), driver_memory=machine.memory, master=machine.master, conf=machine.conf)
        with spark_session(plan, os.environ, tell) as spark:
            add_catalog(spark, CATALOG, catalog)
            return ingest(Desk(spark, CATALOG, lambda: open_rest(catalog), tell), call.options, dry_run=call.dry_run)


def report_ingest(call: IngestCall, find: Find) -> int:
    """Run the job, say how it ended, write the report, and return the status for the shell."""
    console, options = Console(), call.options
    try:
        catalog = find_catalog(lambda: find()[0], call.uri, call.warehouse, call.credential)
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
