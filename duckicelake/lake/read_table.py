"""The complete read of one table into a `TableState`.

Loads and commits of `catalog`, the import of manifests, and `duckicelake check` call `read_table` in one transaction each. Some of its
queries also run by themselves: before a commit, and under the lake's lock in `writing.read_back`. It only reads.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import psycopg
from psycopg import sql
from psycopg.types.string import TextLoader

from duckicelake.errors import TableVanished
from duckicelake.lake.changes import DATA_KINDS, TABLE_KINDS, TOKENS_SINCE, format_tokens
from duckicelake.lake.damaged_rows import check_state, check_table
from duckicelake.lake.note_rows import RefNotes
from duckicelake.lake.notes import METADATA_LOG_MAX, NOTE_QUERIES, SELECT_HISTORY_ID, to_notes
from duckicelake.lake.null_proofs import with_value_checks
from duckicelake.lake.read import (
    SELECT_DATA_PATH,
    SELECT_ICEBERG_PATH,
    SELECT_RESTORED_MAX,
    SELECT_TAGS,
    QueryResults,
    fetch_queries,
    fetch_rows,
    to_iceberg_path,
)
from duckicelake.lake.read_files import (
    SELECT_ALIASES,
    SELECT_CHANGED_AT,
    SELECT_SNAPSHOT_NOTES,
    SINCE_BEGINNING,
    FilesBeforeMerges,
    read_merged_spans,
    read_spans,
    undo_merges,
)
from duckicelake.lake.rows import (
    RESTORED_MAX_BYTES,
    ColumnRow,
    ColumnTagRow,
    DeleteFileRow,
    FileSpan,
    HeadRow,
    InlinedDeleteRow,
    InlinedTable,
    NameMappingRow,
    PartialFileRow,
    PartitionRow,
    Position,
    SchemaVersionRow,
    SnapshotNote,
    SnapshotRow,
    SortRow,
    TableRow,
    TableState,
    TagRow,
)


@dataclass(frozen=True, slots=True)
class LastRead:
    """The position up to which a table was read before: a lake snapshot, and the lake's `next_file_id` there."""

    lake_snapshot_id: int = SINCE_BEGINNING
    next_file_id: int = 0


def read_table(conn: psycopg.Connection, table: TableRow, since: LastRead) -> TableState:
    """Return the rows of a live table; rows of files only if they changed after `since`.

    Raises: TableVanished: maintenance dropped an inlined table during this transaction; read again
            Damaged: the rows contradict themselves; names the table and the row
    """
    table_id, after = table.table_id, since.lake_snapshot_id
    results, recent = _fetch_rows(conn, table_id, since)
    has_deletes = results.value(SELECT_HAS_INLINED_DELETES)
    inlined_tables = _read_inlined_tables(conn, results, after)
    affected = sorted({*recent.column(SELECT_AFFECTED_FILES), *(_list_affected(conn, table_id, after) if has_deletes else ())})
    unmerged = _read_unmerged(conn, table_id, after, affected)
    deletes = fetch_rows(conn, DeleteFileRow, SELECT_DELETE_FILES, table_id=table_id, data_file_ids=affected) if affected else []
    # DuckDB shows a row again if its delete was inlined while its file was being merged.
    deletable = [file_id for file_id in affected if file_id not in unmerged.replaced]
    inlined_deletes = _read_inlined_deletes(conn, table_id, deletable) if has_deletes and deletable else []
    check_table(table, unmerged.spans, deletes, inlined_tables)
    events = collect_snapshot_ids(unmerged.spans, deletes, inlined_tables, inlined_deletes)
    head, notes = results.rows(HeadRow, SELECT_HEAD)[0], to_notes(results)
    state = TableState(
        position=Position(head.snapshot_id, head.change_id),
        next_file_id=head.next_file_id,
        next_row_id=results.value(SELECT_NEXT_ROW_ID) or 0,
        since=after,
        data_path=results.value(SELECT_DATA_PATH) or "",
        iceberg_path=to_iceberg_path(results.value(SELECT_ICEBERG_PATH)),
        table=table,
        tags=results.rows(TagRow, SELECT_TAGS),
        snapshots=select_main_snapshots(_read_snapshots(conn, recent, events, after), notes.refs),
        oldest=results.rows(SnapshotRow, SELECT_OLDEST_SNAPSHOT, snapshot_time=datetime.fromisoformat)[0],
        columns=results.rows(ColumnRow, SELECT_COLUMNS),
        column_tags=results.rows(ColumnTagRow, SELECT_COLUMN_TAGS),
        partitions=results.rows(PartitionRow, SELECT_PARTITIONS),
        sort_keys=results.rows(SortRow, SELECT_SORT_KEYS),
        name_mappings=results.rows(NameMappingRow, SELECT_NAME_MAPPINGS),
        spans=unmerged.spans,
        partial_files=_list_partial(results, unmerged),
        schema_versions=results.rows(SchemaVersionRow, SELECT_SCHEMA_VERSIONS),
        delete_files=deletes,
        inlined_tables=inlined_tables,
        inlined_deletes=inlined_deletes,
        notes=notes,
        snapshot_notes=recent.rows(SnapshotNote, SELECT_SNAPSHOT_NOTES),
        aliases=recent.rows(SnapshotNote, SELECT_ALIASES),
        changed_at=None if (changed_at := recent.value(SELECT_CHANGED_AT)) is None else datetime.fromisoformat(changed_at),
        history_id=results.value(SELECT_HISTORY_ID) or 0,
        restored_max_bytes=int(results.value(SELECT_RESTORED_MAX) or RESTORED_MAX_BYTES),
    )
    check_state(state)
    return with_value_checks(conn, state, since.next_file_id)


