"""Steps of Iceberg clients that histories may seldom take, each alone: all of a history's checks hold after them."""

import pytest

from tests.differential.clients.draws.spark import SPARK
from tests.differential.clients.operations import AddWritten, DynamicOverwrite, Overwrite, Upsert
from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain, WriteToBranch
from tests.differential.clients.shape_operations import REFUSALS, ChangeProperties, Refused, TellPartitioning, TellSorting
from tests.differential.clients.table_operations import (
    ChangeNamespace,
    HideSnapshots,
    MoveColumn,
    MoveTable,
    PurgeTable,
    SetView,
    TakeBack,
    TellStatistics,
)
from tests.differential.generator.definitions import (
    SPARK_USER,
    AddColumn,
    CreateNamespace,
    CreateTable,
    CreateTableAs,
    DropColumn,
    DropNamespace,
)
from tests.differential.generator.kinds import Column, Scalar
from tests.differential.generator.layout import SetPartitioning, SetSorting
from tests.differential.generator.maintenance import Checkpoint, CleanUp, ForgetEverything
from tests.differential.generator.model import PartitionKey, SortKey
from tests.differential.generator.operations import Cells, Delete, Insert
from tests.differential.generator.predicates import Everything, IsNull, KeyIn
from tests.differential.generator.steps import History, Operation, Step
from tests.differential.prove import prove
from tests.differential.sessions import Sessions
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.tiers import long_but, whole_but

P = "PyIceberg"
COLUMNS = (Column(1, "id", Scalar("int64")), Column(2, "name", Scalar("varchar")), Column(3, "day", Scalar("date")))
MAKE = (Step((CreateTable("main", "t", COLUMNS),)), Step((Insert(1, tuple(((1, i), (2, "ab"[i % 2]), (3, None)) for i in range(20))),)))
LONG = pytest.mark.long
BRANCH, TAG = MakeRef(1, "dev", True, (2**53, 86_400_000, 5)), MakeRef(1, "v1", False, (1, None, None))
BY_NAME = (PartitionKey(2, "identity"),)


def row(key: int, name: str | None = "a") -> Cells:
    """A row."""
    return ((1, key), (2, name), (3, None))


@pytest.mark.parametrize(
    "operations",
    whole_but(
        [
            pytest.param(
                (
                    BRANCH,
                    WriteToBranch("dev", Overwrite(1, KeyIn((3, 4)), (row(70), row(71)))),
                    WriteToBranch("dev", Delete(1, KeyIn((70,)))),
                ),
                id="a branch overwritten",
                marks=LONG,
            ),
            pytest.param(
                (BRANCH, WriteToBranch("dev", Insert(1, (row(70),))), Insert(1, (row(80),)), MoveMain(1, "dev"), Insert(1, (row(81),))),
                id="main moved to a branch",
            ),
            pytest.param((TAG, Delete(1, KeyIn((1, 2))), MoveMain(1, "v1"), Delete(1, KeyIn((3,))), DropRef(1, "v1")), id="rolled back"),
            pytest.param(
                (TellPartitioning(1, BY_NAME), DynamicOverwrite(1, (row(70), row(71, None))), DynamicOverwrite(1, (row(72, None),))),
                id="partitions replaced",
                marks=LONG,
            ),
            pytest.param((Upsert(1, (row(3, "new"), row(4, None), row(90))), Upsert(1, (row(90), row(91)))), id="upserted"),
            pytest.param((AddWritten(1, (row(70), row(71))), Delete(1, KeyIn((70,)))), id="a file added"),
            pytest.param((TakeBack(1, "main", "t"), TakeBack(1, "main", "u"), Delete(1, KeyIn((1,)))), id="registered again", marks=LONG),
            pytest.param((HideSnapshots(1), Delete(1, KeyIn((1,))), HideSnapshots(1)), id="snapshots removed"),
            pytest.param(
                (BRANCH, WriteToBranch("dev", Insert(1, (row(70),))), HideSnapshots(1), MoveMain(1, "dev")), id="branch kept", marks=LONG
            ),
            pytest.param(
                (TellStatistics(1, "a.stats"), TellStatistics(1, "b.stats"), TellStatistics(1, None)), id="statistics", marks=LONG
            ),
            pytest.param((MoveColumn(1, 2, 3), Insert(1, (row(70),))), id="a column moved", marks=LONG),
            pytest.param(
                (CreateTableAs(2, "main", "made", COLUMNS, (row(70), row(71))), Delete(2, KeyIn((70,))), PurgeTable(2)),
                id="made with rows",
                marks=LONG,
            ),
            pytest.param(
                (CreateNamespace("ns"), ChangeNamespace("ns", (("owner", "ü"),), None), MoveTable(1, "ns", "u"), TakeBack(1, "main", "t")),
                id="to a namespace and back",
                marks=LONG,
            ),
            pytest.param(
                (CreateNamespace("ns"), ChangeNamespace("ns", (("owner", "ü"),), None), DropNamespace("ns")),
                id="a namespace gone",
                marks=LONG,
            ),
            pytest.param((SetView("main", "w", True), SetView("main", "w", False), SetView("main", "w", True)), id="views"),
            pytest.param(
                (ChangeProperties(1, (("test.a", "1"), ("owner", "ü")), None), ChangeProperties(1, (), "test.a")),
                id="properties",
                marks=LONG,
            ),
        ],
        "rolled back",
    ),
)
def test_clients_and_duckdb_agree(served: Served, sessions: Sessions, operations: tuple[Operation, ...]) -> None:
    """DuckDB inserts, deletes and maintains between them."""
    steps = list(MAKE)
    for place, operation in enumerate(operations):
        steps.append(Step((operation,), P))
        steps.append(Step((Insert(1, (row(100 + place, "a"),)),)))
    steps += [Step((Checkpoint(),)), Step((ForgetEverything(),)), Step((CleanUp(),)), Step((Delete(1, Everything()),))]
    prove(served, History("UTC", tuple(steps)), sessions)


