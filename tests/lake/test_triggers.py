"""What our trigger notes when DuckDB expires lake snapshots, and what DuckDB's writers feel of us: nothing."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack
from tests.support.waiting import wait_for

SELECT_CHANGES = "SELECT id, kind, table_id FROM iceberg_change ORDER BY id"
SELECT_WAITING = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
COUNT_SCHEDULED = """
CREATE FUNCTION count_scheduled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lake.scheduled_by SELECT count(*) FROM scheduled;
    RETURN NULL;
END
$$;
CREATE TRIGGER count_scheduled AFTER INSERT ON ducklake_files_scheduled_for_deletion REFERENCING NEW TABLE AS scheduled
    FOR EACH STATEMENT EXECUTE FUNCTION count_scheduled()
"""
WRITERS, INSERTS = 8, 20


def test_each_expiry_is_noted_once(lake: FreshLake) -> None:
    """One change per expire, however many lake snapshots go; none for a dry run or for nothing to do."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    for i in range(4):
        session.execute(f"INSERT INTO t VALUES ({i})")
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL 1 DAY)")
    session.execute("CALL ducklake_expire_snapshots('lake', versions => [2, 3], dry_run => true)")
    assert conn.execute(SELECT_CHANGES).fetchall() == []
    session.execute("CALL ducklake_expire_snapshots('lake', versions => [2, 3])")
    assert conn.execute(SELECT_CHANGES).fetchall() == [(1, "expire", None)]
    session.execute("CALL ducklake_expire_snapshots('lake', versions => [4])")
    assert conn.execute(SELECT_CHANGES).fetchall() == [(1, "expire", None), (2, "expire", None)]


def test_an_expiry_that_is_rolled_back_is_not_noted(lake: FreshLake) -> None:
    """The note lives and dies with the transaction."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    with conn.transaction(force_rollback=True):
        conn.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id = 0")
    assert conn.execute(SELECT_CHANGES).fetchall() == []


def test_a_migration_is_noted_and_other_settings_are_not(lake: FreshLake) -> None:
    """Whether the version's row is changed or written again; options of DuckDB, of the lake or of one table, write the same table."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("CALL lake.set_option('target_file_size', '10MB')")
    session.execute("CALL lake.set_option('target_file_size', '20MB', table_name => 't')")
    assert conn.execute(SELECT_CHANGES).fetchall() == []
    conn.execute("UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version'")
    conn.execute("DELETE FROM ducklake_metadata WHERE key = 'version'")
    conn.execute("INSERT INTO ducklake_metadata (key, value) VALUES ('version', '1.0')")
    assert [row[1:] for row in conn.execute(SELECT_CHANGES)] == [("version", None)] * 2


