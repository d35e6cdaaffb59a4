"""Files in a folder, the job that takes them, and DuckDB's view of the tables."""

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection

from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest, open_rest, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.ingest.job import FollowOptions, FollowReport, follow, ingest
from duckicelake.pipeline.ingest.options import IngestOptions, IngestReport, Run
from tests.support.readers import Served
from tests.support.spark import Spark

TABLE = parse_ident("raw.trips")


@dataclass(frozen=True, slots=True)
class Mill:
    """One lake, one folder of files, the shared Spark under a catalog name of its own."""

    served: Served
    spark: Spark
    catalog: str
    folder: Path
    duck: DuckDBPyConnection
    told: list[str] = field(default_factory=list[str])

    def write(self, name: str, text: str | bytes) -> Path:
        """A file of text."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def write_parquet(self, name: str, /, **columns: Any) -> Path:
        """A Parquet file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return path

    def run(self, *, dry_run: bool = False, tell: Progress | None = None, run: Run | None = None, **options: Any) -> IngestReport:
        """Run the job on the folder."""
        asked = IngestOptions(**{"source": str(self.folder), "table": TABLE} | options)
        desk = JobContext(self.spark.session, self.catalog, lambda: open_rest(self.served.rest_catalog()), tell or self.told.append)
        # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return ingest(desk, asked, dry_run=dry_run, run=run)
            finally:
                gc.collect()

    def follow(
        self,
        wait: Callable[[float], bool] = lambda _: True,
        connect: Callable[[], Rest] | None = None,
        options: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> tuple[FollowReport, list[FollowReport]]:
        """Follow the folder, every file as soon as it is there; the report, and those of each look that did something."""
        looks: list[FollowReport] = []
        open_it = connect or (lambda: open_rest(self.served.rest_catalog()))
        desk = JobContext(self.spark.session, self.catalog, open_it, self.told.append)
        asked = IngestOptions(**{"source": str(self.folder), "table": TABLE} | dict(options or {}))
        limits = FollowOptions(**{"settle_seconds": 0.0} | how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return follow(desk, asked, limits, wait, looks.append), looks
            finally:
                gc.collect()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What DuckDB answers about the lake."""
        return self.duck.execute(sql).fetchall()

    def rows(self, table: str = "trips", columns: str = "*") -> list[tuple[Any, ...]]:
        """The rows of a table in the namespace, in order."""
        return self.ask(f"SELECT {columns} FROM raw.{table} ORDER BY ALL")

    def find_summary(self, table: str) -> dict[str, str]:
        """What the current snapshot says of itself."""
        metadata = self.served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]
        return next(item["summary"] for item in metadata["snapshots"] if item["snapshot-id"] == metadata["current-snapshot-id"])

    def list_refs(self, table: str) -> Sequence[str]:
        """The refs of a table, over REST."""
        metadata = self.served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]
        return sorted(metadata["refs"])


def open_mill(served: Served, spark: Spark, folder: Path) -> Mill:
    """A mill on a served lake."""
    folder.mkdir(parents=True, exist_ok=True)
    return Mill(served, spark, spark.add(served.rest_catalog()), folder, served.lake.duckdb())
