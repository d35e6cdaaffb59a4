"""Merges of a branch into the branch it was made of, and of that one's news into it."""

from contextlib import closing

import duckdb
import pytest

from duckicelake.errors import BadRequest, MergeConflicts, NotFound, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.merge import MergeRequest
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import MAINTENANCE, fill, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_isolation import see
from tests.lake.branches.test_lifecycle import kill_at, list_named, list_objects
from tests.lake.branches.test_merge import count, merge, run
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, long_but

UP, DOWN = MergeRequest("child", "dev"), MergeRequest("dev", "child")
SHOWN = ("t", "empty", "s.fresh", "s.parts")


def make_both(lake: FreshLake) -> tuple[FreshLake, FreshLake]:
    """Make a branch of the lake, and a branch of that one."""
    return make_branch(lake, "dev"), make_branch(lake, BranchRequest("child", "dev"))


def drop(lake: FreshLake, name: str) -> None:
    """Delete a branch."""
    assert delete_branch(lake.psycopg(), lake.metadata_schema, name)


def clean_up(lake: FreshLake, *sides: FreshLake) -> None:
    """Remove what no member needs."""
    collect_garbage(lake.psycopg(), lake.metadata_schema)
    for side in sides:
        run(side, *MAINTENANCE[3:])


def check_maintenance(dev: FreshLake, child: FreshLake) -> None:
    """Maintain both branches; both show the same afterwards."""
    expected = see(dev, SHOWN)
    for side in (child, dev):
        maintain(side)
        assert see(dev, SHOWN) == see(child, SHOWN) == expected and count(dev) == count(child)


@pytest.mark.whole
def test_a_branch_and_its_parent_have_everything_and_go_on(lake: FreshLake) -> None:
    """Merges both ways, with a sibling; the lake is as it was, until the parent is merged, and every file left is read."""
    with closing(lake.duckdb()) as main:
        fill(main)
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t SELECT i, 'd' FROM range(1000, 1060) r(i)", "DELETE FROM t WHERE id BETWEEN 110 AND 139")
    run(dev, "INSERT INTO t VALUES (2000, 'inlined')", "CREATE TABLE s.fresh AS SELECT range AS i FROM range(40)")
    child, sibling = (make_branch(lake, BranchRequest(name, "dev")) for name in ("child", "sibling"))
    rows, lakes_head, head = read_rows(lake, "t"), read_head(lake), read_head(dev)
    run(
        child,
        "INSERT INTO t SELECT i, 'c' FROM range(3000, 3030) r(i)",
        "DELETE FROM t WHERE id IN (50, 1003, 2000)",
        "DELETE FROM t WHERE id BETWEEN 1010 AND 1029",
        "DELETE FROM s.fresh WHERE i < 15",
        "ALTER TABLE empty ADD COLUMN n INTEGER DEFAULT 7",
        "INSERT INTO empty VALUES (1, 2)",
    )
    run(sibling, "INSERT INTO t SELECT i, 's' FROM range(4000, 4025) r(i)", "DELETE FROM t WHERE id BETWEEN 210 AND 229")
    run(dev, "INSERT INTO t SELECT i, 'd' FROM range(5000, 5020) r(i)", "INSERT INTO empty VALUES (5)")
    result = merge(lake, UP)
    assert (result.branch, result.into, result.snapshot_id) == ("child", "dev", read_head(dev))
    assert result.tables == {"main.t": ["append", "delete"], "main.empty": ["schema", "append"], "s.fresh": ["delete"]}
    snapshots = dev.psycopg().execute("SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_id > %s ORDER BY 1", (head + 2,))
    # Two inserts of the parent's own, an empty one at the next id, and the merge.
    assert snapshots.fetchall() == [(head + 3,), (result.snapshot_id,)]
    assert count(dev) == count(child) == (338, 338) and read_rows(dev, "empty") == [(1, 2), (5, 7)]
    assert see(dev, SHOWN) == see(child, SHOWN)
    merge(lake, MergeRequest("sibling", "dev"))
    assert count(dev) == (343, 343)
    run(child, "INSERT INTO t SELECT i, 'c' FROM range(6000, 6020) r(i)", "UPDATE t SET v = 'x' WHERE id IN (1005, 3003, 5)")
    shown = merge(lake, DOWN)
    assert shown.tables == {"main.t": ["append", "delete"]} and count(child) == (363, 363) and count(dev) == (343, 343)
    assert merge(lake, DOWN).snapshot_id is None
    assert merge(lake, UP).is_fast_forward and merge(lake, UP).snapshot_id is None
    assert (read_rows(lake, "t"), read_head(lake)) == (rows, lakes_head)
    check_maintenance(dev, child)
    assert read_rows(lake, "t") == rows
    with pytest.raises(Unsupported, match="child"):
        merge(lake)
    drop(lake, "child")
    drop(lake, "sibling")
    expected = see(dev, SHOWN)
    merge(lake)
    assert see(lake, SHOWN) == see(dev, SHOWN) == expected and count(lake) == count(dev) == (363, 363)
    for side in (dev, lake):
        maintain(side)
    drop(lake, "dev")
    clean_up(lake, lake)
    assert see(lake, SHOWN) == expected and list_objects(lake) == {path for name in SHOWN for path in list_named(lake, name)}


