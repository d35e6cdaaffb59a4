"""What DuckLake does itself, called through DuckDB: inlined rows become files, snapshots expire, files are removed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from duckdb import DuckDBPyConnection

from duckicelake.pipeline.maintain.survey import TableName

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