@pytest.mark.whole
@pytest.mark.parametrize(
    "ending",
    long_but(
        [
            pytest.param((Step((Insert(1, (row(32),)),), P),), id="undone"),
            pytest.param((Step((TellPartitioning(1, BY_NAME),), P), Step((Insert(1, (row(33),)),), P)), id="told again"),
            pytest.param(
                (Step((TellPartitioning(1, BY_NAME),), P), Step((DropColumn(1, 2),)), Step((Insert(1, (row(34),)),), P)), id="dropped"
            ),
        ],
        "undone",
    ),
)
def test_either_sides_layout_counts_as_it_came(served: Served, sessions: Sessions, ending: tuple[Step, ...]) -> None:
    """DuckDB's order hides a client's, which shows again when it is undone; its partitioning ends a client's; the next word counts."""
    later = (PartitionKey(3, "identity"),)
    steps = (
        *MAKE,
        Step((TellPartitioning(1, (PartitionKey(1, "bucket(4)"), *BY_NAME)),), P),
        Step((TellSorting(1, (SortKey(1, True, False),)),), P),
        Step((Insert(1, (row(30),)),), P),
        Step((SetPartitioning(1, later),)),
        Step((SetSorting(1, (SortKey(2, False, True),)),)),
        Step((Insert(1, (row(31),)),), P),
        Step((AddColumn(1, Column(4, "more", Scalar("int32"))),), P),
        Step((SetPartitioning(1, ()),)),
        Step((SetSorting(1, ()),)),
        *ending,
    )
    prove(served, History("UTC", steps), sessions)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            (
                *(Step((CreateTable("main", "t", COLUMNS),)), Step((Delete(1, IsNull(2, True)),), SPARK)),
                *(Step((Insert(1, (row(70),)),)), Step((Delete(1, KeyIn((71,))),), SPARK)),
            ),
            id="no row deleted",
        ),
        pytest.param(
            (Step((CreateNamespace("ns", SPARK_USER),), SPARK), Step((ChangeNamespace("ns", (("test.a", "1"),), None),), P)), id="owner"
        ),
        pytest.param(
            (Step((CreateNamespace("ns", SPARK_USER),), SPARK), Step((ChangeNamespace("ns", (), "owner"),), P)),
            id="owner removed",
            marks=LONG,
        ),
    ],
)
def test_spark_and_duckdb_agree(served: Served, sessions: Sessions, spark: Spark, steps: tuple[Step, ...]) -> None:
    """What Spark alone says: operations of snapshots without changes, and whom a namespace belongs to."""
    prove(served, History("UTC", steps), sessions, spark)


@pytest.mark.whole
@pytest.mark.parametrize("reason", long_but(REFUSALS, "stale", "elsewhere", "added twice", "namespace in use", "registered twice"))
def test_what_is_refused_changes_nothing(served: Served, sessions: Sessions, reason: str) -> None:
    """Neither rows, nor snapshots, nor what clients are shown."""
    prove(served, History("UTC", (*MAKE, Step((Refused(1, reason),), P), Step((Insert(1, (row(30),)),), P))), sessions)
