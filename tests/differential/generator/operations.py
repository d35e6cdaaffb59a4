"""What DuckDB can do to rows: each operation as SQL, and as a change of the model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Column, Value, quote
from tests.differential.generator.literals import format_literal
from tests.differential.generator.model import Lake, Row, Table
from tests.differential.generator.predicates import Predicate, format_where, holds, key_column

Cells = tuple[tuple[int, Value], ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT … VALUES; up to the inlining limit the rows stay in Postgres, above it they become a file.

    Columns `left_out` are not named in it, and get their defaults. Where a client has moved one, others have them in another order.
    """

    table_id: int
    rows: tuple[Cells, ...]
    left_out: frozenset[int] = frozenset()

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        columns = [column for column in table.columns if column.column_id not in self.left_out]
        names = f" ({', '.join(quote(column.name) for column in columns)})" if self.left_out or table.times_moved else ""
        return f"INSERT INTO {table.sql_name}{names} VALUES {', '.join(_format_row(columns, dict(row)) for row in self.rows)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        defaults = {column.column_id: column.default for column in table.columns if column.column_id in self.left_out}
        return lake.add_rows(table, ({**dict(row), **defaults} for row in self.rows))


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        return f"TRUNCATE {lake.tables[self.table_id].sql_name}"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], rows=()))


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE of some rows or all."""

    table_id: int
    predicate: Predicate

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        return f"DELETE FROM {table.sql_name}{format_where(self.predicate, table)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        kept = tuple(row for row in table.rows if not holds(self.predicate, table, row))
        return lake.with_table(replace(table, rows=kept))


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE of some rows, setting columns to constants."""

    table_id: int
    predicate: Predicate
    cells: Cells

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        changes = ", ".join(
            f"{quote(table.column(key).name)} = {format_literal(table.column(key).kind, value)}" for key, value in self.cells
        )
        return f"UPDATE {table.sql_name} SET {changes}{format_where(self.predicate, table)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        changes = {row.version: dict(self.cells) for row in table.rows if holds(self.predicate, table, row)}
        return _change_rows(lake, table, changes)


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE by key: a source row that matches updates (or deletes) the rows with its key, another is inserted."""

    table_id: int
    source: tuple[Cells, ...]
    updates: tuple[int, ...]
    deletes_matched: bool
    inserts_unmatched: bool

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        names = [quote(f"s{column.column_id}") for column in table.columns]
        rows = ", ".join(_format_row(table.columns, dict(row)) for row in self.source)
        key = key_column(table)
        lines = [
            f"MERGE INTO {table.sql_name} AS t USING (VALUES {rows}) AS s({', '.join(names)}) ON t.{quote(key.name)} = s.s{key.column_id}"
        ]
        if self.deletes_matched:
            lines.append("WHEN MATCHED THEN DELETE")
        elif self.updates:
            changes = ", ".join(f"{quote(table.column(column_id).name)} = s.s{column_id}" for column_id in self.updates)
            lines.append(f"WHEN MATCHED THEN UPDATE SET {changes}")
        if self.inserts_unmatched:
            places = f" ({', '.join(quote(column.name) for column in table.columns)})" if table.times_moved else ""
            lines.append(f"WHEN NOT MATCHED THEN INSERT{places} VALUES ({', '.join(f's.{name}' for name in names)})")
        return " ".join(lines)

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        key_id = key_column(table).column_id
        source = {dict(row)[key_id]: dict(row) for row in self.source}
        present = {row.values[key_id] for row in table.rows}
        if self.deletes_matched:
            kept = tuple(row for row in table.rows if row.values[key_id] not in source)
            lake = lake.with_table(replace(table, rows=kept))
        elif self.updates:
            lake = _change_rows(lake, table, _merge_changes(table, source, self.updates))
        if self.inserts_unmatched:
            lake = lake.add_rows(lake.tables[self.table_id], (row for key, row in source.items() if key not in present))
        return lake


def _merge_changes(
    table: Table, source: Mapping[Value, Mapping[int, Value]], updates: tuple[int, ...]
) -> Mapping[int, Mapping[int, Value]]:
    key_id = key_column(table).column_id
    matched = (row for row in table.rows if row.values[key_id] in source)
    return {row.version: {column_id: source[row.values[key_id]].get(column_id) for column_id in updates} for row in matched}


def _change_rows(lake: Lake, table: Table, changes: Mapping[int, Mapping[int, Value]]) -> Lake:
    """Rows by version get new cells and a new version; the others stay."""
    version, rows = lake.next_version, list[Row]()
    seen_null = set(table.seen_null)
    for row in table.rows:
        cells = changes.get(row.version)
        if cells is None:
            rows.append(row)
            continue
        rows.append(Row(version, {**row.values, **cells}))
        seen_null.update(column_id for column_id, value in cells.items() if value is None)
        version += 1
    changed = replace(table, rows=tuple(rows), seen_null=frozenset(seen_null))
    return replace(lake.with_table(changed), next_version=version)


def _format_row(columns: Iterable[Column], cells: Mapping[int, Value]) -> str:
    return f"({', '.join(format_literal(column.kind, cells.get(column.column_id)) for column in columns)})"
