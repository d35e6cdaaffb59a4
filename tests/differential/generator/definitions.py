"""What DuckDB can do to tables and columns: each operation as SQL, and as a change of the model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tests.differential.generator.kinds import Column, Scalar, Value, format_sql_type, quote
from tests.differential.generator.literals import format_default, format_literal, format_query
from tests.differential.generator.model import Lake, Table, count_ids

SPARK_USER = "(the user of Spark's session)"
"""Stands for a name that only the session knows."""


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """CREATE SCHEMA, DuckLake's word for a namespace; Spark names an owner."""

    name: str
    owner: str | None = None

    def sql(self, lake: Lake) -> str:
        return f"CREATE SCHEMA {quote(self.name)}"

    def apply(self, lake: Lake) -> Lake:
        told = {} if self.owner is None else {self.name: {"owner": self.owner}}
        return replace(lake, namespaces=(*lake.namespaces, self.name), namespace_properties={**lake.namespace_properties, **told})


@dataclass(frozen=True, slots=True)
class DropNamespace:
    """DROP SCHEMA … CASCADE: its tables go with it."""

    name: str

    def sql(self, lake: Lake) -> str:
        return f"DROP SCHEMA {quote(self.name)} CASCADE"

    def apply(self, lake: Lake) -> Lake:
        kept = {key: table for key, table in lake.tables.items() if table.namespace != self.name}
        names = tuple(name for name in lake.namespaces if name != self.name)
        properties = {name: told for name, told in lake.namespace_properties.items() if name != self.name}
        return replace(lake, namespaces=names, namespace_properties=properties, tables=kept)


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE; the columns' ids are given by the generator, from 1. OR REPLACE drops the one of that name first."""

    namespace: str
    name: str
    columns: tuple[Column, ...]
    replaces: bool = False

    def sql(self, lake: Lake) -> str:
        columns = ", ".join(f"{format_column(column)}{' NOT NULL' if column.required else ''}" for column in self.columns)
        return f"{format_create(self.namespace, self.name, self.replaces)} ({columns})"

    def apply(self, lake: Lake) -> Lake:
        return make_table(lake, self.namespace, self.name, self.columns)


@dataclass(frozen=True, slots=True)
class CreateTableAs:
    """CREATE TABLE … AS: with rows from the start, and no NOT NULL; `table_id` is the one that the lake gives next."""

    table_id: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[int, Value], ...], ...]
    replaces: bool = False

    @property
    def table_rows(self) -> Iterable[Mapping[int, Value]]:
        return (dict(row) for row in self.rows)

    def sql(self, lake: Lake) -> str:
        return f"{format_create(self.namespace, self.name, self.replaces)} AS {format_query(self.columns, self.table_rows)}"

    def apply(self, lake: Lake) -> Lake:
        made = make_table(lake, self.namespace, self.name, self.columns)
        return made.add_rows(made.tables[self.table_id], self.table_rows)


def format_create(namespace: str, name: str, replaces: bool) -> str:
    """The start of a CREATE TABLE."""
    return f"CREATE {'OR REPLACE ' if replaces else ''}TABLE {quote(namespace)}.{quote(name)}"


def make_table(lake: Lake, namespace: str, name: str, columns: tuple[Column, ...]) -> Lake:
    """The lake with a new empty table, in the place of one of that name if there is one."""
    old = lake.find_table((namespace, name))
    kept = lake if old is None else lake.without_table(old.table_id)
    last = columns[-1]
    table = Table(lake.next_table_id, namespace, name, columns, next_column_id=last.column_id + count_ids(last.kind))
    return replace(kept.with_table(table), next_table_id=lake.next_table_id + 1)


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
class AddColumn:
    """ALTER TABLE … ADD COLUMN; older rows show its default, or NULL."""

    table_id: int
    column: Column

    def sql(self, lake: Lake) -> str:
        return f"ALTER TABLE {lake.tables[self.table_id].sql_name} ADD COLUMN {format_column(self.column)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        added = self.column.column_id
        next_id = table.next_column_id + count_ids(self.column.kind)
        # DuckLake keeps no statistics of an added column, so it can never become NOT NULL.
        grown = replace(table, columns=(*table.columns, self.column), next_column_id=next_id, seen_null=table.seen_null | {added})
        return lake.with_table(replace(grown, younger=table.younger | {added}) if table.has_had_rows else grown)


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
        place = table.columns.index(table.column(self.column_id))
        before, after = table.columns[:place], table.columns[place + 1 :]
        shifted = table.shifted | {column.column_id for column in after if table.has_had_rows}
        return lake.with_table(replace(table, columns=(*before, *after), shifted=shifted).changed_from(table.snapshot_shape))


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
        renamed = table.with_column(replace(table.column(self.column_id), name=self.name))
        return lake.with_table(renamed.changed_from(table.snapshot_shape))


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
        changed = table.with_column(replace(table.column(self.column_id), kind=Scalar(self.type_name)))
        return lake.with_table(replace(changed, retyped=table.retyped | {self.column_id}) if table.has_had_rows else changed)


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
        changed = table.with_column(replace(table.column(self.column_id), required=self.required))
        # A column that may be NULL identifies no row any more.
        identifier = table.identifier if self.required else table.identifier - {self.column_id}
        return lake.with_table(replace(changed, identifier=identifier))


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
class SetDefault:
    """ALTER COLUMN … SET or DROP DEFAULT; rows that are there stay as they are."""

    table_id: int
    column_id: int
    value: Value

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        column = table.column(self.column_id)
        alter = f"ALTER TABLE {table.sql_name} ALTER COLUMN {quote(column.name)}"
        if self.value is None:
            return f"{alter} DROP DEFAULT"
        assert isinstance(column.kind, Scalar)
        return f"{alter} SET DEFAULT {format_default(column.kind.name, self.value)}"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(table.with_column(replace(table.column(self.column_id), default=self.value)))


def format_column(column: Column) -> str:
    """A column in DDL: name, type and default; one that older files would not show is written as an expression."""
    definition = f"{quote(column.name)} {format_sql_type(column.kind)}"
    if not isinstance(column.kind, Scalar) or column.default is None:
        return definition
    if column.initial is None:
        return f"{definition} DEFAULT {format_literal(column.kind, column.default)}"
    return f"{definition} DEFAULT {format_default(column.kind.name, column.default)}"


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
