"""Transactions of the lake and of a branch that overlap and take over the same rows: one waits for the other, and then sees it or fails."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import duckdb
import psycopg
import pytest

from tests.lake.branches.repository import Rows, maintain, make_branch, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but, whole_but
from tests.support.waiting import wait_for

MERGE = "CALL ducklake_merge_adjacent_files('lake', 't')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0.01)"
EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)"
DELETE, TRUNCATE, DROP = "DELETE FROM t WHERE id < 150", "TRUNCATE t", "DROP TABLE t"

SELECT_BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


def wait_until_blocked(lake: FreshLake) -> None:
    """Return as soon as a session of the lake's database waits for another one."""
    conn = lake.psycopg()

    def is_blocked() -> bool:
        row = conn.execute(SELECT_BLOCKED).fetchone()
        return row is not None and row[0] > 0

    wait_for(is_blocked, "a session that waits for another one")


def fill(lake: FreshLake, *statements: str) -> FreshLake:
    """Make a table of three files and a branch; then run statements on the lake."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t (id BIGINT)")
        for first in (0, 100, 200):
            main.execute(f"INSERT INTO t FROM range({first}, {first + 100})")
        main.execute("DELETE FROM t WHERE id BETWEEN 20 AND 39")
        main.execute("COMMENT ON TABLE t IS 'c'")
        dev = make_branch(lake, "dev")
        for statement in statements:
            main.execute(statement)
    return dev


def ids(*ranges: tuple[int, int]) -> Rows:
    """Rows of these ids."""
    return [(number,) for first, last in ranges for number in range(first, last)]


def check(lake: FreshLake, dev: FreshLake, of_lake: Rows, of_branch: Rows | None) -> None:
    """Fail unless both sides show these rows, also after the branch's and the lake's maintenance; None: the table is dropped."""
    for side in (None, dev, lake):
        if side is not None:
            maintain(side)
        if of_branch is None:
            with pytest.raises(duckdb.CatalogException):
                read_rows(dev, "t")
        else:
            assert read_rows(dev, "t") == of_branch
    assert read_rows(lake, "t") == of_lake


CHANGES: dict[str, Rows | None] = {DELETE: ids((150, 300)), TRUNCATE: [], DROP: None}
MAINTENANCE: dict[str, tuple[tuple[str, ...], str, Rows]] = {
    "merge": (("INSERT INTO t FROM range(300, 400)",), MERGE, ids((0, 20), (40, 400))),
    "rewrite": (("DELETE FROM t WHERE id BETWEEN 200 AND 219",), REWRITE, ids((0, 20), (40, 200), (220, 300))),
    "expire": ((TRUNCATE,), EXPIRE, []),
}


CASES = [(maintenance, change) for maintenance in MAINTENANCE for change in CHANGES]


@pytest.mark.parametrize(
    ("maintenance", "change"),
    whole_but(
        long_but([pytest.param(*case, id=" ".join(case)) for case in CASES], *(f"{each} {DELETE}" for each in MAINTENANCE)),
        f"expire {DELETE}",
    ),
)
def test_a_maintenance_of_the_lake_that_began_before_a_change_of_the_branch(lake: FreshLake, maintenance: str, change: str) -> None:
    """It cannot see what the branch did meanwhile, and takes nothing of it back: DuckDB repeats it, or says that it must be repeated."""
    before, statement, of_lake = MAINTENANCE[maintenance]
    dev = fill(lake, *before)
    with closing(lake.duckdb()) as main, closing(dev.duckdb()) as session:
        main.execute("BEGIN")
        main.execute("SELECT count(*) FROM t")
        if maintenance != "expire":
            main.execute(statement)
        session.execute(change)
        if maintenance == "expire":
            with pytest.raises(duckdb.Error, match="Run it again"):
                main.execute(statement)
            main.execute("ROLLBACK")
        else:
            main.execute("COMMIT")
    check(lake, dev, of_lake, CHANGES[change])


@pytest.mark.whole
@pytest.mark.parametrize("maintenance", MAINTENANCE)
def test_a_maintenance_of_the_lake_that_began_before_a_branch_was_made(lake: FreshLake, maintenance: str) -> None:
    """It cannot see the branch: DuckDB repeats it, or says that it must be run again. Then it takes nothing that the branch shows."""
    before, statement, of_lake = MAINTENANCE[maintenance]
    fill(lake, *before)
    with closing(lake.duckdb()) as main:
        main.execute("BEGIN")
        main.execute("SELECT count(*) FROM t")
        if maintenance != "expire":
            main.execute(statement)
        late = make_branch(lake, "late")
        if maintenance == "expire":
            with pytest.raises(duckdb.Error, match="could not serialize"):
                main.execute(statement)
            main.execute("ROLLBACK")
            main.execute(statement)
        else:
            main.execute("COMMIT")
    check(lake, late, of_lake, of_lake)


def start(pool: ThreadPoolExecutor, lake: FreshLake, action: Callable[[], object]) -> Future[object]:
    """Start an action that has to wait for another session, and return when it waits."""
    running = pool.submit(action)
    wait_until_blocked(lake)
    assert not running.done()
    return running


@pytest.mark.parametrize("change", long_but(CHANGES, DELETE))
def test_a_change_of_the_branch_while_the_lake_deletes(lake: FreshLake, change: str) -> None:
    """It waits until the maintenance has committed, and lands on the copied rows."""
    dev = fill(lake, TRUNCATE)
    with closing(lake.duckdb()) as main, closing(dev.duckdb()) as session, ThreadPoolExecutor(1) as pool:
        main.execute("BEGIN")
        main.execute(EXPIRE)
        running = start(pool, lake, lambda: session.execute(change))
        main.execute("COMMIT")
        running.result()
    check(lake, dev, [], CHANGES[change])


@pytest.mark.whole
def test_a_maintenance_of_the_lake_that_is_rolled_back(lake: FreshLake) -> None:
    """The change of the branch that waited for it lands on the lake's own rows."""
    dev = fill(lake, TRUNCATE)
    with closing(lake.duckdb()) as main, closing(dev.duckdb()) as session, ThreadPoolExecutor(1) as pool:
        main.execute("BEGIN")
        main.execute(EXPIRE)
        running = start(pool, lake, lambda: session.execute(DELETE))
        main.execute("ROLLBACK")
        running.result()
    check(lake, dev, [], CHANGES[DELETE])


