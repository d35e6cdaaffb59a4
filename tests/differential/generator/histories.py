"""Hypothesis strategies for histories: every draw looks at the model, so every step is one that DuckDB accepts."""

from collections.abc import Callable
from random import Random

from hypothesis import strategies as st

from tests.differential.generator import schemas
from tests.differential.generator.definitions import (
    AddColumn,
    CreateNamespace,
    CreateTable,
    DropColumn,
    DropTable,
    PromoteColumn,
    RenameColumn,
    RenameTable,
    SetComment,
    SetInlining,
    SetPartitioning,
    SetRequired,
)
from tests.differential.generator.kinds import PROMOTIONS, SCALARS, Scalar, Struct, is_nested
from tests.differential.generator.maintenance import (
    Checkpoint,
    ExpireSnapshots,
    FlushInlined,
    MergeAdjacent,
    RewriteFiles,
    SetDeletionVectors,
)
from tests.differential.generator.model import DEFAULT_INLINED_ROWS, Lake, Table
from tests.differential.generator.operations import Delete, Insert, Merge, Update
from tests.differential.generator.predicates import Everything, IsNull, KeyIn, KeyModulo, Predicate, key_column
from tests.differential.generator.steps import History, Operation, Step

Draw = st.DrawFn
Maker = Callable[[Draw, Lake], Operation | None]

_TIME_ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
_TABLE_NAMES = ("orders", "events", "Mixed", "t1")
_MOST_ROWS = 45
_COMMENTS = ("plain", "it's a comment", "ü", None)


@st.composite
def histories(draw: Draw, *, types: tuple[str, ...] = SCALARS, wide: bool = False) -> History:
    """Histories of some six to fourteen steps, over columns of these types and nested ones made of them.

    `wide` adds maintenance of files and snapshots.
    """
    lake, steps = Lake(column_types=types), list[Step]()

    def take(drawn: list[Step]) -> None:
        nonlocal lake
        for step in drawn:
            _, lake = step.run(lake)
            steps.append(step)

    if draw(st.booleans()):
        take([Step((CreateNamespace("sales"),))])
    take(_draw_new_table(draw, lake))
    for _ in range(draw(st.integers(5, 13))):
        take(_draw_steps(draw, lake, wide))
    return History(draw(st.sampled_from(_TIME_ZONES)), tuple(steps))


def _draw_steps(draw: Draw, lake: Lake, wide: bool) -> list[Step]:
    if not lake.tables or draw(st.integers(0, 9)) == 0:
        return _draw_new_table(draw, lake)
    if wide and draw(st.integers(0, 4)) == 0:
        return [Step((_draw_maintenance(draw, lake),))]
    if draw(st.integers(0, 3)) > 0:
        operation = _draw_operation(draw, lake, (*_ROWS, *_ROWS, *_DEFINITIONS))
        return [] if operation is None else [Step((operation,))]
    return _draw_transaction(draw, lake)


def _draw_transaction(draw: Draw, lake: Lake) -> list[Step]:
    operations: list[Operation] = []
    for _ in range(draw(st.integers(2, 4))):
        operation = _draw_operation(draw, lake, _ROWS)
        if operation is not None:
            operations.append(operation)
            lake = operation.apply(lake)
    return [Step(tuple(operations))] if operations else []


def _draw_operation(draw: Draw, lake: Lake, makers: tuple[Maker, ...]) -> Operation | None:
    return draw(st.sampled_from(makers))(draw, lake)


def _draw_table(draw: Draw, lake: Lake) -> Table:
    return draw(st.sampled_from([lake.tables[key] for key in sorted(lake.tables)]))


def _draw_rng(draw: Draw) -> Random:
    # One small number stands for all cells: it shrinks well, and rows stay cheap to draw.
    return Random(draw(st.integers(0, 2**16)))


def _draw_new_table(draw: Draw, lake: Lake) -> list[Step]:
    namespace = draw(st.sampled_from(lake.namespaces))
    taken = {table.name.lower() for table in lake.tables.values() if table.namespace == namespace}
    names = [name for name in _TABLE_NAMES if name.lower() not in taken]
    if not names:
        return []
    inlined = draw(st.integers(0, 3)) > 0
    columns = schemas.draw_columns(_draw_rng(draw), draw(st.integers(1, 7)), lake.column_types, inlined=inlined)
    create = CreateTable(namespace, draw(st.sampled_from(names)), columns)
    return [Step((create,))] if inlined else [Step((create,)), Step((SetInlining(lake.next_table_id, 0),))]


def _draw_insert(draw: Draw, lake: Lake) -> Operation:
    table = _draw_table(draw, lake)
    count = draw(st.integers(1, 6) | st.integers(11, _MOST_ROWS))
    return Insert(table.table_id, schemas.draw_rows(table, count, _draw_rng(draw)))


