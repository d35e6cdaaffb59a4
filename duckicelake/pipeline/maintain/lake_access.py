"""The lake as a run of `maintain` reaches it: facts by Postgres, DuckLake's own maintenance functions by DuckDB, and the run's context.

Postgres sums the facts of tables and snapshots up, so that nothing grows with the number of files.

`maintain.job` and `compaction` call it in the driver. The queries here write nothing to Postgres; `share_lake` and
`owning_lake` take advisory locks on the run's connection. Each call of DuckDB has a session
of its own, which writes to the lake and deletes files.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
from duckdb import DuckDBPyConnection
from psycopg import sql
from psycopg.rows import class_row, scalar_row, tuple_row
from pyspark.sql import SparkSession

from duckicelake.errors import ServiceUnavailable
from duckicelake.lake.changes import TABLE_KINDS, parse_changes
from duckicelake.lake.lake_format import V1_0
from duckicelake.pipeline.common.lake_tables import TableName
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest
from duckicelake.pipeline.maintain.planning import FileGroup, LakeSnapshot, TableFacts
from duckicelake.pipeline.maintain.policy import Policy

SELECT_GROUPS = """
WITH live AS (
    SELECT f.file_size_bytes AS bytes, f.file_size_bytes < %(small_bytes)s AS is_small,
           coalesce(d.deleted, 0) > 0 AND coalesce(d.deleted, 0) >= f.record_count * %(delete_ratio)s AS is_worn,
           coalesce(n.spec_id || n.partition, p.partition, '') AS partition
      FROM ducklake_data_file f
      LEFT JOIN iceberg_file n ON n.data_file_id = f.data_file_id
      LEFT JOIN (SELECT data_file_id, sum(delete_count) AS deleted FROM ducklake_delete_file
                  WHERE table_id = %(table_id)s AND end_snapshot IS NULL GROUP BY data_file_id) d ON d.data_file_id = f.data_file_id
      LEFT JOIN (SELECT data_file_id, string_agg(coalesce(partition_value, '∅'), '/' ORDER BY partition_key_index) AS partition
                   FROM ducklake_file_partition_value WHERE table_id = %(table_id)s GROUP BY data_file_id) p
        ON p.data_file_id = f.data_file_id
     WHERE f.table_id = %(table_id)s AND f.end_snapshot IS NULL
)
SELECT partition, count(*)::bigint AS files, sum(bytes)::bigint AS bytes,
       count(*) FILTER (WHERE is_small)::bigint AS small_files, coalesce(sum(bytes) FILTER (WHERE is_small), 0)::bigint AS small_bytes,
       count(*) FILTER (WHERE is_worn)::bigint AS worn_files, coalesce(sum(bytes) FILTER (WHERE is_worn), 0)::bigint AS worn_bytes
  FROM live GROUP BY partition ORDER BY partition
"""

# These files were sorted by the order that the table still has.
SELECT_LEAST_SORTED = """
SELECT min(f.file_size_bytes)
  FROM ducklake_data_file f JOIN iceberg_file n ON n.data_file_id = f.data_file_id
 WHERE f.table_id = %(table_id)s AND f.end_snapshot IS NULL AND n.sort_order_id > 0
   AND f.file_size_bytes >= %(spared_bytes)s AND f.file_size_bytes < %(small_bytes)s
   AND n.sort_order_id = (SELECT order_id FROM iceberg_shape WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id DESC LIMIT 1)
"""
SELECT_LARGEST = "SELECT coalesce(max(file_size_bytes), 0) FROM ducklake_data_file WHERE table_id = %(table_id)s AND end_snapshot IS NULL"
SELECT_INLINED = "SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = %(table_id)s"
# The first three columns have other names in DuckLake 1.0 than in 1.1.
COUNT_INLINED = sql.SQL("""
SELECT count(*), count(DISTINCT _ducklake_begin_snapshot) FILTER (WHERE _ducklake_end_snapshot IS NULL)
  FROM {} AS i(_ducklake_row_id, _ducklake_begin_snapshot, _ducklake_end_snapshot)