END_FILES = "UPDATE ducklake_data_file SET end_snapshot = 4294967298 WHERE end_snapshot IS NULL"
DELETE_FILES = "DELETE FROM ducklake_data_file"
READ_FILES = "SELECT data_file_id, end_snapshot FROM ducklake_data_file ORDER BY 1, 2"


@pytest.mark.parametrize("change", [END_FILES, DELETE_FILES], ids=["update", "delete"])
@pytest.mark.parametrize("is_first", [False, True], ids=["lake", "branch"])
def test_statements_in_read_committed(lake: FreshLake, change: str, is_first: bool) -> None:
    """Commits of Iceberg clients have a new view of the rows with each statement: the second one goes on with what the first left."""
    dev = fill(lake, TRUNCATE)
    mine, theirs = dev.psycopg(autocommit=False), lake.psycopg(autocommit=False)
    first, second = ((mine, change), (theirs, DELETE_FILES)) if is_first else ((theirs, DELETE_FILES), (mine, change))
    with ThreadPoolExecutor(1) as pool:
        first[0].execute(first[1].encode())
        running = start(pool, lake, lambda: second[0].execute(second[1].encode()))
        first[0].commit()
        running.result()
        second[0].commit()
    expected = [(number, 4294967298) for number in range(3)] if change == END_FILES else []
    assert dev.psycopg().execute(READ_FILES.encode()).fetchall() == expected
    assert lake.psycopg().execute(READ_FILES.encode()).fetchall() == []


def test_properties_with_long_names(lake: FreshLake) -> None:
    """Keys of any length are rows of their own, which the lake and the branch take over like others."""
    fill(lake)
    # Too different to be compressed into an entry of an index.
    keys = [letter + "".join(f"{number:x}" for number in range(3000)) for letter in "ab"]
    conn = lake.psycopg()
    rows = [("INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value) VALUES (1, 1, %s, 'v')", (key,)) for key in keys]
    for statement, values in rows:
        conn.execute(statement.encode(), values)
    other = make_branch(lake, "other").psycopg()
    conn.execute("DELETE FROM ducklake_tag WHERE key = %s", (keys[0],))
    other.execute("DELETE FROM ducklake_tag WHERE key = %s", (keys[1],))
    shown = other.execute("SELECT key FROM ducklake_tag WHERE length(key) > 3000").fetchall()
    assert shown == [(keys[0],)]
    conn.execute("DELETE FROM ducklake_tag WHERE key = %s", (keys[1],))
    assert other.execute("SELECT key FROM ducklake_tag WHERE length(key) > 3000").fetchall() == shown


def test_a_writer_that_cannot_see_a_maintenance_fails(lake: FreshLake) -> None:
    """A transaction of the branch that began before the lake's deletion has to begin again, and then changes the copied row."""
    dev = fill(lake, TRUNCATE)
    late = dev.psycopg(autocommit=False)
    late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.execute(READ_FILES.encode())
    lake.psycopg().execute(DELETE_FILES.encode())
    with pytest.raises(psycopg.errors.SerializationFailure):
        late.execute(END_FILES.encode())
    late.rollback()
    late.execute(END_FILES.encode())
    late.commit()
    assert dev.psycopg().execute(READ_FILES.encode()).fetchall() == [(number, 4294967298) for number in range(3)]
