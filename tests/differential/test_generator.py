"""The generator against DuckDB alone: what it writes as SQL is what its model holds."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import get_args

import duckdb
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.differential.checks.arrow import Dialect, WrongShape, plain_rows
from tests.differential.checks.blur import blur_rows
from tests.differential.checks.rows import check_lake_snapshots
from tests.differential.clients.draws.alone import draw_upsert
from tests.differential.clients.draws.duckdb_iceberg import without_returned
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.ref_operations import MakeRef, MoveMain, WriteToBranch
from tests.differential.clients.table_operations import MoveColumn
from tests.differential.clients.writer import PYICEBERG_WORDS
from tests.differential.generation import history_settings
from tests.differential.generator.definitions import (
    AddColumn,
    CreateTable,
    DropColumn,
    DropNamespace,
    DropTable,
    PromoteColumn,
    RenameColumn,
    RenameTable,
)
from tests.differential.generator.draw.transactions import breaks_duckdb
from tests.differential.generator.histories import histories
from tests.differential.generator.kinds import SCALARS, Column, Listing, Mapping, Scalar, Struct, format_sql_type, quote
from tests.differential.generator.layout import SetSorting
from tests.differential.generator.literals import Rows, format_default, format_literal, make_plain
from tests.differential.generator.model import Lake, Shape, SortKey, Table
from tests.differential.generator.operations import Delete, Insert, Merge, Update
from tests.differential.generator.predicates import Everything, IsNull, KeyIn, KeyModulo, Predicate
from tests.differential.generator.schemas import draw_columns, draw_default, draw_rows
from tests.differential.generator.steps import History, Operation, Step
from tests.differential.generator.values import draw_value
from tests.differential.replay import Past, read_snapshots, replay
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import DuckLakeReader
from tests.support.shared_stack import SharedStack

MOST_TRIES = 15
Kinds = set[tuple[str | None, object]]
_ITEMS = (Column(1, "id", Scalar("int32")), Column(2, "name", Scalar("varchar")))
_INSERT = Insert(1, (((1, 1), (2, "a")),))
_UPDATE = Update(1, Everything(), ((2, "b"),))
_MERGE = Merge(1, (((1, 2), (2, "c")),), (2,), False, True)


@pytest.fixture
def conn() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty DuckDB in memory."""
    with duckdb.connect() as opened:
        yield opened


@settings(max_examples=30, deadline=None, suppress_health_check=(HealthCheck.function_scoped_fixture,))
@given(number=st.integers(0, 2**32))
def test_a_literal_is_the_value_it_was_made_from(number: int, conn: duckdb.DuckDBPyConnection) -> None:
    """DuckDB evaluates a value's SQL to the value, nested or not, and to the type it names."""
    rng = Random(number)
    for column in draw_columns(rng, 8, SCALARS, inlined=False):
        name, type_name = quote(column.name), format_sql_type(column.kind)
        values = [draw_value(column.kind, rng) for _ in range(4)]
        rows = " UNION ALL ".join(f"SELECT {format_literal(column.kind, value)} AS {name}" for value in values)
        answer = conn.execute(f"SELECT CAST({name} AS {type_name}) AS {name} FROM ({rows})").to_arrow_table()
        assert plain_rows([column], answer, Dialect.DUCKLAKE) == Counter((make_plain(column.kind, value),) for value in values)


@pytest.mark.parametrize(
    "predicate",
    [Everything(), KeyIn((1, 3, 99)), KeyModulo(3, 1), IsNull(2, negated=False), IsNull(2, negated=True)],
    ids=lambda value: repr(value),
)
def test_a_predicate_means_the_same_rows_in_sql_and_in_python(predicate: Predicate, conn: duckdb.DuckDBPyConnection) -> None:
    """DELETE and UPDATE hit the rows that the model thinks they hit."""
    table = Table(1, "main", "items", _ITEMS)
    lake = Lake({1: table})
    conn.execute("CREATE TABLE items (id INTEGER, name VARCHAR)")
    for operation in (
        Insert(1, draw_rows(table, 20, Random(1))),
        Update(1, predicate, ((2, "changed"),)),
        Delete(1, KeyIn((2, 3))),
        Delete(1, predicate),
    ):
        conn.execute(operation.sql(lake))
        lake = operation.apply(lake)
        assert plain_rows(_ITEMS, conn.execute("FROM items").to_arrow_table(), Dialect.DUCKLAKE) == lake.tables[1].plain_rows()


