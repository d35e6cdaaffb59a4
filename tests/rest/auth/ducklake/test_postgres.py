"""What a reader's role can do in Postgres by itself: no more than DuckDB does with it."""

from collections.abc import Sequence
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from tests.rest.auth.ducklake.readers import OWN, ask_as
from tests.rest.auth.principals import Guarded
from tests.rest.auth.vended import is_refused, open_s3

VIEWS = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'lake_readers'::regnamespace AND c.relkind = 'v' ORDER BY 1"
LEAK = """
CREATE FUNCTION pg_temp.leak(anything text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN RAISE NOTICE 'leaked %', anything; RETURN true; END $$
"""
PATHS = """
SELECT s.schema_name, s.path || t.path || f.path
  FROM ducklake_data_file f JOIN ducklake_table t USING (table_id) JOIN ducklake_schema s USING (schema_id)
"""
SECRETS = ("payroll", "salary_of_bob", "424242", "133742", "hush", "bob", "deep")


def test_nothing_of_other_tables_is_in_any_view(shared: Guarded) -> None:
    """Not their names, columns, bounds, rows or files, nor who changed them why; and what is its own is."""
    told, admin = ask_as(shared, "reader"), shared.lake.psycopg()
    conn = told.psycopg()
    names = [name for (name,) in admin.execute(VIEWS).fetchall() if name.startswith("ducklake_")]
    assert len(names) > 28
    ids = {row[0] for row in admin.execute("SELECT table_id FROM ducklake_table t JOIN ducklake_schema s USING (schema_id)"
                                           " WHERE schema_name <> 'a'")}  # fmt: skip
    filled: set[str] = set()
    for name in names:
        rows = conn.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))).fetchall()
        text = repr(rows)
        assert not [secret for secret in SECRETS if secret in text], name
        filled |= {name} if rows else set()
        columns = [
            column.name for column in conn.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(sql.Identifier(name))).description or ()
        ]
        if "table_id" in columns:
            assert ids.isdisjoint({row[columns.index("table_id")] for row in rows}), name
    assert filled >= {"ducklake_column", "ducklake_data_file", "ducklake_file_column_stats", "ducklake_snapshot_changes"}
    changes = conn.execute("SELECT string_agg(changes_made, ',') FROM ducklake_snapshot_changes").fetchone()
    assert changes is not None
    assert not [part for part in changes[0].split(",") if int(part.partition(":")[2]) in ids]


def test_functions_in_conditions_see_no_other_rows(shared: Guarded) -> None:
    """However cheap they say they are, they are asked after the rows are chosen."""
    conn, told = ask_as(shared, "reader").psycopg(), list[str]()
    conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    conn.execute("SET default_transaction_read_only = off")
    conn.execute(LEAK)
    for view, column in (("ducklake_table", "table_name"), ("ducklake_column", "column_name"), ("ducklake_schema", "schema_name")):
        conn.execute(sql.SQL("SELECT count(*) FROM {} x WHERE pg_temp.leak(x.{})").format(sql.Identifier(view), sql.Identifier(column)))
    conn.execute("SELECT count(*) FROM ducklake_file_column_stats x WHERE pg_temp.leak(x.max_value)")
    assert any("rows" in text for text in told)
    assert not [text for text in told if any(secret in text for secret in SECRETS)]


DENIED: Sequence[LiteralString] = (
    "SELECT * FROM lake.ducklake_table",
    "SELECT * FROM lake.iceberg_grant",
    "TABLE lake.iceberg_principal",
    "TABLE lake.iceberg_reader",
    "SELECT * FROM lake_readers.iceberg_table",
    "SELECT * FROM lake_readers.iceberg_me",
    "SELECT last_value FROM lake.iceberg_revocation",
    "INSERT INTO ducklake_table SELECT * FROM ducklake_table",
    "UPDATE ducklake_table SET table_name = 'x'",
    "DELETE FROM ducklake_tag",
    "CREATE TABLE mine (i int)",
    "CREATE TABLE public.mine (i int)",
    "CREATE SCHEMA mine",
    "DROP VIEW ducklake_table",
    "CREATE OR REPLACE VIEW ducklake_tag AS SELECT 1",
    "SELECT lake_readers.iceberg_show('a', 1, 1)",
    "SET ROLE duckicelake",
    "SET SESSION AUTHORIZATION duckicelake",
    "CREATE ROLE mine",
    "GRANT duckicelake TO CURRENT_USER",
    "ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'",
    "ALTER ROLE CURRENT_USER CREATEROLE",
    "DO 'BEGIN LOCK TABLE ducklake_table IN SHARE MODE; END'",
    "SELECT rolpassword FROM pg_authid",
    "SELECT pg_read_file('/etc/passwd')",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "ALTER VIEW ducklake_table SET (security_barrier = false)",
    "SELECT * FROM pg_statistic",
    "DELETE FROM lake.iceberg_reader",
)


