"""Branches of lakes of DuckLake 1.1: PyIceberg and ducklakepy read and write both sides. DuckDB 1.5 does not attach such lakes."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int64Type, VarcharType
from psycopg import Connection
from pyiceberg.expressions import EqualTo
from pyiceberg.types import StringType

from duckicelake.errors import BadRequest, MergeConflicts
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.diff import read_diff
from duckicelake.lake.branches.log import describe_diff, read_log
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, merge_branch
from duckicelake.lake.branches.merge_rules import OURS, Resolution
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.branches.revert import RevertRequest, revert_snapshot
from duckicelake.lake.branches.spare import prepare_spare
from duckicelake.lake.writing.migrate import migrate
from tests.lake.branches.repository import as_lake, fill
from tests.rest.serving import make_settings, serve
from tests.support.ducklake_1_1 import LOCAL, MADE_SCHEMA, check_same, open_ducklakepy
from tests.support.lakes import FreshLake
from tests.support.readers import Ident, Served

T, ORDERS = ("main", "t"), ("sales", "europe", "orders")
SCHEMA = Schema(Column("id", Int64Type()), Column("v", VarcharType()))

SELECT_TOKENS = "SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id = %(id)s"
SELECT_VIEW_COMMENTS = """
SELECT v.view_name, c.column_name, c.value FROM ducklake_view_column_tag c JOIN ducklake_view v USING (view_id)
 WHERE c.end_snapshot IS NULL AND v.end_snapshot IS NULL ORDER BY 1, 2
"""


def rows(*ids: int, v: str = "x") -> pa.Table:
    """Rows of `SCHEMA`; few of them are inlined by ducklakepy."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.string())})


def ids(catalog: DuckLakeCatalog, ident: Ident = T) -> list[int]:
    """The ids that ducklakepy reads, in order."""
    return sorted(catalog.load_table(ident).to_arrow()["id"].to_pylist())


