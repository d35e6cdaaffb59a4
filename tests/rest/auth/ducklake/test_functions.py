"""Functions that run as the lake's owner: what they do for whom, and for nobody else."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from duckicelake.embedded.stack import ROLE
from duckicelake.errors import Forbidden
from duckicelake.lake.access_rules import change_rules, insert_principal
from duckicelake.lake.connect import close_lake, open_lake
from tests.rest.auth.ducklake.readers import PATH, ask_as
from tests.rest.auth.principals import Guarded
from tests.rest.auth.rules.managed import Managed
from tests.support.shared_stack import SharedStack

TRIGGERS = (
    *("lake_readers.iceberg_show_rows", "lake_readers.iceberg_show_deletes"),
    *("lake.iceberg_note_expiry", "lake.iceberg_pin_files", "lake.iceberg_keep_file", "lake.iceberg_note_gone"),
    *("lake.iceberg_note_merge", "lake.iceberg_note_cleanup", "lake.iceberg_keep_schema", "lake.iceberg_keep_event"),
)
OPEN = """
SELECT p.proname FROM pg_proc p
 WHERE p.pronamespace IN ('lake'::regnamespace, 'lake_readers'::regnamespace) AND p.prosecdef
   AND has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1
"""
EVIL = """
INSERT INTO evil (table_name, table_id, schema_version, changes_made, path)
VALUES ('ducklake_inlined_data_1_1', '1) AS x; CREATE TABLE lake.taken AS SELECT 1 AS i; --', '1', 'inlined_delete:1', 'x')
"""
MADE = "SELECT to_regclass('lake.taken') IS NOT NULL, (SELECT count(*) FROM lake.iceberg_change WHERE kind = 'expire')"


@contextmanager
def login(guarded: Guarded, stack: SharedStack, name: str) -> Generator[str]:
    """The connection string of a role that is nobody's reader, but may make temporary tables."""
    lake = guarded.lake
    role = sql.Identifier(f"{name}_{lake.name}")
    with psycopg.connect(
        make_conninfo(stack.admin_dsn, dbname=psycopg.conninfo.conninfo_to_dict(lake.dsn)["dbname"]), autocommit=True
    ) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(role))
        try:
            admin.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(sql.Identifier(admin.info.dbname), role))
            yield make_conninfo(lake.dsn, user=f"{name}_{lake.name}", password="plain")
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def make_evil(conn: psycopg.Connection) -> None:
    """A table of one's own with all columns that our triggers look at."""
    conn.execute("CREATE TEMP TABLE evil (table_name text, table_id text, schema_version text, changes_made text, path text,"
                 " path_is_relative boolean)")  # fmt: skip


@pytest.mark.whole
def test_nobody_gives_our_functions_to_triggers_of_their_own(shared: Guarded, stack: SharedStack) -> None:
    """Neither a reader nor another role; and who may, as their owner, makes them do nothing."""
    told, admin = ask_as(shared, "reader"), shared.lake.psycopg()
    assert [name for (name,) in admin.execute(OPEN).fetchall()] == ["iceberg_ids", "iceberg_rows"]
    with login(shared, stack, "plain") as dsn:
        for address in (told.answer["dsn"], dsn):
            with psycopg.connect(address, autocommit=True) as conn:
                conn.execute("SET default_transaction_read_only = off")
                make_evil(conn)
                for name in TRIGGERS:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for (function|schema)"):
                        conn.execute(f"CREATE TRIGGER mine AFTER INSERT ON evil FOR EACH ROW EXECUTE FUNCTION {name}()")  # pyright: ignore
    before = admin.execute(MADE).fetchone()
    make_evil(admin)
    for name in TRIGGERS:
        of = "STATEMENT" if name.endswith(("expiry", "files", "keep_file")) else "ROW"
        admin.execute(f"CREATE TRIGGER mine AFTER INSERT ON evil FOR EACH {of} EXECUTE FUNCTION {name}()")  # pyright: ignore
        admin.execute(EVIL)
        admin.execute("DROP TRIGGER mine ON evil")
    assert admin.execute(MADE).fetchone() == before
    assert admin.execute("SELECT count(*) FROM evil").fetchone() == (len(TRIGGERS),)


