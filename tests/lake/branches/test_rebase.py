"""Rebases: merges of the lake into a branch, which shows the lake's newest snapshot then and its own changes as one snapshot on top."""

from contextlib import closing

import duckdb
import pytest

from duckicelake.errors import BadRequest, MergeConflicts, NotFound, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.merge import MergeRequest
from tests.lake.branches.repository import fill, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_isolation import see
from tests.lake.branches.test_lifecycle import kill_at, list_named, list_objects
from tests.lake.branches.test_merge import count, merge, run
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but, whole_after

REBASE = MergeRequest("main", "dev")


@pytest.mark.whole
def test_a_branch_gets_the_lakes_news(lake: FreshLake) -> None:
    """Appends, deletes, inlined rows, new tables and changed columns of both sides; then it is rebased again, and merged."""
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
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(3000, 3030) r(i)", "INSERT INTO empty VALUES (5)", "DROP VIEW seen")
    head, rows = read_head(lake), read_rows(lake, "t")
    result = merge(lake, REBASE)
    assert result.snapshot_id == read_head(dev) and result.tables["s.fresh"] == ["create", "append"]
    assert read_head(lake) == head and read_rows(lake, "t") == rows
    assert (count(dev), read_rows(dev, "empty"), len(read_rows(dev, "s.fresh"))) == ((340, 340), [(1, 2), (5, 7)], 40)
    with pytest.raises(duckdb.CatalogException):
        read_rows(dev, "seen")
    assert merge(lake, REBASE).snapshot_id is None
    run(dev, "INSERT INTO t SELECT i, 'again' FROM range(5000, 5020) r(i)", "UPDATE t SET v = 'x' WHERE id IN (1003, 2000, 5)")
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(7000, 7030) r(i)", "DELETE FROM t WHERE id BETWEEN 210 AND 229")
    merge(lake, REBASE)
    rows = read_rows(dev, "t")
    assert count(dev) == (370, 370)
    merge(lake)
    for side in (dev, lake, dev):
        assert read_rows(lake, "t") == read_rows(dev, "t") == rows
        assert count(lake) == count(dev) == (370, 370)
        maintain(side)
    assert see(lake, ("t", "empty", "s.fresh", "s.parts")) == see(dev, ("t", "empty", "s.fresh", "s.parts"))


@pytest.mark.long
def test_files_of_a_rebased_branch_may_have_smaller_ids_than_the_lake_counts(lake: FreshLake) -> None:
    """A newer branch was merged, so the lake's counters are above the range that the older branch's files have."""
    run(lake, "CREATE TABLE t AS SELECT range AS id, 'o' AS v FROM range(40)")
    dev, newer = make_branch(lake, "dev"), make_branch(lake, "newer")
    run(dev, "INSERT INTO t SELECT i, 'b' FROM range(100, 140) r(i)", "CREATE TABLE made AS SELECT range AS i FROM range(40)")
    run(newer, "INSERT INTO t SELECT i, 'n' FROM range(200, 240) r(i)")
    merge(lake, "newer")
    merge(lake, REBASE)
    assert (count(dev), count(dev, "made")) == ((120, 120), (40, 40))
    run(
        dev,
        "DELETE FROM t WHERE id BETWEEN 100 AND 119",
        "DELETE FROM t WHERE id IN (121, 5, 205)",
        "CALL ducklake_merge_adjacent_files('lake', 'made')",
        "DELETE FROM made WHERE i < 20",
        "ALTER TABLE made RENAME TO kept",
    )
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(300, 340) r(i)")
    rows = sorted([*read_rows(dev, "t"), *((number, "m") for number in range(300, 340))])
    merge(lake, REBASE)
    assert read_rows(dev, "t") == rows
    merge(lake)
    for side in (dev, lake):
        assert (read_rows(side, "t"), count(side, "kept")) == (rows, (20, 20))
        maintain(side)
    assert read_rows(lake, "t") == read_rows(dev, "t") == rows


def test_a_branch_without_changes_shows_the_lakes_newest_snapshot(lake: FreshLake) -> None:
    """There is no snapshot of changes on top."""
    run(lake, "CREATE TABLE t AS SELECT range AS id, 'o' AS v FROM range(40)")
    dev = make_branch(lake, "dev")
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(100, 140) r(i)")
    assert merge(lake, REBASE).tables == {}
    run(dev, "INSERT INTO t VALUES (7, 'b')")
    assert count(dev) == (81, 81) and count(lake) == (80, 80)


