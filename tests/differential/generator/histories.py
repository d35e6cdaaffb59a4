"""Hypothesis strategies for histories: every draw looks at the model, so every step is one that DuckDB accepts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.differential.clients.draws.duckdb_iceberg import DUCKDB_ICEBERG, draw_duckdb_steps
from tests.differential.clients.draws.pyiceberg import APPENDABLE_SCALARS, PYICEBERG, draw_client_steps
from tests.differential.clients.draws.spark import SPARK, draw_spark_steps
from tests.differential.generator.definitions import CreateNamespace
from tests.differential.generator.draw import columns, rows, tables
from tests.differential.generator.draw.names import NAMESPACES
from tests.differential.generator.draw.transactions import breaks_duckdb
from tests.differential.generator.kinds import NARROW, SCALARS
from tests.differential.generator.layout import SetSorting
from tests.differential.generator.maintenance import (
    Checkpoint,
    CleanUp,
    ExpireSnapshots,
    FlushInlined,
    ForgetEverything,
    MergeAdjacent,
    RewriteFiles,
)
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.steps import History, Operation, Step

Draw = st.DrawFn
Maker = Callable[[Draw, Lake], Operation | None]
ClientMaker = Callable[[Draw, Lake, Sequence[Step]], list[Step]]

_LATE_SORTINGS = 4
"""Of ten draws of maintenance, which are a sorting that needs a flush."""

_OF_SNAPSHOTS = ExpireSnapshots | CleanUp
"""Maintenance that writes no rows."""

_TIME_ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@st.composite
def histories(draw: Draw, *, types: tuple[str, ...] = SCALARS, wide: bool | None = None, clients: tuple[str, ...] = ()) -> History:
    """Histories of some six to fourteen steps, over columns of these types and nested ones made of them.

    `wide` adds maintenance of files and snapshots; None: to half of them. `clients` write every other step.
    """
    if clients:
        # Spark takes UUIDs for text, and cannot bring them.
        types = tuple(name for name in types if name in APPENDABLE_SCALARS and not (SPARK in clients and name == "uuid"))
    lake, steps = Lake(column_types=types, has_clients=bool(clients)), list[Step]()
    wide = draw(st.booleans()) if wide is None else wide

    def take(drawn: list[Step]) -> None:
        nonlocal lake
        for step in drawn:
            _, lake = step.run(lake)
            steps.append(step)

    if draw(st.integers(0, 2)) == 2:
        take([Step((CreateNamespace(draw(st.sampled_from(NAMESPACES))),))])
    take(tables.draw_new_table(draw, lake))
    for _ in range(draw(st.integers(5, 13))):
        if clients and lake.tables and draw(st.booleans()):
            take(draw_client_commit(draw, lake, steps, clients))
        else:
            take(draw_steps(draw, lake, steps, wide=wide))
    return History(draw(st.sampled_from(_TIME_ZONES)), tuple(steps))


def draw_client_commit(draw: Draw, lake: Lake, before: Sequence[Step], clients: tuple[str, ...]) -> list[Step]:
    """Draw what one of the clients commits next; the columns that it makes have Iceberg's own types."""
    shown = replace(lake, by_client=True, column_types=tuple(name for name in lake.column_types if name not in NARROW))
    return _CLIENTS[draw(st.sampled_from(clients))](draw, shown, before)


def draw_steps(draw: Draw, lake: Lake, before: Sequence[Step], *, wide: bool) -> list[Step]:
    """Draw what DuckDB does next, with maintenance of files and snapshots if `wide`."""
    shape = draw(st.integers(0, 19))
    if not lake.tables or (shape == 14 and len(lake.tables) < tables.MOST_TABLES):
        return tables.draw_new_table(draw, lake)
    if shape == 15:
        return tables.draw_replacement(draw, lake)
    if wide and shape >= 16:
        return _draw_maintenance(draw, lake)
    if shape >= 11:
        return _draw_transaction(draw, lake, before)
    operation = _draw_operation(draw, lake, (*_ROWS, *_ROWS, *_ROWS, *_DEFINITIONS, *_ALONE))
    return [] if operation is None else [Step((operation,))]


def _draw_rewrite(draw: Draw, lake: Lake, ordered: Mapping[int, Table]) -> list[Step]:
    """Rows added to a sorted table or deleted from it, and files of one rewritten or put together."""
    chosen = replace(lake, tables=ordered)
    change = draw(st.sampled_from((rows.draw_insert, rows.draw_delete)))(draw, chosen)
    table_id = tables.draw_table(draw, chosen).table_id
    rewritten = draw(st.sampled_from((RewriteFiles(table_id), RewriteFiles(table_id), MergeAdjacent())))
    return [Step((change,)), *_maintain(lake, rewritten)]


