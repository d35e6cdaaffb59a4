"""The rows by which two members of a repository differ, read by DuckDB for `duckicelake branch diff --rows`, and for REST.

`commands.branches` calls it, in the command's process or in that of `commands.diff_process`. Both members are attached read-only to a
DuckDB of this process, each at the snapshot that the difference was read at; it reads Postgres, and the store with the lake's own keys.
Only files and tables of inlined rows that differ are read, with all their rows: rows that both sides have cancel each other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from math import isfinite
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection

from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings
from duckicelake.embedded.ducklake import ATTACHED_VERSION, LakeAddress, connect_duckdb, format_attach, format_secret, quote, quote_name
from duckicelake.embedded.home import Home
from duckicelake.errors import ServiceUnavailable, Unsupported
from duckicelake.lake.branches.diff import Diff, DiffColumn, ObjectChange, Row, RowChanges, RowSource, RowSources

SessionOpener = Callable[[], DuckDBPyConnection]

TRIES = 3
MOVED = "files of it were compacted meanwhile"
OLD, NEW = "old_side", "new_side"
NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE")
PLAIN = {"BOOLEAN", "VARCHAR", *NUMBERS, *(f"U{name}" for name in NUMBERS)}
"""DuckDB's types whose values JSON has; other values are shown as DuckDB's text, nested ones as JSON."""
NESTED = ("STRUCT", "MAP", "UNION")


@dataclass(frozen=True, slots=True)
class AlignedColumn:
    """A column that is compared: as each side has it, None if only the other side has made it."""

    old: DiffColumn | None
    new: DiffColumn | None


def open_session(home: Home) -> DuckDBPyConnection:
    """Return a DuckDB session that uses as much memory and disk as DuckDB may."""
    return connect_duckdb(home.make_folder("extensions"))


def check_attachable(lake: LakeSettings, version: str) -> None:
    """Raise Unsupported if the installed DuckDB cannot attach a lake of that version of DuckLake."""
    if version != ATTACHED_VERSION:
        raise Unsupported(
            f"Lake {lake.name!r} has DuckLake {version}, which DuckDB {duckdb.__version__} cannot attach to compare rows: "
            "ask for the difference without rows."
        )


def add_rows(lake: LakeSettings, open_duckdb: SessionOpener, diff: Diff, found: tuple[RowSources, Callable[[], bool]], limit: int) -> Diff:
    """Return the difference with at most `limit` rows that were added, and as many deleted, for each table that has such rows.

    `found`: the tables to read, and what returns True if their files are still the same.
    Raises: ServiceUnavailable: maintenance replaced files all the time, DuckDB's memory does not suffice, or the store or Postgres did not
    answer. Unsupported: DuckDB cannot compare the rows of a table
    """
    sources, is_current = found
    address = lake.postgres_dsn.get_secret_value()
    reason = MOVED
    for _ in range(TRIES):
        reason = MOVED
        with open_duckdb() as session:
            keys = find_s3_keys(lake)
            try:
                if keys is not None:
                    session.execute(format_secret(keys))
                for name, (schema, snapshot_id) in zip((OLD, NEW), sources.sides, strict=True):
                    session.execute(format_attach(LakeAddress(address, schema, read_only=True, snapshot_id=snapshot_id), name))
                tables = [_read_table(session, change, sources, limit) for change in diff.tables]
            except duckdb.OutOfMemoryException as error:
                raise ServiceUnavailable(f"Comparing the rows of lake {lake.name!r} needs more memory than DuckDB may use.") from error
            except duckdb.Error as error:
                reason = str(error).replace(address, "…")
                continue
            except Unsupported as error:
                if is_current():
                    raise Unsupported(error.message.replace(address, "…")) from error
                continue
        # A flush or compaction may have moved rows into files that were not listed.
        if is_current():
            return replace(diff, tables=tables)
    raise ServiceUnavailable(f"The rows of lake {lake.name!r} could not be compared: {reason}. Try again.")


def _read_table(session: DuckDBPyConnection, change: ObjectChange, sources: RowSources, limit: int) -> ObjectChange:
    try:
        return _add_table_rows(session, change, sources, limit)
    except (duckdb.IOException, duckdb.OutOfMemoryException):
        # The store or Postgres may answer another time, and memory has a message of its own.
        raise
    except duckdb.Error as error:
        raise Unsupported(f"The rows of table {change.name} could not be compared: {error}") from error


def _add_table_rows(session: DuckDBPyConnection, change: ObjectChange, sources: RowSources, limit: int) -> ObjectChange:
    old, new = (
        None if table_id is None else side.get(table_id) for table_id, side in zip(change.ids, (sources.old, sources.new), strict=True)
    )
    if old is None and new is None:
        return change
    if old is not None and new is not None and old.table_id != new.table_id:
        # The table was dropped, and another one has its name.
        added, deleted = (_compare(session, (None, new), limit, 1), _compare(session, (old, None), limit, -1))
    else:
        added, deleted = (_compare(session, (old, new), limit, sign) for sign in (1, -1))
    return replace(change, rows=RowChanges(added[:limit], deleted[:limit], len(added) > limit, len(deleted) > limit))


def _compare(session: DuckDBPyConnection, sides: tuple[RowSource | None, RowSource | None], limit: int, sign: int) -> list[Row]:
    """Return the rows that the new side has more often (`sign` 1), or the old side (-1): one more than `limit` if there are as many."""
    columns = align(*sides)
    if not columns:
        return []
    types = [_read_types(session, name, side) for name, side in zip((OLD, NEW), sides, strict=True)]
    as_json = [_is_compared_as_json(column, types) for column in columns]
    is_whole = _hides_files(sides)
    parts = [
        _format_side((name, weight, place), side, columns, (types, as_json)) + ("" if is_whole else _format_files(side))
        for place, (name, weight, side) in enumerate(zip((OLD, NEW), (-1, 1), sides, strict=True))
        if side is not None
    ]
    listed = ", ".join(f"c{number}" for number in range(len(columns)))
    # Names are quoted, and all else is ours.
    differing = f"SELECT {listed}, sum(side) * {sign} AS times FROM ({' UNION ALL '.join(parts)}) GROUP BY ALL HAVING times > 0"  # noqa: S608
    kinds = [str(kind) for _, kind, *_ in session.execute(f"DESCRIBE {differing}").fetchall()[:-1]]
    shown = ", ".join(_format_shown(f"c{number}", kind) for number, kind in enumerate(kinds))
    found = session.execute(f"SELECT times, {shown} FROM ({differing}) ORDER BY {listed} LIMIT {limit + 1}").fetchall()  # noqa: S608
    readers = [_read_json if is_json or _is_nested(kind) else _to_json for is_json, kind in zip(as_json, kinds, strict=True)]
    named = [(column.new if sign > 0 else column.old) for column in columns]
    rows: list[Row] = []
    for times, *values in found:
        row = {each.name: read(value) for each, read, value in zip(named, readers, values, strict=True) if each is not None}
        rows += [row] * min(int(times), limit + 1 - len(rows))
    return rows


def align(old: RowSource | None, new: RowSource | None) -> list[AlignedColumn]:
    """Return the columns to compare: those of both sides, and those that one side has made; a column that one side dropped is left out."""
    if old is None or new is None:
        return [AlignedColumn(each, None) for each in (old.columns if old else ())] + [
            AlignedColumn(None, each) for each in (new.columns if new else ())
        ]
    partners = {id(each): next((other for other in old.columns if _is_same(other, each)), None) for each in new.columns}
    paired = {id(other) for other in partners.values() if other is not None}
    aligned = [AlignedColumn(partners[id(each)], each) for each in new.columns if partners[id(each)] or not _has_had(old, each)]
    return aligned + [AlignedColumn(each, None) for each in old.columns if id(each) not in paired and not _has_had(new, each)]


def _is_same(old: DiffColumn, new: DiffColumn) -> bool:
    """Return True if a column is the same. Columns that both sides made may have one id, and were made at other snapshots."""
    return old.column_id == new.column_id and (old.name.lower() == new.name.lower() or not old.begins.isdisjoint(new.begins))


def _has_had(side: RowSource, column: DiffColumn) -> bool:
    return not side.former.get(column.column_id, frozenset()).isdisjoint(column.begins)


def _read_types(session: DuckDBPyConnection, catalog: str, side: RowSource | None) -> Mapping[str, str]:
    if side is None:
        return {}
    return {name: str(kind) for name, kind, *_ in session.execute(f"DESCRIBE {_format_table(catalog, side)}").fetchall()}


def _format_table(catalog: str, side: RowSource) -> str:
    return f"{catalog}.{quote_name(side.schema_name)}.{quote_name(side.table_name)}"


def _is_nested(kind: str) -> bool:
    return kind.startswith(NESTED) or kind.endswith("]")


def _is_compared_as_json(column: AlignedColumn, types: Sequence[Mapping[str, str]]) -> bool:
    """Return True for a nested column whose type has changed: DuckDB would match renamed fields by their names, and fail."""
    kinds = {types[place][each.name] for place, each in enumerate((column.old, column.new)) if each is not None}
    return len(kinds) > 1 and any(map(_is_nested, kinds))


def _format_side(
    place: tuple[str, int, int],
    side: RowSource,
    columns: Sequence[AlignedColumn],
    forms: tuple[Sequence[Mapping[str, str]], Sequence[bool]],
) -> str:
    (catalog, weight, number), (types, as_json) = place, forms
    values = list[str]()
    for column, is_json in zip(columns, as_json, strict=True):
        own, other = (column.old, column.new) if number == 0 else (column.new, column.old)
        value = quote_name(own.name) if own is not None else _format_default(other, types[1 - number])
        values.append(f"CAST(to_json({value}) AS VARCHAR)" if is_json else value)
    listed = ", ".join(f"{value} AS c{count}" for count, value in enumerate(values))
    return f"SELECT {listed}, {weight} AS side FROM {_format_table(catalog, side)}"  # noqa: S608  names are quoted


def _format_default(column: DiffColumn | None, types: Mapping[str, str]) -> str:
    """Return what a side that does not have a column would show in it: the value for rows that are older than the column."""
    assert column is not None
    value = "NULL" if column.initial_default is None else quote(column.initial_default)
    return f"CAST({value} AS {types[column.name]})"


def _hides_files(sides: Sequence[RowSource | None]) -> bool:
    """Return True if a column of either side hides DuckLake's `filename`. Both are read whole then: equal rows must cancel each other."""
    return any(column.name.lower() == "filename" for side in sides if side is not None for column in side.columns)