def map_row_ids(catalog: DuckLakeCatalog, ident: Ident = T) -> dict[int, int]:
    """The row ids of all rows that ducklakepy finds inserted, those deleted since included; no two rows have one, no row has two."""
    snapshots = [each.snapshot_id for each in catalog.snapshots()]
    found = catalog.load_table(ident).insertions(min(snapshots), max(snapshots)).to_arrow()
    pairs = set(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
    row_ids = dict(pairs)
    assert len(row_ids) == len(set(row_ids.values())) == len(pairs)
    return row_ids


def add_view(catalog: DuckLakeCatalog, ident: Ident, comment: str) -> None:
    """Make a view with a comment on its column."""
    catalog.create_view(ident, "SELECT id FROM main.t").set_comment(comment, column="id")


@dataclass(frozen=True, slots=True)
class Side:
    """The lake or a branch, with both clients."""

    served: Served
    lake: DuckLakeCatalog

    def read(self, ident: Ident = T) -> list[int]:
        """The ids that both clients read, in order."""
        with self.served.pyiceberg().catalog as catalog:
            found = sorted(catalog.load_table(ident).scan().to_arrow()["id"].to_pylist())
        assert found == ids(self.lake, ident)
        return found


@dataclass(frozen=True, slots=True)
class Repository:
    """A lake of DuckLake 1.1 behind a running server."""

    main: Side
    conn: Connection
    opened: ExitStack

    def branch(self, request: BranchRequest | str = "dev") -> Side:
        """Make a branch."""
        wanted = BranchRequest(request) if isinstance(request, str) else request
        branch = as_lake(self.main.served.lake, create_branch(self.conn, MADE_SCHEMA, wanted))
        served = replace(self.main.served, lake=branch, warehouse=f"{self.main.served.warehouse}@{wanted.name}")
        return Side(served, self.opened.enter_context(open_ducklakepy(branch)))

    def merge(self, request: MergeRequest | str = "dev") -> MergeResult:
        """Merge a branch."""
        return merge_branch(self.conn, MADE_SCHEMA, MergeRequest(request) if isinstance(request, str) else request)


@pytest.fixture
def repository(made: tuple[Served, DuckLakeCatalog]) -> Iterator[Repository]:
    """A lake with a table of files, inlined rows and deletes of both, and one in a nested namespace."""
    served, lake = made
    lake.create_table(T, schema=SCHEMA).append(rows(1, 2, 3))
    lake.load_table(T).append(rows(*range(10, 40)))
    lake.load_table(T).delete(col("id").isin([2, 11]))
    lake.create_namespace(ORDERS[:1])
    lake.create_namespace(ORDERS[:2])
    lake.create_table(ORDERS, schema=SCHEMA).append(rows(*range(100, 130)))
    with ExitStack() as opened:
        yield Repository(Side(served, lake), served.lake.psycopg(), opened)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_both_sides_are_isolated_and_merge(repository: Repository) -> None:
    """Appends, deletes of base rows, an added column, nested namespaces and comments on columns of views; then both sides go on."""
    main = repository.main
    add_view(main.lake, ("main", "seen"), "before")
    dev = repository.branch()
    assert dev.read() == main.read() == [1, 3, 10, *range(12, 40)]
    dev.lake.load_table(T).append(rows(1000, 1001))
    dev.lake.load_table(T).append(rows(*range(1100, 1150)))
    dev.lake.load_table(T).delete(col("id").isin([1, 12]))
    dev.lake.load_table(T).update(col("id") == 13, {"v": "changed"})
    dev.lake.create_namespace(("sales", "asia"))
    dev.lake.create_table(("sales", "asia", "orders"), schema=SCHEMA).append(rows(*range(200, 230)))
    add_view(dev.lake, ("sales", "asia", "made"), "there")
    dev.lake.load_view(("main", "seen")).set_comment("after", column="id")
    with dev.served.pyiceberg().catalog as catalog:
        catalog.create_namespace(("sales", "asia", "south"))
        catalog.load_table(ORDERS).append(rows(500))
        table = catalog.load_table(T)
        table.delete(EqualTo("id", 14))
        with table.update_schema() as update:
            update.add_column("row_id", StringType())
    main.lake.load_table(T).append(rows(3000, 3001))
    main.lake.load_table(T).append(rows(*range(3100, 3130)))
    main.lake.create_namespace(("asia",))
    mine, theirs = [3, 10, 13, *range(15, 40), 1000, 1001, *range(1100, 1150)], [3000, 3001, *range(3100, 3130)]
    assert dev.read() == mine and main.read() == [1, 3, 10, *range(12, 40), *theirs]
    assert describe_diff(read_diff(repository.conn, MADE_SCHEMA, dev.served.lake.metadata_schema))["namespaces"] == [
        {"change": "dropped", "name": "asia"},
        *({"change": "made", "name": name} for name in ("sales.asia", "sales.asia.south")),
    ]
    log = read_log(repository.conn, dev.served.lake.metadata_schema, 20)
    assert "sales.asia.orders" in {each.name for entry in log for each in entry.operations}
    check_merge(repository, dev, mine, theirs)


def check_merge(repository: Repository, dev: Side, mine: list[int], theirs: list[int]) -> None:
    """Merge, and let both sides go on."""
    main = repository.main
    result = repository.merge()
    assert result.tables["sales.asia.orders"] == ["create", "append"]
    [(tokens,)] = repository.conn.execute(SELECT_TOKENS, {"id": result.snapshot_id}).fetchall()
    assert 'created_schema:"sales"."asia",created_schema:"sales"."asia"."south",created_table:"sales"."asia"."orders"' in tokens
    for side in (main, dev):
        assert side.read() == [*mine, *theirs]
        assert (len(side.read(ORDERS)), side.read(("sales", "asia", "orders"))) == (31, list(range(200, 230)))
        with side.served.lake.psycopg() as conn:
            assert conn.execute(SELECT_VIEW_COMMENTS).fetchall() == [("made", "id", "there"), ("seen", "id", "after")]
    dev.lake.load_table(T).append(pa.table({**dict(zip(("id", "v"), rows(7000).columns, strict=True)), "row_id": ["r"]}))
    main.lake.load_table(T).delete(col("id") == 3)
    assert repository.merge().tables == {"main.t": ["append"]}
    assert main.read() == dev.read() == [*mine[1:], *theirs, 7000]
    assert check_same(main.served, main.lake, ORDERS) == 2


def maintain(catalog: DuckLakeCatalog) -> None:
    """Every maintenance of ducklakepy."""
    for ident in (T, ORDERS):
        catalog.flush_inlined_data(ident)
        catalog.merge_adjacent_files(ident)
        catalog.rewrite_data_files(ident, delete_threshold=0.01)
    catalog.expire_snapshots(older_than=datetime.now(UTC))
    catalog.cleanup_old_files(older_than=datetime.now(UTC), exclusive=True)
    catalog.delete_orphaned_files(older_than=datetime.now(UTC), exclusive=True)
    catalog.checkpoint(exclusive=True, expire_older_than=datetime.now(UTC), delete_older_than=datetime.now(UTC))


def list_objects(lake: FreshLake) -> set[str]:
    """The data files that there are, of all members."""
    folder = Path(lake.data_path)
    return {str(path) for root in (folder, *folder.parent.glob(f"{folder.name}-branch-*")) for path in root.rglob("*.p*") if path.is_file()}


@pytest.mark.whole
def test_maintenance_of_one_side_leaves_the_other(repository: Repository) -> None:
    """On the lake, the branch, and the lake again; a tag stays readable. Afterwards no object is left that nothing reads."""
    main = repository.main
    dev, tag = repository.branch(), repository.branch(BranchRequest("t1", is_tag=True))
    before = main.read()
    dev.lake.load_table(T).delete(col("id").isin(list(range(15, 35))))
    dev.lake.load_table(ORDERS).append(rows(*range(300, 330)))
    main.lake.load_table(T).delete(col("id").isin(list(range(20, 40))))
    main.lake.load_table(T).append(rows(*range(400, 430)))
    expected = [(side, side.read(), side.read(ORDERS)) for side in (main, dev, tag)]
    for side in (main, dev, main, dev, main):
        maintain(side.lake)
        assert [(each, each.read(), each.read(ORDERS)) for each in (main, dev, tag)] == expected
    assert tag.read() == before
    repository.opened.close()
    for name in ("dev", "t1"):
        delete_branch(repository.conn, MADE_SCHEMA, name, is_tag=name == "t1")
    collect_garbage(repository.conn, MADE_SCHEMA)
    maintain(main.lake)
    maintain(main.lake)
    assert (main, main.read(), main.read(ORDERS)) == expected[0]
    paths = repository.conn.execute(SELECT_PATHS).fetchall()
    assert list_objects(main.served.lake) == {path for (path,) in paths}


SELECT_PATHS = """
SELECT CASE WHEN f.path_is_relative THEN (SELECT value FROM ducklake_metadata WHERE key = 'data_path') || s.path || t.path || f.path
            ELSE f.path END
  FROM (SELECT table_id, path, path_is_relative FROM ducklake_data_file
         UNION ALL SELECT table_id, path, path_is_relative FROM ducklake_delete_file) f
  JOIN ducklake_table t USING (table_id) JOIN ducklake_schema s USING (schema_id)
"""


@pytest.mark.whole
def test_namespaces_that_both_sides_made_or_dropped(repository: Repository) -> None:
    """Nested ones of one name unify with their properties; what lies in one that the lake dropped is a conflict, and nothing changes."""
    main, dev = repository.main, repository.branch()
    with main.served.pyiceberg().catalog as lake, dev.served.pyiceberg().catalog as branch:
        lake.create_namespace(("sales", "asia", "south"), {"owner": "ann", "a": "1"})
        lake.create_namespace(("asia",), {"owner": "bob"})
        branch.create_namespace(("sales", "asia", "south"), {"owner": "ann", "b": "2"})
        branch.create_table(("sales", "asia", "south", "o"), rows().schema).append(rows(1))
        branch.create_namespace(("sales", "asia", "south", "deep"))
        branch.create_table(("sales", "asia", "south", "deep", "o"), rows().schema).append(rows(2))
        assert repository.merge().others == ["create namespace sales.asia.south.deep"]
        assert lake.load_namespace_properties(("sales", "asia", "south")) == {"owner": "ann", "a": "1", "b": "2"}
        for side in (main, dev):
            assert (side.read(("sales", "asia", "south", "o")), side.read(("sales", "asia", "south", "deep", "o"))) == ([1], [2])
        branch.update_namespace_properties(("asia",), updates={"owner": "eve"})
        branch.create_namespace(("sales", "asia", "north"), {"owner": "ann"})
        branch.create_table(("sales", "asia", "north", "o"), rows().schema)
        lake.create_namespace(("sales", "asia", "north"), {"owner": "bob"})
        with pytest.raises(MergeConflicts, match=r"namespace sales\.asia\.north: property/property"):
            repository.merge()
        lake.update_namespace_properties(("sales", "asia", "north"), updates={"owner": "ann"})
        repository.merge()
        assert main.read(("sales", "asia", "north", "o")) == []
        branch.create_namespace(("asia", "in"))
        main.lake.drop_namespace(("asia",))
        head = main.lake.current_snapshot().snapshot_id
        with pytest.raises(MergeConflicts, match=r"namespace asia\.in: create/drop"):
            repository.merge()
        assert main.lake.current_snapshot().snapshot_id == head
        assert repository.merge(MergeRequest("dev", resolution=Resolution(OURS))).left_out[0].name == "asia.in"
        dev.lake.drop_namespace(("sales", "asia", "north"), cascade=True)
        main.lake.create_namespace(("sales", "asia", "north", "new"))
        with pytest.raises(MergeConflicts, match=r"namespace sales\.asia\.north: drop/create"):
            repository.merge()


@pytest.mark.whole
def test_news_reset_and_reverts(repository: Repository) -> None:
    """The lake's news on a branch, inlined rows of both sides included; a revert in each, also of a nested table's rename; a reset."""
    main, dev = repository.main, repository.branch()
    dev.lake.load_table(T).append(rows(1000, 1001))
    dev.lake.load_table(T).delete(col("id").isin([1, 13]))
    dev.lake.load_table(ORDERS).update_schema().add_column("n", Int64Type()).commit()
    dev.lake.load_table(ORDERS).append(pa.table({"id": pa.array([150], pa.int64()), "v": ["y"], "n": pa.array([1], pa.int64())}))
    main.lake.load_table(T).append(rows(2000))
    main.lake.load_table(T).delete(col("id") == 3)
    main.lake.create_namespace(("sales", "asia"))
    repository.merge(MergeRequest("main", into="dev"))
    mine = [10, 12, *range(14, 40), 1000, 1001, 2000]
    assert dev.read() == mine and len(dev.read(ORDERS)) == 31
    assert main.read() == [1, 10, *range(12, 40), 2000]
    dev.lake.load_table(T).delete(col("id").isin([10, 1000]))
    undone = dev.lake.current_snapshot().snapshot_id
    dev.lake.load_table(T).append(rows(1002))
    revert_snapshot(repository.conn, MADE_SCHEMA, RevertRequest(undone, "dev"))
    assert dev.read() == sorted([*mine, 1002])
    with dev.served.pyiceberg().catalog as catalog:
        catalog.rename_table(ORDERS, ("sales", "moved"))
        renamed = dev.lake.current_snapshot().snapshot_id
        revert_snapshot(repository.conn, MADE_SCHEMA, RevertRequest(renamed, "dev"))
        assert len(dev.read(ORDERS)) == 31
    merged = repository.merge().snapshot_id
    assert merged is not None and main.read() == sorted([*mine, 1002])
    main.lake.load_table(T).append(rows(2001))
    assert revert_snapshot(repository.conn, MADE_SCHEMA, RevertRequest(merged)).tables["main.t"] == ["delete", "append"]
    assert main.read() == [1, 10, *range(12, 40), 2000, 2001]
    assert dev.read() == sorted([*mine, 1002])
    reset_branch(repository.conn, MADE_SCHEMA, "dev")
    assert dev.read() == main.read()


@pytest.mark.whole
def test_deletion_vectors_of_several_snapshots(repository: Repository) -> None:
    """Puffin containers, which only DuckLake 1.1 has, on a base file and on the branch's own, through a merge."""
    main = repository.main
    main.lake.set_option("write_deletion_vectors", True)
    main.lake.load_table(T).append(rows(*range(200, 260)))
    for ident in (200, 201, 202):
        main.lake.load_table(T).delete(col("id") == ident)
    main.lake.flush_inlined_data(T)
    dev = repository.branch()
    dev.lake.load_table(T).append(rows(*range(300, 360)))
    for ident in (203, 204, 300, 301, 302):
        dev.lake.load_table(T).delete(col("id") == ident)
    dev.lake.flush_inlined_data(T)
    main.lake.load_table(T).append(rows(*range(400, 430)))
    expected = [1, 3, 10, *range(12, 40), *range(205, 260), *range(303, 360)]
    assert dev.read() == expected
    repository.merge()
    assert main.read() == dev.read() == [*expected, *range(400, 430)]
    formats = repository.conn.execute("SELECT DISTINCT format FROM ducklake_delete_file").fetchall()
    assert ("puffin",) in formats


@pytest.mark.whole
def test_a_branch_of_a_branch_and_of_an_older_snapshot(repository: Repository) -> None:
    """Rows of the parent and of its parent, from a spare; inlined rows that came later are not shown."""
    main = repository.main
    at = main.lake.current_snapshot().snapshot_id
    main.lake.load_table(T).append(rows(50))
    main.lake.load_table(T).delete(col("id") == 1)
    old = repository.branch(BranchRequest("old", at=at))
    assert prepare_spare(repository.conn, MADE_SCHEMA)
    dev = repository.branch()
    dev.lake.load_table(T).append(rows(60))
    dev.lake.load_table(T).delete(col("id").isin([3, 20]))
    dev.lake.create_namespace(("sales", "asia"))
    dev.lake.create_table(("sales", "asia", "o"), schema=SCHEMA).append(rows(5))
    child = repository.branch(BranchRequest("child", "dev"))
    child.lake.load_table(T).append(rows(70))
    child.lake.load_table(("sales", "asia", "o")).append(rows(*range(6, 40)))
    assert old.read() == [1, 3, 10, *range(12, 40)]
    assert dev.read() == [10, *range(12, 20), *range(21, 40), 50, 60] and dev.read(("sales", "asia", "o")) == [5]
    assert child.read() == [*dev.read(), 70] and child.read(("sales", "asia", "o")) == list(range(5, 40))
    repository.merge("child")
    assert main.read() == child.read() == [*dev.read(), 70]


@pytest.mark.whole
def test_a_branch_and_its_parent_are_merged_both_ways(repository: Repository) -> None:
    """Inlined rows, files, deletes, updates and namespaces of both; conflicts change nothing, and the lake has none of it until the end."""
    main, dev = repository.main, repository.branch()
    dev.lake.load_table(T).append(rows(1000, 1001))
    dev.lake.load_table(T).append(rows(*range(1100, 1140)))
    dev.lake.load_table(T).delete(col("id").isin([1, 12]))
    child = repository.branch(BranchRequest("child", "dev"))
    base, lakes_head, child_rows = main.read(), main.lake.current_snapshot().snapshot_id, map_row_ids(child.lake)
    child.lake.load_table(T).append(rows(2000, 2001))
    child.lake.load_table(T).append(rows(*range(2100, 2140)))
    child.lake.load_table(T).delete(col("id").isin([3, 1000, 1100]))
    child.lake.load_table(T).update(col("id").isin([13, 1001, 1101]), {"v": "changed"})
    child.lake.create_namespace(("sales", "asia"))
    child.lake.create_table(("sales", "asia", "o"), schema=SCHEMA).append(rows(5))
    with child.served.pyiceberg().catalog as catalog:
        catalog.load_table(ORDERS).append(rows(500))
    dev.lake.load_table(T).append(rows(3000, 3001))
    dev.lake.load_table(ORDERS).append(rows(*range(300, 330)))
    up, down = MergeRequest("child", "dev"), MergeRequest("dev", "child")
    mine = [10, *range(13, 40), 1001, *range(1101, 1140), 2000, 2001, *range(2100, 2140)]
    assert child.read() == mine
    assert repository.merge(up).tables["sales.asia.o"] == ["create", "append"]
    shown = [*mine, 3000, 3001]
    for side in (dev, child):
        assert (side.read(), len(side.read(ORDERS)), side.read(("sales", "asia", "o"))) == (shown, 61, [5])
    # Both go on; the parent's news reach the branch, and what both changed is a conflict in both directions.
    dev.lake.load_table(T).append(rows(4000))
    dev.lake.load_table(T).delete(col("id") == 2000)
    child.lake.load_table(T).append(rows(5000))
    child.lake.load_table(T).update(col("id") == 2001, {"v": "again"})
    assert repository.merge(down).into == "child"
    shown = sorted([*(set(shown) - {2000}), 4000])
    assert (dev.read(), child.read()) == (shown, [*shown, 5000])
    dev.lake.load_table(T).delete(col("id") == 2100)
    child.lake.load_table(T).delete(col("id") == 2100)
    heads = [side.lake.current_snapshot() for side in (dev, child)]
    for request in (up, down):
        with pytest.raises(MergeConflicts, match="delete/delete"):
            repository.merge(request)
    assert heads == [side.lake.current_snapshot() for side in (dev, child)]
    repository.merge(MergeRequest("child", "dev", resolution=Resolution(OURS)))
    assert dev.read() == child.read() == sorted({*shown} - {2100})
    assert (main.read(), main.lake.current_snapshot().snapshot_id) == (base, lakes_head)
    check_row_ids(repository, dev, child, child_rows)


def check_row_ids(repository: Repository, dev: Side, child: Side, before: dict[int, int]) -> None:
    """Rows have ids of their own, also those that all sides add later, and keep them; the lake gets all in the end."""
    main = repository.main
    for first, side in ((7000, dev), (8000, child)):
        side.lake.load_table(T).append(rows(first))
        side.lake.load_table(T).append(rows(*range(first + 100, first + 130)))
    repository.merge(MergeRequest("child", "dev"))
    main.lake.load_table(T).append(rows(6000, 6001))
    delete_branch(repository.conn, MADE_SCHEMA, "child")
    repository.merge()
    for first, side in ((9000, main), (9100, dev)):
        side.lake.load_table(T).append(rows(first))
    assert (main.read()[-2:], dev.read()[-2:]) == ([8129, 9000], [8129, 9100])
    for side in (main, dev):
        row_ids = map_row_ids(side.lake)
        assert set(row_ids) >= set(side.read()) and {key: row_ids[key] for key in before.keys() & row_ids.keys()}.items() <= before.items()


@pytest.mark.whole
def test_a_lake_that_had_branches_is_migrated_and_gets_new_ones(local_lake: FreshLake) -> None:
    """The migration refuses while there are branches; afterwards new ones are of DuckLake 1.1, and merge."""
    with local_lake.duckdb() as duck:
        fill(duck)
    conn = local_lake.psycopg()
    create_branch(conn, local_lake.metadata_schema, BranchRequest("before"))
    with pytest.raises(BadRequest, match="branches, which are of DuckLake 1.0: before"):
        migrate(conn, local_lake.metadata_schema)
    delete_branch(conn, local_lake.metadata_schema, "before")
    migrate(conn, local_lake.metadata_schema)
    branch = as_lake(local_lake, create_branch(conn, local_lake.metadata_schema, BranchRequest("dev")))
    with serve(make_settings(local_lake, **LOCAL)) as server, open_ducklakepy(local_lake) as lake, open_ducklakepy(branch) as dev:
        main = Side(Served(local_lake, server), lake)
        side = Side(replace(main.served, lake=branch, warehouse=f"{main.served.warehouse}@dev"), dev)
        before = main.read()
        assert side.read() == before
        dev.load_table(T).append(rows(5000))
        dev.load_table(T).delete(col("id").isin([900, 0]))
        lake.load_table(T).append(rows(6000))
        merge_branch(conn, local_lake.metadata_schema, MergeRequest("dev"))
        assert main.read() == side.read() == sorted([*(set(before) - {0, 900}), 5000, 6000])
        assert check_same(side.served, dev, T) >= 1
