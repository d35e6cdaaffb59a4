"""Hypothesis strategies for histories: every draw looks at the model, so every step is one that DuckDB accepts."""

from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from tests.differential.clients.draws.duckdb_iceberg import DUCKDB_ICEBERG, draw_duckdb_steps
from tests.differential.clients.draws.pyiceberg import CLIENT_SCALARS, PYICEBERG, draw_client_steps
from tests.differential.clients.draws.spark import SPARK, draw_spark_steps
from tests.differential.generator.definitions import CreateNamespace
from tests.differential.generator.draw import columns, rows, tables
from tests.differential.generator.draw.names import NAMESPACES
from tests.differential.generator.draw.transactions import breaks_duckdb
from tests.differential.generator.kinds import SCALARS
from tests.differential.generator.maintenance import (
    Checkpoint,
    CleanUp,
    ExpireSnapshots,
    FlushInlined,
    ForgetEverything,
    MergeAdjacent,
    RewriteFiles,
)
from tests.differential.generator.model import Lake
from tests.differential.generator.steps import History, Operation, Step

Draw = st.DrawFn
Maker = Callable[[Draw, Lake], Operation | None]
ClientMaker = Callable[[Draw, Lake, Sequence[Step]], list[Step]]

_TIME_ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@st.composite
def histories(draw: Draw, *, types: tuple[str, ...] = SCALARS, wide: bool | None = None, clients: tuple[str, ...] = ()) -> History:
    """Histories of some six to fourteen steps, over columns of these types and nested ones made of them.

    `wide` adds maintenance of files and snapshots; None: to half of them. `clients` write every other step.
    """
    if clients:
        # Spark takes UUIDs for text, and cannot bring them.
        types = tuple(name for name in types if name in CLIENT_SCALARS and not (SPARK in clients and name == "uuid"))
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
            take(_CLIENTS[draw(st.sampled_from(clients))](draw, lake, steps))
        else:
            take(_draw_steps(draw, lake, steps, wide))
    return History(draw(st.sampled_from(_TIME_ZONES)), tuple(steps))


def _draw_steps(draw: Draw, lake: Lake, before: list[Step], wide: bool) -> list[Step]:
    shape = draw(st.integers(0, 19))
    if not lake.tables or (shape == 14 and len(lake.tables) < tables.MOST_TABLES):
        return tables.draw_new_table(draw, lake)
    if shape == 15:
        return tables.draw_replacement(draw, lake)
    if wide and shape >= 16:
        return [Step((_draw_maintenance(draw, lake),))]
    if shape >= 11:
        return _draw_transaction(draw, lake, before)
    operation = _draw_operation(draw, lake, (*_ROWS, *_ROWS, *_ROWS, *_DEFINITIONS, *_ALONE))
    return [] if operation is None else [Step((operation,))]


def _draw_transaction(draw: Draw, lake: Lake, before: list[Step]) -> list[Step]:
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


def _draw_maintenance(draw: Draw, lake: Lake) -> Operation:
    table = tables.draw_table(draw, lake)
    choices = [
        FlushInlined(),
        FlushInlined(),
        MergeAdjacent(),
        MergeAdjacent(),
        RewriteFiles(table.table_id),
        ExpireSnapshots(),
        Checkpoint(),
        ForgetEverything(),
        CleanUp(),
    ]
    return draw(st.sampled_from(choices))


_CLIENTS: Mapping[str, ClientMaker] = {
    PYICEBERG: draw_client_steps,
    DUCKDB_ICEBERG: draw_duckdb_steps,
    SPARK: draw_spark_steps,
}
_ROWS: tuple[Maker, ...] = (
    *(rows.draw_insert, rows.draw_insert, rows.draw_insert, rows.draw_added_file),
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
