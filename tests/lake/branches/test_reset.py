"""Resets of branches: a branch forgets what it changed, and begins again with the lake's newest snapshot."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import duckdb
import pytest

from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.registry import rename_branch
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import fill, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_isolation import change, see
from tests.lake.branches.test_lifecycle import list_named, list_objects
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import wait_for


@pytest.mark.whole
def test_a_branch_begins_again_with_what_the_lake_shows(lake: FreshLake) -> None:
    """Rows, columns and tables of its own are gone, and their files are cleaned up; it is written and merged like a new one."""
    with closing(lake.duckdb()) as main:
        fill(main)
        dev = make_branch(lake, "dev")
        for side, first in ((main, 2000), (dev.duckdb(), 5000)):
            change(side, "word", first)
    assert reset_branch(lake.psycopg(), lake.metadata_schema, "dev").fork_snapshot_id == read_head(lake)
    assert see(dev) == see(lake)
    count = len(see(lake)["t"])
    assert read_rows(dev, "only_word") == read_rows(lake, "only_word") == [(2000,)]
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t (id) FROM range(7000, 7030)")
        session.execute("INSERT INTO empty (i) VALUES (77)")
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
    rows = see(lake)
    assert see(dev) == rows and len(rows["t"]) == count + 30 and (77,) in rows["empty"]
    for side in (dev, lake):
        maintain(side)
    assert see(dev) == see(lake) == rows
    tables = ("t", "s.parts", "empty", "only_word")
    named = {path for side in (lake, dev) for table in tables for path in list_named(side, table)}
    # In the lake's own folder a file may stay that was kept for the branch.
    assert {path for path in list_objects(lake) - named if path.startswith(dev.data_path)} == set()


OPEN = {
    "delete": ("DELETE FROM t WHERE id = 3", False),
    "delete of a forgotten row": ("DELETE FROM t WHERE id = 105", False),
    "insert": ("INSERT INTO u FROM range(500, 530)", True),
    "insert into a forgotten table": ("INSERT INTO made FROM range(500, 530)", False),
}


@pytest.mark.parametrize("how", whole_after(1, ["merge", "rebase", "reset"]))
def test_a_session_that_stays_open_reads_inlined_rows_by_their_own_columns(lake: FreshLake, how: str) -> None:
    """DuckDB keeps the columns of each `schema_version`, and inlined rows name theirs: no version is both the lake's and a branch's."""
    conn, schema = lake.psycopg(), lake.metadata_schema
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t (id INTEGER)")
        main.execute("CREATE TABLE u (id INTEGER)")
        dev = make_branch(lake, "dev")
        with closing(dev.duckdb()) as session:
            # Both raise the version as often, and read both tables at each.
            for one, name in ((main, "t"), (session, "u")):
                for statement in (f"ALTER TABLE {name} ADD COLUMN n INTEGER", f"INSERT INTO {name} VALUES (1, 10)"):
                    one.execute(statement)
                    one.execute("SELECT * FROM t, u").fetchall()
            if how == "reset":
                reset_branch(conn, schema, "dev")
            else:
                merge_branch(conn, schema, MergeRequest("dev") if how == "merge" else MergeRequest("main", "dev"))
            for one, shows_u in ((session, how != "reset"), (main, how == "merge")):
                assert one.execute("SELECT n FROM t").fetchall() == [(10,)]
                assert not shows_u or one.execute("SELECT n FROM u").fetchall() == [(10,)]


@pytest.mark.parametrize("case", whole_after(1, OPEN))
def test_a_transaction_of_duckdb_that_is_open_meanwhile_fails_or_is_right(lake: FreshLake, case: str) -> None:
    """It conflicts with what the branch forgets; an insert into another table lands after the reset."""
    statement, lands = OPEN[case]
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
        main.execute("CREATE TABLE u AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 120)")
        session.execute("CREATE TABLE made AS SELECT range AS id FROM range(40)")
        session.execute("BEGIN")
        session.execute(statement)
        reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
        if lands:
            session.execute("COMMIT")
        else:
            with pytest.raises(duckdb.Error):
                session.execute("COMMIT")
    assert (len(read_rows(dev, "t")), len(read_rows(dev, "u"))) == (40, 70 if lands else 40)
    assert (len(read_rows(lake, "t")), len(read_rows(lake, "u"))) == (40, 40)


def test_an_attached_session_sees_the_columns_that_the_branch_has_after_a_reset(lake: FreshLake) -> None:
    """Both sides had changed the table once, so the lake's version of the schema was the one that the session knew."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("ALTER TABLE t ADD COLUMN a INTEGER")
        session.execute("SELECT count(a) FROM t").fetchall()
        lake.duckdb().execute("ALTER TABLE t ADD COLUMN b VARCHAR")
        reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
        assert [row[0] for row in session.execute("DESCRIBE t").fetchall()] == ["id", "b"]
        session.execute("INSERT INTO t VALUES (1029, 'x')")
    assert (1029, "x") in read_rows(dev, "t")


def test_a_tag_of_a_deleted_branch_is_not_one_of_its_namesake(lake: FreshLake) -> None:
    """A branch of the same name is merged and reset."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
    make_branch(lake, "dev")
    make_branch(lake, BranchRequest("v1", "dev", is_tag=True))
    delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    dev = make_branch(lake, "dev")
    dev.duckdb().execute("INSERT INTO t VALUES (100)")
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
    reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
    assert (100,) in read_rows(lake, "t")


def test_what_cannot_be_reset_is_refused(lake: FreshLake) -> None:
    """Unknown names, tags, and branches that others were made of."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
    make_branch(lake, "dev")
    make_branch(lake, BranchRequest("v1", "dev", is_tag=True))
    for name, error in (("nothing", NotFound), ("v1", BadRequest), ("dev", Unsupported)):
        with pytest.raises(error):
            reset_branch(lake.psycopg(), lake.metadata_schema, name)


SELECT_WAITING_SINCE = """
SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE NOT l.granted AND l.relation = 'ducklake_snapshot'::regclass AND a.datname = current_database() AND a.xact_start > %s
"""


@pytest.mark.whole
def test_a_reset_that_waits_resets_the_branch_that_had_the_name(lake: FreshLake) -> None:
    """Also if it was renamed meanwhile, and another branch has the name now."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev, other = make_branch(lake, "dev"), make_branch(lake, "other")
    for branch in (dev, other):
        with closing(branch.duckdb()) as session:
            session.execute("INSERT INTO t VALUES (100)")
    conn, schema, holder = lake.psycopg(), lake.metadata_schema, lake.psycopg(autocommit=False)
    holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")

    def wait_for_a_new_try() -> None:
        now = conn.execute("SELECT clock_timestamp()").fetchone()
        wait_for(lambda: conn.execute(SELECT_WAITING_SINCE, now).fetchone() == (1,), "a reset that waits")

    with ThreadPoolExecutor(1) as pool:
        reset = pool.submit(reset_branch, lake.psycopg(), schema, "dev")
        wait_for_a_new_try()
        rename_branch(conn, schema, "dev", "old")
        rename_branch(conn, schema, "other", "dev")
        wait_for_a_new_try()
        holder.rollback()
        assert reset.result().name == "old"
    assert ((100,) in read_rows(dev, "t"), (100,) in read_rows(other, "t")) == (False, True)
