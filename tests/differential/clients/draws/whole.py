"""Draws of what PyIceberg does to whole tables, namespaces and snapshots."""

from hypothesis import strategies as st

from tests.differential.clients.table_operations import (
    ChangeNamespace,
    HideSnapshots,
    MoveColumn,
    MoveTable,
    PurgeTable,
    SetView,
    TakeBack,
    TellIdentifier,
    TellStatistics,
)
from tests.differential.generator.definitions import CreateTable, DropNamespace
from tests.differential.generator.draw import tables
from tests.differential.generator.draw.tables import Draw, draw_table
from tests.differential.generator.kinds import Scalar
from tests.differential.generator.model import Lake
from tests.differential.generator.steps import Operation

NAMESPACE_PROPERTIES = ("test.a", "owner")
_TEXTS = ("1", "it's", "ü", "")
_IDENTIFYING = ("int32", "int64", "varchar", "date", "boolean")


def draw_client_table(draw: Draw, lake: Lake) -> Operation | None:
    """A table made, empty; not one of those that must keep no rows inlined, which DuckDB alone can be told."""
    if len(lake.tables) >= tables.MOST_TABLES:
        return None
    step, *others = tables.draw_new_table(draw, lake)
    if others:
        return None
    (operation,) = step.operations
    return CreateTable(operation.namespace, operation.name, operation.columns)


def draw_table_with_rows(draw: Draw, lake: Lake) -> Operation | None:
    """A table made in one commit with its first rows."""
    if len(lake.tables) >= tables.MOST_TABLES:
        return None
    return tables.draw_create_as(draw, lake)


def draw_emptied_namespace(draw: Draw, lake: Lake) -> Operation | None:
    """A namespace without tables dropped: the catalog refuses others."""
    used = {"main", *(table.namespace for table in lake.tables.values())}
    empty = [name for name in lake.namespaces if name not in used]
    return DropNamespace(draw(st.sampled_from(empty))) if empty else None


def draw_namespace_properties(draw: Draw, lake: Lake) -> Operation | None:
    """Some set, and one of those that were there removed."""
    name = draw(st.sampled_from(lake.namespaces))
    keys = draw(st.lists(st.sampled_from(NAMESPACE_PROPERTIES), min_size=1, unique=True))
    free = sorted(lake.namespace_properties.get(name, {}).keys() - set(keys))
    return ChangeNamespace(name, tuple((key, draw(st.sampled_from(_TEXTS))) for key in keys), draw(st.sampled_from([None, *free])))


def draw_view(draw: Draw, lake: Lake) -> Operation | None:
    """A view made where there is none, or dropped; in the namespace that always stays, under plain names that tables never have:
    PyIceberg 0.12 makes any other under its name in URLs.
    """
    ident = ("main", draw(st.sampled_from(("v", "w"))))
    return SetView(*ident, is_there=ident not in lake.views)


def draw_move_table(draw: Draw, lake: Lake) -> Operation | None:
    """A table to another namespace."""
    table = draw_table(draw, lake)
    others = [name for name in lake.namespaces if name != table.namespace]
    return MoveTable(table.table_id, *_draw_place(draw, lake, others)) if others else None


def draw_purge(draw: Draw, lake: Lake) -> Operation | None:
    """A table dropped for good, when another is left."""
    return PurgeTable(draw_table(draw, lake).table_id) if len(lake.tables) > 1 else None


def draw_take_back(draw: Draw, lake: Lake) -> Operation | None:
    """A table registered again: where it was, elsewhere, or in another's place; NOT NULL is then what was published of it."""
    table = draw_table(draw, lake)
    if table.unsure_columns:
        return None
    shape = draw(st.sampled_from(("there", "elsewhere", "over")))
    others = [other for _, other in sorted(lake.tables.items()) if other is not table]
    if shape == "over" and others:
        other = draw(st.sampled_from(others))
        return TakeBack(table.table_id, *other.ident, over=other.table_id)
    return TakeBack(table.table_id, *(table.ident if shape == "there" else _draw_place(draw, lake, lake.namespaces)))


def _draw_place(draw: Draw, lake: Lake, namespaces: list[str] | tuple[str, ...]) -> tuple[str, str]:
    namespace = draw(st.sampled_from(namespaces))
    return namespace, draw(st.sampled_from(tables.free_names(lake, namespace)))


def draw_hide(draw: Draw, lake: Lake) -> Operation | None:
    """Older snapshots removed, where there are some."""
    table = draw_table(draw, lake)
    return HideSnapshots(table.table_id) if table.rows else None


def draw_statistics(draw: Draw, lake: Lake) -> Operation | None:
    """Statistics of the current snapshot told, or taken away."""
    table = draw_table(draw, lake)
    name = draw(st.sampled_from(("a.stats", "b.stats", *([None] if table.statistics else []))))
    return TellStatistics(table.table_id, name) if table.rows else None


def draw_identifier(draw: Draw, lake: Lake) -> Operation | None:
    """Some of the columns that are NOT NULL, or none."""
    table = draw_table(draw, lake)
    if table.identifier & table.unsure_columns:
        return None
    plain = [column for column in table.columns if isinstance(column.kind, Scalar) and column.kind.name in _IDENTIFYING]
    sure = [column for column in plain if column.required and column.column_id not in table.unsure_columns]
    able = [column.column_id for column in sure if "." not in column.name]
    chosen = frozenset(draw(st.lists(st.sampled_from(able), max_size=2))) if able else frozenset[int]()
    return TellIdentifier(table.table_id, chosen) if chosen != table.identifier else None


def draw_move_column(draw: Draw, lake: Lake) -> Operation | None:
    """A column to another place; the first one stays, for rows are chosen by it."""
    table = draw_table(draw, lake)
    plain = [column.column_id for column in table.columns if "." not in column.name]
    movable = [column_id for column_id in plain if column_id != table.columns[0].column_id]
    if not movable:
        return None
    column_id = draw(st.sampled_from(movable))
    after = [other for other in plain if other != column_id]
    return MoveColumn(table.table_id, column_id, draw(st.sampled_from(after))) if after else None