def _fetch_rows(conn: psycopg.Connection, table_id: int, since: LastRead) -> tuple[QueryResults, QueryResults]:
    """Return the results of `STATE_QUERIES` and of `RECENT_QUERIES`."""
    name = _name_inlined_deletes(table_id)
    results = fetch_queries(conn, STATE_QUERIES, table_id=table_id, object_id=table_id, most=METADATA_LOG_MAX + 1, name=name)
    parameters = {"table_id": table_id, "since": since.lake_snapshot_id, "next_file_id": since.next_file_id}
    return results, fetch_queries(conn, RECENT_QUERIES, **parameters, **format_table_tokens(table_id))


def _read_unmerged(conn: psycopg.Connection, table_id: int, after: int, affected: Sequence[int]) -> FilesBeforeMerges:
    """Return the files that changed after a lake snapshot or whose deletes did, as they were before each merge."""
    merged = read_merged_spans(conn, table_id) if after == SINCE_BEGINNING else ()
    return undo_merges(read_spans(conn, table_id, after, affected), merged)


def _list_partial(results: QueryResults, unmerged: FilesBeforeMerges) -> list[PartialFileRow]:
    """Return the partial files, which hold rows of several lake snapshots, unless the files that they replaced are still known."""
    files = results.rows(PartialFileRow, SELECT_PARTIAL_FILES)
    merged = results.rows(PartialFileRow, SELECT_MERGED_PARTIAL_FILES)
    files += [row for row in merged if row.data_file_id in unmerged.replaced]
    return [row for row in files if row.data_file_id not in unmerged.written]


def select_main_snapshots(snapshots: Sequence[SnapshotRow], refs: RefNotes) -> list[SnapshotRow]:
    """Return the snapshots of main, without those that clients removed: their changes count for the next snapshot."""
    others = refs.hidden | {note.snapshot_id for note in refs.kept if note.is_off_main}
    return [row for row in snapshots if row.snapshot_id not in others]


SELECT_HEAD = """
SELECT snapshot_id, next_file_id, (SELECT coalesce(max(id), 0) FROM iceberg_change) AS change_id
  FROM ducklake_snapshot
 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
"""

SELECT_NEXT_ROW_ID = """
SELECT greatest(next_row_id, 0) FROM ducklake_table_stats WHERE table_id = %(table_id)s
"""


SELECT_PARTIAL_FILES = """
SELECT f.data_file_id, f.begin_snapshot, f.path, coalesce(f.path_is_relative, true) AS path_is_relative,
       f.record_count, f.file_size_bytes, f.row_id_start, s.snapshot_id AS written_at, c.changes_made, f.partial_max
  FROM ducklake_data_file f
  -- The snapshot that wrote a file is the first one whose next file id is above the file's.
  LEFT JOIN LATERAL (SELECT w.snapshot_id FROM ducklake_snapshot w WHERE w.next_file_id > f.data_file_id
                      ORDER BY w.next_file_id, w.snapshot_id LIMIT 1) s ON true
  LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
 WHERE f.table_id = %(table_id)s AND f.partial_max IS NOT NULL
 ORDER BY f.data_file_id
"""

