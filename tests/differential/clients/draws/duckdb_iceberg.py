"""Draws of steps by DuckDB's iceberg extension 1.5.5: DuckDB's statements, where it has them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.differential.clients.draws.pyiceberg import draw_client_column, draw_client_drop, draw_client_promotion, only
from tests.differential.clients.draws.whole import draw_client_table
from tests.differential.clients.shape_operations import TellPartitioning
from tests.differential.generator.definitions import AddColumn, CreateNamespace, CreateTable
from tests.differential.generator.draw import columns, rows, tables
from tests.differential.generator.draw.tables import Draw, draw_table
from tests.differential.generator.kinds import Column, Kind, Listing, Mapping, Scalar, Struct
from tests.differential.generator.layout import SetPartitioning
from tests.differential.generator.model import Lake
from tests.differential.generator.nested import PromoteField
from tests.differential.generator.operations import Delete, Insert, Merge, Truncate, Update
from tests.differential.generator.steps import Operation, Step

DUCKDB_ICEBERG = "DuckDB-iceberg"
Maker = Callable[[Draw, Lake], Operation | None]


def draw_duckdb_steps(draw: Draw, lake: Lake, before: Sequence[Step]) -> list[Step]:
    """One commit: of one operation, or a transaction of several on one table.

    The extension changes no rows of a table that was partitioned again: it mixes up the specs.
    """
    parted = {change.table_id for step in before for change in step.operations if isinstance(change, SetPartitioning | TellPartitioning)}
    lake = replace(lake, tables={key: table for key, table in lake.tables.items() if key not in parted})
    if not lake.tables:
        return []
    shape = draw(st.integers(0, 7))
    if shape < 4:
        shown = without_returned(_without_comments(lake), before) if shape == 1 else lake
        if not shown.tables:
            return []
        operation = draw(st.sampled_from(_NAMES if shape == 0 else _COLUMNS if shape == 1 else _ROWS))(draw, shown)
        return [] if operation is None else [Step((operation,), by=DUCKDB_ICEBERG)]
    table = draw_table(draw, lake)
    operations: list[Operation] = []
    for _ in range(draw(st.integers(1, 3))):
        operation = draw(st.sampled_from(_ROWS))(draw, only(lake, table.table_id))
        if operation is not None:
            operations.append(operation)
            lake = operation.apply(lake)
    return [Step(tuple(operations), by=DUCKDB_ICEBERG)] if operations else []


def without_returned(lake: Lake, before: Sequence[Step]) -> Lake:
    """Return the lake without the tables whose columns are older ones again: the extension counts schemas from the current one."""
    shapes: dict[int, list[tuple[Column, ...]]] = {}
    state = Lake()
    for step in before:
        _, state = step.run(state)
        for table in state.tables.values():
            known = shapes.setdefault(table.table_id, [])
            if known[-1:] != [table.columns]:
                known.append(table.columns)
    returned = {table_id for table_id, known in shapes.items() if known[-1] in known[:-1]}
    return replace(lake, tables={key: table for key, table in lake.tables.items() if key not in returned})


def _without_comments(lake: Lake) -> Lake:
    """The tables whose columns have no comments, which any ALTER of the extension takes away; nor is it trusted with identifiers."""
    tables = {key: table for key, table in lake.tables.items() if not table.identifier}
    plain = {key: table for key, table in tables.items() if all(column.comment is None for column in table.columns)}
    return replace(lake, tables=plain)


def _draw_rows(maker: Maker) -> Maker:
    """Rows that the extension can write.

    It changes rows by delete files beside data files, which folders elsewhere forbid, puts no rows into sorted tables, and
    takes the NULL of a list or struct with a map in it for a key that is missing.
    """

    def draw_rows(draw: Draw, lake: Lake) -> Operation | None:
        operation = maker(draw, lake)
        assert operation is None or isinstance(operation, Insert | Delete | Truncate | Update | Merge)
        if operation is None:
            return None
        table = lake.tables[operation.table_id]
        if not isinstance(operation, Insert) and "copy-on-write" in table.properties.values():
            return None
        if isinstance(operation, Delete | Truncate):
            return None if table.has_added_files else operation
        if table.shown_sorting or any(_has_deep_map(column.kind) for column in table.columns):
            return None
        return operation if isinstance(operation, Insert) or not table.has_added_files else None

    return draw_rows


def _has_deep_map(kind: Kind, deep: bool = False) -> bool:
    match kind:
        case Scalar():
            return False
        case Struct(fields):
            return any(_has_deep_map(part.kind, True) for part in fields)
        case Listing(element):
            return _has_deep_map(element, True)
        case Mapping(_, value):
            return deep or _has_deep_map(value, True)


_ROWS: tuple[Maker, ...] = (
    *(_draw_rows(rows.draw_insert), _draw_rows(rows.draw_insert), _draw_rows(rows.draw_delete)),
    *(_draw_rows(rows.draw_update), _draw_rows(rows.draw_merge)),
)


def _draw_column(draw: Draw, lake: Lake) -> Operation | None:
    """A column of a plain type: the extension adds no others."""
    operation = draw_client_column(draw, lake)
    return operation if isinstance(operation, AddColumn) and isinstance(operation.column.kind, Scalar) else None


def _draw_promotion(draw: Draw, lake: Lake) -> Operation | None:
    """A wider type of a column: the extension changes none within one."""
    operation = draw_client_promotion(draw, lake)
    return None if isinstance(operation, PromoteField) else operation


def _draw_namespace(draw: Draw, lake: Lake) -> Operation | None:
    """A schema whose name has no dot, which the extension would take for a level."""
    operation = tables.draw_namespace(draw, lake)
    return None if isinstance(operation, CreateNamespace) and "." in operation.name else operation


def _draw_table(draw: Draw, lake: Lake) -> Operation | None:
    """A table, empty, in a schema whose name has no dot: the extension finds no other to make one in."""
    operation = draw_client_table(draw, lake)
    return None if isinstance(operation, CreateTable) and "." in operation.namespace else operation


_COLUMNS: tuple[Maker, ...] = (_draw_column, _draw_promotion, draw_client_drop, columns.draw_rename_column)
_NAMES: tuple[Maker, ...] = (_draw_namespace, _draw_table, tables.draw_rename_table, tables.draw_drop_table)