def _draw_predicate(draw: Draw, table: Table) -> Predicate:
    keys = sorted({row.values[key_column(table).column_id] for row in table.rows})
    nullable = [column for column in table.columns[1:] if not is_nested(column.kind)]
    shape = draw(st.sampled_from(("keys", "modulo", "null", "everything")))
    if shape == "keys" and keys:
        return KeyIn(tuple(draw(st.lists(st.sampled_from(keys), min_size=1, max_size=12, unique=True))))
    if shape == "null" and nullable:
        return IsNull(draw(st.sampled_from(nullable)).column_id, draw(st.booleans()))
    if shape == "everything":
        return Everything()
    divisor = draw(st.integers(2, 5))
    return KeyModulo(divisor, draw(st.integers(0, divisor - 1)))


def _draw_delete(draw: Draw, lake: Lake) -> Operation:
    table = _draw_table(draw, lake)
    return Delete(table.table_id, _draw_predicate(draw, table))


def _draw_update(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    targets = table.columns[1:]
    if not targets:
        return None
    rng = _draw_rng(draw)
    chosen = draw(st.lists(st.sampled_from(targets), min_size=1, max_size=2, unique_by=lambda column: column.column_id))
    cells = tuple((column.column_id, schemas.draw_cell(table, column, rng)) for column in chosen)
    return Update(table.table_id, _draw_predicate(draw, table), cells)


def _draw_merge(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    keys = sorted({row.values[key_column(table).column_id] for row in table.rows})
    matched = draw(st.lists(st.sampled_from(keys), max_size=8, unique=True)) if keys else []
    new = [schemas.next_key(table) + step for step in range(draw(st.integers(0, 14)))]
    source = schemas.make_rows(table, [*matched, *new], _draw_rng(draw))
    updates = tuple(column.column_id for column in table.columns[1:] if draw(st.booleans()))
    deletes = draw(st.booleans())
    inserts = draw(st.booleans()) or not (deletes or updates)
    return Merge(table.table_id, source, updates, deletes, inserts) if source else None


def _draw_add_column(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    column = schemas.draw_column(_draw_rng(draw), lake.column_types, table)
    return None if column is None else AddColumn(table.table_id, column)


def _draw_drop_column(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    targets = [column for column in table.columns[1:] if column.column_id not in table.seen_key]
    return DropColumn(table.table_id, draw(st.sampled_from(targets)).column_id) if targets else None


def _draw_rename_column(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    names = schemas.free_names(table.columns)
    column_id = draw(st.sampled_from(table.columns)).column_id
    return RenameColumn(table.table_id, column_id, draw(st.sampled_from(names))) if names else None


def _draw_promote(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    scalars = ((column.column_id, column.kind.name) for column in table.columns if isinstance(column.kind, Scalar))
    targets = [(column_id, wider) for column_id, name in scalars for wider in PROMOTIONS.get(name, ())]
    return PromoteColumn(table.table_id, *draw(st.sampled_from(targets))) if targets else None


def _draw_required(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    set_already = [column for column in table.columns[1:] if column.required]
    can_be = [
        column
        for column in table.columns[1:]
        if not column.required and column.column_id not in table.seen_null and not is_nested(column.kind)
    ]
    targets = set_already + (can_be if table.has_had_rows else [])
    if not targets:
        return None
    column = draw(st.sampled_from(targets))
    return SetRequired(table.table_id, column.column_id, not column.required)


def _draw_comment(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    column_id = draw(st.sampled_from([None, *(column.column_id for column in table.columns)]))
    return SetComment(table.table_id, column_id, draw(st.sampled_from(_COMMENTS)))


def _draw_partitioning(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    choices = schemas.possible_partitionings(table)
    if table.partitioning:
        choices.append(())
    return SetPartitioning(table.table_id, draw(st.sampled_from(choices))) if choices else None


def _draw_rename_table(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    taken = {other.name.lower() for other in lake.tables.values() if other.namespace == table.namespace}
    names = [name for name in _TABLE_NAMES if name.lower() not in taken]
    return RenameTable(table.table_id, draw(st.sampled_from(names))) if names else None


def _draw_drop_table(draw: Draw, lake: Lake) -> Operation | None:
    return DropTable(_draw_table(draw, lake).table_id) if len(lake.tables) > 1 else None


def _draw_inlining(draw: Draw, lake: Lake) -> Operation | None:
    table = _draw_table(draw, lake)
    if any(isinstance(column.kind, Struct) for column in table.columns):
        return None
    return SetInlining(table.table_id, draw(st.sampled_from((0, 3, DEFAULT_INLINED_ROWS, 30))))


def _draw_maintenance(draw: Draw, lake: Lake) -> Operation:
    table = _draw_table(draw, lake)
    choices = [
        FlushInlined(),
        FlushInlined(),
        MergeAdjacent(),
        MergeAdjacent(),
        RewriteFiles(table.table_id),
        ExpireSnapshots(),
        Checkpoint(),
        SetDeletionVectors(table.table_id, True),
        SetDeletionVectors(table.table_id, False),
    ]
    return draw(st.sampled_from(choices))


_ROWS: tuple[Maker, ...] = (_draw_insert, _draw_insert, _draw_insert, _draw_delete, _draw_update, _draw_merge)
_DEFINITIONS: tuple[Maker, ...] = (
    _draw_add_column,
    _draw_drop_column,
    _draw_rename_column,
    _draw_promote,
    _draw_required,
    _draw_comment,
    _draw_partitioning,
    _draw_rename_table,
    _draw_drop_table,
    _draw_inlining,
)
