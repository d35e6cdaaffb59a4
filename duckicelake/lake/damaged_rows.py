"""Checks for damaged rows of a table. Damaged rows must not become invalid metadata or hide other tables: the table is refused by name.

`lake.read_table` checks the rows that a load, a commit or `duckicelake check` reads. `lake.writing.read_back` checks the files that a
commit adds or is about to add, in the commit's transaction. `lake.inspect` has further checks for `duckicelake check`. No I/O.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from duckicelake.errors import Damaged
from duckicelake.lake.rows import ColumnRow, DeleteFileRow, FileSpan, InlinedTable, TableRow, TableState

FILE_NUMBERS = ("record_count", "file_size_bytes")
REQUIRED_FIELDS: Mapping[str, Sequence[str]] = {
    "columns": ("column_id", "begin_snapshot", "column_order", "column_name", "column_type"),
    "column_tags": ("column_id", "begin_snapshot"),
    "partitions": ("partition_id", "begin_snapshot"),
    "sort_keys": ("expression", "sort_direction", "null_order"),
    "name_mappings": ("column_id", "source_name", "target_field_id"),
    "partial_files": ("path", *FILE_NUMBERS),
    "delete_files": ("data_file_id", "path"),
}
"""The fields that must not be NULL in the rows of each part of a state."""

NAME_BYTES = 60
"""Postgres keeps 63 bytes of a name, fewer if a letter would be split."""

DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
CHILDREN: Mapping[str, int] = {"list": 1, "map": 2}


def check_table(table: TableRow, spans: Sequence[FileSpan], deletes: Sequence[DeleteFileRow], inlined: Sequence[InlinedTable]) -> None:
    """Check that the rows of a table and its files have valid begin snapshots and row counts.

    Raises: Damaged: names the table and the row
    """
    if _is_missing(table, "table_uuid"):
        raise _build_error(table, "it has no table_uuid")
    for span in () if _are_complete(spans) else spans:
        if _is_invalid(span.begin_snapshot) or _is_invalid(span.record_count) or span.data_file_id < 0:
            raise _build_error(table, f"data file {span.data_file_id} has no begin_snapshot or no record_count, or a negative one")
    for row in deletes:
        if _is_invalid(row.begin_snapshot):
            raise _build_error(table, f"delete file {row.delete_file_id} has no begin_snapshot")
    for rows in inlined:
        if _is_invalid(rows.schema_version) or any(_is_invalid(number) for row in rows.rows for number in row[:2]):
            raise _build_error(table, "rows inlined in its metadata have no schema version, no row id or no begin_snapshot")


def check_state(state: TableState) -> None:
    """Check that the rows of a table have all required fields, and that its columns form a tree.

    Raises: Damaged: names the table and the row
    """
    for part, names in REQUIRED_FIELDS.items():
        for row in getattr(state, part):
            for name in names:
                if _is_missing(row, name) or (name in FILE_NUMBERS and _is_invalid(getattr(row, name))):
                    raise _build_error(state.table, f"a row of its {part.replace('_', ' ')} has no {name}")
    problems = (*list_column_problems(state.columns), *(_find_column_mismatch(inlined, state.columns) for inlined in state.inlined_tables))
    for problem in problems:
        if problem is not None:
            raise _build_error(state.table, problem)


def list_column_problems(columns: Sequence[ColumnRow]) -> Iterator[str]:
    """Yield the reasons why the columns are not one tree at every lake snapshot, or why the live ones are incomplete."""
    ends: dict[int, int | None] = {}
    for row in sorted(columns, key=lambda row: (row.begin_snapshot, row.end_snapshot is None, row.end_snapshot or 0)):
        before = ends.get(row.column_id, row.begin_snapshot)
        if before is None or before > row.begin_snapshot:
            yield f"column {row.column_id} has two rows at one lake snapshot"
        ends[row.column_id] = row.end_snapshot
    children: dict[int | None, list[ColumnRow]] = {}
    for row in columns:
        if row.end_snapshot is None:
            children.setdefault(row.parent_column, []).append(row)
    if not children.get(None):
        yield "it has no columns"
    reached = {row.column_id for row in _list_reachable(children)}
    for row in (row for siblings in children.values() for row in siblings):
        if row.column_id not in reached:
            yield f"column {row.column_id} ({row.column_name!r}) lies below {row.parent_column}, which is no column of the table"
        decimal = DECIMAL.fullmatch(row.column_type.lower())
        if decimal and not (1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1])):
            yield f"column {row.column_id} ({row.column_name!r}) has the type {row.column_type!r}, which no decimal has"
        child_count, kind = len(children.get(row.column_id, ())), row.column_type.lower()
        if (kind == "struct" and child_count == 0) or (kind in CHILDREN and child_count != CHILDREN[kind]):
            yield f"column {row.column_id} ({row.column_name!r}) is a {kind} with {child_count} children"


def _find_column_mismatch(inlined: InlinedTable, columns: Sequence[ColumnRow]) -> str | None:
    """Return the problem if the columns of inlined rows differ from the table's, or None; inlined values are matched by position."""
    if inlined.column_names is None:
        return None
    snapshot_id = inlined.begin_snapshot
    live = [
        row
        for row in columns
        if row.parent_column is None and row.begin_snapshot <= snapshot_id and (row.end_snapshot is None or snapshot_id < row.end_snapshot)
    ]
    expected = [_truncate_name(row.column_name) for row in sorted(live, key=lambda row: (row.column_order, row.column_id))]
    if expected == [_truncate_name(name) for name in inlined.column_names]:
        return None
    return f"its columns at lake snapshot {snapshot_id} are not those of its inlined rows (schema version {inlined.schema_version})"


def _truncate_name(name: str) -> bytes:
    """Return a name as Postgres and DuckLake shorten it in an inlined table, in lower case."""
    return name.encode("utf-8", "replace")[:NAME_BYTES].lower()


def _list_reachable(children: Mapping[int | None, Sequence[ColumnRow]]) -> Iterable[ColumnRow]:
    pending = list(children.get(None, ()))
    reachable: list[ColumnRow] = []
    while pending:
        row = pending.pop()
        reachable.append(row)
        pending += children.get(row.column_id, ())
    return reachable


def _are_complete(spans: Sequence[FileSpan]) -> bool:
    """Return True if every file has its numbers. Checked column by column, because a table may have a million files."""
    if not spans:
        return True
    try:
        return all(min(map(attrgetter(name), spans)) >= 0 for name in ("data_file_id", "begin_snapshot", "record_count"))
    except TypeError:
        return False


def _is_missing(row: object, name: str) -> bool:
    return getattr(row, name) is None


def _is_invalid(number: object) -> bool:
    return not isinstance(number, int) or number < 0


def _build_error(table: TableRow, problem: str) -> Damaged:
    name = f"{table.schema_name}.{table.table_name}"
    return Damaged(f"The metadata of table {name} is damaged: {problem}. Correct it in Postgres; `duckicelake check` says more.")
