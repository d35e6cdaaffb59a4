"""Merges of a branch into its lake: one lake snapshot, after which the branch goes on from there."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import duckdb
import psycopg
import pytest

from duckicelake.errors import BadRequest, LakeBusy, MergeConflicts, NotFound, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, merge_branch, merge_locked, plan_merge
from duckicelake.lake.branches.merge_rules import OURS, THEIRS, Resolution
from duckicelake.lake.branches.registry import find_branch, rename_branch
from duckicelake.lake.install import format_search_path
from tests.lake.branches.repository import MAINTENANCE, fill, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_lifecycle import kill_at
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after, whole_but
from tests.support.waiting import wait_for


def merge(lake: FreshLake, request: MergeRequest | str = "dev") -> MergeResult:
    """Merge a branch."""
    return merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest(request) if isinstance(request, str) else request)


def run(side: FreshLake, *statements: str) -> None:
    """Run statements in a new session."""
    with closing(side.duckdb()) as session:
        for statement in statements:
            session.execute(statement)


def count(side: FreshLake, table: str = "t") -> tuple[object, ...]:
    """How many rows a table has in a new session, and how many row ids."""
    with closing(side.duckdb(read_only=True)) as session:
        found = session.execute(f"SELECT count(*), count(DISTINCT rowid) FROM {table}").fetchone()
    assert found is not None
    return found


def test_both_sides_have_everything_and_go_on(lake: FreshLake) -> None:
    """Appends, deletes, inlined rows, new tables and changed columns; then both sides write again, and merge again."""
    with closing(lake.duckdb()) as main:
        fill(main)
    dev = make_branch(lake, "dev")
    run(
        dev,
        "INSERT INTO t SELECT i, 'b' FROM range(1000, 1060) r(i)",
        "DELETE FROM t WHERE id BETWEEN 110 AND 139",
        "INSERT INTO t VALUES (2000, 'inlined')",
        "DELETE FROM t WHERE id = 900",
        "CREATE TABLE s.fresh AS SELECT range AS i FROM range(40)",
        "ALTER TABLE empty ADD COLUMN n INTEGER DEFAULT 7",
        "INSERT INTO empty VALUES (1, 2)",
    )
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(3000, 3030) r(i)", "INSERT INTO empty VALUES (5)")
    head = read_head(lake)
    result = merge(lake)
    assert result.snapshot_id == read_head(lake) and not result.is_fast_forward
    assert result.tables["s.fresh"] == ["create", "append"]
    snapshots = lake.psycopg().execute("SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_id > %s ORDER BY 1", (head,)).fetchall()
    # an empty one at the next id, and the merge
    assert snapshots == [(head + 1,), (result.snapshot_id,)]
    for side in (lake, dev):
        assert count(side) == (340, 340)
        assert read_rows(side, "empty") == [(1, 2), (5, 7)]
        assert len(read_rows(side, "s.fresh")) == 40
    run(dev, "INSERT INTO t SELECT i, 'again' FROM range(5000, 5020) r(i)", "UPDATE t SET v = 'x' WHERE id = 1003")
    run(lake, "INSERT INTO t SELECT i, 'more' FROM range(6000, 6020) r(i)", "DELETE FROM s.fresh WHERE i < 20")
    assert merge(lake).tables == {"main.t": ["append", "delete"]}
    assert merge(lake).snapshot_id is None
    for side in (dev, lake):
        assert count(side) == (380, 380)
        maintain(side)
        assert count(side) == (380, 380)
        assert len(read_rows(side, "s.fresh")) == 20


@pytest.mark.whole
@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")], ids=["older first", "newer first"])
def test_two_branches_of_one_fork_point_are_merged_in_either_order(lake: FreshLake, order: tuple[str, str]) -> None:
    """Ids of the older branch are smaller than those that the lake has by then."""
    run(lake, "CREATE TABLE t AS SELECT range AS id, 'o' AS v FROM range(40)")
    sides = {name: make_branch(lake, name) for name in order}
    for number, name in enumerate(("one", "two"), 1):
        run(
            sides[name],
            f"INSERT INTO t SELECT i, '{name}' FROM range({number * 100}, {number * 100 + 20}) r(i)",
            f"CREATE TABLE only_{name} AS SELECT {number} AS i",
        )
    for name in order:
        merge(lake, name)
        run(lake, "INSERT INTO t SELECT i, 'm' FROM range(1000, 1020) r(i)")
    assert count(lake) == (120, 120)
    merge(lake, MergeRequest(order[0]))
    run(sides[order[1]], "DELETE FROM t WHERE id < 20")
    merge(lake, order[1])
    assert count(lake) == (100, 100) and read_rows(lake, "only_one") == [(1,)]
    for side in (sides["two"], lake, sides["one"]):
        maintain(side)
    assert count(lake) == count(sides[order[1]]) == (100, 100)


@pytest.mark.whole
def test_the_merged_branch_can_be_deleted(lake: FreshLake) -> None:
    """The lake keeps the files that the branch brought; those that only the branch had are removed by the lake's clean-up."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(
        dev,
        "INSERT INTO t FROM range(100, 140)",
        "CREATE TABLE gone AS FROM range(30)",
        "DROP TABLE gone",
        "CREATE TABLE kept AS SELECT range AS i FROM range(30)",
    )
    merge(lake)
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    maintain(lake)
    assert count(lake) == (80, 80) and len(read_rows(lake, "kept")) == 30
    with closing(lake.bare_duckdb()) as session:
        left = session.execute(f"SELECT count(*) FROM glob('{dev.data_path}**/*.parquet')").fetchone()
    # The lake has put the two files of t together.
    assert left == (1,)
    # as after `init --remove` and `init`
    lake.psycopg().execute("ALTER SEQUENCE iceberg_branch_number RESTART")
    make_branch(lake, "next")
    branch = find_branch(lake.psycopg(), "next")
    assert branch is not None and branch.number == 2


