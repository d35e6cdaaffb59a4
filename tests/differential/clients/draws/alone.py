"""Draws of what PyIceberg commits by itself: other ways to bring rows, layouts, properties, refs, and what is refused."""

from collections.abc import Callable

from hypothesis import strategies as st

from tests.differential.clients.draws.rows import can_write, draw_filter, draw_insert
from tests.differential.clients.draws.whole import draw_hide, draw_statistics
from tests.differential.clients.operations import AddWritten, DynamicOverwrite, Overwrite, Upsert
from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain, WriteToBranch
from tests.differential.clients.shape_operations import REFUSALS, ChangeProperties, Refused, TellPartitioning, TellSorting
from tests.differential.generator import schemas
from tests.differential.generator.added_files import names_agree
from tests.differential.generator.draw.tables import Draw, draw_rng, draw_table
from tests.differential.generator.kinds import Scalar
from tests.differential.generator.model import Lake, PartitionKey, SortKey, Table
from tests.differential.generator.operations import Delete
from tests.differential.generator.predicates import key_column
from tests.differential.generator.steps import Operation

_IDENTITY = ("boolean", "int32", "int64", "varchar", "date")
_TRANSFORMS = {
    **{name: ("identity", "bucket(4)") for name in ("int32", "int64", "varchar")},
    "boolean": ("identity",),
    "date": ("identity", "bucket(3)", "year", "month", "day"),
    "timestamp": ("year", "month", "day", "hour", "bucket(4)"),
    "timestamptz": ("year", "day", "hour"),
    "decimal(9,2)": ("identity", "bucket(4)"),
}
# PyIceberg 0.12 truncates the smallest numbers past their type's end.
_TRUNCATED = {"varchar": "truncate(2)"}
# Nobody acts on them, however short they are.
_AGES, _KEPT = (None, 1, 2**53), ((None, None), (1, 1), (86_400_000, None), (None, 5))
_REFS, _PROPERTIES = ("r1", "r2", "r3"), ("test.a", "test.b", "owner")


def draw_dynamic_overwrite(draw: Draw, lake: Lake) -> Operation | None:
    """Partitions replaced, where every key is a column as it is; else such a spec."""
    table = draw_table(draw, lake)
    keys = table.shown_partitioning
    is_plain = all(key.transform == "identity" and _is_plain(table, key.column_id, _IDENTITY) for key in keys)
    if keys and is_plain:
        return DynamicOverwrite(table.table_id, draw_insert(draw, lake, table, 6).rows)
    free = [column.column_id for column in table.columns if _is_plain(table, column.column_id, _IDENTITY)]
    return TellPartitioning(table.table_id, (PartitionKey(draw(st.sampled_from(free)), "identity"),)) if free else None


def draw_upsert(draw: Draw, lake: Lake) -> Operation | None:
    """Rows by key, some there already, in a table where no key comes twice.

    PyIceberg 0.12 compares with rows as their files have them, and breaks over files that are older than a column; and by the columns
    of the current snapshot, which may have had other names, another order, or one more.
    """
    table = draw_table(draw, lake)
    key = key_column(table)
    keys = [row.values[key.column_id] for row in table.rows]
    if not can_write(table) or "." in key.name or table.younger or table.older_shape or len(set(keys)) < len(keys):
        return None
    matched = draw(st.lists(st.sampled_from(sorted(keys)), max_size=6, unique=True)) if keys else []
    new = [schemas.next_key(table) + step for step in range(draw(st.integers(0, 4)))]
    rows = schemas.make_rows(table, [*matched, *new], draw_rng(draw, lake))
    return Upsert(table.table_id, rows) if rows else None


def draw_written(draw: Draw, lake: Lake) -> Operation | None:
    """A file of plain columns taken in."""
    table = draw_table(draw, lake)
    is_plain = all(isinstance(column.kind, Scalar) and column.kind.name != "uuid" and "." not in column.name for column in table.columns)
    if table.shown_partitioning or not is_plain or not names_agree(table, frozenset()):
        return None
    return AddWritten(table.table_id, draw_insert(draw, lake, table, 6).rows)


def draw_partitioning(draw: Draw, lake: Lake) -> Operation | None:
    """A spec of no key, one or two."""
    table = draw_table(draw, lake)
    choices = [PartitionKey(column.column_id, name) for column in table.columns for name in _list_transforms(table, column.column_id)]
    keys = draw(st.lists(st.sampled_from(choices), max_size=2, unique_by=lambda key: key.column_id)) if choices else []
    return TellPartitioning(table.table_id, tuple(keys)) if set(keys) != set(table.shown_partitioning) else None


