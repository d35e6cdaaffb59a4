"""One lake behind a server, and `profile` run on it by the shared Spark."""

import gc
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from duckicelake.commands.jobs.maintain import open_postgres
from duckicelake.pipeline.common.java import NoJava
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.profile import ProfileContext, profile
from duckicelake.pipeline.profile_report import ColumnProfile, ProfileOptions, ProfileReport, TableProfile
from tests.pipeline.verify.checker import Checker
from tests.rest.serving import make_settings


@dataclass(frozen=True, slots=True)
class Measurer:
    """The lake and the job."""

    checker: Checker
    told: list[str] = field(default_factory=list[str])

    def run(self, *tables: str, dry_run: bool = False, tell: Progress | None = None, **options: Any) -> ProfileReport:
        """Run the job; a dry run, and one that has nothing to compute, finds no Spark."""
        [lake] = make_settings(self.checker.served.lake).lakes()

        def open_spark() -> AbstractContextManager[SparkSession]:
            if dry_run:
                raise NoJava("there is no Spark here")
            return nullcontext(self.checker.spark.session)

        desk = ProfileContext(
            connect=lambda: open_rest(self.checker.served.rest_catalog()),
            open_postgres=lambda: open_postgres(lake),
            open_spark=open_spark,
            catalog=self.checker.catalog,
            progress=tell or self.told.append,
        )
        # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return profile(desk, ProfileOptions(tuple(map(parse_ident, tables)), **options), dry_run=dry_run)
            finally:
                gc.collect()

    def measure(self, table: str, **options: Any) -> TableProfile:
        """Run the job on one table in `main`."""
        [found] = self.run(f"main.{table}", **options).tables
        return found

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What DuckDB answers about the lake."""
        return self.checker.duck.execute(sql).fetchall()

    def load(self, table: str) -> dict[str, Any]:
        """A table's metadata, in `main`."""
        return self.checker.served.server.get(f"namespaces/main/tables/{table}").json["metadata"]


def by_name(table: TableProfile) -> dict[str, ColumnProfile]:
    """The columns of a profile."""
    return {column.name: column for column in table.columns}
