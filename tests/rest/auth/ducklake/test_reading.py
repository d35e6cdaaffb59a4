"""What DuckDB reads with read-only DuckLake: exactly what its principal may, while others go on writing."""

import duckdb
import pytest
from psycopg import sql

from duckicelake.catalog.credentials.ducklake import MOST_FILES_EACH
from tests.rest.auth.ducklake.readers import PATH, ask, ask_as
from tests.rest.auth.principals import Guarded
from tests.rest.auth.rules.managed import Managed

EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now())"
COUNTED = "SELECT count(*), sum(i) FROM lake.a.rows"


def test_a_reader_sees_its_tables_and_every_row_of_them(shared: Guarded) -> None:
    """Rows of files, inlined ones, without those that are deleted inline, at head and before; and nothing of other namespaces."""
    conn, truth = ask_as(shared, "reader").duckdb(), shared.lake.duckdb()
    shown = conn.execute("SELECT DISTINCT database_name, schema_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall()
    assert shown == [("lake", "a")]
    assert {name for (name,) in conn.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall()} >= {
        *("t", "other", "rows")
    }
    assert conn.execute(COUNTED).fetchone() == truth.execute(COUNTED).fetchone()
    assert conn.execute("FROM lake.a.v").fetchall() == [(1,)]
    row = truth.execute("SELECT min(snapshot_id) FROM lake.snapshots() WHERE changes::VARCHAR LIKE '%rows%'").fetchone()
    assert row is not None
    earlier = f"SELECT count(*), sum(i) FROM lake.a.rows AT (VERSION => {row[0]})"
    assert conn.execute(earlier).fetchone() == truth.execute(earlier).fetchone() == (5000, 12497500)
    for hidden in ("b.t", "b.payroll", '"deep␟er".t'):
        with pytest.raises(duckdb.CatalogException):
            conn.execute(f"SELECT * FROM lake.{hidden}")
    for statement in (
        "INSERT INTO lake.a.rows VALUES (1, 'mine')",
        "UPDATE lake.a.rows SET s = 'mine'",
        "DELETE FROM lake.a.rows",
        "CREATE TABLE lake.a.mine (i BIGINT)",
        "DROP TABLE lake.a.rows",
        "CREATE SCHEMA lake.mine",
        "CALL lake.set_option('target_file_size', '1')",
        "CALL ducklake_flush_inlined_data('lake')",
        "CALL ducklake_expire_snapshots('lake', older_than => now())",
    ):
        with pytest.raises(duckdb.Error):
            conn.execute(statement)
    assert conn.execute(COUNTED).fetchone() == truth.execute(COUNTED).fetchone()


@pytest.mark.whole
def test_what_others_write_is_seen_and_no_writer_is_in_anybodys_way(managed: Managed) -> None:
    """New inlined tables and deletes show up in a session that is open; flush, drop, expiry and changes of columns work."""
    guarded = managed.guarded
    conn, writer = ask_as(guarded, "reader").duckdb(), guarded.lake.duckdb()

    def same(table: str) -> None:
        query = f"SELECT * FROM lake.a.{table} ORDER BY ALL"
        assert conn.execute(query).fetchall() == writer.execute(query).fetchall()

    same("t")
    for statement, table in (
        ("INSERT INTO a.t VALUES (100)", "t"),
        ('CREATE TABLE a.fresh (i INTEGER, "MyCol" VARCHAR, d DECIMAL(10, 2), l INTEGER[])', "fresh"),
        ("INSERT INTO a.fresh VALUES (1, 'one', 1.5, [1, 2]), (2, NULL, NULL, NULL)", "fresh"),
        ("DELETE FROM a.fresh WHERE i = 2", "fresh"),
        ("UPDATE a.t SET i = -i WHERE i = 100", "t"),
        ("INSERT INTO a.t SELECT range FROM range(200, 300)", "t"),
        ("DELETE FROM a.t WHERE i = 250", "t"),
        ("BEGIN; CREATE TABLE a.both AS SELECT 1 AS i; INSERT INTO a.both VALUES (2); COMMIT", "both"),
        ("CALL ducklake_flush_inlined_data('lake')", "t"),
        ("INSERT INTO a.t VALUES (101)", "t"),
        ("DROP TABLE a.fresh", "t"),
        (EXPIRE, "t"),
        ("CHECKPOINT", "t"),
        ("ALTER TABLE a.t ADD COLUMN s VARCHAR DEFAULT 'd'", "t"),
        ("INSERT INTO a.t VALUES (102, 'new')", "t"),
        ("ALTER TABLE a.other RENAME TO another", "another"),
    ):
        writer.execute(statement)
        same(table)
    conn.close()
    admin = guarded.lake.psycopg()
    assert ask_as(guarded, "nested").role
    made = "SELECT relname FROM pg_class WHERE relnamespace = 'lake_readers'::regnamespace AND relname ~ '^ducklake_inlined_data_[0-9]'"
    kept = admin.execute("SELECT table_name FROM ducklake_inlined_data_tables").fetchall()
    assert sorted(admin.execute(made).fetchall()) == sorted(kept)


@pytest.mark.whole
def test_grants_of_single_tables_show_these_alone(managed: Managed) -> None:
    """By uuid, through renames; roles, namespaces with what is nested, and a scope that narrows."""
    writer = managed.guarded.lake.duckdb()
    for name in ("one", "many"):
        managed.add(name)
    assert managed.manage("POST", "roles", {"name": "analysts"}).status == 204
    assert managed.manage("PUT", "roles/analysts/members/many").status == 204
    managed.give("read", "table:b.t", "one")
    managed.give("read", "namespace:a", "role:analysts")
    managed.give("read", "view:b.v", "many")
    admin = managed.guarded.lake.psycopg()
    admin.execute("INSERT INTO ducklake_tag SELECT schema_id, 0, NULL, 'owner', 'of ' || schema_name FROM ducklake_schema")
    one, many = ask(managed.guarded, managed.token("one")), ask(managed.guarded, managed.token("many"))
    listed = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'lake' ORDER BY ALL"
    conn = one.duckdb()
    assert conn.execute(listed).fetchall() == [("b", "t")]
    assert one.psycopg().execute("SELECT value FROM ducklake_tag").fetchall() == [], "properties of what it may not read as a whole"
    assert many.psycopg().execute("SELECT value FROM ducklake_tag").fetchall() == [("of a",)]
    assert many.duckdb().execute(listed).fetchall() == [("a", "other"), ("a", "t")]
    assert many.duckdb().execute("FROM lake.b.v").fetchall() == [(1,)]
    writer.execute("ALTER TABLE b.t RENAME TO moved; CREATE TABLE b.t AS SELECT 'secret' AS s")
    assert conn.execute(listed).fetchall() == [("b", "moved")]
    assert conn.execute("SELECT count(*) FROM lake.b.moved").fetchone() == (10,)
    nested = ask_as(managed.guarded, "nested").duckdb()
    assert {schema for schema, _ in nested.execute(listed).fetchall()} == {"deep␟er"}
    narrow = ask_as(managed.guarded, "admin", scope="ns:deep:r").duckdb()
    assert {schema for schema, _ in narrow.execute(listed).fetchall()} == {"deep␟er"}
    assert {schema for schema, _ in ask_as(managed.guarded, "admin").duckdb().execute(listed).fetchall()} == {"a", "b", "deep␟er"}


def test_a_table_whose_deletes_cannot_be_seen_is_not_there(managed: Managed) -> None:
    """DuckDB would take them for none, and show rows that are deleted."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    writer, told = guarded.lake.duckdb(), ask_as(guarded, "reader")
    writer.execute("CREATE TABLE a.filed AS SELECT range AS i FROM range(100); DELETE FROM a.filed WHERE i = 7")
    row = admin.execute("SELECT table_id FROM ducklake_table WHERE table_name = 'filed'").fetchone()
    assert row is not None
    listed = "SELECT table_name FROM ducklake_table ORDER BY 1"
    conn = told.psycopg()
    assert conn.execute(listed).fetchall() == [("filed",), ("other",), ("t",)]
    admin.execute(sql.SQL("DROP VIEW lake_readers.{}").format(sql.Identifier(f"ducklake_inlined_delete_{row[0]}")))
    assert conn.execute(listed).fetchall() == [("other",), ("t",)]
    writer.execute("DELETE FROM a.filed WHERE i = 8")
    assert conn.execute(listed).fetchall() == [("filed",), ("other",), ("t",)]


def test_more_files_than_keys_can_name_are_refused(managed: Managed) -> None:
    """In a folder that another table has too, files are named one by one; none is left out in silence."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    admin.execute("UPDATE ducklake_table SET path = 'both/', path_is_relative = true WHERE table_name = 't'")
    admin.execute("UPDATE ducklake_schema SET path = 'one/', path_is_relative = true")
    admin.execute(
        "INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, record_count, file_size_bytes)"
        " SELECT 10000 + n, t.table_id, 1, 'f' || n, true, 1, 1"
        "   FROM ducklake_table t JOIN ducklake_schema s USING (schema_id), generate_series(1, %s) n"
        "  WHERE t.table_name = 't' AND s.schema_name = 'a'",
        [MOST_FILES_EACH + 1],
    )
    answer = guarded.get("reader", PATH)
    assert answer.status == 406
    assert "narrower scope" in answer.json["error"]["message"]
