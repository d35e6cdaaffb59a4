"""Draws of steps by PyIceberg: what it has words for, on tables that it can write."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.differential.clients.draws.alone import ALONE, OF_REFS
from tests.differential.clients.draws.rows import draw_append, draw_client_delete, draw_overwrite
from tests.differential.clients.draws.whole import (
    draw_client_table,
    draw_emptied_namespace,
    draw_identifier,
    draw_move_column,
    draw_move_table,
    draw_namespace_properties,
    draw_purge,
    draw_table_with_rows,
    draw_take_back,
    draw_view,
)
from tests.differential.generator import schemas
from tests.differential.generator.definitions import AddColumn, DropColumn, PromoteColumn, SetComment, SetRequired
from tests.differential.generator.draw import columns, tables
from tests.differential.generator.draw.tables import Draw, can_be_written, draw_rng, draw_table, without_default
from tests.differential.generator.kinds import NARROW, SCALARS, Scalar, format_iceberg_type
from tests.differential.generator.model import Lake
from tests.differential.generator.nested import PromoteField, find_field
from tests.differential.generator.steps import Operation, Step

PYICEBERG = "PyIceberg"
APPENDABLE_SCALARS = tuple(name for name in SCALARS if name not in ("int128", "uint128", "timetz", "timestamp_ns"))
"""Types of columns that Iceberg clients may append to."""

CLIENT_SCALARS = tuple(name for name in APPENDABLE_SCALARS if name not in NARROW)
"""Types of columns that Iceberg clients make."""

Maker = Callable[[Draw, Lake], Operation | None]


def draw_client_steps(draw: Draw, lake: Lake, _: Sequence[Step]) -> list[Step]:
    """One commit by PyIceberg: of one operation, or a transaction of several on one table: columns first, then rows."""
    shape = draw(st.integers(0, 15))
    if shape < 9:
        has_refs = any(table.refs for table in lake.tables.values())
        makers = _NAMES if shape < 3 else OF_REFS if has_refs and shape < 7 else ALONE
        operation = draw(st.sampled_from(makers))(draw, lake)
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


def draw_client_column(draw: Draw, lake: Lake) -> Operation | None:
    """A nullable column added."""
    table = draw_table(draw, lake)
    # Spark reads every table, so the types of columns are those that all readers of the history have.
    types = [name for name in lake.column_types if name in CLIENT_SCALARS]
    column = schemas.draw_column(draw_rng(draw, lake), types, table)
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
    """NOT NULL dropped, but not of what identifies a row, nor where the column may be published as optional already."""
    operation = columns.draw_required(draw, lake)
    if not isinstance(operation, SetRequired) or operation.required:
        return None
    table = lake.tables[operation.table_id]
    return None if operation.column_id in table.identifier | table.unsure_columns else operation


def draw_doc(draw: Draw, lake: Lake) -> Operation | None:
    """A column's comment."""
    operation = tables.draw_comment(draw, lake)
    is_sayable = isinstance(operation, SetComment) and operation.column_id is not None and operation.comment is not None
    return operation if is_sayable else None


def draw_client_drop(draw: Draw, lake: Lake) -> Operation | None:
    """A column dropped by which no client partitions, sorts or identifies: the catalog holds a default to its columns."""
    operation = columns.draw_drop_column(draw, lake)
    if not isinstance(operation, DropColumn):
        return None
    table = lake.tables[operation.table_id]
    told = table.identifier | {key.column_id for key in (*table.told_partitioning, *table.told_sorting)}
    return None if operation.column_id in told else operation


_ROWS: tuple[Maker, ...] = (draw_append, draw_append, draw_client_delete, draw_client_delete, draw_overwrite)
_COLUMNS: tuple[Maker, ...] = (
    *(draw_client_column, draw_client_field, draw_client_promotion, draw_optional, draw_doc),
    *(draw_client_drop, columns.draw_rename_column, columns.draw_drop_field, columns.draw_rename_field),
    *(draw_identifier, draw_move_column),
)
_NAMES: tuple[Maker, ...] = (
    *(tables.draw_namespace, draw_client_table, draw_table_with_rows, tables.draw_rename_table, tables.draw_drop_table),
    *(draw_emptied_namespace, draw_namespace_properties, draw_move_table, draw_purge, draw_take_back, draw_take_back, draw_view),
)
