"""A branch and its lake: neither sees the other, and no maintenance of one takes anything from the other."""

from contextlib import closing

import duckdb
import pytest

from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from tests.lake.branches.repository import Rows, fill, maintain, make_branch, read_head, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

TABLES = ("t", "s.parts", "empty", "seen")
FORGET_EVERYTHING = (
    *(f"CALL lake.set_option('{age}', '0 seconds')" for age in ("expire_older_than", "delete_older_than")),
    "CHECKPOINT lake",
)


def change(session: duckdb.DuckDBPyConnection, word: str, first: int) -> None:
    """Append, delete, update, alter and create, as DuckDB's users do."""
    session.execute(f"INSERT INTO t (id, v) SELECT i, '{word}' FROM range({first}, {first + 60}) r(i)")
    session.execute(f"DELETE FROM t WHERE id BETWEEN {first % 7} AND {first % 7 + 50}")
    session.execute(f"UPDATE t SET v = '{word}' WHERE id BETWEEN 100 AND 140 OR id = 900")
    session.execute(f"INSERT INTO t (id, v) VALUES ({first + 70}, '{word}')")
    session.execute(f"INSERT INTO s.parts SELECT i % 3, i FROM range({first}, {first + 30}) r(i)")
    session.execute("DELETE FROM s.parts WHERE k = 1")
    session.execute(f"INSERT INTO empty VALUES ({first})")
    session.execute(f"ALTER TABLE t ADD COLUMN {word} INTEGER DEFAULT 7")
    session.execute(f"INSERT INTO t (id, v, {word}) SELECT i, 'x', 1 FROM range({first + 100}, {first + 120}) r(i)")
    session.execute(f"CREATE TABLE only_{word} AS SELECT {first} AS i")


def see(lake: FreshLake, tables: tuple[str, ...] = TABLES) -> dict[str, Rows]:
    """Everything that a new session reads of these tables."""
    with closing(lake.duckdb(read_only=True)) as session:
        return {table: session.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in tables}


def test_a_branch_shows_the_lake_as_it_was_made(lake: FreshLake) -> None:
    """Rows, time travel, comments and views are the lake's, and no file is copied."""
    with closing(lake.duckdb()) as main:
        fill(main)
    head, rows = read_head(lake), see(lake)
    dev = make_branch(lake, "dev")
    assert see(dev) == rows
    assert all(read_rows(dev, "t", at) == read_rows(lake, "t", at) for at in (2, head - 5))
    with closing(dev.duckdb()) as session:
        assert session.execute("SELECT comment FROM duckdb_tables() WHERE database_name = 'lake' AND table_name = 't'").fetchall() == [
            ("c",)
        ]
        files = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    assert files and all(path.startswith(lake.data_path) for (path,) in files)


@pytest.mark.whole
def test_neither_side_sees_the_other(lake: FreshLake) -> None:
    """Sessions that are open all the time, and new ones, read what their own side wrote alone."""
    main = lake.duckdb()
    fill(main)
    before, head = see(lake), read_head(lake)
    dev = make_branch(lake, "dev")
    session = dev.duckdb()
    change(session, "dev", 2000)
    assert see(lake) == before
    dev_rows = see(dev, (*TABLES, "only_dev"))
    change(main, "lake", 5000)
    assert see(dev, (*TABLES, "only_dev")) == dev_rows
    main_rows = see(lake, (*TABLES, "only_lake"))
    change(session, "more", 8000)
    assert see(lake, (*TABLES, "only_lake")) == main_rows
    assert read_rows(dev, "t", head) == before["t"]
    for side, other in ((lake, "only_dev"), (dev, "only_lake")):
        with pytest.raises(duckdb.CatalogException):
            read_rows(side, other)