@pytest.mark.parametrize(
    "statement", ["INSERT INTO t FROM range(500, 530)", "DELETE FROM t WHERE id < 15", "ALTER TABLE t ADD COLUMN z INT"]
)
@pytest.mark.whole
@pytest.mark.parametrize("on_branch", long_after(1, [False, True]), ids=["lake", "branch"])
def test_a_transaction_of_duckdb_that_is_open_meanwhile_fails_or_is_right(lake: FreshLake, statement: str, on_branch: bool) -> None:
    """An insert lands after the merge; a delete and a change of columns conflict with what was merged."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)", "DELETE FROM t WHERE id BETWEEN 20 AND 34", "ALTER TABLE t ADD COLUMN y INT")
    with closing((dev if on_branch else lake).duckdb()) as session:
        session.execute("BEGIN")
        session.execute(statement.replace("range(500, 530)", "(SELECT i, 0 FROM range(500, 530) r(i))") if on_branch else statement)
        merge(lake)
        with pytest.raises(duckdb.Error):
            session.execute("COMMIT")
    assert count(lake) == count(dev) == (45, 45)


@pytest.mark.whole
def test_an_insert_that_is_open_meanwhile_lands_after_the_merge(lake: FreshLake) -> None:
    """On the lake and on the branch, whose first lake snapshot after the merge names what the lake changed."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)")
    run(lake, "INSERT INTO t FROM range(200, 220)")
    with closing(dev.duckdb()) as mine, closing(lake.duckdb()) as theirs:
        for session, first in ((mine, 500), (theirs, 600)):
            session.execute("BEGIN")
            session.execute(f"INSERT INTO t FROM range({first}, {first + 30})")
        merge(lake)
        for session in (mine, theirs):
            session.execute("COMMIT")
        assert mine.execute("SELECT count(*) FROM t").fetchone() == (110,)
    assert count(lake) == count(dev) == (110, 110)
    merge(lake)
    assert count(lake) == (140, 140)


