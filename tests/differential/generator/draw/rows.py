"""Draws of what is done to rows."""

from hypothesis import strategies as st

from tests.differential.generator import schemas
from tests.differential.generator.added_files import AddFile, can_be_added, list_in_file, names_agree
from tests.differential.generator.draw.tables import Draw, draw_rng, draw_table
from tests.differential.generator.kinds import NARROW, Scalar, has_leaf, is_nested
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.operations import Cells, Delete, Insert, Merge, Truncate, Update
from tests.differential.generator.predicates import Everything, IsNull, KeyIn, KeyModulo, Predicate, key_column
from tests.differential.generator.steps import Operation

_MOST_ROWS = 45
_STRAY_SHARE = 0.4
"""Of the rows of an added file, which DuckLake takes without a look at NOT NULL."""

_HIVE_VALUES = {"int32": (0, 7, -3), "int64": (0, 7, -3), "varchar": ("a", "plain", "b7")}


def draw_insert(draw: Draw, lake: Lake) -> Operation:
    """INSERT, of all columns or of some."""
    table = draw_table(draw, lake)
    count = draw(st.integers(1, 6) | st.integers(11, _MOST_ROWS))
    left_out = frozenset[int]()
    if draw(st.integers(0, 3)) == 0:
        optional = [column.column_id for column in table.columns[1:] if column.default is not None or not column.required]
        left_out = frozenset(draw(st.lists(st.sampled_from(optional), max_size=3))) if optional else left_out
    return Insert(table.table_id, schemas.draw_rows(table, count, draw_rng(draw, lake)), left_out)


def draw_predicate(draw: Draw, table: Table) -> Predicate:
    """Which rows are meant."""
    keys = sorted({row.values[key_column(table).column_id] for row in table.rows})
    nullable = [column for column in table.columns[1:] if not is_nested(column.kind) and column.column_id not in table.lacking]
    shape = draw(st.sampled_from(("keys", "modulo", "null", "everything")))
    if shape == "keys" and keys:
        return KeyIn(tuple(draw(st.lists(st.sampled_from(keys), min_size=1, max_size=12, unique=True))))
    if shape == "null" and nullable:
        return IsNull(draw(st.sampled_from(nullable)).column_id, draw(st.booleans()))
    if shape == "everything":
        return Everything()
    divisor = draw(st.integers(2, 5))
    return KeyModulo(divisor, draw(st.integers(0, divisor - 1)))


def draw_delete(draw: Draw, lake: Lake) -> Operation:
    """DELETE, or now and then TRUNCATE."""
    table = draw_table(draw, lake)
    if draw(st.integers(0, 9)) == 0:
        return Truncate(table.table_id)
    return Delete(table.table_id, draw_predicate(draw, table))


def draw_update(draw: Draw, lake: Lake) -> Operation | None:
    """UPDATE."""
    table = draw_table(draw, lake)
    targets = table.columns[1:]
    if not targets or (table.has_stray_nulls and not lake.by_client):
        return None
    rng = draw_rng(draw, lake)
    chosen = draw(st.lists(st.sampled_from(targets), min_size=1, max_size=2, unique_by=lambda column: column.column_id))
    cells = tuple((column.column_id, schemas.draw_cell(table, column, rng)) for column in chosen)
    return Update(table.table_id, draw_predicate(draw, table), cells)


def draw_merge(draw: Draw, lake: Lake) -> Operation | None:
    """MERGE."""
    table = draw_table(draw, lake)
    keys = sorted({row.values[key_column(table).column_id] for row in table.rows})
    matched = draw(st.lists(st.sampled_from(keys), max_size=8, unique=True)) if keys else []
    new = [schemas.next_key(table) + step for step in range(draw(st.integers(0, 14)))]
    source = schemas.make_rows(table, [*matched, *new], draw_rng(draw, lake))
    can_update = lake.by_client or not table.has_stray_nulls
    updates = tuple(column.column_id for column in table.columns[1:] if draw(st.booleans()) and can_update)
    deletes = draw(st.booleans())
    inserts = draw(st.booleans()) or not (deletes or updates)
    return Merge(table.table_id, source, updates, deletes, inserts) if source else None


def draw_added_file(draw: Draw, lake: Lake) -> Operation | None:
    """A file added, in the shapes that Iceberg can read as DuckLake does."""
    table = draw_table(draw, lake)
    keys = [table.column(key.column_id) for key in table.partitioning]
    if any(key.transform != "identity" for key in table.partitioning) or any(not _can_be_folder(key.name, key.kind) for key in keys):
        return None
    others = [column.column_id for column in table.columns[1:] if column not in keys]
    left_out = frozenset(draw(st.lists(st.sampled_from(others), max_size=2))) if others else frozenset[int]()
    if not names_agree(table, left_out) or not all(can_be_added(column.kind) for column in list_in_file(table, left_out)):
        return None
    folder = {key.column_id: draw(st.sampled_from(_HIVE_VALUES[key.kind.name])) for key in keys if isinstance(key.kind, Scalar)}
    if table.may_be_wide and any(has_leaf(column.kind, NARROW) for column in table.columns):
        return None
    rng = draw_rng(draw, lake)
    rows = schemas.draw_rows(table, draw(st.integers(1, 20)), rng)
    checked = [column.column_id for column in table.columns[1:] if column.required and column not in keys]
    nulls = draw(st.lists(st.sampled_from(checked), min_size=1, max_size=2)) if checked and draw(st.integers(0, 3)) > 0 else []
    placed = tuple(_with_cells(row, {**folder, **{key: None for key in nulls if rng.random() < _STRAY_SHARE}}) for row in rows)
    return AddFile(table.table_id, placed, left_out, draw(st.booleans()))


def _can_be_folder(name: str, kind: object) -> bool:
    return name.isascii() and name.isidentifier() and isinstance(kind, Scalar) and kind.name in _HIVE_VALUES


def _with_cells(row: Cells, changed: dict[int, object]) -> Cells:
    return tuple({**dict(row), **changed}.items())