""")
SELECT_VERSION = "SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL"
HAS_DELETES = "SELECT to_regclass(quote_ident(current_schema()) || '.' || quote_ident(%(name)s)) IS NOT NULL"
COUNT_DELETES = sql.SQL("SELECT count(*) FROM {}")
HAS_STRUCT = """
SELECT EXISTS (SELECT FROM ducklake_column WHERE table_id = %(table_id)s AND parent_column IS NULL AND lower(column_type) = 'struct')
"""
# DuckDB 1.5.5 gives such a file a second delete file for the time before, and reads it twice then.
HAS_ENDED_WITH_BOTH = sql.SQL("""
SELECT EXISTS (SELECT FROM {} i JOIN ducklake_data_file f ON f.data_file_id = i.file_id AND f.end_snapshot IS NOT NULL
                 JOIN ducklake_delete_file d ON d.table_id = f.table_id AND d.data_file_id = f.data_file_id)
""")

SELECT_SNAPSHOTS = """
SELECT s.snapshot_id, s.snapshot_time, c.changes_made FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c USING (snapshot_id)
"""
# What main was rolled back to is published from that lake snapshot's rows; what came from a branch has its manifests in our notes.
# Notes on dropped tables stay, and no client can read or remove what they name.
SELECT_NAMED = """
WITH live AS (SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL),
     ref AS (SELECT table_id, snapshot_id FROM iceberg_ref JOIN live USING (table_id) WHERE snapshot_id IS NOT NULL)
SELECT snapshot_id FROM ref
UNION SELECT k.snapshot_id
  FROM (SELECT DISTINCT ON (table_id) table_id, snapshot_id FROM iceberg_move ORDER BY table_id, lake_snapshot_id DESC) m
  JOIN iceberg_kept k ON k.table_id = m.table_id AND k.snapshot_id = m.snapshot_id AND k.manifest_list IS NULL
  JOIN live ON live.table_id = m.table_id
UNION SELECT k.base_snapshot_id FROM iceberg_kept k JOIN ref USING (table_id, snapshot_id)
"""
# What a lake snapshot stands for is shown as long as that is there.
SELECT_BRANCH_SNAPSHOTS = """
SELECT k.snapshot_id FROM iceberg_kept k JOIN ducklake_table t ON t.table_id = k.table_id AND t.end_snapshot IS NULL
 WHERE t.table_uuid::text = coalesce(%(uuid)s, t.table_uuid::text) AND k.table_id = %(table_id)s AND k.manifest_list IS NOT NULL
   AND NOT EXISTS (SELECT FROM iceberg_move m JOIN ducklake_snapshot s ON s.snapshot_id = m.lake_snapshot_id
                    WHERE m.table_id = k.table_id AND m.snapshot_id = k.snapshot_id)
"""
SHARE_LAKE = "SELECT pg_try_advisory_lock_shared(hashtextextended('duckicelake maintain ' || current_schema(), 0))"
OWN_LAKE = "SELECT pg_try_advisory_lock(hashtextextended('duckicelake maintain ' || current_schema(), 0))"
STILL_THERE = "SELECT 1"
FREE_LAKE = "SELECT pg_advisory_unlock(hashtextextended('duckicelake maintain ' || current_schema(), 0))"
COUNT_SCHEDULED = "SELECT count(*) FROM ducklake_files_scheduled_for_deletion WHERE schedule_start <= %(before)s"
SNAPSHOTS_AT_ONCE = 2000

_TABLE_ID = re.compile(r"[0-9]{1,19}")


def read_facts(conn: psycopg.Connection, table_id: int, policy: Policy) -> TableFacts:
    """Return what the catalog says of one table, as of one moment."""
    asked: dict[str, Any] = {"table_id": table_id, "small_bytes": policy.small_bytes, "delete_ratio": policy.delete_ratio}
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if policy.spared_bytes is not None:
            least = _ask(conn, SELECT_LEAST_SORTED, {**asked, "spared_bytes": policy.spared_bytes})
            asked["small_bytes"] = policy.small_bytes if least is None else least
        with conn.cursor(row_factory=class_row(FileGroup)) as cursor:
            groups = tuple(cursor.execute(SELECT_GROUPS, asked).fetchall())
        largest = _ask(conn, SELECT_LARGEST, asked)
        rows, batches = _count_inlined(conn, asked)
        deletes, is_double = _look_at_deletes(conn, table_id)
        # Even if no row is inlined now: one may be inserted before the flush.
        has_struct = _ask(conn, HAS_STRUCT, asked)
        version = _ask(conn, SELECT_VERSION, {})
    reasons = {
        f"the lake has DuckLake {version}, which DuckDB attaches from version 2.0 on": version != V1_0.version,
        "DuckDB 1.5.5 would garble the inlined structs": has_struct,
        "DuckDB 1.5.5 would show earlier snapshots' rows twice until they expire": is_double,
    }
    withheld = next((reason for reason, holds in reasons.items() if holds), "")
    return TableFacts(groups, largest, rows, batches, deletes, withheld, asked["small_bytes"])


def _count_inlined(conn: psycopg.Connection, asked: Mapping[str, Any]) -> tuple[int, int]:
    with conn.cursor(row_factory=scalar_row) as cursor:
        names = cursor.execute(SELECT_INLINED, asked).fetchall()
    rows = batches = 0
    with conn.cursor(row_factory=tuple_row) as cursor:
        for name in names:
            count, inserts = cursor.execute(COUNT_INLINED.format(sql.Identifier(name))).fetchone() or (0, 0)
            rows, batches = rows + count, batches + inserts
    return rows, batches


def _look_at_deletes(conn: psycopg.Connection, table_id: int) -> tuple[int, bool]:
    name = f"ducklake_inlined_delete_{table_id}"
    if not _ask(conn, HAS_DELETES, {"name": name}):
        return 0, False
    table = sql.Identifier(name)
    count = _ask(conn, COUNT_DELETES.format(table), {})
    return count, bool(count) and _ask(conn, HAS_ENDED_WITH_BOTH.format(table), {})


def read_branch_snapshots(conn: psycopg.Connection, table_id: int, uuid: str | None = None) -> frozenset[int]:
    """Return the snapshots of a table that DuckLake does not have, and has none for; none when it is not of that uuid."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return frozenset(cursor.execute(SELECT_BRANCH_SNAPSHOTS, {"table_id": table_id, "uuid": uuid}).fetchall())


