"""The lakehouse: one lake, Spark and DuckDB and PyIceberg on it, and the pipeline's jobs."""

import gc
import tempfile
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from rich.console import Console

from demo.read import open_duckdb, open_pyiceberg
from demo.story.telling import Teller
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.maintain import build_lake_settings, open_postgres
from duckicelake.commands.jobs.session import CATALOG, SparkSettings, opening_spark, to_catalog
from duckicelake.commands.jobs.session import open_duckdb as open_lake
from duckicelake.embedded.home import Home
from duckicelake.pipeline.common.rest import Rest, open_rest, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.common.staging import Stage, make_run_id
from duckicelake.pipeline.ingest.job import ingest
from duckicelake.pipeline.ingest.options import IngestOptions, IngestReport
from duckicelake.pipeline.ingest.writing import commit_once
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake, MaintainContext
from duckicelake.pipeline.maintain.planning import MaintainReport
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from duckicelake.pipeline.profile import ProfileContext, profile
from duckicelake.pipeline.profile_report import ProfileOptions, ProfileReport
from duckicelake.pipeline.verify.job import VerifyContext, VerifyOptions, VerifyReport, verify

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class House:
    """Everything that works on the lake, which Spark calls `spark_catalog`.

    `duck` is a user of DuckDB, who knows nothing of Iceberg; `folder` has the raw files.
    """

    facts: Facts
    home: Home
    folder: Path
    spark: SparkSession
    duck: DuckDBPyConnection
    catalog: Catalog
    teller: Teller
    spark_catalog: str = CATALOG

    def connect(self) -> Rest:
        """The catalog over REST."""
        return open_rest(to_catalog(self.facts))

    def take(self, source: Path, table: str, **options: Any) -> IngestReport:
        """Have `ingest` take files into a table."""
        return _quietly(partial(ingest, self._make_desk(), IngestOptions(str(source), parse_ident(table), **options)))

    def run(self, statement: str) -> None:
        """Have Spark run a statement; `{c}` is the catalog."""
        _quietly(lambda: self.spark.sql(statement.replace("{c}", self.spark_catalog)).collect())

    def publish(self, tables: Mapping[str, str], written: Callable[[], None]) -> None:
        """Write the rows of queries to new tables, and let everybody see all of them at once: one commit, after `written` is called."""
        run_id = make_run_id(datetime.now(UTC))
        stage = Stage(self.spark, self.spark_catalog, self.connect, f"gold_{run_id}", {"duckicelake.run-id": run_id}, self._ignore)
        changes: list[dict[str, Any]] = []
        for table, query in tables.items():
            rows = self.spark.sql(query.replace("{c}", self.spark_catalog))
            rows.limit(0).writeTo(f"{self.spark_catalog}.{table}").using("iceberg").create()
            opened = stage.open(parse_ident(table))
            _quietly(partial(stage.append, opened.ident, rows))
            changes.append(stage.look_after(opened).format_change())
        written()
        commit_once(self.connect, changes, lambda: False)

    def maintain(self, tables: Sequence[str]) -> MaintainReport:
        """Have `maintain` put tables in order."""
        desk = MaintainContext(
            connect=self.connect,
            open_postgres=partial(open_postgres, build_lake_settings(self.facts)),
            lake=DuckLake(partial(open_lake, self.facts, self.home, read_only=False)),
            open_spark=lambda: nullcontext(self.spark),
            catalog=self.spark_catalog,
            sweep=lambda before, spared: [],
            progress=self._ignore,
            pause=sleep,
        )
        return _quietly(partial(maintain, desk, MaintainOptions(tuple(map(parse_ident, tables)), MaintainPolicies({"min-files": 2}))))

    def profile(self, table: str) -> ProfileReport:
        """Have `profile` count a table's distinct values for planners."""
        connect = partial(open_postgres, build_lake_settings(self.facts))
        desk = ProfileContext(self.connect, connect, lambda: nullcontext(self.spark), self.spark_catalog, self._ignore)
        return _quietly(partial(profile, desk, ProfileOptions((parse_ident(table),))))

    def verify(self, tables: Sequence[str]) -> VerifyReport:
        """Have `verify` compare every row of tables, as Spark and as DuckDB see it."""
        desk = VerifyContext(
            self._make_desk(), partial(open_lake, self.facts, self.home, read_only=True), self.facts.ducklake_metadata_schema
        )
        return _quietly(partial(verify, desk, VerifyOptions(tuple(map(parse_ident, tables)))))

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What DuckDB answers."""
        return self.duck.execute(sql).fetchall()

    def scan(self, table: str, columns: Sequence[str], snapshot_id: int | None = None) -> pa.Table:
        """The rows that PyIceberg finds."""
        return self.catalog.load_table(table).scan(selected_fields=tuple(columns), snapshot_id=snapshot_id).to_arrow()

    def open_branch(self, name: str) -> Catalog:
        """PyIceberg on a branch of the lake."""
        return open_pyiceberg(replace(self.facts, warehouse=f"{self.facts.warehouse}@{name}"))

    def _make_desk(self) -> JobContext:
        return JobContext(self.spark, self.spark_catalog, self.connect, self._ignore)

    def _ignore(self, step: str) -> None:
        """The story has its own words."""


@contextmanager
def open_house(facts: Facts, home: Home, console: Console) -> Generator[House]:
    """The house, with an empty folder for raw files; everything but the lake is gone at the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="duckicelake-demo-") as folder,
        opening_spark(SparkSettings(), to_catalog(facts), console.print) as spark,
        open_duckdb(facts, home) as duck,
    ):
        duck.execute("USE lake")
        yield House(facts, home, Path(folder), spark, duck, open_pyiceberg(facts), Teller(console))


def _quietly(act: Callable[[], Result]) -> Result:
    # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return act()
        finally:
            gc.collect()