def test_a_missing_row_a_changed_value_and_a_wrong_type_are_seen(conn: duckdb.DuckDBPyConnection) -> None:
    """The comparison fails on every kind of difference; it cannot pass by looking away."""
    lake = Lake({1: Table(1, "main", "items", _ITEMS)}).add_rows(Table(1, "main", "items", _ITEMS), [{1: 1, 2: "a"}, {1: 1, 2: "a"}])
    expected = lake.tables[1].plain_rows()

    def read(rows: str) -> Rows:
        return plain_rows(_ITEMS, conn.execute(f"SELECT * FROM (VALUES {rows}) AS t(id, name)").to_arrow_table())

    assert read("(1, 'a'), (1, 'a')") == expected
    assert read("(1, 'a')") != expected
    assert read("(1, 'a'), (1, 'b')") != expected
    assert read("(1, 'a'), (1, NULL)") != expected
    for wrong in ("1.5", "1::BIGINT", "1::SMALLINT"):
        with pytest.raises(WrongShape):
            read(f"({wrong}, 'a')")
    with pytest.raises(WrongShape):
        plain_rows(_ITEMS, conn.execute("SELECT 1 AS id, 'a' AS title").to_arrow_table())


@pytest.mark.parametrize("kind", [Scalar(name) for name in SCALARS], ids=lambda kind: kind.name)
def test_a_default_is_the_value_it_was_made_from(kind: Scalar, conn: duckdb.DuckDBPyConnection) -> None:
    """A default without a cast, as ADD COLUMN wants it, is the value in the column's type."""
    rng = Random(kind.name)
    conn.execute(f"CREATE TABLE t (x {format_sql_type(kind)})")
    for _ in range(20):
        value = draw_default(rng, kind, share=1.0)
        if value is not None:
            conn.execute(f"ALTER TABLE t ALTER COLUMN x SET DEFAULT {format_default(kind.name, value)}")
            conn.execute("DELETE FROM t")
            conn.execute("INSERT INTO t VALUES (DEFAULT)")
            shown = plain_rows((Column(1, "x", kind),), conn.execute("FROM t").to_arrow_table(), Dialect.DUCKLAKE)
            assert shown == Counter([(make_plain(kind, value),)])


def test_blurring_touches_only_lists_and_maps_of_structs() -> None:
    """NULL stays NULL everywhere else."""
    part = Struct((Column(3, "a", Scalar("int32")),))
    columns = [Column(1, "x", Listing(part)), Column(2, "y", Listing(Scalar("int32"))), Column(4, "z", Mapping(Scalar("int32"), part))]
    assert blur_rows(columns, Counter([(None, None, None)])) == Counter([((), None, ())])


@pytest.mark.parametrize(
    ("earlier", "before", "operation", "breaks"),
    [
        pytest.param([_INSERT, _UPDATE], [_INSERT, _UPDATE], _UPDATE, True, id="ids left behind"),
        pytest.param([_INSERT, _UPDATE], [_INSERT], _UPDATE, False, id="ids left behind, the first update"),
        pytest.param([_INSERT], [_INSERT, _UPDATE], _UPDATE, False, id="no ids left behind"),
        pytest.param([], [_INSERT, _MERGE], _UPDATE, True, id="merged after an insert"),
        pytest.param([], [_MERGE, _INSERT], _UPDATE, True, id="merged before an insert"),
        pytest.param([], [_MERGE], _UPDATE, False, id="merged alone"),
        pytest.param([], [_INSERT], RenameColumn(1, 2, "l" * 64), True, id="a long name"),
        pytest.param([], [_INSERT], RenameColumn(1, 2, "l" * 63), False, id="a name just short enough"),
        pytest.param([], [_INSERT], PromoteColumn(1, 2, "float64"), True, id="inlined, then double"),
        pytest.param([], [_INSERT], PromoteColumn(1, 2, "int64"), False, id="inlined, then longer"),
        pytest.param([], [RenameTable(1, "x")], RenameColumn(1, 2, "l"), False, id="renamed, then altered"),
        pytest.param([], [RenameColumn(1, 2, "l")], RenameTable(1, "x"), True, id="altered, then renamed"),
        pytest.param([], [_INSERT], DropTable(1), True, id="filled, then dropped"),
        pytest.param([], [_INSERT], DropTable(2), False, id="another one dropped"),
        pytest.param([], [_INSERT], DropNamespace("main"), True, id="filled, then dropped with its namespace"),
    ],
)
def test_histories_leave_out_no_more_than_breaks_duckdb(
    earlier: list[Operation], before: list[Operation], operation: Operation, breaks: bool
) -> None:
    """What `test_upstream.py` shows to break is not drawn; what is next to it is."""
    assert breaks_duckdb([Step(tuple(earlier))], before, operation) is breaks