def read_snapshots(conn: psycopg.Connection) -> list[LakeSnapshot]:
    """Return every lake snapshot there is."""
    # A cursor of Postgres' own: what all of them changed may be larger than memory.
    with conn.transaction(), conn.cursor("lake_snapshots", row_factory=tuple_row) as cursor:
        cursor.itersize = SNAPSHOTS_AT_ONCE
        found = cursor.execute(SELECT_SNAPSHOTS)
        return [LakeSnapshot(snapshot_id, at, parse_changed_tables(changes)) for snapshot_id, at, changes in found]


def parse_changed_tables(changes: str | None) -> frozenset[int]:
    """Return the tables, by id, that a lake snapshot's tokens say it changed."""
    told = [change.value for change in parse_changes(changes) if change.kind in TABLE_KINDS]
    return frozenset(int(value) for value in told if _TABLE_ID.fullmatch(value))


def read_named(conn: psycopg.Connection) -> frozenset[int]:
    """Return the lake snapshots that a ref of any table names, or stands on."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return frozenset(cursor.execute(SELECT_NAMED).fetchall())


def count_scheduled(conn: psycopg.Connection, before: datetime) -> int:
    """Return how many files DuckLake has scheduled for deletion until then."""
    return _ask(conn, COUNT_SCHEDULED, {"before": before})


def share_lake(conn: psycopg.Connection) -> bool:
    """Have the lake as one run of several, until the connection ends; False: another run has it for itself."""
    return _ask(conn, SHARE_LAKE, {})


def check_shared(conn: psycopg.Connection) -> None:
    """Raises: ServiceUnavailable: the connection ended, and what is written from now on may look like an orphan to another run"""
    try:
        _ask(conn, STILL_THERE, {})
    except psycopg.OperationalError as error:
        message = "the connection to Postgres that shares the lake broke, and another run may remove what this one writes: run again"
        raise ServiceUnavailable(message) from error


@contextmanager
def owning_lake(conn: psycopg.Connection) -> Generator[bool]:
    """Inside, no other run shares the lake or comes to; False: one does."""
    is_own = _ask(conn, OWN_LAKE, {})
    try:
        yield is_own
    finally:
        # A connection that broke has let go of it.
        with suppress(psycopg.Error):
            if is_own:
                _ask(conn, FREE_LAKE, {})


def _ask(conn: psycopg.Connection, query: LiteralString | sql.Composed, asked: Mapping[str, Any]) -> Any:
    with conn.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query, asked).fetchone()


def read_now(conn: psycopg.Connection) -> datetime:
    """Return the time by Postgres' clock, by which snapshots and schedules are dated."""
    return _ask(conn, "SELECT now()", {})


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
            return read_facts(conn, name.table_id, policy)
