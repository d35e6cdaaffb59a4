"""Draws of steps by Spark 4.1 with Iceberg 1.11: one statement each."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.differential.clients.draws.pyiceberg import (
    draw_client_column,
    draw_client_drop,
    draw_client_field,
    draw_client_promotion,
    draw_doc,
    draw_optional,
)
from tests.differential.clients.draws.rows import draw_insert
from tests.differential.clients.shape_operations import ChangeProperties
from tests.differential.generator.definitions import SPARK_USER, CreateNamespace
from tests.differential.generator.draw import columns, rows, tables
from tests.differential.generator.draw.tables import Draw, draw_table
from tests.differential.generator.model import Lake
from tests.differential.generator.steps import Operation, Step

SPARK = "Spark"
Maker = Callable[[Draw, Lake], Operation | None]
MODES = ("copy-on-write", "merge-on-read")


def draw_spark_steps(draw: Draw, lake: Lake, _: Sequence[Step]) -> list[Step]:
    """One statement."""
    shape = draw(st.integers(0, 9))
    operation = draw(st.sampled_from(_NAMES if shape == 0 else _COLUMNS if shape < 3 else _ROWS))(draw, lake)
    by = "PyIceberg" if isinstance(operation, ChangeProperties) else SPARK
    return [] if operation is None else [Step((operation,), by=by)]


def _draw_append(draw: Draw, lake: Lake) -> Operation | None:
    return draw_insert(draw, lake, draw_table(draw, lake))


def _draw_mode(draw: Draw, lake: Lake) -> Operation | None:
    """How Spark writes its changes of rows from now on."""
    table, mode = draw_table(draw, lake), draw(st.sampled_from(MODES))
    return ChangeProperties(table.table_id, tuple((f"write.{kind}.mode", mode) for kind in ("delete", "update", "merge")), None)


def _draw_namespace(draw: Draw, lake: Lake) -> Operation | None:
    """A namespace made, whose owner is Spark's user."""
    operation = tables.draw_namespace(draw, lake)
    return replace(operation, owner=SPARK_USER) if isinstance(operation, CreateNamespace) else operation


_ROWS: tuple[Maker, ...] = (_draw_append, _draw_append, rows.draw_delete, rows.draw_update, rows.draw_merge, rows.draw_merge, _draw_mode)
_COLUMNS: tuple[Maker, ...] = (
    *(draw_client_column, draw_client_field, draw_client_promotion, draw_optional, draw_doc),
    *(draw_client_drop, columns.draw_rename_column, columns.draw_drop_field, columns.draw_rename_field),
)
_NAMES: tuple[Maker, ...] = (_draw_namespace, tables.draw_rename_table, tables.draw_drop_table)