SELECT_MERGED_PARTIAL_FILES = SELECT_PARTIAL_FILES.replace("ducklake_data_file", "iceberg_merged_file")

SELECT_SCHEMA_VERSIONS = """
SELECT begin_snapshot, schema_version
  FROM ducklake_schema_versions
 WHERE table_id = %(table_id)s
 ORDER BY begin_snapshot, schema_version
"""

SELECT_AFFECTED_FILES = """
SELECT DISTINCT data_file_id
  FROM ducklake_delete_file
 -- A cumulative delete file replaces an older one and keeps its begin_snapshot.
 WHERE table_id = %(table_id)s
   AND (delete_file_id >= %(next_file_id)s OR begin_snapshot > %(since)s OR end_snapshot > %(since)s)
   -- PLACEHOLDER_ID marks files that only a retained snapshot needs, not the deletes of a data file.
   AND data_file_id < 9223372036854775807
"""

SELECT_AFFECTED_BY_INLINED = sql.SQL("SELECT DISTINCT file_id FROM {} WHERE begin_snapshot > %(since)s")


def _list_affected(conn: psycopg.Connection, table_id: int, since: int) -> list[int]:
    """Return the ids of the data files that got inlined deletes after a lake snapshot."""
    query = SELECT_AFFECTED_BY_INLINED.format(sql.Identifier(_name_inlined_deletes(table_id)))
    with _mapped_dropped_table():
        return [row[0] for row in conn.execute(query, {"since": since})]


SELECT_DELETE_FILES = """
SELECT delete_file_id, data_file_id, begin_snapshot, end_snapshot, path, coalesce(path_is_relative, true) AS path_is_relative,
       format, delete_count, file_size_bytes
  FROM ducklake_delete_file
 WHERE table_id = %(table_id)s AND data_file_id = ANY(%(data_file_ids)s)
 ORDER BY begin_snapshot, delete_file_id
"""

SELECT_COLUMNS = """
SELECT column_id, begin_snapshot, end_snapshot, column_order, column_name, column_type, initial_default, default_value,
       default_value_type,
       coalesce(nulls_allowed, true) AS nulls_allowed, parent_column
  FROM ducklake_column
 WHERE table_id = %(table_id)s
 ORDER BY begin_snapshot, column_order, column_id
"""

SELECT_COLUMN_TAGS = """
SELECT column_id, begin_snapshot, end_snapshot, value
  FROM ducklake_column_tag
 WHERE table_id = %(table_id)s AND key = 'comment'
 ORDER BY begin_snapshot, column_id
"""

SELECT_PARTITIONS = """
SELECT i.partition_id, i.begin_snapshot, i.end_snapshot, c.partition_key_index, c.column_id, c.transform,
       ARRAY(SELECT DISTINCT lower(k.column_type) FROM ducklake_column k
              WHERE k.table_id = i.table_id AND k.column_id = c.column_id ORDER BY 1) AS column_types
  FROM ducklake_partition_info i
  -- RESET PARTITIONED BY leaves a partition without columns.
  LEFT JOIN ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
 WHERE i.table_id = %(table_id)s
 ORDER BY i.begin_snapshot, i.partition_id, c.partition_key_index
"""

SELECT_NAME_MAPPINGS = """
WITH mapping AS (
    SELECT m.mapping_id,
           EXISTS (SELECT FROM ducklake_data_file f WHERE f.table_id = m.table_id AND f.mapping_id = m.mapping_id
                    UNION ALL
                   SELECT FROM iceberg_merged_file f WHERE f.table_id = m.table_id AND f.mapping_id = m.mapping_id) AS has_files
      FROM ducklake_column_mapping m
     WHERE m.table_id = %(table_id)s
)
SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.parent_column,
       coalesce(n.is_partition, false) AS is_partition, m.has_files
  FROM mapping m JOIN ducklake_name_mapping n ON n.mapping_id = m.mapping_id
 -- A mapping stays when its files are gone; retained snapshots may still have such files.
 WHERE m.has_files OR EXISTS (SELECT FROM iceberg_kept k WHERE k.table_id = %(table_id)s)
 ORDER BY n.mapping_id, n.column_id
"""

SELECT_SORT_KEYS = """
SELECT e.expression, e.sort_direction, e.null_order
  FROM ducklake_sort_info i JOIN ducklake_sort_expression e ON e.sort_id = i.sort_id AND e.table_id = i.table_id
 WHERE i.table_id = %(table_id)s AND i.end_snapshot IS NULL
 ORDER BY e.sort_key_index
"""

