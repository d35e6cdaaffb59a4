"""What DuckDB can do to tables and columns: each operation as SQL, and as a change of the model."""

from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Column, Scalar, format_sql_type, quote
from tests.differential.generator.literals import format_literal
from tests.differential.generator.model import Lake, PartitionKey, Table, count_ids


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """CREATE SCHEMA, DuckLake's word for a namespace."""

    name: str

    def sql(self, lake: Lake) -> str:
        return f"CREATE SCHEMA {quote(self.name)}"

    def apply(self, lake: Lake) -> Lake:
        return replace(lake, namespaces=(*lake.namespaces, self.name))


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE; the columns' ids are given by the generator, from 1."""

    namespace: str
    name: str
    columns: tuple[Column, ...]

    def sql(self, lake: Lake) -> str:
        columns = ", ".join(f"{_format_column(column)}{' NOT NULL' if column.required else ''}" for column in self.columns)
        return f"CREATE TABLE {quote(self.namespace)}.{quote(self.name)} ({columns})"

    def apply(self, lake: Lake) -> Lake:
        last = self.columns[-1]
        table = Table(lake.next_table_id, self.namespace, self.name, self.columns, next_column_id=last.column_id + count_ids(last.kind))
        return replace(lake.with_table(table), next_table_id=lake.next_table_id + 1)


@dataclass(frozen=True, slots=True)
class DropTable:
    """DROP TABLE."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        return f"DROP TABLE {lake.tables[self.table_id].sql_name}"

    def apply(self, lake: Lake) -> Lake:
        return lake.without_table(self.table_id)


@dataclass(frozen=True, slots=True)
class RenameTable:
    """ALTER TABLE … RENAME TO."""

    table_id: int
    name: str

    def sql(self, lake: Lake) -> str:
        return f"ALTER TABLE {lake.tables[self.table_id].sql_name} RENAME TO {quote(self.name)}"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], name=self.name))


@dataclass(frozen=True, slots=True)
class SetInlining:
    """The table's inlining limit; makes no lake snapshot."""

    table_id: int
    row_count: int

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        names = f"schema => {_text(table.namespace)}, table_name => {_text(table.name)}"
        return f"CALL lake.set_option('data_inlining_row_limit', {self.row_count}, {names})"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], inlined_rows=self.row_count))


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ALTER TABLE … ADD COLUMN without a default; older rows show NULL."""

    table_id: int
    column: Column

    def sql(self, lake: Lake) -> str:
        return f"ALTER TABLE {lake.tables[self.table_id].sql_name} ADD COLUMN {_format_column(self.column)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        added = self.column.column_id
        next_id = table.next_column_id + count_ids(self.column.kind)
        # DuckLake keeps no statistics of an added column, so it can never become NOT NULL.
        grown = replace(table, columns=(*table.columns, self.column), next_column_id=next_id, seen_null=table.seen_null | {added})
        return lake.with_table(grown)


@dataclass(frozen=True, slots=True)
class DropColumn:
    """ALTER TABLE … DROP COLUMN."""

    table_id: int
    column_id: int

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        return f"ALTER TABLE {table.sql_name} DROP COLUMN {quote(table.column(self.column_id).name)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        columns = tuple(column for column in table.columns if column.column_id != self.column_id)
        return lake.with_table(replace(table, columns=columns))


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """ALTER TABLE … RENAME COLUMN."""

    table_id: int
    column_id: int
    name: str

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        return f"ALTER TABLE {table.sql_name} RENAME COLUMN {quote(table.column(self.column_id).name)} TO {quote(self.name)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(table.with_column(replace(table.column(self.column_id), name=self.name)))


@dataclass(frozen=True, slots=True)
class PromoteColumn:
    """ALTER TABLE … ALTER COLUMN … TYPE, to a wider type that needs no new files."""

    table_id: int
    column_id: int
    type_name: str

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        name, type_name = quote(table.column(self.column_id).name), format_sql_type(Scalar(self.type_name))
        return f"ALTER TABLE {table.sql_name} ALTER COLUMN {name} TYPE {type_name}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(table.with_column(replace(table.column(self.column_id), kind=Scalar(self.type_name))))


@dataclass(frozen=True, slots=True)
class SetRequired:
    """ALTER COLUMN … SET or DROP NOT NULL."""

    table_id: int
    column_id: int
    required: bool

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        name, verb = quote(table.column(self.column_id).name), "SET" if self.required else "DROP"
        return f"ALTER TABLE {table.sql_name} ALTER COLUMN {name} {verb} NOT NULL"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(table.with_column(replace(table.column(self.column_id), required=self.required)))


@dataclass(frozen=True, slots=True)
class SetComment:
    """COMMENT ON a table, or on one of its columns."""

    table_id: int
    column_id: int | None
    comment: str | None

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        text = "NULL" if self.comment is None else _text(self.comment)
        if self.column_id is None:
            return f"COMMENT ON TABLE {table.sql_name} IS {text}"
        return f"COMMENT ON COLUMN {table.sql_name}.{quote(table.column(self.column_id).name)} IS {text}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        if self.column_id is None:
            return lake.with_table(replace(table, comment=self.comment))
        return lake.with_table(table.with_column(replace(table.column(self.column_id), comment=self.comment)))


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
        table = lake.tables[self.table_id]
        seen = table.seen_key | {key.column_id for key in self.keys}
        return lake.with_table(replace(table, partitioning=self.keys, seen_key=seen))


def _format_key(table: Table, key: PartitionKey) -> str:
    name = quote(table.column(key.column_id).name)
    if key.transform == "identity":
        return name
    if key.transform.startswith("bucket("):
        return f"bucket({key.transform.removeprefix('bucket(').removesuffix(')')}, {name})"
    return f"{key.transform}({name})"


def _format_column(column: Column) -> str:
    return f"{quote(column.name)} {format_sql_type(column.kind)}"


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
