"""The log of a member of a repository: its lake snapshots, with what each did to which table; and the JSON of logs and differences.

`catalog.repositories` calls it in a read transaction on a worker thread, `commands.branches` on a connection with autocommit, where each
query sees the newest state. The JSON is the same over REST and on the command line; `merge` and `revert` describe their own results.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql

from duckicelake.lake.branches.diff import ColumnChange, Diff, ObjectChange, RowChanges, name_member
from duckicelake.lake.changes import INSERT_KINDS, REWRITE_KINDS, Change, parse_changes

MAX_ENTRIES = 1000
DELETE_KINDS = frozenset({"deleted_from_table", "inlined_delete"})
APPEND, DELETE, OVERWRITE, COMPACT = "append", "delete", "overwrite", "compact"
OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(INSERT_KINDS, APPEND),
    **dict.fromkeys(DELETE_KINDS, DELETE),
    **dict.fromkeys(REWRITE_KINDS, COMPACT),
    "altered_table": "alter",
    "altered_view": "alter",
}
"""The operation of each kind of change; other kinds begin with `created` or `dropped`."""


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """An operation of a lake snapshot on a table, view, namespace or macro, under the name it had then."""

    operation: str
    name: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One lake snapshot. `author` and `message` are what its writer said, if anything."""

    snapshot_id: int
    time: datetime | None
    author: str | None
    message: str | None
    operations: Sequence[LoggedOperation]


# Text of statements that name another schema than the search path's.
SELECT_LOG = sql.SQL("""
SELECT s.snapshot_id, s.snapshot_time, c.author, c.commit_message, c.changes_made
  FROM {member}.ducklake_snapshot s
  LEFT JOIN {member}.ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
 WHERE s.snapshot_id < %(before)s
 ORDER BY s.snapshot_id DESC
 LIMIT %(limit)s
""")

SELECT_NAMES = sql.SQL("""
SELECT t.table_id, t.begin_snapshot, {name} || '.' || t.table_name
  FROM {member}.ducklake_table t JOIN {member}.ducklake_schema s ON s.schema_id = t.schema_id WHERE t.table_id = ANY(%(ids)s)
 UNION ALL
SELECT v.view_id, v.begin_snapshot, {name} || '.' || v.view_name
  FROM {member}.ducklake_view v JOIN {member}.ducklake_schema s ON s.schema_id = v.schema_id WHERE v.view_id = ANY(%(ids)s)
 UNION ALL
SELECT s.schema_id, s.begin_snapshot, {name} FROM {member}.ducklake_schema s WHERE s.schema_id = ANY(%(ids)s)
 UNION ALL
SELECT macro_id, begin_snapshot, macro_name FROM {member}.ducklake_macro WHERE macro_id = ANY(%(ids)s)
 ORDER BY 1, 2
""")

NEWEST = (1 << 63) - 1


def read_log(conn: psycopg.Connection, member: str, limit: int, before: int = NEWEST) -> list[LogEntry]:
    """Return lake snapshots of a member, newest first, from before a snapshot on."""
    schema = sql.Identifier(member)
    rows = conn.execute(SELECT_LOG.format(member=schema), {"before": before, "limit": min(limit, MAX_ENTRIES)}).fetchall()
    parsed = {row[0]: list(parse_changes(row[4])) for row in rows}
    ids = sorted({int(each.value) for changes in parsed.values() for each in changes if each.value.isdecimal()})
    names: dict[int, list[tuple[int, str]]] = {}
    for object_id, begin, name in conn.execute(SELECT_NAMES.format(**name_member(member)), {"ids": ids}).fetchall():
        names.setdefault(object_id, []).append((begin, name))
    return [LogEntry(*row[:4], operations=list_operations(parsed[row[0]], names, row[0])) for row in rows]


def list_operations(changes: Iterable[Change], names: Mapping[int, Sequence[tuple[int, str]]], snapshot_id: int) -> list[LoggedOperation]:
    """Return the operations of one lake snapshot, by object; an append and a delete of one table are an overwrite."""
    found: dict[str, list[str]] = {}
    for change in changes:
        is_id = change.value.isdecimal()
        name = _get_name(names.get(int(change.value), ()), change.value, snapshot_id) if is_id else _unquote(change.value)
        operation = OPERATIONS.get(change.kind, "create" if change.kind.startswith("created") else "drop")
        if operation not in found.setdefault(name, []):
            found[name].append(operation)
    return [LoggedOperation(operation, name) for name, operations in found.items() for operation in _merge(operations)]


def _merge(operations: Sequence[str]) -> list[str]:
    both = {APPEND, DELETE}
    return [OVERWRITE, *(each for each in operations if each not in both)] if both <= set(operations) else list(operations)


def _get_name(names: Sequence[tuple[int, str]], value: str, snapshot_id: int) -> str:
    """Return the name that an object has as of a snapshot; its id if its rows have expired."""
    known = [name for begin, name in names if begin <= snapshot_id] or [name for _, name in names]
    return known[-1] if known else f"#{value}"


def _unquote(value: str) -> str:
    return ".".join(part.replace('""', '"') for part in value.strip('"').split('"."'))


Document = dict[str, Any]


def describe_entry(entry: LogEntry) -> Document:
    """Return a lake snapshot of a log."""
    return {
        "snapshot-id": entry.snapshot_id,
        "time": None if entry.time is None else format_time(entry.time),
        "author": entry.author,
        "message": entry.message,
        "operations": [{"operation": each.operation, "object": each.name} for each in entry.operations],
    }


def format_time(time: datetime) -> str:
    """Return a time in UTC as text."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def describe_diff(diff: Diff) -> Document:
    """Return a difference, with the keys that say something."""
    return {
        "namespaces": [describe_change(each) for each in diff.namespaces],
        "tables": [describe_change(each) for each in diff.tables],
        "views": [describe_change(each) for each in diff.views],
    }


def describe_change(change: ObjectChange | ColumnChange) -> Document:
    """Return one change without the values that are empty."""
    named: Mapping[str, Any] = {each.name: getattr(change, each.name) for each in fields(change) if each.name != "ids"}
    shown = {key.replace("_", "-"): value for key, value in named.items() if value not in (None, 0, (), [])}
    if isinstance(change, ObjectChange) and change.columns:
        shown["columns"] = [describe_change(each) for each in change.columns]
    if isinstance(change, ObjectChange) and change.rows is not None:
        shown["rows"] = describe_rows(change.rows)
    return shown


def describe_rows(rows: RowChanges) -> Document:
    """Return the rows of a table that were added and deleted."""
    return {
        "added": list(rows.added),
        "deleted": list(rows.deleted),
        "more-added": rows.has_more_added,
        "more-deleted": rows.has_more_deleted,
    }