@pytest.mark.whole
def test_a_delete_on_the_branch_that_is_open_meanwhile_meets_the_lakes_changes(lake: FreshLake) -> None:
    """The lake deleted rows of the same file after the fork point: these must not come back."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)", "CREATE TABLE u AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO u FROM range(100, 120)")
    run(lake, "DELETE FROM t WHERE id < 15")
    with closing(dev.duckdb()) as session:
        session.execute("BEGIN")
        session.execute("DELETE FROM t WHERE id BETWEEN 20 AND 34")
        merge(lake)
        with pytest.raises(duckdb.Error):
            session.execute("COMMIT")
    assert count(dev) == count(lake) == (25, 25)


def test_namespaces_views_and_macros_are_merged(lake: FreshLake) -> None:
    """Namespaces made on both sides are one; views and macros are taken; what was dropped is dropped."""
    run(lake, "CREATE SCHEMA old", "CREATE VIEW v AS SELECT 1 AS x", "CREATE VIEW w AS SELECT 1 AS x", "CREATE MACRO m(a) AS a + 1")
    dev = make_branch(lake, "dev")
    run(
        dev,
        "CREATE SCHEMA made",
        "CREATE TABLE made.mine AS SELECT range AS i FROM range(30)",
        "CREATE VIEW made.v AS SELECT count(*) AS n FROM made.mine",
        "CREATE OR REPLACE VIEW v AS SELECT 2 AS x",
        "DROP VIEW w",
        "DROP SCHEMA old",
        "CREATE MACRO twice(a) AS a * 2",
        "DROP MACRO m",
    )
    run(lake, "CREATE SCHEMA made", "CREATE TABLE made.theirs AS SELECT range AS i FROM range(20)")
    result = merge(lake)
    assert "drop namespace old" in result.others and "create macro main.twice" in result.others
    for side in (lake, dev):
        assert [read_rows(side, name) for name in ("v", "made.v")] == [[(2,)], [(30,)]]
        assert len(read_rows(side, "made.theirs")) == 20
        with closing(side.duckdb()) as session:
            assert session.execute("SELECT twice(4)").fetchone() == (8,)
            for statement in ("FROM w", "CREATE TABLE old.x (i INT)", "SELECT m(1)"):
                with pytest.raises(duckdb.Error):
                    session.execute(statement)


@pytest.mark.whole
def test_partitioned_tables_are_merged_and_maintained(lake: FreshLake) -> None:
    """Files of one partition lie in the folders of both sides; DuckLake puts them together or leaves them alone."""
    run(lake, "CREATE TABLE p (k INT, n INT)", "ALTER TABLE p SET PARTITIONED BY (k)", "INSERT INTO p SELECT i % 2, i FROM range(40) r(i)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO p SELECT i % 2, i FROM range(100, 140) r(i)", "INSERT INTO p VALUES (1, 500)", "DELETE FROM p WHERE n < 15")
    run(lake, "INSERT INTO p SELECT i % 2, i FROM range(200, 240) r(i)")
    merge(lake)
    for side in (lake, dev, lake):
        assert count(side, "p") == (106, 106)
        maintain(side)
    assert count(lake, "p") == count(dev, "p") == (106, 106)


@pytest.mark.whole
def test_a_property_in_conflict_is_left_out_alone(lake: FreshLake) -> None:
    """With ours the lake keeps its value of the property, and the table's other changes are merged."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "COMMENT ON TABLE t IS 'b'", "INSERT INTO t FROM range(100, 120)")
    run(lake, "COMMENT ON TABLE t IS 'm'")
    result = merge(lake, MergeRequest("dev", resolution=Resolution(by_name={"main.t": OURS})))
    assert [each.kind for each in result.left_out] == ["property/property"] and result.tables == {"main.t": ["append"]}
    assert count(lake) == (60, 60)
    with closing(lake.duckdb()) as session:
        assert session.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 't'").fetchall() == [("m",)]


