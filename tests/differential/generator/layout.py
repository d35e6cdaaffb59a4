"""How DuckDB may lay out a table's rows: inlining, partitioning, sorting, and the form of deletes."""

from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Scalar, quote
from tests.differential.generator.literals import format_literal
from tests.differential.generator.model import Lake, PartitionKey, SortKey, Table


@dataclass(frozen=True, slots=True)
class SetInlining:
    """The table's inlining limit; makes no lake snapshot."""

    table_id: int
    row_count: int

    def sql(self, lake: Lake) -> str:
        return format_option(lake.tables[self.table_id], "data_inlining_row_limit", str(self.row_count))

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        kept = None if self.row_count else table.inlined_columns or table.columns
        return lake.with_table(replace(table, inlined_rows=self.row_count, inlined_columns=kept))


@dataclass(frozen=True, slots=True)
class SetDeletionVectors:
    """Deletes of one table are written as deletion vectors from now on, or as Parquet again; makes no lake snapshot."""

    table_id: int
    wanted: bool

    def sql(self, lake: Lake) -> str:
        return format_option(lake.tables[self.table_id], "write_deletion_vectors", str(self.wanted).lower())

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], has_vectors=True))


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """ALTER TABLE … SET PARTITIONED BY, or RESET when there are no keys; files written before stay as they are."""

    table_id: int
    keys: tuple[PartitionKey, ...]

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        if not self.keys:
            return f"ALTER TABLE {table.sql_name} RESET PARTITIONED BY"
        return f"ALTER TABLE {table.sql_name} SET PARTITIONED BY ({', '.join(_format_key(table, key) for key in self.keys)})"

    def apply(self, lake: Lake) -> Lake:
        # Undone, it leaves the table unpartitioned for clients too, whatever they said before.
        return lake.with_table(replace(lake.tables[self.table_id], partitioning=self.keys, told_partitioning=()))


@dataclass(frozen=True, slots=True)
class SetSorting:
    """ALTER TABLE … SET SORTED BY, or RESET when there are no keys."""

    table_id: int
    keys: tuple[SortKey, ...]

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        if not self.keys:
            return f"ALTER TABLE {table.sql_name} RESET SORTED BY"
        return f"ALTER TABLE {table.sql_name} SET SORTED BY ({', '.join(_format_sort_key(table, key) for key in self.keys)})"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], sorting=self.keys))


def format_option(table: Table, name: str, value: str) -> str:
    """An option of one table."""
    names = f"schema => {_text(table.namespace)}, table_name => {_text(table.name)}"
    return f"CALL lake.set_option('{name}', {value}, {names})"


def _format_key(table: Table, key: PartitionKey) -> str:
    name = quote(table.column(key.column_id).name)
    if key.transform == "identity":
        return name
    if key.transform.startswith("bucket("):
        return f"bucket({key.transform.removeprefix('bucket(').removesuffix(')')}, {name})"
    return f"{key.transform}({name})"


def _format_sort_key(table: Table, key: SortKey) -> str:
    direction, nulls = "DESC" if key.descending else "ASC", "FIRST" if key.nulls_first else "LAST"
    return f"{quote(table.column(key.column_id).name)} {direction} NULLS {nulls}"


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
