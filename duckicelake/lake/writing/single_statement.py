"""One statement that writes a commit of appends or property changes (`read_back.SIMPLE_ROWS`) and assigns the metadata version.

`catalog.commits.write` executes it in the commit's transaction, under the lake's lock, when it can predict the table's next state.
All rows belong to one table. The rows of each kind are one JSON parameter, and so is the audit context. No part of the statement
needs to see the effects of another part: Postgres runs all parts on one snapshot.
psycopg caches the parsed form of statements below 4,096 characters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from json import JSONEncoder
from operator import attrgetter
from typing import LiteralString

from duckicelake.lake.audit_log import INSERT_DONE, encode_contexts
from duckicelake.lake.changes import format_changes
from duckicelake.lake.notes import ASSIGN_NEXT_VERSION
from duckicelake.lake.writing.read_back import SIMPLE_ROWS
from duckicelake.lake.writing.rows import EndedTag, LakeStep, NewRow, NewTag
from duckicelake.lake.writing.transaction import Commit
from duckicelake.lake.writing.waiting_sessions import WAITING_AS_JSON

MOST_ROWS = 500
"""For more rows, the arrays of separate statements need less memory than JSON."""

WRITE_SNAPSHOT = """
made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    VALUES (%(snapshot_id)s, %(snapshot_time)s, %(schema_version)s, %(next_catalog_id)s, %(next_file_id)s)
),
changes AS (
    INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (%(snapshot_id)s, %(changes_made)s)
),
"""

WRITE_TAGS = """
ended_tags AS (
    UPDATE ducklake_tag t SET end_snapshot = %(snapshot_id)s
      FROM json_to_recordset(%(EndedTag)s::json) AS n(object_id bigint, key text)
     WHERE t.object_id = n.object_id AND t.key = n.key AND t.end_snapshot IS NULL AND t.object_id = %(table_id)s
),
new_tags AS (
    INSERT INTO ducklake_tag (begin_snapshot, object_id, key, value)
    SELECT %(snapshot_id)s, n.* FROM json_to_recordset(%(NewTag)s::json) AS n(object_id bigint, key text, value text)
),
"""

WRITE_NEW_FILES = """
new_files AS (
    INSERT INTO ducklake_data_file (begin_snapshot, path_is_relative, file_format, data_file_id, table_id, path, record_count,
      file_size_bytes, row_id_start)
    SELECT %(snapshot_id)s, false, 'parquet', n.* FROM json_to_recordset(%(NewDataFile)s::json)
      AS n(data_file_id bigint, table_id bigint, path text, record_count bigint, file_size_bytes bigint, row_id_start bigint)
),
new_stats AS (
    INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count,
      min_value, max_value, contains_nan)
    SELECT n.* FROM json_to_recordset(%(NewColumnStats)s::json)
      AS n(data_file_id bigint, table_id bigint, column_id bigint, column_size_bytes bigint, value_count bigint,
      null_count bigint, min_value text, max_value text, contains_nan boolean)
),
counted AS (
    UPDATE ducklake_table_stats s
      SET record_count = s.record_count + n.record_count, next_row_id = s.next_row_id + n.record_count,
      file_size_bytes = s.file_size_bytes + n.file_size_bytes
      FROM json_to_recordset(%(AddedRows)s::json) AS n(table_id bigint, record_count bigint, file_size_bytes bigint)
     WHERE s.table_id = n.table_id AND s.table_id = %(table_id)s
 RETURNING s.table_id
),
first_stats AS (
    INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
    SELECT n.table_id, n.record_count, n.record_count, n.file_size_bytes
      FROM json_to_recordset(%(AddedRows)s::json) AS n(table_id bigint, record_count bigint, file_size_bytes bigint)
     -- The table has no unique key.
     WHERE NOT EXISTS (SELECT FROM counted c WHERE c.table_id = n.table_id)
),
removed_bounds AS (
    DELETE FROM ducklake_table_column_stats
     WHERE table_id IN (SELECT n.table_id FROM json_to_recordset(%(RemovedTableBounds)s::json) AS n(table_id bigint))
),
notes AS (
    INSERT INTO iceberg_snapshot (lake_snapshot_id, table_id, commit_snapshot_id, client_snapshot_id, schema_id, summary)
    SELECT %(snapshot_id)s, n.* FROM json_to_recordset(%(NewSnapshotNote)s::json)
      AS n(table_id bigint, commit_snapshot_id bigint, client_snapshot_id bigint, schema_id integer, summary text)
),
file_notes AS (
    INSERT INTO iceberg_file (table_id, data_file_id, spec_id, partition, sort_order_id, split_offsets)
    SELECT n.* FROM json_to_recordset(%(NewFileNote)s::json)
      AS n(table_id bigint, data_file_id bigint, spec_id integer, partition text, sort_order_id integer, split_offsets text)
),
"""

WRITE_AUDIT_LINE = "".join(("line AS (", INSERT_DONE, "),"))


def minify(*parts: LiteralString) -> LiteralString:
    """Return a statement without comments and spaces; psycopg does not cache the parsed form of one above 4,096 characters."""
    lines: list[LiteralString] = "".join(parts).split("\n")
    stripped: list[LiteralString] = [line.strip().replace(", ", ",") for line in lines]
    return "\n".join([line for line in stripped if not line.startswith("--")])


END = f"{WRITE_AUDIT_LINE}{ASSIGN_NEXT_VERSION} RETURNING {WAITING_AS_JSON}"
WRITE_PROPERTIES = minify("WITH", WRITE_SNAPSHOT, WRITE_TAGS, END)
WRITE_FILES = minify("WITH", WRITE_SNAPSHOT, WRITE_NEW_FILES, END)
WRITE_BOTH = minify("WITH", WRITE_SNAPSHOT, WRITE_TAGS, WRITE_NEW_FILES, END)
TAGS = frozenset({NewTag, EndedTag})
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
NO_DOCUMENTS: Mapping[str, str | None] = {kind.__name__: None for kind in SIMPLE_ROWS}


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of the statement: `is_numbered`: the state got its metadata version; `has_waiting_session`: DuckDB is about to commit."""

    is_numbered: bool
    has_waiting_session: bool


