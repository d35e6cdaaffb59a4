"""One lake behind a server, and `verify` run on it by the shared Spark."""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from duckdb import DuckDBPyConnection

from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.verify.job import Finding, VerifyContext, VerifyOptions, VerifyReport, verify
from tests.support.readers import Served
from tests.support.spark import Spark


@dataclass(frozen=True, slots=True)
class Checker:
    """The lake, Spark under a catalog name of its own, and DuckDB that may write."""

    served: Served
    spark: Spark
    catalog: str
    duck: DuckDBPyConnection

    def verify(
        self,
        *tables: str,
        dry_run: bool = False,
        open_lake: Callable[[], DuckDBPyConnection] | None = None,
        tell: Progress = lambda _: None,
        **options: Any,
    ) -> VerifyReport:
        """Run the job."""
        desk = JobContext(self.spark.session, self.catalog, lambda: open_rest(self.served.rest_catalog()), tell)
        own = VerifyContext(desk, open_lake or self.open_lake, self.served.lake.metadata_schema)
        # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return verify(own, VerifyOptions(tuple(map(parse_ident, tables)), **options), dry_run=dry_run)
            finally:
                gc.collect()

    def open_lake(self) -> DuckDBPyConnection:
        """DuckDB that only reads."""
        return self.served.lake.duckdb(read_only=True)

    def look(self, table: str, **options: Any) -> Finding:
        """What the job finds of one table at one moment."""
        (finding,) = self.verify(table, **options).findings
        return finding

    def run(self, *statements: str) -> None:
        """Have DuckDB change the lake."""
        for statement in statements:
            self.duck.execute(statement)

    def ask_spark(self, statement: str) -> None:
        """Have Spark change the lake; `{c}` is the catalog."""
        self.spark.arrow(statement.replace("{c}", self.catalog))

    def list_snapshots(self, table: str) -> list[int]:
        """Where main of a table in `main` was, oldest first."""
        metadata = self.served.server.get(f"namespaces/main/tables/{table}").json["metadata"]
        return [entry["snapshot-id"] for entry in metadata["snapshot-log"]]

    def corrupt(self, statement: str) -> None:
        """Change DuckLake's rows behind everybody's back."""
        with self.served.lake.psycopg() as conn:
            assert conn.execute(statement.encode()).rowcount > 0


def open_checker(served: Served, spark: Spark) -> Checker:
    """A checker of a served lake."""
    duck = served.lake.duckdb()
    duck.execute("SET TimeZone = 'UTC'")
    return Checker(served, spark, spark.add(served.rest_catalog()), duck)