@pytest.mark.whole
def test_the_branchs_side_of_names_and_properties_is_taken(lake: FreshLake) -> None:
    """With theirs the lake's changes end: of a name, property, view, partitioning and sort order, and a table is dropped. Rows stay."""
    made = ("named", "noted", "parted", "sorted", "gone", "rows")
    run(lake, *(f"CREATE TABLE {name} AS SELECT range AS id, 'o' AS v FROM range(40)" for name in made))
    run(lake, "CREATE VIEW seen AS SELECT 1 AS x", "CREATE VIEW dropped AS SELECT 1 AS x")
    dev = make_branch(lake, "dev")
    changes = (
        "ALTER TABLE named RENAME TO {s}_name",
        "COMMENT ON TABLE noted IS '{s}'",
        "ALTER TABLE parted SET PARTITIONED BY ({c})",
        "ALTER TABLE sorted SET SORTED BY ({c})",
        "ALTER VIEW seen RENAME TO {s}_view",
    )
    run(dev, *(each.format(s="b", c="v") for each in changes), "DROP TABLE gone", "ALTER VIEW dropped RENAME TO kept")
    run(lake, *(each.format(s="m", c="id") for each in changes), "INSERT INTO gone VALUES (1, 'm')", "DROP VIEW dropped")
    with pytest.raises(MergeConflicts) as refused:
        merge(lake)
    kinds = {"rename/rename", "property/property", "partitioning/partitioning", "sorting/sorting", "view/view", "drop/change"}
    assert {each.kind for each in refused.value.conflicts} == kinds
    result = merge(lake, MergeRequest("dev", resolution=Resolution(THEIRS)))
    assert {each.kind for each in result.overruled} == kinds and not result.left_out
    for side in (lake, dev):
        with closing(side.duckdb()) as session:
            names = session.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake' ORDER BY 1").fetchall()
            assert [name for (name,) in names] == ["b_name", "noted", "parted", "rows", "sorted"]
            assert session.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'noted'").fetchall() == [("b",)]
            assert session.execute("SELECT b_view.x, kept.x FROM b_view, kept").fetchall() == [(1, 1)]
            session.execute("INSERT INTO parted VALUES (100, 'p')")
    parts = """SELECT c.column_id FROM ducklake_partition_info i JOIN ducklake_partition_column c USING (partition_id)
                WHERE i.end_snapshot IS NULL"""
    assert lake.psycopg().execute(parts).fetchall() == [(2,)]
    run(dev, "DELETE FROM rows WHERE id < 15")
    run(lake, "DELETE FROM rows WHERE id < 18")
    with pytest.raises(MergeConflicts, match="`theirs` decides conflicts of names") as refused:
        merge(lake, MergeRequest("dev", resolution=Resolution(THEIRS)))
    assert [each.kind for each in refused.value.conflicts] == ["delete/delete"]
    assert [each.kind for each in merge(lake, MergeRequest("dev", resolution=Resolution(THEIRS, {"main.rows": OURS}))).left_out] == [
        "delete/delete"
    ]


NAMES = {
    "view": ("CREATE OR REPLACE VIEW v AS SELECT 2 AS x", "CREATE OR REPLACE VIEW v AS SELECT 3 AS x", "main.v"),
    "table and view": ("CREATE TABLE n (i INT)", "CREATE VIEW N AS SELECT 1 AS x", "main.n"),
    "dropped namespace": ("CREATE TABLE s.n (i INT)", "DROP SCHEMA s", "s.n"),
    "used namespace": ("DROP SCHEMA s", "CREATE TABLE s.n (i INT)", "s"),
    "namespaces by case": ("CREATE SCHEMA Made", "CREATE SCHEMA made", "Made"),
}


@pytest.mark.parametrize("case", whole_but(NAMES, "view"))
def test_names_that_exclude_each_other_are_conflicts(lake: FreshLake, case: str) -> None:
    """The message names the object; with ours the lake keeps its own."""
    mine, theirs, name = NAMES[case]
    run(lake, "CREATE VIEW v AS SELECT 1 AS x", "CREATE SCHEMA s")
    dev = make_branch(lake, "dev")
    run(dev, mine, "CREATE TABLE other AS SELECT 1 AS i")
    run(lake, theirs)
    with pytest.raises(MergeConflicts) as refused:
        merge(lake)
    assert name in {each.name for each in refused.value.conflicts}
    result = merge(lake, MergeRequest("dev", resolution=Resolution(OURS)))
    assert read_rows(lake, "other") == [(1,)] and name in {each.name for each in result.left_out}