def test_the_model_knows_the_columns_of_the_current_snapshot() -> None:
    """As they were until rows are written, and again where main goes back; writing to a branch changes nothing for main."""
    new = Insert(1, (((1, 2), (2, "b")),))
    lake = Insert(1, (((1, 1), (2, "a")),)).apply(Lake({1: Table(1, "main", "items", _ITEMS)}))
    same, first = None, ({1: "id", 2: "name"}, 0)
    expected: list[tuple[Operation, Shape | None]] = [
        (MakeRef(1, "r", is_branch=True), same),
        (RenameColumn(1, 2, "title"), first),
        (WriteToBranch("r", new), first),
        (RenameColumn(1, 2, "name"), same),
        (MoveColumn(1, 1, 2), first),
        (new, same),
        (MakeRef(1, "s", is_branch=False), same),
        (MoveMain(1, "r"), ({1: "id", 2: "title"}, 0)),
        (MoveMain(1, "s"), same),
        (DropColumn(1, 2), ({1: "id", 2: "name"}, 1)),
    ]
    seen: list[tuple[Operation, Shape | None]] = []
    for operation, _ in expected:
        lake = operation.apply(lake)
        seen.append((operation, lake.tables[1].older_shape))
    assert seen == expected


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_upsert_is_drawn_where_the_current_snapshot_has_other_columns(data: st.DataObject) -> None:
    """PyIceberg 0.12 fails then, with its own catalog too."""
    lake = Insert(1, tuple(((1, key), (2, "a")) for key in range(5))).apply(Lake({1: Table(1, "main", "items", _ITEMS)}))
    assert draw_upsert(data.draw, RenameColumn(1, 2, "title").apply(lake)) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("column_id", "has_rows", "is_uneven"), [(3, True, True), (1, True, False), (3, False, False)], ids=["behind", "before", "empty"]
)
def test_a_table_sorted_by_a_column_behind_a_lost_one_is_maintained_without_its_order(
    column_id: int, has_rows: bool, is_uneven: bool
) -> None:
    """DuckDB looks for the column in its new place among those of older files."""
    lake = CreateTable("main", "t", tuple(Column(place, f"c{place}", Scalar("int32")) for place in (1, 2, 3))).apply(Lake())
    lake = Insert(1, (((1, 1), (2, 2), (3, 3)),)).apply(lake) if has_rows else lake
    for operation in (DropColumn(1, 2), SetSorting(1, (SortKey(column_id, False, False),))):
        lake = operation.apply(lake)
    assert lake.tables[1].has_uneven_sorting == is_uneven


@pytest.mark.parametrize(
    ("later", "is_left"),
    [
        pytest.param((), False, id="an older one"),
        pytest.param((AddColumn(1, Column(3, "c", Scalar("int32"))),), True, id="a new one"),
    ],
)
def test_duckdb_iceberg_alters_no_table_whose_columns_are_older_ones(later: tuple[AddColumn, ...], is_left: bool) -> None:
    """It would give the next schema a number that is taken."""
    create = CreateTable("main", "t", (Column(1, "a", Scalar("int32")),))
    operations = (create, AddColumn(1, Column(2, "b", Scalar("int32"))), DropColumn(1, 2), *later)
    steps = tuple(Step((operation,)) for operation in operations)
    *_, (_, _, lake) = History("UTC", steps).run()
    assert bool(without_returned(lake, steps).tables) == is_left


@pytest.mark.long
def test_histories_reach_every_operation() -> None:
    """Nothing is left out by its weights, nor by PyIceberg. What hypothesis draws depends on what else is imported: it may try again."""
    wanted: Kinds = set()
    wanted.update(((None, kind) for kind in get_args(Operation)), ((PYICEBERG, kind) for kind in get_args(PYICEBERG_WORDS)))
    seen: Kinds = set()
    for number in range(1, MOST_TRIES + 1):
        seen |= draw_kinds(number)
        if seen == wanted:
            break
    assert seen == wanted


def draw_kinds(number: int) -> Kinds:
    """The kinds of operations in a thousand histories that begin with that seed, and those of them that PyIceberg committed."""
    seen: Kinds = set()

    @seed(number)
    @history_settings(1000)
    @given(histories(wide=True) | histories(wide=True, clients=(PYICEBERG,)))
    def collect(history: History) -> None:
        for step in history.steps:
            seen.update((by, type(operation)) for operation in step.operations for by in {None, step.by})

    collect()
    return seen


def test_a_history_replays_from_its_script(lake: FreshLake) -> None:
    """The printed SQL alone brings the lake to the state that the model describes."""
    made: list[History] = []

    @seed(5)
    @history_settings(5)
    @given(histories())
    def collect(history: History) -> None:
        made.append(history)

    collect()
    conn = lake.duckdb()
    conn.execute(made[-1].script(lake.data_path.replace("/data/", "/outside/")))
    *_, (_, _, end) = made[-1].run()
    for table in end.tables.values():
        assert plain_rows(table.columns, conn.execute(f"FROM {table.sql_name}").to_arrow_table(), Dialect.DUCKLAKE) == table.plain_rows()


@pytest.mark.whole
def test_duckdb_agrees_with_the_model_at_every_lake_snapshot(stack: SharedStack) -> None:
    """The oracle itself: where DuckDB and the model differ, one of them is wrong, and no reader is to blame."""

    @seed(20261121)
    @history_settings(8)
    @given(histories())
    def agrees(history: History) -> None:
        with make_lake(stack) as lake:
            outside = lake.data_path.replace("/data/", "/outside/")
            moments, conn = list(replay(lake.duckdb(), history, outside)), lake.duckdb()
            check_lake_snapshots(Past(moments, read_snapshots(conn)), DuckLakeReader(conn), history.vector_tables)

    agrees()
