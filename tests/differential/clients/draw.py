"""Draws of steps by PyIceberg: what it has words for, on tables that it can write."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from tests.differential.clients.operations import Overwrite
from tests.differential.generator import schemas
from tests.differential.generator.definitions import AddColumn, CreateTable, PromoteColumn, SetComment, SetRequired
from tests.differential.generator.draw import columns, rows, tables
from tests.differential.generator.draw.tables import Draw, can_be_written, draw_rng, draw_table, without_default
from tests.differential.generator.kinds import SCALARS, Scalar, format_iceberg_type
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.nested import PromoteField, find_field
from tests.differential.generator.operations import Delete, Insert
from tests.differential.generator.predicates import Everything, IsNull, KeyIn, KeyModulo, Predicate, key_column
from tests.differential.generator.steps import Operation, Step

PYICEBERG = "PyIceberg"
CLIENT_SCALARS = tuple(
    name
    for name in SCALARS
    if name not in ("int128", "uint128", "timetz", "timestamp_ns")
    and name not in ("int8", "int16", "uint8", "uint16", "uint32", "timestamp_s", "timestamp_ms")
)
"""Types of columns that Iceberg clients may append to, and that are not widened when they do."""

Maker = Callable[[Draw, Lake], Operation | None]


def draw_client_steps(draw: Draw, lake: Lake) -> list[Step]:
    """One commit by PyIceberg: of one operation, or a transaction of several on one table: columns first, then rows."""
    if draw(st.integers(0, 7)) == 0:
        operation = draw(st.sampled_from(_NAMES))(draw, lake)
        return [] if operation is None else [Step((operation,), by=PYICEBERG)]
    table = draw_table(draw, lake)
    operations: list[Operation] = []
    changes, writes = draw(st.sampled_from(((0, 1), (0, 1), (0, 2), (0, 3), (1, 0), (1, 0), (2, 0), (1, 1))))
    for makers in (_COLUMNS,) * changes + (_ROWS,) * writes:
        operation = draw(st.sampled_from(makers))(draw, only(lake, table.table_id))
        if operation is not None:
            operations.append(operation)
            lake = operation.apply(lake)
    return [Step(tuple(operations), by=PYICEBERG)] if operations else []


def only(lake: Lake, table_id: int) -> Lake:
    """The lake with nothing but one table, for draws that choose one."""
    return replace(lake, tables={table_id: lake.tables[table_id]})


def can_write(table: Table) -> bool:
    """PyArrow cannot group rows by uuids, so PyIceberg cannot write to such partitions."""
    return all(table.column(key.column_id).kind != Scalar("uuid") for key in table.partitioning)


def draw_append(draw: Draw, lake: Lake) -> Operation | None:
    """Rows added."""
    table = draw_table(draw, lake)
    if not can_write(table):
        return None
    return Insert(table.table_id, schemas.draw_rows(table, draw(st.integers(1, 20)), draw_rng(draw, lake)))


def draw_filter(draw: Draw, table: Table) -> Predicate:
    """Which rows are meant. Iceberg has no modulo; PyIceberg 0.12 takes a dot in a name for a path, and keeps NaN with NULL."""
    predicate = rows.draw_predicate(draw, table)
    if isinstance(predicate, IsNull):
        column = table.column(predicate.column_id)
        if "." not in column.name and column.kind not in (Scalar("float32"), Scalar("float64")):
            return predicate
    key = key_column(table)
    if isinstance(predicate, KeyIn) and "." not in key.name:
        return predicate
    divisor = predicate.divisor if isinstance(predicate, KeyModulo) else 2
    keys = sorted({row.values[key.column_id] for row in table.rows})[::divisor]
    return KeyIn(tuple(keys)) if keys and "." not in key.name else Everything()


def draw_client_delete(draw: Draw, lake: Lake) -> Operation | None:
    """Rows deleted, which PyIceberg does by writing files anew."""
    table = draw_table(draw, lake)
    return Delete(table.table_id, draw_filter(draw, table)) if can_write(table) else None


def draw_overwrite(draw: Draw, lake: Lake) -> Operation | None:
    """Rows deleted and others added."""
    table = draw_table(draw, lake)
    if not can_write(table):
        return None
    added = schemas.draw_rows(table, draw(st.integers(1, 8)), draw_rng(draw, lake))
    return Overwrite(table.table_id, draw_filter(draw, table), added)


def draw_client_column(draw: Draw, lake: Lake) -> Operation | None:
    """A nullable column added."""
    table = draw_table(draw, lake)
    column = schemas.draw_column(draw_rng(draw, lake), CLIENT_SCALARS, table)
    return AddColumn(table.table_id, without_default(column)) if column is not None and can_be_written(column) else None


def draw_client_field(draw: Draw, lake: Lake) -> Operation | None:
    """A field added to a struct."""
    return columns.draw_add_field(draw, lake)


def draw_client_promotion(draw: Draw, lake: Lake) -> Operation | None:
    """A wider type, where it is one to Iceberg."""
    operation = draw(st.sampled_from((columns.draw_promote, columns.draw_promote_field)))(draw, lake)
    if isinstance(operation, PromoteColumn):
        kind = lake.tables[operation.table_id].column(operation.column_id).kind
    elif isinstance(operation, PromoteField):
        kind = find_field(lake.tables[operation.table_id], operation.path, operation.field_id)
    else:
        return None
    is_wider = operation.type_name in CLIENT_SCALARS and format_iceberg_type(kind) != format_iceberg_type(Scalar(operation.type_name))
    return operation if is_wider else None


def draw_optional(draw: Draw, lake: Lake) -> Operation | None:
    """NOT NULL dropped."""
    operation = columns.draw_required(draw, lake)
    return operation if isinstance(operation, SetRequired) and not operation.required else None


def draw_doc(draw: Draw, lake: Lake) -> Operation | None:
    """A column's comment."""
    operation = tables.draw_comment(draw, lake)
    is_sayable = isinstance(operation, SetComment) and operation.column_id is not None and operation.comment is not None
    return operation if is_sayable else None


def draw_client_table(draw: Draw, lake: Lake) -> Operation | None:
    """A table made, empty."""
    if len(lake.tables) >= tables.MOST_TABLES:
        return None
    (step, *_) = tables.draw_new_table(draw, lake)
    (operation,) = step.operations
    return CreateTable(operation.namespace, operation.name, operation.columns)


_ROWS: tuple[Maker, ...] = (draw_append, draw_append, draw_client_delete, draw_client_delete, draw_overwrite)
_COLUMNS: tuple[Maker, ...] = (
    *(draw_client_column, draw_client_field, draw_client_promotion, draw_optional, draw_doc),
    *(columns.draw_drop_column, columns.draw_rename_column, columns.draw_drop_field, columns.draw_rename_field),
)
_NAMES: tuple[Maker, ...] = (tables.draw_namespace, draw_client_table, tables.draw_rename_table, tables.draw_drop_table)