def test_changes_appear_in_order_of_their_ids(lake: FreshLake) -> None:
    """A transaction that would get a higher id waits, so whoever has seen an id has seen all below it."""
    session = lake.duckdb()
    for i in range(3):
        session.execute(f"CREATE TABLE t{i} (i INTEGER)")
    alice, bob, carol = lake.psycopg(autocommit=False), lake.psycopg(autocommit=False), lake.psycopg()
    alice.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id = 1")
    with ThreadPoolExecutor(1) as threads:
        deleting = threads.submit(lambda: bob.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id = 2"))
        wait_for(lambda: carol.execute(SELECT_WAITING).fetchall() == [(1,)], "bob waits for alice")
        alice.commit()
        deleting.result(timeout=60)
    assert [row[0] for row in carol.execute(SELECT_CHANGES)] == [1]
    bob.commit()
    assert [row[0] for row in carol.execute(SELECT_CHANGES)] == [1, 2]


INSERT_KEPT = """
INSERT INTO iceberg_kept (table_id, snapshot_id, base_snapshot_id, json)
SELECT table_id, 2, 2, '{}' FROM ducklake_table WHERE table_name = 't'
"""


def test_whoever_removes_files_knows_every_ref(lake: FreshLake) -> None:
    """A transaction that began before a commit of refs, and would not see them, fails when it comes to remove a file's row."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
    alice, bob = lake.psycopg(autocommit=False), lake.psycopg()
    alice.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    alice.execute("SELECT FROM ducklake_snapshot")
    bob.execute("UPDATE iceberg_setting SET value = value WHERE key = 'refs'")
    with pytest.raises(psycopg.errors.SerializationFailure, match="concurrent update"):
        alice.execute("DELETE FROM ducklake_data_file")
    alice.rollback()


def test_a_file_is_removed_with_its_last_row(lake: FreshLake) -> None:
    """A path that another row names, relative or whole, or that a client added beside main, is not scheduled."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
    (path,) = conn.execute("SELECT path FROM ducklake_data_file").fetchone() or ("",)
    insert = "INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative) VALUES (7, %s, %s)"
    conn.execute("INSERT INTO iceberg_kept_file VALUES (1, 's3://b/beside.parquet')")
    conn.execute("INSERT INTO ducklake_delete_file (delete_file_id, path, path_is_relative) VALUES (8, 's3://b/whole.parquet', false)")
    named = [(f"main/t/{path}", True), (f"{lake.data_path}main/t/{path}", False), ("s3://b/beside.parquet", False)]
    conn.execute("INSERT INTO ducklake_delete_file (delete_file_id, path, path_is_relative) VALUES (9, '/x/local.parquet', false)")
    named += [("file:///x/local.parquet", False), ("s3://b/whole.parquet", False), ("s3://b/t/data/inlined-7-0aff.parquet", False)]
    for known in (*named, (path, True), ("main/t/other.parquet", True)):
        conn.execute(insert, known)
    found = conn.execute("SELECT path FROM ducklake_files_scheduled_for_deletion ORDER BY 1").fetchall()
    assert found == sorted([(path,), ("main/t/other.parquet",)])


def test_all_files_of_an_expiry_are_looked_at_by_one_query(lake: FreshLake) -> None:
    """DuckDB schedules them by one statement; those that another row names are not, nor stay what was scheduled of them before."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
    (path,) = conn.execute("SELECT path FROM ducklake_data_file").fetchone() or ("",)
    insert = "INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative) "
    named = f"UNION ALL SELECT 0, 'main/t/{path}', true"
    explained = conn.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {insert} SELECT n, 'main/t/' || n, true FROM generate_series(1, 200) n {named}".encode()
    )
    row = explained.fetchone()
    assert row is not None
    assert [(trigger["Trigger Name"], trigger["Calls"]) for trigger in row[0][0]["Triggers"]] == [("iceberg_keep_file", 1)]
    count = "SELECT count(*), count(*) FILTER (WHERE data_file_id = 0) FROM ducklake_files_scheduled_for_deletion"
    assert conn.execute(count).fetchone() == (200, 0)
    conn.execute("DELETE FROM ducklake_files_scheduled_for_deletion")
    conn.execute("CREATE TABLE scheduled_by (count bigint)")
    conn.execute(COUNT_SCHEDULED)
    session.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    for i in range(6):
        session.execute(f"INSERT INTO t VALUES ({i})")
    session.execute("CALL ducklake_merge_adjacent_files('lake')")
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    assert conn.execute("SELECT count FROM scheduled_by WHERE count > 1").fetchall() == [(7,)]


def test_the_rows_of_kept_files_stay_known_to_ducklake(lake: FreshLake) -> None:
    """A file of a kept snapshot that loses its row gets one that no data file has, until its table is dropped."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("INSERT INTO t SELECT range FROM range(20)")
    conn.execute(INSERT_KEPT)
    session.execute("INSERT INTO t SELECT range FROM range(30)")
    conn.execute("DELETE FROM ducklake_data_file")
    assert conn.execute("SELECT data_file_id FROM ducklake_delete_file").fetchall() == [(2**63 - 1,)]
    conn.execute("DELETE FROM ducklake_delete_file")


def test_a_role_without_rights_on_our_notes_may_expire(lake: FreshLake, stack: SharedStack) -> None:
    """A DuckDB user who may write DuckLake's tables need not know ours."""
    session, role = lake.duckdb(), sql.Identifier(f"r{secrets.token_hex(6)}")
    session.execute("CREATE TABLE t (i INTEGER)")
    schema = sql.Identifier(lake.metadata_schema)
    dsn = psycopg.conninfo.make_conninfo(stack.admin_dsn, dbname=lake.name)
    with closing(psycopg.connect(dsn, autocommit=True)) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
            admin.execute(sql.SQL("GRANT SELECT, DELETE ON {}.ducklake_snapshot TO {}").format(schema, role))
            admin.execute(sql.SQL("SET ROLE {}").format(role))
            admin.execute(sql.SQL("DELETE FROM {}.ducklake_snapshot WHERE snapshot_id = 0").format(schema))
            admin.execute("RESET ROLE")
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))
    assert lake.psycopg().execute(SELECT_CHANGES).fetchall() == [(1, "expire", None)]


@pytest.mark.whole
def test_eight_duckdb_writers_all_succeed(lake: FreshLake) -> None:
    """Nothing of ours runs when DuckDB commits, so its own retries are enough."""
    session = lake.duckdb()
    session.execute("SET ducklake_max_retry_count = 1000")
    session.execute("SET ducklake_retry_wait_ms = 5")
    session.execute("CREATE TABLE t (writer INTEGER, i INTEGER)")

    def write(writer: int) -> None:
        own = session.cursor()
        own.execute("USE lake")
        for i in range(INSERTS):
            own.execute(f"INSERT INTO t VALUES ({writer}, {i})")

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    rows = session.execute("FROM t ORDER BY ALL").fetchall()
    assert rows == [(writer, i) for writer in range(WRITERS) for i in range(INSERTS)]
    counted = lake.psycopg().execute("SELECT count(*), max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert counted == (WRITERS * INSERTS + 2, WRITERS * INSERTS + 1)