def test_what_cannot_be_merged_is_refused(lake: FreshLake) -> None:
    """Unknown branches, unknown strategies, a branch that has branches, and a fast-forward of a lake that moved."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)")
    make_branch(lake, BranchRequest("child", "dev"))
    for request, error in (
        (MergeRequest("nothing"), NotFound),
        (MergeRequest("dev", strategy="octopus"), BadRequest),
    ):
        with pytest.raises(error):
            merge(lake, request)
    with pytest.raises(Unsupported, match="child"):
        merge(lake)
    delete_branch(lake.psycopg(), lake.metadata_schema, "child")
    run(lake, "INSERT INTO t FROM range(200, 220)")
    with pytest.raises(MergeConflicts, match="fast-forward"):
        merge(lake, MergeRequest("dev", strategy="ff"))
    merge(lake)
    assert count(lake) == (80, 80)


SCHEMAS = {
    "made again": ("DROP SCHEMA s CASCADE; CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 2 AS i", "CREATE TABLE u (i INT)", Resolution()),
    "left out": ("CREATE SCHEMA Made; CREATE TABLE Made.t AS SELECT 2 AS i", "CREATE SCHEMA made", Resolution(OURS)),
}


@pytest.mark.parametrize("case", whole_after(1, SCHEMAS))
def test_no_table_gets_into_a_namespace_that_is_not_there(lake: FreshLake, case: str) -> None:
    """DuckDB attaches no lake that has one. Nothing is merged, and both sides go on."""
    mine, theirs, resolution = SCHEMAS[case]
    run(lake, "CREATE SCHEMA s", "CREATE TABLE s.t AS SELECT 1 AS i")
    dev = make_branch(lake, "dev")
    run(dev, mine)
    run(lake, theirs)
    before = read_head(lake)
    with pytest.raises(MergeConflicts, match="namespace that is dropped"):
        merge(lake, MergeRequest("dev", resolution=resolution))
    assert (read_head(lake), read_rows(lake, "s.t")) == (before, [(1,)])
    run(dev, "CREATE TABLE more AS SELECT 1 AS i")


def test_keys_for_the_branch_open_another_location_after_a_merge(lake: FreshLake) -> None:
    """What clients of the branch wrote before is the lake's now."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)")
    conn = lake.psycopg()
    [before] = conn.execute("SELECT iceberg_path FROM iceberg_branch").fetchone() or []
    merge(lake)
    [after] = conn.execute("SELECT iceberg_path FROM iceberg_branch").fetchone() or []
    assert after != before
    schema = psycopg.sql.Identifier(dev.metadata_schema)
    query = psycopg.sql.SQL(
        "SELECT location FROM {}.iceberg_table UNION ALL SELECT value FROM {}.iceberg_setting WHERE key = 'iceberg_path'"
    )
    found = [row[0] for row in conn.execute(query.format(schema, schema)).fetchall()]
    assert found and all(str(place).startswith(str(after)) for place in found)


SELECT_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.whole
def test_a_branch_is_not_deleted_under_a_merge(lake: FreshLake) -> None:
    """Its files would be scheduled for deletion, and the lake names them from then on: the deletion waits, and sees the merge."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)")
    with (
        closing(lake.psycopg()) as conn,
        closing(lake.psycopg()) as other,
        closing(lake.psycopg()) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        planned = plan_merge(conn, lake.metadata_schema, MergeRequest("dev"))
        conn.execute("BEGIN")
        merge_locked(conn, lake.metadata_schema, MergeRequest("dev"), planned)
        deletion = pool.submit(delete_branch, other, lake.metadata_schema, "dev")
        wait_for(lambda: watcher.execute(SELECT_WAITING).fetchone() == (1,), "the deletion to wait", 30)
        conn.execute("COMMIT")
        deletion.result(30)
        watcher.execute(format_search_path(lake.metadata_schema))
        assert find_branch(watcher, "dev") is None
    maintain(lake)
    assert count(lake) == (60, 60)


SELECT_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
INSERT_NAME = """
INSERT INTO iceberg_branch (number, name, schema_name, parent, fork_snapshot_id, data_path, iceberg_path)
VALUES (0, 'late', '', '', 0, '', '')
"""


@pytest.mark.whole
def test_a_branch_that_is_made_beside_merges_is_merged(lake: FreshLake) -> None:
    """Its ids lie above the lake's, also if the lake has got ids of a range that is newer than the claim."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    with closing(lake.psycopg(autocommit=False)) as holder, closing(lake.psycopg()) as watcher, ThreadPoolExecutor(1) as pool:
        # The claim has its number, and waits to know whether its name is free.
        holder.execute(INSERT_NAME)
        claim = pool.submit(make_branch, lake, "late")
        waits = (holder.info.backend_pid,)
        wait_for(lambda: watcher.execute(SELECT_BLOCKED, waits).fetchone() == (1,), "the claim to wait")
        for first in (100, 200):
            run(dev, f"INSERT INTO t FROM range({first}, {first + 20})")
            merge(lake)
        holder.rollback()
        late = claim.result(60)
    made = find_branch(lake.psycopg(), "late")
    assert made is not None and made.number << 32 > made.fork_snapshot_id
    for side, first in ((lake, 300), (late, 400)):
        run(side, f"INSERT INTO t FROM range({first}, {first + 20})")
    assert (count(lake), count(late)) == ((100, 100), (100, 100))
    merge(lake, "late")
    assert count(lake) == count(late) == (120, 120)