@pytest.mark.whole
def test_what_a_rebase_forgets_is_cleaned_up(lake: FreshLake) -> None:
    """Files that the branch had put together are in no snapshot of it any more; the clean-up leaves those that somebody reads."""
    run(lake, "CREATE TABLE t AS SELECT range AS id, 'o' AS v FROM range(40)")
    dev = make_branch(lake, "dev")
    for first in (100, 200):
        run(dev, f"INSERT INTO t SELECT i, 'b' FROM range({first}, {first + 40}) r(i)")
    run(dev, "CREATE TABLE gone AS FROM range(30)", "DROP TABLE gone", "DELETE FROM t WHERE id BETWEEN 100 AND 120")
    run(lake, "INSERT INTO t SELECT i, 'm' FROM range(300, 340) r(i)")
    merge(lake, REBASE)
    collect_garbage(lake.psycopg(), lake.metadata_schema)
    for side in (lake, dev, lake):
        run(side, "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        run(side, "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    assert count(dev) == (139, 139)
    assert list_objects(lake) == {path for side in (lake, dev) for path in list_named(side, "t")}
    delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    run(lake, "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert list_objects(lake) == set(list_named(lake, "t")) and count(lake) == (80, 80)


OPEN = {
    "delete": ("DELETE FROM t WHERE id = 3", False),
    "delete of a row of the branch": ("DELETE FROM t WHERE id = 105", False),
    "insert": ("INSERT INTO u FROM range(500, 530)", True),
}


@pytest.mark.parametrize("case", whole_after(1, OPEN))
def test_a_transaction_of_duckdb_that_is_open_meanwhile_fails_or_is_right(lake: FreshLake, case: str) -> None:
    """It conflicts with what either side changed; an insert into another table lands after the rebase."""
    statement, lands = OPEN[case]
    run(lake, *(f"CREATE TABLE {name} AS SELECT range AS id FROM range(40)" for name in ("t", "u")))
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 120)")
        session.execute("BEGIN")
        session.execute(statement)
        run(lake, "DELETE FROM t WHERE id < 20")
        merge(lake, REBASE)
        if lands:
            session.execute("COMMIT")
        else:
            with pytest.raises(duckdb.Error):
                session.execute("COMMIT")
    assert (count(dev), count(dev, "u")) == ((40, 40), (70, 70) if lands else (40, 40))
    assert (count(lake), count(lake, "u")) == ((20, 20), (40, 40))


def test_a_conflict_and_a_branch_that_others_were_made_of_change_nothing(lake: FreshLake) -> None:
    """As for a merge of the branch; nor is the lake merged into a branch of a branch, nor a branch into one it was not made of."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "DELETE FROM t WHERE id < 15")
    run(lake, "DELETE FROM t WHERE id BETWEEN 5 AND 25")
    head = read_head(dev)
    with pytest.raises(MergeConflicts, match="delete/delete"):
        merge(lake, REBASE)
    make_branch(lake, BranchRequest("child", "dev"))
    make_branch(lake, "other")
    for request, error in (
        (REBASE, Unsupported),
        (MergeRequest("main", "child"), Unsupported),
        (MergeRequest("child", "nothing"), NotFound),
        (MergeRequest("other", "dev"), BadRequest),
        (MergeRequest("main", "nothing"), NotFound),
        (MergeRequest("main"), NotFound),
    ):
        with pytest.raises(error):
            merge(lake, request)
    assert (read_head(dev), count(dev), count(lake)) == (head, (25, 25), (19, 19))


STEPS = ["copy_changes+", "refork+", "merge_copy+", "_write_snapshots+", "drop_copy+", "forget_rest+"]


@pytest.mark.whole
@pytest.mark.parametrize("step", long_but(STEPS, "forget_rest+"))
def test_a_killed_rebase_changes_nothing(lake: FreshLake, step: str) -> None:
    """A process that is killed between two steps leaves the branch as it was; the next one rebases it."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, "INSERT INTO t FROM range(100, 140)")
    run(lake, "INSERT INTO t FROM range(200, 240)")
    head = read_head(dev)
    kill_at(lake, "merge", step, "main:dev")
    assert (read_head(dev), count(dev)) == (head, (80, 80))
    merge(lake, REBASE)
    assert count(dev) == (120, 120)
    assert lake.psycopg().execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'rebase@%'").fetchone() == (0,)