def test_appends_and_deletes_of_both_sides_are_merged(lake: FreshLake) -> None:
    """Up into the parent, down into the branch, and up again; the lake has none of it before the parent is merged."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev, child = make_both(lake)
    run(child, "INSERT INTO t FROM range(100, 120)", "DELETE FROM t WHERE id < 15", "CREATE TABLE u AS FROM range(5)")
    run(dev, "INSERT INTO t FROM range(200, 220)")
    assert merge(lake, DOWN).into == "child"
    assert (count(child), count(dev), count(lake)) == ((65, 65), (60, 60), (40, 40))
    run(dev, "INSERT INTO t VALUES (300)")
    merge(lake, UP)
    assert (count(child), count(dev), count(lake), read_rows(dev, "u")) == ((66, 66), (66, 66), (40, 40), [(i,) for i in range(5)])
    # The branch without changes is merged into the lake with its parent's, which is merged no more.
    run(child, "INSERT INTO t VALUES (301)")
    merge(lake, "child")
    assert count(lake) == (67, 67)
    with pytest.raises(Unsupported, match="part of it is in the lake already"):
        merge(lake)


OTHERS = "SELECT i, 'o' FROM range({}, {}) r(i)"
COMPACT, EXPIRE = MAINTENANCE[1], MAINTENANCE[3]
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str | None]] = {
    # what the parent does before the branch is made of it, the branch, the parent meanwhile; the conflict
    "the parent had compacted": ((COMPACT,), ("INSERT INTO t VALUES (900, 'c')",), (), None),
    "the parent compacts and expires": ((), ("INSERT INTO t VALUES (900, 'c')",), (COMPACT, EXPIRE), None),
    "delete, the parent compacts": ((), ("DELETE FROM t WHERE id < 15",), (COMPACT, EXPIRE), "delete/compaction"),
    "drop, the parent deletes a file of the lake and expires": (
        (),
        ("DROP TABLE t", EXPIRE),
        ("DELETE FROM t WHERE id < 50", EXPIRE),
        "drop/change",
    ),
    "drop, the parent deletes a file of its own and expires": (
        ("INSERT INTO t " + OTHERS.format(500, 530),),
        ("DROP TABLE t", EXPIRE),
        ("DELETE FROM t WHERE id >= 500", EXPIRE),
        "drop/change",
    ),
    "delete of the parent's rows, the parent deletes": (
        ("INSERT INTO t " + OTHERS.format(500, 530),),
        ("DELETE FROM t WHERE id BETWEEN 500 AND 514",),
        ("DELETE FROM t WHERE id BETWEEN 510 AND 524",),
        "delete/delete",
    ),
    "overwrite of the parent's file, which it overwrites": (
        ("INSERT INTO t " + OTHERS.format(500, 530),),
        ("UPDATE t SET v = 'c' WHERE id >= 500", EXPIRE),
        ("UPDATE t SET v = 'd' WHERE id >= 500",),
        "overwrite/delete",
    ),
    "compaction of the parent's files": (
        ("INSERT INTO t " + OTHERS.format(500, 530), "INSERT INTO t " + OTHERS.format(530, 560)),
        (COMPACT, EXPIRE, "DELETE FROM t WHERE id BETWEEN 540 AND 555"),
        ("INSERT INTO t VALUES (900, 'd')",),
        None,
    ),
    "the parent drops a column and expires": ((), ("CREATE TABLE u (i INT)",), ("ALTER TABLE t DROP COLUMN v", EXPIRE), None),
    "the parent drops and expires": ((), ("CREATE TABLE u (i INT)",), ("DROP TABLE t", "CREATE TABLE t (id INT)", EXPIRE), None),
}


@pytest.mark.whole
@pytest.mark.parametrize("case", long_after(3, CASES))
def test_what_the_parent_has_of_the_lake_and_of_its_own(lake: FreshLake, case: str) -> None:
    """The parent reads the lake's rows through views: it, and the branch, may have removed some of them, before or after the fork."""
    before, mine, theirs, conflict = CASES[case]
    run(lake, "CREATE TABLE t (id BIGINT, v VARCHAR)", *(f"INSERT INTO t {OTHERS.format(i, i + 20)}" for i in (0, 100)))
    dev = make_branch(lake, "dev")
    run(dev, *before)
    child = make_branch(lake, BranchRequest("child", "dev"))
    base = set(read_rows(dev, "t"))
    run(child, *mine)
    run(dev, *theirs)
    if conflict is not None:
        for request in (UP, DOWN):
            with pytest.raises(MergeConflicts, match=conflict):
                merge(lake, request)
        return
    added, removed = set(read_rows(child, "t")) - base, base - set(read_rows(child, "t"))
    expected = sorted((set(read_rows(dev, "t")) - removed) | added)
    for request in (DOWN, UP):
        merge(lake, request)
        assert read_rows(child, "t") == expected
    assert read_rows(dev, "t") == expected and count(dev) == count(child) == (len(expected), len(expected))
    drop(lake, "child")
    merge(lake)
    for side in (dev, lake):
        assert read_rows(side, "t") == expected


