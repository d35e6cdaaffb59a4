"""What Iceberg clients do to rows that DuckDB has no single statement for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.differential.generator.added_files import list_paths
from tests.differential.generator.literals import make_plain
from tests.differential.generator.model import Lake, Row, Table
from tests.differential.generator.operations import Cells, Delete, Insert
from tests.differential.generator.predicates import Predicate, key_column


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Rows are deleted and others added in one commit: two snapshots, the first of them left out when no row was meant."""

    table_id: int
    predicate: Predicate
    rows: tuple[Cells, ...]

    @property
    def parts(self) -> tuple[Delete, Insert]:
        """What it is made of."""
        return Delete(self.table_id, self.predicate), Insert(self.table_id, self.rows)

    def sql(self, lake: Lake) -> str:
        return "; ".join(part.sql(lake) for part in self.parts)

    def apply(self, lake: Lake) -> Lake:
        for part in self.parts:
            lake = part.apply(lake)
        return lake


@dataclass(frozen=True, slots=True)
class DynamicOverwrite:
    """Rows are added, and every other row of the partitions that they come to is deleted."""

    table_id: int
    rows: tuple[Cells, ...]

    def sql(self, lake: Lake) -> str:
        return f"/* their partitions replaced by */ {Insert(self.table_id, self.rows).sql(lake)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        keys = [key.column_id for key in table.shown_partitioning]
        replaced = {tuple(dict(row).get(key) for key in keys) for row in self.rows}
        kept = tuple(row for row in table.rows if tuple(row.values.get(key) for key in keys) not in replaced)
        return Insert(self.table_id, self.rows).apply(lake.with_table(replace(table, rows=kept)))


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows take the place of those with their keys; the others are added. Rows that are there as they are stay."""

    table_id: int
    rows: tuple[Cells, ...]

    def sql(self, lake: Lake) -> str:
        return f"/* upserted by the first column: */ {Insert(self.table_id, self.rows).sql(lake)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        key_id = key_column(table).column_id
        present = {row.values[key_id]: row for row in table.rows}
        changed = [dict(row) for row in self.rows if not _is_same(table, dict(row), present.get(dict(row)[key_id]))]
        replaced = {row[key_id] for row in changed}
        kept = tuple(row for row in table.rows if row.values[key_id] not in replaced)
        return lake.add_rows(replace(table, rows=kept), changed)


def _is_same(table: Table, cells: Mapping[int, object], row: Row | None) -> bool:
    return row is not None and all(
        make_plain(column.kind, cells.get(column.column_id)) == make_plain(column.kind, row.values.get(column.column_id))
        for column in table.columns
    )


@dataclass(frozen=True, slots=True)
class AddWritten:
    """A Parquet file without field ids, written into the table's location, becomes one of the table's."""

    table_id: int
    rows: tuple[Cells, ...]

    def sql(self, lake: Lake) -> str:
        return f"/* as a file of their own: */ {Insert(self.table_id, self.rows).sql(lake)}"

    def apply(self, lake: Lake) -> Lake:
        lake = Insert(self.table_id, self.rows).apply(lake)
        table = lake.tables[self.table_id]
        return lake.with_table(replace(table, file_names={**table.file_names, **dict(list_paths(list(table.columns)))}))
