"""Draws of what is done to namespaces and tables: each looks at the model, so that DuckDB accepts it."""

from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from tests.differential.generator import schemas
from tests.differential.generator.definitions import (
    CreateNamespace,
    CreateTable,
    CreateTableAs,
    DropNamespace,
    DropTable,
    RenameTable,
    SetComment,
)
from tests.differential.generator.draw import names
from tests.differential.generator.kinds import NARROW, Column, Scalar, Struct, has_leaf, has_many_structs
from tests.differential.generator.layout import SetDeletionVectors, SetInlining, SetPartitioning, SetSorting
from tests.differential.generator.model import DEFAULT_INLINED_ROWS, Lake, SortKey, Table
from tests.differential.generator.operations import Insert
from tests.differential.generator.steps import Operation, Step
from tests.differential.generator.values import SayableRandom, StrictRandom

Draw = st.DrawFn

MOST_TABLES = 4
_COMMENTS = ("plain", "it's a comment", "ü", None)


def draw_table(draw: Draw, lake: Lake) -> Table:
    """One of the tables there are."""
    return draw(st.sampled_from([lake.tables[key] for key in sorted(lake.tables)]))


def draw_rng(draw: Draw, lake: Lake) -> Random:
    """A source of chance. One small number stands for all cells: it shrinks well, and rows stay cheap to draw."""
    start = draw(st.integers(0, 2**16))
    if lake.by_client:
        return StrictRandom(start)
    return SayableRandom(start) if lake.has_clients else Random(start)


def draw_namespace(draw: Draw, lake: Lake) -> Operation | None:
    """CREATE SCHEMA."""
    free = [name for name in names.NAMESPACES if name not in lake.namespaces]
    return CreateNamespace(draw(st.sampled_from(free))) if free else None


def draw_drop_namespace(draw: Draw, lake: Lake) -> Operation | None:
    """DROP SCHEMA … CASCADE, when tables are left elsewhere."""
    kept = {table.namespace for table in lake.tables.values()}
    droppable = [name for name in lake.namespaces if name != "main" and kept - {name}]
    return DropNamespace(draw(st.sampled_from(droppable))) if droppable else None


def draw_new_table(draw: Draw, lake: Lake) -> list[Step]:
    """CREATE TABLE, empty or from a query; now and then one that keeps no rows inlined."""
    namespace = draw(st.sampled_from(lake.namespaces))
    free = free_names(lake, namespace)
    inlined = draw(st.integers(0, 3)) > 0
    columns = _draw_columns(draw, lake, inlined=inlined)
    name = draw(st.sampled_from(free))
    if not inlined:
        return [Step((CreateTable(namespace, name, columns),)), Step((SetInlining(lake.next_table_id, 0),))]
    return [Step((_draw_create(draw, lake, (namespace, name), columns),))]


def draw_replacement(draw: Draw, lake: Lake) -> list[Step]:
    """A table whose place another takes within one transaction: replaced, dropped, or renamed away."""
    old = draw_table(draw, lake)
    columns = _draw_columns(draw, lake, inlined=True)
    create = _draw_create(draw, lake, old.ident, columns)
    shape = draw(st.sampled_from(("replace", "drop", "rename")))
    if shape == "replace":
        return [Step((replace(create, replaces=True),))]
    leaving = DropTable(old.table_id)
    if shape == "rename":
        leaving = RenameTable(old.table_id, draw(st.sampled_from(free_names(lake, old.namespace))))
    operations: list[Operation] = [leaving, create]
    made = create.apply(leaving.apply(lake)).tables[lake.next_table_id]
    if draw(st.booleans()):
        operations.append(Insert(made.table_id, schemas.draw_rows(made, draw(st.integers(1, 20)), draw_rng(draw, lake))))
    return [Step(tuple(operations))] if draw(st.booleans()) else [Step((operation,)) for operation in operations]


def _draw_columns(draw: Draw, lake: Lake, *, inlined: bool) -> tuple[Column, ...]:
    columns = schemas.draw_columns(draw_rng(draw, lake), draw(st.integers(1, 7)), lake.column_types, inlined=inlined)
    return tuple(without_default(column) for column in columns if can_be_written(column)) if lake.has_clients else columns


def can_be_written(column: Column) -> bool:
    """PyIceberg 0.12 makes NULL an empty list or map, where those are of structs, in files that it writes again."""
    return not has_many_structs(column.kind)


def without_default(column: Column) -> Column:
    """The same column, of which older rows show NULL, and which an INSERT that leaves it out fills with that."""
    return replace(column, initial=None, default=None)