def test_nothing_else_is_let_through(shared: Guarded) -> None:
    """Every statement fails for lack of a right, also when the session has put off being read-only."""
    conn = ask_as(shared, "reader").psycopg()
    conn.execute("SET default_transaction_read_only = off")
    lacking = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)
    for statement in DENIED:
        try:
            conn.execute(statement)
        except lacking:
            continue
        pytest.fail(f"let through: {statement}")


def test_tricks_with_names_and_inlined_rows_give_nothing(shared: Guarded) -> None:
    """Another search path, temporary tables by DuckLake's names, inlined rows by number, statistics of others."""
    told, admin = ask_as(shared, "reader"), shared.lake.psycopg()
    conn = told.psycopg()
    conn.execute("SET default_transaction_read_only = off")
    before = conn.execute("SELECT count(*) FROM ducklake_table").fetchone()
    conn.execute("CREATE TEMP TABLE iceberg_reader AS SELECT session_user AS role_name, ARRAY[''] AS spaces")
    conn.execute("CREATE TEMP TABLE pg_database AS SELECT 1 AS oid")
    conn.execute("SET search_path = pg_temp, lake_readers, pg_catalog, lake")
    assert conn.execute("SELECT count(*) FROM ducklake_table").fetchone() == before
    found = "SELECT i.table_id, i.schema_version FROM ducklake_inlined_data_tables i JOIN ducklake_table t USING (table_id)"
    row = admin.execute(found + " WHERE t.table_name = 'payroll'").fetchone()
    assert row is not None
    asked = sql.SQL("SELECT * FROM lake_readers.iceberg_rows({}, {}) AS n(a bigint, b bigint, c bigint, d bigint, e bytea)")
    assert conn.execute(asked.format(*row)).fetchall() == []
    view = sql.SQL("SELECT * FROM {}.{}").format(sql.Identifier(OWN), sql.Identifier(f"ducklake_inlined_data_{row[0]}_{row[1]}"))
    assert conn.execute(view).fetchall() == []
    admin.execute("ANALYZE")
    seen = conn.execute("SELECT * FROM pg_stats WHERE schemaname IN ('lake', 'lake_readers')").fetchall()
    assert seen == []
    other = admin.execute("SELECT count(*) FROM lake_readers.ducklake_snapshot").fetchone()
    assert other == (0,), "who is no reader sees nothing"


def test_keys_open_files_of_its_tables_and_nothing_else(shared: Guarded) -> None:
    """Reading them alone: no lists, no writing, no other table's."""
    told, admin = ask_as(shared, "reader"), shared.lake.psycopg()
    config = told.answer["storage-credentials"][0]["config"]
    s3 = open_s3(shared.lake.store.endpoint, (config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"]))
    bucket, _, root = shared.lake.data_path.removeprefix("s3://").partition("/")
    keys = {schema: root + path for schema, path in admin.execute(PATHS).fetchall()}
    mine, theirs = keys["a"], keys["b"]
    assert s3.get_object(Bucket=bucket, Key=mine)["Body"].read(4) == b"PAR1"
    for call, arguments in (
        (s3.get_object, {"Key": theirs}),
        (s3.put_object, {"Key": mine, "Body": b"x"}),
        (s3.delete_object, {"Key": mine}),
        (s3.list_objects_v2, {"Prefix": root}),
        (s3.copy_object, {"Key": mine + "-copy", "CopySource": f"{bucket}/{theirs}"}),
    ):
        assert is_refused(call, Bucket=bucket, **arguments), arguments
    assert {prefix.split("/")[-3] for each in told.answer["storage-credentials"] for prefix in each["prefixes"]} == {"a"}