@pytest.mark.whole
def test_maintenance_on_either_side_leaves_both_right(lake: FreshLake) -> None:
    """Flush, merge, rewrite, expiry, clean-up and the orphan scan, on the lake, then on the branch, then on the lake again; CHECKPOINT."""
    main = lake.duckdb()
    fill(main)
    dev, head = make_branch(lake, "dev"), read_head(lake)
    at_fork = read_rows(dev, "t", head)
    untouched = make_branch(lake, "untouched")
    change(main, "lake", 2000)
    with closing(dev.duckdb()) as session:
        change(session, "dev", 5000)
    expected = {side.metadata_schema: see(side) for side in (lake, dev, untouched)}
    for side in (lake, dev, lake):
        maintain(side)
        for other in (lake, dev, untouched):
            assert see(other) == expected[other.metadata_schema], (side.metadata_schema, other.metadata_schema)
        assert read_rows(untouched, "t", head) == at_fork
        assert main.execute("SELECT count(*) FROM t").fetchone() == (len(expected[lake.metadata_schema]["t"]),)
    for side in (untouched, lake, dev):
        with closing(side.duckdb()) as session:
            for statement in FORGET_EVERYTHING:
                session.execute(statement)
        for other in (lake, dev, untouched):
            assert see(other) == expected[other.metadata_schema], (side.metadata_schema, other.metadata_schema)


@pytest.mark.whole
def test_a_lake_that_drops_everything_keeps_its_branch(lake: FreshLake) -> None:
    """Dropped tables whose snapshots expire lose all rows, also those of the table and its columns."""
    with closing(lake.duckdb()) as main:
        fill(main)
        dev, rows = make_branch(lake, "dev"), see(lake)
        for name in ("VIEW seen", "TABLE t", "TABLE empty", "SCHEMA s CASCADE"):
            main.execute(f"DROP {name}")
    maintain(lake)
    assert see(dev) == rows
    maintain(dev)
    assert see(dev) == rows


def test_the_change_feed_of_a_branch_begins_after_the_fork_point(lake: FreshLake) -> None:
    """A reader that has seen the lake up to the fork point goes on with the branch at the next id."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
        dev, head = make_branch(lake, "dev"), read_head(lake)
        main.execute("INSERT INTO t FROM range(100, 200)")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(300, 320)")
        feed = f"SELECT count(*), min(id) FROM lake.table_changes('t', {head + 1}, {read_head(dev)})"
        assert session.execute(feed).fetchone() == (20, 300)


REWRITES = {
    "revived": "UPDATE ducklake_table SET end_snapshot = NULL; UPDATE ducklake_column SET end_snapshot = NULL",
    "mapped": "UPDATE ducklake_data_file SET mapping_id = 77, end_snapshot = NULL",
    "renamed": "UPDATE ducklake_table SET table_name = 'other' WHERE table_name = 'kept'",
    "retyped": "UPDATE ducklake_column SET column_type = 'varchar' WHERE column_name = 'id'",
    "ended": "UPDATE ducklake_table SET end_snapshot = 1000; UPDATE ducklake_data_file SET end_snapshot = 1000",
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_history_that_the_lake_rewrites_stays_on_its_branch(lake: FreshLake, rewrite: str) -> None:
    """Commits of Iceberg clients change rows of the past: tables that are registered again, name mappings, statistics."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE kept AS SELECT range AS id FROM range(50)")
        main.execute("CREATE TABLE dropped AS SELECT range AS id FROM range(60)")
        main.execute("DROP TABLE dropped")
    conn, dev = lake.psycopg(), make_branch(lake, "dev")
    queries = [f"SELECT * FROM ducklake_{name} ORDER BY 1, 2, 3" for name in ("table", "column", "data_file", "file_column_stats")]
    branch = dev.psycopg()
    before = [branch.execute(query.encode()).fetchall() for query in queries]
    conn.execute(REWRITES[rewrite].encode())
    shown = [branch.execute(query.encode()).fetchall() for query in queries]
    # the last column is where the row lies
    assert [[row[:-1] for row in rows] for rows in shown] == [[row[:-1] for row in rows] for rows in before]
    assert read_rows(dev, "kept") == [(number,) for number in range(50)]
    with pytest.raises(duckdb.CatalogException):
        read_rows(dev, "dropped")