def draw_late_sorting(draw: Draw, lake: Lake) -> list[Step]:
    """SET SORTED BY, once no rows are inlined: by columns that are younger than some rows, where there are such columns."""
    added = columns.draw_add_column(draw, lake) if draw(st.booleans()) else None
    steps = [] if added is None else [Step((added,))]
    lake = lake if added is None else added.apply(lake)
    sorting = tables.draw_sorting(draw, lake, is_flushed=True)
    return [*steps, *_maintain(lake, FlushInlined()), Step((sorting,))] if sorting is not None else steps


def _draw_transaction(draw: Draw, lake: Lake, before: Sequence[Step]) -> list[Step]:
    operations: list[Operation] = []
    makers = (*_ROWS, *_DEFINITIONS) if draw(st.integers(0, 2)) == 0 else _ROWS
    for _ in range(draw(st.integers(2, 4))):
        operation = _draw_operation(draw, lake, makers)
        if operation is not None and not breaks_duckdb(before, operations, operation):
            operations.append(operation)
            lake = operation.apply(lake)
    return [Step(tuple(operations))] if operations else []


def _draw_operation(draw: Draw, lake: Lake, makers: tuple[Maker, ...]) -> Operation | None:
    return draw(st.sampled_from(makers))(draw, lake) if lake.tables else None


def _draw_maintenance(draw: Draw, lake: Lake) -> list[Step]:
    ordered = {key: table for key, table in lake.tables.items() if table.sorting and table.rows}
    if ordered and draw(st.booleans()):
        return _draw_rewrite(draw, lake, ordered)
    if draw(st.integers(0, 9)) < _LATE_SORTINGS:
        return draw_late_sorting(draw, lake)
    table = tables.draw_table(draw, lake)
    choices = [
        FlushInlined(),
        FlushInlined(),
        MergeAdjacent(),
        MergeAdjacent(),
        RewriteFiles(table.table_id),
        RewriteFiles(table.table_id),
        ExpireSnapshots(),
        Checkpoint(),
        ForgetEverything(),
        CleanUp(),
    ]
    return _maintain(lake, draw(st.sampled_from(choices)))


def _maintain(lake: Lake, operation: Operation) -> list[Step]:
    """Return a step of maintenance, around which uneven sorted tables have no order: DuckDB 1.5.5 breaks over them.

    It is none where files would be put together that DuckDB cannot.
    """
    is_stray = any(table.strayed for table in lake.tables.values())
    if is_stray and isinstance(operation, MergeAdjacent | RewriteFiles | Checkpoint | ForgetEverything):
        operation = FlushInlined()
    uneven = [] if isinstance(operation, _OF_SNAPSHOTS) else [table for _, table in sorted(lake.tables.items()) if table.has_uneven_sorting]
    before = [Step((SetSorting(table.table_id, ()),)) for table in uneven]
    return [*before, Step((operation,)), *(Step((SetSorting(table.table_id, table.sorting),)) for table in uneven)]


_CLIENTS: Mapping[str, ClientMaker] = {
    PYICEBERG: draw_client_steps,
    DUCKDB_ICEBERG: draw_duckdb_steps,
    SPARK: draw_spark_steps,
}
_ROWS: tuple[Maker, ...] = (
    *(rows.draw_insert, rows.draw_insert, rows.draw_insert, rows.draw_added_file, rows.draw_added_file),
    *(rows.draw_delete, rows.draw_update, rows.draw_merge),
)
_FIELDS: tuple[Maker, ...] = (columns.draw_add_field, columns.draw_drop_field, columns.draw_rename_field, columns.draw_promote_field) * 2
_DEFINITIONS: tuple[Maker, ...] = (
    *(columns.draw_add_column, columns.draw_add_column, columns.draw_drop_column, columns.draw_rename_column, columns.draw_promote),
    *(columns.draw_required, columns.draw_set_default),
    *(tables.draw_comment, tables.draw_rename_table, tables.draw_drop_table),
    *(tables.draw_namespace, tables.draw_drop_namespace),
)
_ALONE: tuple[Maker, ...] = (
    *_FIELDS,
    *(tables.draw_inlining, tables.draw_vectors, tables.draw_vectors),
    *((tables.draw_partitioning,) * 4),
    *(tables.draw_sorting, tables.draw_sorting),
)
"""Options take effect outside of transactions, and DuckDB does none of the rest to a table with rows inlined in this one."""
