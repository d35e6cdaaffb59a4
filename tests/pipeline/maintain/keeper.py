"""One lake behind a server, `maintain` run on it by the shared Spark, and `verify` as the judge."""

import gc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from duckicelake.commands.jobs.maintain import open_postgres, sweep
from duckicelake.pipeline.common.java import NoJava
from duckicelake.pipeline.common.reports import RUN_ID, Progress
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake, MaintainContext
from duckicelake.pipeline.maintain.planning import MaintainReport, StepResult
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.pipeline.verify.checker import Checker
from tests.rest.serving import make_settings
from tests.support.readers import Served

AT_ONCE = {"snapshot-age": "0s", "file-age": "0s", "orphan-age": "1h"}
"""Every age as low as it goes."""
FUTURE = timedelta(days=1)
DEAD = "ingest_20200101T000000_dead_1"
"""The branch of a run of `ingest` that died long ago."""


def make_desk(served: Served, tell: Progress) -> MaintainContext:
    """What a run on a served lake works with, but for Spark."""
    [lake] = make_settings(served.lake).lakes()

    def open_spark() -> AbstractContextManager[SparkSession]:
        raise NoJava("there is no Spark here")

    return MaintainContext(
        connect=lambda: open_rest(served.rest_catalog()),
        open_postgres=lambda: open_postgres(lake),
        lake=DuckLake(served.lake.duckdb),
        open_spark=open_spark,
        catalog="none",
        sweep=lambda before, spared: sweep(lake, before, spared),
        progress=tell,
        pause=lambda _: None,
    )


@dataclass(frozen=True, slots=True)
class Swept(DuckLake):
    """A lake whose orphans are removed whatever their age: nothing is uncommitted while a round removes them."""

    def remove_orphans(self, before: datetime) -> int:
        return DuckLake.remove_orphans(self, before + FUTURE)


def make_eager(desk: MaintainContext) -> MaintainContext:
    """The same without pity on orphans."""
    return replace(desk, lake=Swept(desk.lake.open_lake), sweep=lambda before, spared: desk.sweep(before + FUTURE, spared))


@dataclass(frozen=True, slots=True)
class Keeper:
    """The lake and the job. `open_lake`: how DuckDB attaches the lake, if not as tests do."""

    checker: Checker
    told: list[str] = field(default_factory=list[str])
    open_lake: Callable[[], DuckDBPyConnection] | None = None

    def run(self, *tables: str, dry_run: bool = False, tell: Progress | None = None, **default: Any) -> MaintainReport:
        """Run the job; `default` is the policy, with `_` for `-`."""
        policies = MaintainPolicies({name.replace("_", "-"): value for name, value in default.items()})
        options = MaintainOptions(tuple(map(parse_ident, tables)), policies)
        session = self.checker.spark.session
        desk = replace(make_desk(self.checker.served, tell or self.told.append), open_spark=lambda: nullcontext(session))
        desk = replace(desk, catalog=self.checker.catalog, lake=DuckLake(self.open_lake or desk.lake.open_lake))
        # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return maintain(desk, options, dry_run=dry_run)
            finally:
                gc.collect()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What DuckDB answers about the lake."""
        return self.checker.duck.execute(sql).fetchall()

    def count_files(self, table: str) -> int:
        """How many data files DuckLake has of a table in `main`, now."""
        return len(self.ask(f"FROM ducklake_list_files('lake', '{table}')"))

    def list_summaries(self, table: str) -> list[dict[str, str]]:
        """What the snapshots of a table in `main` say of themselves, oldest first."""
        metadata = self.checker.served.server.get(f"namespaces/main/tables/{table}").json["metadata"]
        return [snapshot["summary"] for snapshot in metadata["snapshots"]]

    def check_same(self, *, every_snapshot: bool = True) -> None:
        """Both sides show the same rows, now and at every snapshot that is left."""
        report = self.checker.verify(every_snapshot=every_snapshot)
        assert report.status == 0, report.describe()


def grow_branch(table: Table, branch: str, rows: pa.Table | None = None) -> None:
    """A branch from main on, with a snapshot of rows, or of none, that such a run made."""
    main = table.current_snapshot()
    assert main is not None
    table.manage_snapshots().create_branch(main.snapshot_id, branch).commit()
    table.append(rows or table.schema().as_arrow().empty_table(), {RUN_ID: "20200101T000000_dead"}, branch)


def find(report: MaintainReport, is_it: Callable[[StepResult], bool]) -> list[StepResult]:
    """The steps of a report that are meant."""
    return [step for step in report.steps if is_it(step)]