def write_single_statement(commit: Commit, step: LakeStep, time: datetime, version: Mapping[str, object]) -> StatementResult:
    """Write a simple step as the next lake snapshot, with the metadata version of the state after it.

    `version` are the parameters of a `NextVersion`
    """
    parameters: dict[str, object] = {
        **_to_documents(step),
        "snapshot_id": commit.head.snapshot_id + 1,
        "snapshot_time": time,
        "schema_version": commit.head.schema_version + step.changes_catalog,
        "next_catalog_id": step.next_catalog_id,
        "next_file_id": step.next_file_id,
        "changes_made": format_changes(step.changes),
        "made_snapshot_id": commit.head.snapshot_id + 1,
        "audit_context": encode_contexts(commit.audit_contexts),
        "recent_pids": commit.waiting_sessions.list_recent(),
    }
    row = commit.conn.execute(_choose_statement(step), parameters | dict(version)).fetchone()
    commit.add_log_lines(commit.head.snapshot_id + 1)
    return StatementResult(row is not None, row is not None and bool(commit.waiting_sessions.record(row[0])))


def _to_documents(step: LakeStep) -> dict[str, str | None]:
    """Return the rows of each kind as JSON; None for a kind without rows."""
    rows: dict[type[NewRow], list[NewRow]] = {}
    for row in step.rows:
        rows.setdefault(type(row), []).append(row)
    return {**NO_DOCUMENTS, **{kind.__name__: _to_document(kind, rows_of_kind) for kind, rows_of_kind in rows.items()}}


def _to_document(kind: type[NewRow], rows: Sequence[NewRow]) -> str:
    names = [field.name for field in fields(kind)]
    read = attrgetter(*names, names[0])
    return JSON.encode([dict(zip(names, read(row), strict=False)) for row in rows])


def _choose_statement(step: LakeStep) -> LiteralString:
    kinds = {type(row) for row in step.rows}
    if kinds <= TAGS:
        return WRITE_PROPERTIES
    return WRITE_FILES if kinds.isdisjoint(TAGS) else WRITE_BOTH