def _format_files(side: RowSource) -> str:
    """Return the condition by which DuckLake reads only files that differ."""
    return f" WHERE filename IN ({', '.join(map(quote, side.files))})" if side.files else " WHERE false"


def _format_shown(name: str, kind: str) -> str:
    if _is_nested(kind):
        return f"CAST(to_json({name}) AS VARCHAR)"
    return name if kind in PLAIN else f"CAST({name} AS VARCHAR)"


def _read_json(text: str | None) -> Any:
    return None if text is None else _to_json(json.loads(text, parse_float=_read_float))


def _read_float(text: str) -> float | str:
    """Return a number, or its text if a double cannot hold it, as that of a decimal."""
    value = float(text)
    return value if isfinite(value) and Decimal(repr(value)) == Decimal(text) else text


def _to_json(value: Any) -> Any:
    """Return a value as JSON has it, which knows no infinity."""
    match value:
        case float():
            return value if isfinite(value) else str(value)
        case dict():
            return {str(key): _to_json(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list():
            return [_to_json(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def format_rows(rows: RowChanges) -> list[str]:
    """Return a line for each row, and one that says if there are more."""
    lines = [f"    {sign} {json.dumps(row, ensure_ascii=False)}" for sign, row in chain(_sign("-", rows.deleted), _sign("+", rows.added))]
    more = [what for what, has_more in (("deleted", rows.has_more_deleted), ("added", rows.has_more_added)) if has_more]
    return [*lines, *([f"    more rows were {' and '.join(more)}: a greater --rows shows them"] if more else ())]


def _sign(sign: str, rows: Sequence[Row]) -> list[tuple[str, Row]]:
    return [(sign, row) for row in rows]