def _list_transforms(table: Table, column_id: int) -> tuple[str, ...]:
    kind = table.column(column_id).kind
    if not isinstance(kind, Scalar) or not _is_plain(table, column_id, tuple(_TRANSFORMS)):
        return ()
    return (*_TRANSFORMS[kind.name], *([_TRUNCATED[kind.name]] if kind.name in _TRUNCATED else []))


def _is_plain(table: Table, column_id: int, types: tuple[str, ...]) -> bool:
    """PyIceberg 0.12 takes a dot in a name for a path."""
    column = table.column(column_id)
    return isinstance(column.kind, Scalar) and column.kind.name in types and "." not in column.name


def draw_sorting(draw: Draw, lake: Lake) -> Operation | None:
    """A sort order of one or two columns."""
    table = draw_table(draw, lake)
    plain = [column for column in table.columns if isinstance(column.kind, Scalar) and "." not in column.name]
    chosen = draw(st.lists(st.sampled_from(plain), min_size=1, max_size=2, unique_by=lambda column: column.column_id)) if plain else []
    keys = tuple(SortKey(column.column_id, draw(st.booleans()), draw(st.booleans())) for column in chosen)
    return TellSorting(table.table_id, keys) if keys and keys != table.shown_sorting else None


def draw_properties(draw: Draw, lake: Lake) -> Operation | None:
    """Some set, and one of those that were there removed."""
    table = draw_table(draw, lake)
    names = draw(st.lists(st.sampled_from(_PROPERTIES), min_size=1, max_size=2, unique=True))
    updates = tuple((name, draw(st.sampled_from(("1", "it's", "ü", "")))) for name in names)
    free = sorted(table.properties.keys() - set(names))
    return ChangeProperties(table.table_id, updates, draw(st.sampled_from([None, *free])))


def draw_ref(draw: Draw, lake: Lake) -> Operation | None:
    """A tag or branch made, or one gone; not where DuckDB's deletion vectors let the lake forget."""
    table = draw_table(draw, lake)
    if table.has_vectors or not table.rows:
        return None
    name = draw(st.sampled_from(_REFS))
    if name in table.refs:
        return DropRef(table.table_id, name)
    is_branch, age_ms = draw(st.booleans()), draw(st.sampled_from(_AGES))
    return MakeRef(table.table_id, name, is_branch, (age_ms, *(draw(st.sampled_from(_KEPT)) if is_branch else (None, None))))


def draw_branch(draw: Draw, lake: Lake) -> Operation | None:
    """A write to a branch, which is made first when there is none."""
    found = [(table, name) for _, table in sorted(lake.tables.items()) for name in sorted(table.refs) if table.refs[name].is_branch]
    found = [(table, name) for table, name in found if can_write(table)]
    if not found:
        return draw_ref(draw, lake)
    table, name = draw(st.sampled_from(found))
    rows = draw_insert(draw, lake, table, 6)
    shape = draw(st.integers(0, 3))
    if shape < 2:
        return WriteToBranch(name, rows)
    predicate = draw_filter(draw, table)
    return WriteToBranch(name, Delete(table.table_id, predicate) if shape == 2 else Overwrite(table.table_id, predicate, rows.rows))


def draw_move(draw: Draw, lake: Lake) -> Operation | None:
    """Main moved to a ref, but not past files of which DuckLake may have forgotten how their columns are named."""
    named = [(key, name) for key, table in sorted(lake.tables.items()) for name in sorted(table.refs) if not table.has_added_files]
    return MoveMain(*draw(st.sampled_from(named))) if named else draw_ref(draw, lake)


def draw_refused(draw: Draw, lake: Lake) -> Operation | None:
    """Something that no catalog may take."""
    return Refused(draw_table(draw, lake).table_id, draw(st.sampled_from(REFUSALS)))


ALONE: tuple[Callable[[Draw, Lake], Operation | None], ...] = (
    *(draw_dynamic_overwrite, draw_dynamic_overwrite, draw_upsert, draw_written, draw_partitioning, draw_partitioning),
    *(draw_sorting, draw_properties, draw_ref, draw_ref, draw_branch, draw_branch, draw_move, draw_refused, draw_refused),
    *(draw_hide, draw_hide, draw_statistics, draw_statistics),
)
OF_REFS = (draw_branch, draw_branch, draw_move)
