"""The context of a run of `maintain`, and the calls of DuckLake's own maintenance functions through DuckDB."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession

from duckicelake.pipeline.common.lake_tables import TableName
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest
from duckicelake.pipeline.maintain import lake_queries
from duckicelake.pipeline.maintain.planning import TableFacts
from duckicelake.pipeline.maintain.policy import Policy

LAKE = "lake"
"""The lake's name in DuckDB."""
AUTHOR = "duckicelake maintain"


@dataclass(frozen=True, slots=True)
class DuckLake:
    """A lake that DuckDB may write to; each call has a session of its own, which knows nothing of earlier columns."""

    open_lake: Callable[[], DuckDBPyConnection]

    def flush(self, table: TableName, properties: Mapping[str, str]) -> None:
        """Make files of a table's inlined rows and deletes. Raises: duckdb.Error: it was not done, as far as DuckDB knows"""
        with closing(self.open_lake()) as conn:
            # When DuckLake commits again after a clash, the inlined deletes that it made files of stay, and count twice.
            conn.execute("SET ducklake_max_retry_count = 0")
            conn.execute("BEGIN")
            told = [AUTHOR, "flush inlined data", json.dumps(dict(properties))]
            conn.execute(f"CALL {LAKE}.set_commit_message(?, ?, extra_info => ?)", told)
            names = [table.schema_name, table.table_name]
            conn.execute(f"CALL ducklake_flush_inlined_data('{LAKE}', schema_name => ?, table_name => ?)", names).fetchall()
            conn.execute("COMMIT")

    def expire(self, versions: Sequence[int]) -> int:
        """Let go of lake snapshots, and schedule the files that they alone needed; returns how many went."""
        with closing(self.open_lake()) as conn:
            return self._count(conn, "ducklake_expire_snapshots", "versions => ?", list(versions))

    def clean_up(self, before: datetime) -> int:
        """Remove files that were scheduled until then; returns how many."""
        with closing(self.open_lake()) as conn:
            return self._count(conn, "ducklake_cleanup_old_files", "older_than => ?", before)

    def remove_orphans(self, before: datetime) -> int:
        """Remove files below DATA_PATH that DuckLake does not know, if they were last written before then; returns how many."""
        with closing(self.open_lake()) as conn:
            return self._count(conn, "ducklake_delete_orphaned_files", "older_than => ?", before)

    def _count(self, conn: DuckDBPyConnection, function: str, argument: str, value: Any) -> int:
        moment = value.astimezone(UTC) if isinstance(value, datetime) else value
        return len(conn.execute(f"CALL {function}('{LAKE}', {argument})", [moment]).fetchall())


@dataclass(frozen=True, slots=True)
class MaintainContext:
    """The context of a run.

    Spark is opened when there is something for it to do. `sweep` removes what nothing names in the tables' own locations, of what
    was last written before that time, but for the tables named by schema and name, and says what it was.
    """

    connect: Callable[[], Rest]
    open_postgres: Callable[[], psycopg.Connection]
    lake: DuckLake
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    catalog: str
    sweep: Callable[[datetime, Collection[tuple[str, str]]], Sequence[str]]
    progress: Progress
    pause: Callable[[float], None]

    def read_facts(self, name: TableName, policy: Policy) -> TableFacts:
        """Return what DuckLake's catalog says of a table."""
        try:
            return self._read_once(name, policy)
        except psycopg.errors.UndefinedTable:
            # DuckLake drops a table of inlined rows when it is empty and of an earlier shape.
            return self._read_once(name, policy)

    def _read_once(self, name: TableName, policy: Policy) -> TableFacts:
        with closing(self.open_postgres()) as conn:
            return lake_queries.read_facts(conn, name.table_id, policy)