SELECT_OLDEST_SNAPSHOT = """
SELECT snapshot_id, least('9999-01-01Z', greatest('1970-01-01Z', snapshot_time)) AS snapshot_time, NULL AS changes_made
  FROM ducklake_snapshot
 WHERE snapshot_id = (SELECT min(snapshot_id) FROM ducklake_snapshot)
"""


SELECT_SNAPSHOTS = "".join(
    (
        """
SELECT c.snapshot_id, s.snapshot_time, c.changes_made
  FROM (""",
        TOKENS_SINCE.format(since="%(since)s::bigint", tokens="tokens"),
        """) c
       -- LATERAL instead of a join: without statistics the planner might scan all lake snapshots for each row.
 CROSS JOIN LATERAL (SELECT least('9999-01-01Z', greatest('1970-01-01Z', s.snapshot_time)) AS snapshot_time
                       FROM ducklake_snapshot s WHERE s.snapshot_id = c.snapshot_id OFFSET 0) s
 ORDER BY c.snapshot_id
""",
    )
)

SELECT_SNAPSHOTS_BY_ID = """
SELECT s.snapshot_id, least('9999-01-01Z', greatest('1970-01-01Z', s.snapshot_time)) AS snapshot_time, c.changes_made
  FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
 WHERE s.snapshot_id = ANY(%(ids)s)
"""


def _read_snapshots(conn: psycopg.Connection, recent: QueryResults, event_ids: set[int], since: int) -> list[SnapshotRow]:
    """Return the unexpired lake snapshots after `since` that changed the table, by their tokens or by the table's rows."""
    rows = {row.snapshot_id: row for row in recent.rows(SnapshotRow, SELECT_SNAPSHOTS, snapshot_time=datetime.fromisoformat)}
    unnamed = sorted(event_id for event_id in event_ids - rows.keys() if event_id > since)
    if unnamed:
        rows |= {row.snapshot_id: row for row in fetch_rows(conn, SnapshotRow, SELECT_SNAPSHOTS_BY_ID, ids=unnamed)}
    return [rows[snapshot_id] for snapshot_id in sorted(rows)]


RECENT_QUERIES = (SELECT_SNAPSHOTS, SELECT_SNAPSHOT_NOTES, SELECT_ALIASES, SELECT_CHANGED_AT, SELECT_AFFECTED_FILES)


def format_table_tokens(table_id: int) -> dict[str, list[str]]:
    """Return the change tokens of a table for the queries: of its rows, of any change, of any change except its drop."""
    return {
        "tokens": format_tokens(table_id, DATA_KINDS),
        "any_tokens": format_tokens(table_id, TABLE_KINDS),
        # A table that was dropped and restored has not changed.
        "living_tokens": format_tokens(table_id, TABLE_KINDS - {"dropped_table"}),
    }


def collect_snapshot_ids(
    spans: Iterable[FileSpan],
    delete_files: Iterable[DeleteFileRow],
    inlined_tables: Iterable[InlinedTable],
    inlined_deletes: Iterable[InlinedDeleteRow],
) -> set[int]:
    """Return the lake snapshots at which a row of the table begins or ends."""
    ids = {row.begin_snapshot for row in chain(spans, delete_files, inlined_deletes)}
    ids |= {row.end_snapshot for row in chain(spans, delete_files) if row.end_snapshot is not None}
    for table in inlined_tables:
        ids |= set(_list_row_snapshots(table.rows))
    return ids


def _list_row_snapshots(rows: Sequence[tuple[object, ...]]) -> Iterator[int]:
    for row in rows:
        for snapshot_id in row[1:3]:
            if isinstance(snapshot_id, int):
                yield snapshot_id


SELECT_INLINED_TABLES = """
SELECT coalesce(i.table_name, 'NULL') AS name, i.schema_version AS version,
       -- The columns are those of the table's first snapshot with this schema version.
       (SELECT min(v.begin_snapshot) FROM ducklake_schema_versions v
         WHERE v.table_id = i.table_id AND v.schema_version = i.schema_version) AS begin
  FROM ducklake_inlined_data_tables i
 WHERE i.table_id = %(table_id)s
 ORDER BY i.schema_version
"""