def test_ids_of_members_are_disjoint(lake: FreshLake) -> None:
    """Snapshots, tables, files and row ids of a branch come from a range of its own, for tables that were empty too."""
    main = lake.duckdb()
    fill(main)
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        change(session, "dev", 3000)
        change(main, "lake", 3000)
        for table in ("t", "empty", "s.parts"):
            mine, theirs = (
                {row[0] for row in each.execute(f"SELECT rowid FROM {table} WHERE rowid >= 1000000 OR {table}.rowid > 350").fetchall()}
                for each in (session, main)
            )
            assert mine.isdisjoint(theirs)
        low = session.execute("SELECT min(rowid) FROM empty").fetchone()
        assert low is not None and low[0] >= 1 << 40
    conn = dev.psycopg()
    for query in (
        "SELECT max(snapshot_id) FROM ducklake_snapshot",
        "SELECT max(data_file_id) FROM ducklake_data_file",
        "SELECT max(table_id) FROM ducklake_table WHERE begin_snapshot < 9223372036854775807",
    ):
        row = conn.execute(query.encode()).fetchone()
        assert row is not None and 1 << 32 <= row[0] < 2 << 32


@pytest.mark.parametrize("is_older", whole_after(1, [False, True]), ids=["newest", "older"])
def test_small_inserts_into_a_renamed_column_are_read_after_another_change(lake: FreshLake, is_older: bool) -> None:
    """DuckDB 1.5.5 reads inlined rows by the table's first columns where their table of rows began with no change of columns."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t (id INTEGER, weight INTEGER)")
        main.execute("ALTER TABLE t RENAME COLUMN weight TO w")
        head = read_head(lake)
        main.execute("ALTER TABLE t ADD COLUMN more INTEGER")
        main.execute("ALTER TABLE t DROP COLUMN more")
        main.execute("CREATE TABLE another (id INTEGER)")
    dev = make_branch(lake, BranchRequest("dev", at=head if is_older else None))
    with closing(dev.duckdb()) as session:
        session.execute("CREATE TABLE of_branch (id INTEGER)")
        session.execute("INSERT INTO t VALUES (1, 2)")
        session.execute("INSERT INTO t SELECT i, 7 FROM range(2, 40) r(i)")
        session.execute("DELETE FROM t WHERE id = 3")
        session.execute("ALTER TABLE t RENAME TO u")
    rows = [(1, 2), (2, 7), *((number, 7) for number in range(4, 40))]
    assert read_rows(dev, "u") == rows
    assert read_rows(dev, "t", head) == read_rows(lake, "t") == []
    maintain(dev)
    assert read_rows(dev, "u") == rows


def test_notes_about_files_are_those_of_the_files_that_are_shown(lake: FreshLake) -> None:
    """They are not copied, however many there are: a branch shows the lake's of then, and its own, which a branch of it has too."""
    columns = "data_file_id, table_id, spec_id, partition"
    noting = f"INSERT INTO iceberg_file ({columns}) SELECT max(data_file_id), 1, %s, '[]' FROM ducklake_data_file".encode()
    select = "SELECT spec_id FROM iceberg_file ORDER BY 1"
    main = lake.duckdb()
    main.execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    lake.psycopg().execute(noting, (1,))
    dev = make_branch(lake, "dev")
    main.execute("INSERT INTO t FROM range(100, 200)")
    lake.psycopg().execute(noting, (2,))
    dev.duckdb().execute("INSERT INTO t FROM range(200, 300)")
    dev.psycopg().execute(noting, (3,))
    dev.psycopg().execute("UPDATE iceberg_file SET spec_id = 4 WHERE spec_id = 3")
    child = make_branch(lake, BranchRequest("child", "dev"))
    for member, specs in ((lake, [(1,), (2,)]), (dev, [(1,), (4,)]), (child, [(1,), (4,)])):
        assert member.psycopg().execute(select).fetchall() == specs
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("child"))
    for member in (lake, child):
        assert (1,) in member.psycopg().execute(select).fetchall() and (2,) in member.psycopg().execute(select).fetchall()
    assert dev.psycopg().execute("SELECT count(*) FROM own_iceberg_file").fetchone() == (1,)