def _draw_create(draw: Draw, lake: Lake, ident: tuple[str, str], columns: tuple[Column, ...]) -> CreateTable | CreateTableAs:
    if draw(st.integers(0, 2)) > 0:
        return CreateTable(*ident, columns)
    return _with_rows(draw, lake, ident, columns)


def draw_create_as(draw: Draw, lake: Lake) -> CreateTableAs:
    """A new table with rows from the start."""
    namespace = draw(st.sampled_from(lake.namespaces))
    name = draw(st.sampled_from(free_names(lake, namespace)))
    return _with_rows(draw, lake, (namespace, name), _draw_columns(draw, lake, inlined=True))


def _with_rows(draw: Draw, lake: Lake, ident: tuple[str, str], columns: tuple[Column, ...]) -> CreateTableAs:
    columns = tuple(replace(without_default(column), required=False) for column in columns)
    rows = schemas.draw_rows(Table(lake.next_table_id, *ident, columns), draw(st.integers(1, 25)), draw_rng(draw, lake))
    return CreateTableAs(lake.next_table_id, *ident, columns, rows)


def free_names(lake: Lake, namespace: str) -> list[str]:
    """Names that no table of the namespace has; DuckDB's names are equal without regard to case."""
    taken = {table.name.lower() for table in lake.tables.values() if table.namespace == namespace}
    return [name for name in names.TABLES if name.lower() not in taken]


def draw_rename_table(draw: Draw, lake: Lake) -> Operation | None:
    """ALTER TABLE … RENAME TO."""
    table = draw_table(draw, lake)
    free = free_names(lake, table.namespace)
    return RenameTable(table.table_id, draw(st.sampled_from(free)))


def draw_drop_table(draw: Draw, lake: Lake) -> Operation | None:
    """DROP TABLE, when another is left."""
    return DropTable(draw_table(draw, lake).table_id) if len(lake.tables) > 1 else None


def draw_comment(draw: Draw, lake: Lake) -> Operation | None:
    """COMMENT ON a table or a column."""
    table = draw_table(draw, lake)
    column_id = draw(st.sampled_from([None, *(column.column_id for column in table.columns)]))
    return SetComment(table.table_id, column_id, draw(st.sampled_from(_COMMENTS)))


def draw_inlining(draw: Draw, lake: Lake) -> Operation | None:
    """Another inlining limit, unless that would inline structs that DuckDB reads back wrongly, or rows that it has no table for."""
    table = draw_table(draw, lake)
    if any(isinstance(column.kind, Struct) for column in table.columns) or table.inlined_columns not in (None, table.columns):
        return None
    # A client's file makes narrow columns others than they were when the limit became 0.
    if table.inlined_columns is not None and table.may_be_wide and any(has_leaf(column.kind, NARROW) for column in table.columns):
        return None
    return SetInlining(table.table_id, draw(st.sampled_from((0, 3, DEFAULT_INLINED_ROWS, 30))))


def draw_vectors(draw: Draw, lake: Lake) -> Operation | None:
    """Deletes as deletion vectors, or as Parquet again; not where refs name states that the lake would forget."""
    table = draw_table(draw, lake)
    return None if table.has_had_refs else SetDeletionVectors(table.table_id, draw(st.integers(0, 2)) > 0)


def draw_partitioning(draw: Draw, lake: Lake) -> Operation | None:
    """SET or RESET PARTITIONED BY."""
    table = draw_table(draw, lake)
    choices = schemas.possible_partitionings(table)
    # A client's first file ends DuckDB's buckets, so RESET does nothing in DuckDB, and clients keep the spec (decision 048).
    may_be_ended = table.may_be_wide and any(key.transform.startswith("bucket(") for key in table.partitioning)
    if table.partitioning and not may_be_ended:
        choices.append(())
    return SetPartitioning(table.table_id, draw(st.sampled_from(choices))) if choices else None


def draw_sorting(draw: Draw, lake: Lake, *, is_flushed: bool = False) -> Operation | None:
    """SET or RESET SORTED BY, where there have been rows; by columns that are as old as these, or younger where none are inlined."""
    table = draw_table(draw, lake)
    if not table.has_had_rows:
        return None
    if table.sorting and not is_flushed and draw(st.booleans()):
        return SetSorting(table.table_id, ())
    scalars = [column for column in table.columns if isinstance(column.kind, Scalar)]
    old = [column for column in scalars if column.column_id not in table.younger]
    columns = [column for column in scalars if column not in old] or old if is_flushed else old
    chosen = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique_by=lambda column: column.column_id))
    keys = tuple(SortKey(column.column_id, draw(st.booleans()), draw(st.booleans())) for column in chosen)
    return SetSorting(table.table_id, keys)