def test_a_merge_locks_what_it_merges(lake: FreshLake) -> None:
    """A branch that got the name of the planned one is not locked: the merge is planned again from the beginning."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    run(make_branch(lake, "dev"), "INSERT INTO t FROM range(100, 120)")
    request, conn = MergeRequest("dev"), lake.psycopg()
    planned = plan_merge(conn, lake.metadata_schema, request)
    rename_branch(lake.psycopg(), lake.metadata_schema, "dev", "old")
    run(make_branch(lake, "dev"), "INSERT INTO t FROM range(200, 230)")
    run(lake, "INSERT INTO t FROM range(300, 340)")
    with pytest.raises(LakeBusy), conn.transaction():
        merge_locked(conn, lake.metadata_schema, request, planned)
    merge(lake)
    assert count(lake) == (110, 110)


def test_a_table_that_has_lost_files_meanwhile_is_not_dropped(lake: FreshLake) -> None:
    """Also if both sides have expired their snapshots, so that neither has rows of these files any more."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)", "INSERT INTO t FROM range(100, 140)")
    expire = MAINTENANCE[3]
    run(make_branch(lake, "dev"), "DROP TABLE t", "CREATE TABLE u (i INT)", expire)
    run(lake, "DELETE FROM t WHERE id < 50", expire)
    for request in (MergeRequest("dev"), MergeRequest("main", "dev")):
        with pytest.raises(MergeConflicts, match="drop/change"):
            merge(lake, request)


@pytest.mark.whole
def test_a_branch_of_a_branch_brings_both_branches_changes(lake: FreshLake) -> None:
    """Its parent is not merged then; merging the parent afterwards is refused, because the lake has its changes already."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)", "DELETE FROM t WHERE id < 15")
    child = make_branch(lake, BranchRequest("child", "dev"))
    run(child, "INSERT INTO t FROM range(200, 220)")
    merge(lake, "child")
    assert count(lake) == count(child) == (65, 65)
    with pytest.raises(Unsupported, match="merged since"):
        merge(lake)


@pytest.mark.whole
def test_a_merge_waits_for_nobody_and_is_all_or_nothing(lake: FreshLake) -> None:
    """Another session holds the branch's lock: the merge gives up, and nothing was written."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)")
    head = read_head(lake)
    with psycopg.connect(lake.dsn) as holder:
        holder.execute(f'LOCK TABLE "{dev.metadata_schema}".ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE'.encode())
        with pytest.raises(Exception, match="quieter"):
            merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"), tries=1)
    assert read_head(lake) == head
    branch = find_branch(lake.psycopg(), "dev")
    assert branch is not None and branch.number == 1
    merge(lake)
    assert count(lake) == (60, 60)


@pytest.mark.whole
@pytest.mark.parametrize("step", ["_write", "copy_merged_notes", "_write_snapshots+", "refork", "refork+"])
def test_a_merge_that_is_killed_changes_nothing(lake: FreshLake, step: str) -> None:
    """Both sides are as they were, go on at once, and are merged by the next request."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)", "INSERT INTO t VALUES (500)")
    run(lake, "INSERT INTO t FROM range(200, 220)")
    heads = read_head(lake), read_head(dev)
    kill_at(lake, "merge", step)
    assert (read_head(lake), read_head(dev)) == heads
    assert (count(lake), count(dev)) == ((60, 60), (61, 61))
    run(lake, "INSERT INTO t FROM range(300, 320)")
    merge(lake)
    assert count(lake) == count(dev) == (101, 101)


def test_the_change_feed_over_a_merge_is_exact_from_the_next_snapshot_on(lake: FreshLake) -> None:
    """A reader that has seen the lake up to its head goes on with the next id, and gets each row of the branch once."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 120)", "DELETE FROM t WHERE id < 15")
    run(lake, "INSERT INTO t FROM range(200, 220)")
    head = read_head(lake)
    result = merge(lake)
    with closing(lake.duckdb()) as session:
        changes = f"lake.table_changes('t', {head + 1}, {result.snapshot_id})"
        feed = f"SELECT change_type, count(*), min(id), max(id) FROM {changes} GROUP BY 1 ORDER BY 1"
        assert session.execute(feed).fetchall() == [("delete", 15, 0, 14), ("insert", 20, 100, 119)]