@pytest.mark.long
def test_changes_rise_through_six_branches(lake: FreshLake) -> None:
    """Each is merged into the one it was made of, and deleted; the news of each reach those below it."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    names = ["main", *(f"d{depth}" for depth in range(1, 7))]
    sides = {"main": lake}
    for depth, (parent, name) in enumerate(zip(names, names[1:], strict=False), 1):
        sides[name] = make_branch(lake, BranchRequest(name, parent))
        run(sides[name], f"INSERT INTO t FROM range({depth}00, {depth}20)", f"DELETE FROM t WHERE id = {depth}")
    run(sides["d5"], "INSERT INTO t FROM range(900, 920)")
    merge(lake, MergeRequest("d5", "d6"))
    assert count(sides["d6"]) == (174, 174)
    for name, parent in reversed(list(zip(names[1:], names, strict=False))):
        merge(lake, MergeRequest(name, parent))
        assert count(sides[parent]) == count(sides[name]) == (174, 174)
        drop(lake, name)
    maintain(lake)
    assert count(lake) == (174, 174)


OPEN = ("INSERT INTO t FROM range(500, 530)", "DELETE FROM t WHERE id < 15")


@pytest.mark.whole
@pytest.mark.parametrize("is_rebase", long_after(1, [False, True]), ids=["up", "down"])
@pytest.mark.parametrize("statement", OPEN)
def test_a_transaction_of_duckdb_that_is_open_meanwhile_fails(lake: FreshLake, statement: str, is_rebase: bool) -> None:
    """On the side that is merged into: the merge deleted rows of the same table."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev, child = make_both(lake)
    run(child, "INSERT INTO t FROM range(100, 120)", "DELETE FROM t WHERE id BETWEEN 20 AND 34")
    run(dev, "INSERT INTO t FROM range(200, 220)")
    into, request = (child, DOWN) if is_rebase else (dev, UP)
    with closing(into.duckdb()) as session:
        session.execute("BEGIN")
        session.execute(statement)
        merge(lake, request)
        with pytest.raises(duckdb.Error):
            session.execute("COMMIT")
    assert count(into) == (65, 65)


def test_branches_that_were_not_made_of_each_other_are_not_merged(lake: FreshLake) -> None:
    """Nor one whose parent is a tag, is deleted, or was deleted and has left its name to another; nor one that has a branch."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    make_both(lake)
    make_branch(lake, BranchRequest("grandchild", "child"))
    make_branch(lake, BranchRequest("v1", "dev", is_tag=True))
    make_branch(lake, BranchRequest("of-tag", "v1"))
    for request, error, message in (
        (UP, Unsupported, "grandchild"),
        (DOWN, Unsupported, "grandchild"),
        (MergeRequest("grandchild", "dev"), BadRequest, "neither"),
        (MergeRequest("of-tag", "v1"), BadRequest, "never changes"),
        (MergeRequest("v1", "of-tag"), BadRequest, "never changes"),
        (MergeRequest("child", "nothing"), NotFound, "nothing"),
        (MergeRequest("dev", "dev"), BadRequest, "neither"),
        (MergeRequest("main", "child"), Unsupported, "made of another branch"),
    ):
        with pytest.raises(error, match=message):
            merge(lake, request)
    drop(lake, "grandchild")
    drop(lake, "dev")
    with pytest.raises(NotFound):
        merge(lake, UP)
    make_branch(lake, "dev")
    with pytest.raises(BadRequest, match="neither"):
        merge(lake, UP)
    reset_branch(lake.psycopg(), lake.metadata_schema, "child")
    merge(lake, MergeRequest("main", "child"))


STEPS = ["copy_merged_notes+", "_write_snapshots", "_write_snapshots+", "refork+"]


@pytest.mark.parametrize("step", long_but(STEPS, "refork+"))
def test_a_killed_merge_changes_nothing(lake: FreshLake, step: str) -> None:
    """A process that is killed between two steps leaves both branches as they were; the next one merges them."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev, child = make_both(lake)
    run(child, "INSERT INTO t FROM range(100, 140)", "DELETE FROM t WHERE id < 15")
    run(dev, "INSERT INTO t FROM range(200, 240)")
    heads = read_head(dev), read_head(child)
    kill_at(lake, "merge", step, "child:dev")
    kill_at(lake, "merge", "refork+", "dev:child")
    assert (read_head(dev), read_head(child), count(dev), count(child)) == (*heads, (80, 80), (65, 65))
    merge(lake, UP)
    assert count(dev) == count(child) == (105, 105)