def test_who_writes_by_another_role_is_noted_too(managed: Managed, stack: SharedStack) -> None:
    """Triggers need no right to fire: inlined rows and deletes are shown, expiry is noted; and no registered name shows another table."""
    guarded = managed.guarded
    reader, admin = ask_as(guarded, "reader").psycopg(), guarded.lake.psycopg()
    with login(guarded, stack, "writer") as dsn:
        writer = sql.Identifier(psycopg.conninfo.conninfo_to_dict(dsn)["user"] or "")
        for grant in ("USAGE, CREATE ON SCHEMA lake", "ALL ON ALL TABLES IN SCHEMA lake"):
            admin.execute(sql.SQL("GRANT {} TO {}").format(sql.SQL(grant), writer))
        with psycopg.connect(dsn, autocommit=True) as own:
            own.execute(sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA lake GRANT ALL ON TABLES TO {}").format(sql.Identifier(ROLE)))
        session = replace(guarded.lake, dsn=dsn).duckdb()
        session.execute("CREATE TABLE a.mine (i BIGINT); INSERT INTO a.mine VALUES (7), (8)")
        session.execute("CREATE TABLE a.filed AS SELECT range AS i FROM range(100); DELETE FROM a.filed WHERE i = 7")
        session.execute("CALL ducklake_expire_snapshots('lake', versions => [1])")
        session.close()
        row = reader.execute("SELECT table_id FROM ducklake_table WHERE table_name = 'filed'").fetchone()
        assert row is not None
        shown = reader.execute(sql.SQL("SELECT row_id FROM {}").format(sql.Identifier(f"ducklake_inlined_delete_{row[0]}")))
        assert shown.fetchall() == [(7,)]
        found = "SELECT table_name FROM ducklake_inlined_data_tables JOIN ducklake_table t USING (table_id) WHERE t.table_name = 'mine'"
        name = admin.execute(found.replace("SELECT table_name", "SELECT ducklake_inlined_data_tables.table_name")).fetchone()
        assert name is not None
        assert reader.execute(sql.SQL("SELECT i FROM {} ORDER BY 1").format(sql.Identifier(name[0]))).fetchall() == [(7,), (8,)]
        assert admin.execute("SELECT kind FROM iceberg_change WHERE kind = 'expire'").fetchall() == [("expire",)]
        admin.execute(
            "INSERT INTO ducklake_inlined_data_tables (table_id, table_name, schema_version) VALUES (%s, 'iceberg_setting', 99)", row
        )
        asked = sql.SQL("SELECT * FROM lake_readers.iceberg_rows({}, 99) AS n(key text, value text)").format(row[0])
        assert reader.execute(asked).fetchall() == []
        assert admin.execute("SELECT to_regclass('lake_readers.iceberg_setting')").fetchone() == (None,)


def test_where_everybody_may_make_tables_beside_ducklakes_there_are_no_readers(managed: Managed) -> None:
    """As in the schema `public` of older versions of Postgres: what they make could be taken for the lake's own."""
    managed.guarded.lake.psycopg().execute("GRANT CREATE ON SCHEMA lake TO PUBLIC")
    answer = managed.guarded.get("reader", PATH)
    assert answer.error == (501, "UnsupportedOperationException")
    assert "REVOKE CREATE ON SCHEMA" in answer.json["error"]["message"]


def test_a_server_that_may_not_tell_readers_takes_nothing(managed: Managed, stack: SharedStack) -> None:
    """Whose role is not the lake's owner: it says so before it changes anything, and what to do."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    ask_as(guarded, "reader")
    with login(guarded, stack, "plain") as dsn:
        role = sql.Identifier(psycopg.conninfo.conninfo_to_dict(dsn)["user"] or "")
        for grant in ("USAGE ON SCHEMA lake", "ALL ON ALL TABLES IN SCHEMA lake"):
            admin.execute(sql.SQL("GRANT {} TO {}").format(sql.SQL(grant), role))
        lake = open_lake("lake", dsn, "lake", 2)
        try:
            with pytest.raises(Forbidden, match="GRANT UPDATE ON SEQUENCE"):
                change_rules(lake, lambda conn: insert_principal(conn, "late", None, is_role=True))
            assert admin.execute("SELECT count(*) FROM iceberg_principal").fetchone() == (0,)
            admin.execute(sql.SQL("GRANT UPDATE ON SEQUENCE iceberg_revocation TO {}").format(role))
            assert change_rules(lake, lambda conn: insert_principal(conn, "late", None, is_role=True))
        finally:
            close_lake(lake)
    told = "SELECT last_value::text = (SELECT value FROM iceberg_setting WHERE key = 'revocation') FROM iceberg_revocation"
    assert admin.execute(told).fetchone() == (True,)
