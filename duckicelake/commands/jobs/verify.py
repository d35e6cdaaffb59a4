"""`duckicelake pipeline verify`: the lake for DuckDB, the catalog for Spark, and how both compare."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckdb import DuckDBPyConnection
from rich.console import Console

from duckicelake.backends.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.backends.home import Home
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.ingest import CATALOG, Machine, find_cache, find_catalog, make_scratch, read_machine
from duckicelake.commands.jobs.start import UNKNOWN, Find, complain, write_report
from duckicelake.errors import CatalogError
from duckicelake.pipeline.ingest.job import Desk
from duckicelake.pipeline.rest import open_rest
from duckicelake.pipeline.spark import SparkPlan, add_catalog, spark_session
from duckicelake.pipeline.verify.job import VerifyDesk, verify
from duckicelake.pipeline.verify.options import VerifyOptions, read_options
from duckicelake.pipeline.verify.report import VerifyReport


@dataclass(frozen=True, slots=True)
class VerifyCall:
    """The command's arguments that are not about where things are."""

    options: VerifyOptions
    machine: Machine
    dry_run: bool
    report: Path | None


def read_call(given: Mapping[str, Any]) -> VerifyCall:
    """Return the call; `given` has the command's parameters by name.

    Raises: BadRequest: they contradict each other, or one cannot be read
    """
    options = read_options(given["tables"], given["snapshot"], given)
    return VerifyCall(options, read_machine(given), given["dry_run"], given["report"])


def report_verify(call: VerifyCall, find: Find) -> int:
    """Run the job, say what was found, write the report, and return the status for the shell."""
    try:
        facts, home = find()
        done = run_verify(facts, home, call, Console(stderr=True))
    except CatalogError as error:
        done = VerifyReport(message=error.message)
    except Exception as error:  # noqa: BLE001  whatever it is, it is no difference, and a trace would end in the status of one
        done = VerifyReport(message=f"{type(error).__name__}: {error}")
    is_written = write_report(call.report, done.format_json())
    if done.message:
        complain(done.message, done.status)
    else:
        Console().print("\n".join(done.describe()), markup=False, highlight=False, soft_wrap=True)
    return done.status if is_written else done.status or UNKNOWN


def run_verify(facts: Facts, home: Home, call: VerifyCall, console: Console) -> VerifyReport:
    """Run the job; what it is about to look at is on the terminal."""
    machine = call.machine
    catalog = find_catalog(lambda: facts, None, None, None)

    def open_lake() -> DuckDBPyConnection:
        conn = connect_duckdb(home.make_folder("extensions"))
        attach_lake(conn, LakeAddress(facts.ducklake_dsn, facts.ducklake_metadata_schema, read_only=True), facts.find_s3_keys())
        return conn

    with make_scratch() as scratch, console.status("starting Spark") as status:

        def tell(step: str) -> None:
            status.update(step)
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False, soft_wrap=True)

        open_rest(catalog)
        plan = SparkPlan(find_cache(), Path(scratch), driver_memory=machine.memory, master=machine.master, conf=machine.conf)
        with spark_session(plan, os.environ, tell) as spark:
            add_catalog(spark, CATALOG, catalog)
            desk = Desk(spark, CATALOG, lambda: open_rest(catalog), tell)
            return verify(VerifyDesk(desk, open_lake, facts.ducklake_metadata_schema), call.options, dry_run=call.dry_run)
