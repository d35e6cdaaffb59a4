"""Spark as a second writer: a step of a history in Spark SQL, its rows by data frames."""

from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from tests.differential.clients.values import to_arrow, to_schema
from tests.differential.generator import predicates
from tests.differential.generator.definitions import (
    AddColumn,
    CreateNamespace,
    DropColumn,
    DropTable,
    PromoteColumn,
    RenameColumn,
    RenameTable,
    SetComment,
    SetRequired,
)
from tests.differential.generator.kinds import Column, Kind, Listing, Mapping, Scalar, Struct, format_iceberg_type
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.nested import AddField, DropField, Path, PromoteField, RenameField, walk_names
from tests.differential.generator.operations import Cells, Delete, Insert, Merge, Truncate, Update
from tests.differential.generator.steps import Operation, Step
from tests.support.readers import SparkReader

OfRows = Insert | Delete | Truncate | Update | Merge
OfColumns = AddColumn | DropColumn | RenameColumn | PromoteColumn | SetRequired | SetComment
OfFields = AddField | DropField | RenameField | PromoteField
TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}


@dataclass(frozen=True, slots=True)
class SparkWriter:
    """A Spark session that knows the catalog."""

    reader: SparkReader

    def commit(self, step: Step, lake: Lake) -> None:
        """Commit a step to the lake it starts from; Spark has no transactions, so each operation is one."""
        (operation,) = step.operations
        self.reader.spark.session.sql(self.format(operation, lake))

    def format(self, operation: Operation, lake: Lake) -> str:
        """The operation as Spark SQL; its rows are in the view `source`."""
        match operation:
            case CreateNamespace(name):
                return f"CREATE NAMESPACE {self.reader.catalog}.{quote(name)}"
            case DropTable(table_id):
                return f"DROP TABLE {self.name(lake.tables[table_id])}"
            case RenameTable(table_id, name):
                table = lake.tables[table_id]
                return f"ALTER TABLE {self.name(table)} RENAME TO {quote(table.namespace)}.{quote(name)}"
            case Insert() | Delete() | Truncate() | Update() | Merge():
                return self.format_rows(operation, lake.tables[operation.table_id])
            case AddColumn() | DropColumn() | RenameColumn() | PromoteColumn() | SetRequired() | SetComment():
                table = lake.tables[operation.table_id]
                return f"ALTER TABLE {self.name(table)} {format_column_change(operation, table)}"
            case AddField() | DropField() | RenameField() | PromoteField():
                table = lake.tables[operation.table_id]
                return f"ALTER TABLE {self.name(table)} {format_field_change(operation, table)}"
            case _:
                raise AssertionError(f"Spark has no word for {operation}")

    def name(self, table: Table) -> str:
        return f"{self.reader.catalog}.{quote(table.namespace)}.{quote(table.name)}"

    def format_rows(self, operation: OfRows, table: Table) -> str:
        name = self.name(table)
        match operation:
            case Insert(_, rows):
                self.show(table, rows)
                # Another client may have moved columns, which changes Spark's order of them and not DuckLake's.
                columns = ", ".join(quote(column.name) for column in table.columns)
                return f"INSERT INTO {name} ({columns}) SELECT * FROM source"
            case Delete(_, predicate):
                return f"DELETE FROM {name} AS t WHERE {format_condition(predicate, table)}"
            case Truncate():
                return f"TRUNCATE TABLE {name}"
            case Update(_, predicate, cells):
                self.show(table, (cells,))
                changes = format_assignments(table, [column_id for column_id, _ in cells])
                where = format_condition(predicate, table)
                return f"MERGE INTO {name} AS t USING source AS s ON {where} WHEN MATCHED THEN UPDATE SET {changes}"
            case Merge(_, source, updates, deletes_matched, inserts_unmatched):
                self.show(table, source)
                key = quote(predicates.key_column(table).name)
                lines = [f"MERGE INTO {name} AS t USING source AS s ON t.{key} = s.{key}"]
                if deletes_matched:
                    lines.append("WHEN MATCHED THEN DELETE")
                elif updates:
                    lines.append(f"WHEN MATCHED THEN UPDATE SET {format_assignments(table, updates)}")
                return " ".join((*lines, *(["WHEN NOT MATCHED THEN INSERT *"] if inserts_unmatched else [])))
            case _:
                assert_never(operation)

    def show(self, table: Table, rows: tuple[Cells, ...]) -> None:
        """Make rows known as the view `source`."""
        shown = to_arrow(table.columns, (dict(row) for row in rows), to_schema(table.columns))
        plain = pa.schema([field.remove_metadata().with_nullable(True) for field in shown.schema])
        session = self.reader.spark.session
        types = ", ".join(f"{quote(column.name)} {format_type(column.kind)}" for column in table.columns)
        session.createDataFrame(shown.cast(plain), types).createOrReplaceTempView("source")