SELECT_INLINED_ROWS = sql.SQL("""
SELECT i.*
  -- The names of the first three columns depend on the version of DuckLake. These are reserved in every version.
  FROM {table} AS i(_ducklake_internal_row_id, _ducklake_internal_snapshot_id, "_DUCKLAKE_INTERNAL_SNAPSHOT_ID")
 -- Read whole batches: a row's index in its batch is its position in the derived file.
 WHERE i._ducklake_internal_snapshot_id IN (
       SELECT b._ducklake_internal_snapshot_id
         FROM {table} AS b(_ducklake_internal_row_id, _ducklake_internal_snapshot_id, "_DUCKLAKE_INTERNAL_SNAPSHOT_ID")
        WHERE b._ducklake_internal_snapshot_id > %(since)s OR b."_DUCKLAKE_INTERNAL_SNAPSHOT_ID" > %(since)s)
 ORDER BY i._ducklake_internal_row_id, i._ducklake_internal_snapshot_id
""")


def _read_inlined_tables(conn: psycopg.Connection, results: QueryResults, since: int) -> list[InlinedTable]:
    """Return the inlined rows by row id, deleted ones too: all rows of each lake snapshot with a change after `since`."""
    tables: list[InlinedTable] = []
    for row in results.rows_by_query[SELECT_INLINED_TABLES]:
        version, begin = row["version"], row["begin"]
        rows, columns = _read_inlined_rows(conn, row["name"], since)
        if rows:
            # DuckDB's first insert into a table that a client created may register a schema version of its own.
            tables.append(InlinedTable(version, min(_list_row_snapshots(rows)) if begin is None else begin, rows, columns))
    return tables


def _read_inlined_rows(conn: psycopg.Connection, name: str, since: int) -> tuple[list[tuple[object, ...]], list[str]]:
    query = SELECT_INLINED_ROWS.format(table=sql.Identifier(name))
    with conn.cursor() as cursor:
        for type_name in ("time", "timetz", "interval"):
            # Python's types have no 24:00:00 and no months in an interval.
            cursor.adapters.register_loader(type_name, TextLoader)
        with _mapped_dropped_table():
            rows = cursor.execute(query, {"since": since}).fetchall()
        return rows, [column.name for column in (cursor.description or ())[3:]]


@contextmanager
def _mapped_dropped_table() -> Generator[None]:
    """Turn a missing table into TableVanished: Postgres shows catalogs and DROPs outside of the transaction's snapshot."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise TableVanished("DuckLake dropped a table of inlined rows or deletes while it was being read; try again.") from error


SELECT_HAS_INLINED_DELETES = """
SELECT to_regclass(%(name)s) IS NOT NULL
"""

SELECT_INLINED_DELETES = sql.SQL("""
SELECT file_id, row_id, begin_snapshot FROM {} WHERE file_id = ANY(%(data_file_ids)s) ORDER BY 1, 2, 3
""")


def read_inlined_deletes(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[InlinedDeleteRow]:
    """Return all inlined deletes of some data files; DuckLake creates their table with the first one."""
    row = conn.execute(SELECT_HAS_INLINED_DELETES, {"name": _name_inlined_deletes(table_id)}).fetchone()
    return _read_inlined_deletes(conn, table_id, data_file_ids) if row is not None and row[0] else []


def _read_inlined_deletes(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[InlinedDeleteRow]:
    query = SELECT_INLINED_DELETES.format(sql.Identifier(_name_inlined_deletes(table_id)))
    with _mapped_dropped_table():
        return [InlinedDeleteRow(*row) for row in conn.execute(query, {"data_file_ids": list(data_file_ids)})]


def _name_inlined_deletes(table_id: int) -> str:
    return f"ducklake_inlined_delete_{table_id}"


STATE_QUERIES = (
    SELECT_HEAD,
    SELECT_NEXT_ROW_ID,
    SELECT_DATA_PATH,
    SELECT_ICEBERG_PATH,
    SELECT_RESTORED_MAX,
    SELECT_TAGS,
    SELECT_OLDEST_SNAPSHOT,
    SELECT_COLUMNS,
    SELECT_COLUMN_TAGS,
    SELECT_PARTITIONS,
    SELECT_SORT_KEYS,
    SELECT_NAME_MAPPINGS,
    SELECT_PARTIAL_FILES,
    SELECT_MERGED_PARTIAL_FILES,
    SELECT_SCHEMA_VERSIONS,
    SELECT_HISTORY_ID,
    SELECT_INLINED_TABLES,
    SELECT_HAS_INLINED_DELETES,
    *NOTE_QUERIES,
)
