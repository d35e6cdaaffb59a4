"""Draws of what PyIceberg does to rows, alone or in a transaction."""

from hypothesis import strategies as st

from tests.differential.clients.operations import Overwrite
from tests.differential.generator import schemas
from tests.differential.generator.draw import rows
from tests.differential.generator.draw.tables import Draw, draw_rng, draw_table
from tests.differential.generator.kinds import Scalar
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.operations import Delete, Insert
from tests.differential.generator.predicates import Everything, IsNull, KeyIn, KeyModulo, Predicate, key_column
from tests.differential.generator.steps import Operation


def can_write(table: Table) -> bool:
    """PyArrow cannot group rows by uuids, so PyIceberg cannot write to such partitions."""
    return all(table.column(key.column_id).kind != Scalar("uuid") for key in table.shown_partitioning)


def draw_append(draw: Draw, lake: Lake) -> Operation | None:
    """Rows added."""
    table = draw_table(draw, lake)
    return draw_insert(draw, lake, table) if can_write(table) else None


def draw_insert(draw: Draw, lake: Lake, table: Table, most: int = 20) -> Insert:
    """Up to so many rows for a table."""
    return Insert(table.table_id, schemas.draw_rows(table, draw(st.integers(1, most)), draw_rng(draw, lake)))


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
    """Rows deleted, which PyIceberg does by writing files again."""
    table = draw_table(draw, lake)
    return Delete(table.table_id, draw_filter(draw, table)) if can_write(table) else None


def draw_overwrite(draw: Draw, lake: Lake) -> Operation | None:
    """Rows deleted and others added."""
    table = draw_table(draw, lake)
    if not can_write(table):
        return None
    added = schemas.draw_rows(table, draw(st.integers(1, 8)), draw_rng(draw, lake))
    return Overwrite(table.table_id, draw_filter(draw, table), added)