def quote(name: str) -> str:
    """An identifier as Spark writes it."""
    return f"`{name.replace('`', '``')}`"


def format_type(kind: Kind) -> str:
    """A type in Spark's words."""
    match kind:
        case Scalar():
            name = format_iceberg_type(kind)
            return TYPES.get(name, name)
        case Struct(fields):
            return f"struct<{', '.join(f'{quote(part.name)}: {format_type(part.kind)}' for part in fields)}>"
        case Listing(element):
            return f"array<{format_type(element)}>"
        case Mapping(key, value):
            return f"map<{format_type(key)}, {format_type(value)}>"


def format_condition(predicate: predicates.Predicate, table: Table) -> str:
    """Which rows of `t` are meant."""
    key = f"t.{quote(predicates.key_column(table).name)}"
    match predicate:
        case predicates.Everything():
            return "true"
        case predicates.KeyIn(keys):
            return f"{key} IN ({', '.join(map(str, keys))})"
        case predicates.KeyModulo(divisor, remainder):
            return f"{key} % {divisor} = {remainder}"
        case predicates.IsNull(column_id, negated):
            return f"t.{quote(table.column(column_id).name)} IS {'NOT ' if negated else ''}NULL"
        case _:
            assert_never(predicate)


def format_assignments(table: Table, column_ids: list[int] | tuple[int, ...]) -> str:
    """`t.a = s.a, …`"""
    names = [quote(table.column(column_id).name) for column_id in column_ids]
    return ", ".join(f"t.{name} = s.{name}" for name in names)


def format_column_change(operation: OfColumns, table: Table) -> str:
    """What ALTER TABLE says of a column."""
    match operation:
        case AddColumn(_, column):
            return f"ADD COLUMN {format_definition((column.name,), column)}"
        case DropColumn(_, column_id):
            return f"DROP COLUMN {quote(table.column(column_id).name)}"
        case RenameColumn(_, column_id, name):
            return f"RENAME COLUMN {quote(table.column(column_id).name)} TO {quote(name)}"
        case PromoteColumn(_, column_id, type_name):
            return f"ALTER COLUMN {quote(table.column(column_id).name)} TYPE {format_type(Scalar(type_name))}"
        case SetRequired(_, column_id):
            return f"ALTER COLUMN {quote(table.column(column_id).name)} DROP NOT NULL"
        case SetComment(_, column_id, comment):
            assert column_id is not None and comment is not None
            text = comment.replace("\\", "\\\\").replace("'", "\\'")
            return f"ALTER COLUMN {quote(table.column(column_id).name)} COMMENT '{text}'"
        case _:
            assert_never(operation)


def format_field_change(operation: OfFields, table: Table) -> str:
    """What ALTER TABLE says of a field within structs."""
    match operation:
        case AddField(_, path, field):
            return f"ADD COLUMN {format_definition((*_walk(table, path), field.name), field)}"
        case DropField(_, path, field_id):
            return f"DROP COLUMN {_format_path(_walk(table, (*path, field_id)))}"
        case RenameField(_, path, field_id, name):
            return f"RENAME COLUMN {_format_path(_walk(table, (*path, field_id)))} TO {quote(name)}"
        case PromoteField(_, path, field_id, type_name):
            return f"ALTER COLUMN {_format_path(_walk(table, (*path, field_id)))} TYPE {format_type(Scalar(type_name))}"
        case _:
            assert_never(operation)


def format_definition(path: tuple[str, ...], column: Column) -> str:
    """A column or field to be added."""
    return f"{_format_path(path)} {format_type(column.kind)}"


def _walk(table: Table, path: Path) -> tuple[str, ...]:
    return tuple(walk_names(table, path))


def _format_path(path: tuple[str, ...]) -> str:
    return ".".join(map(quote, path))
