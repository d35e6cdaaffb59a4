"""How readers' roles come and go."""

import logging
from dataclasses import replace
from pathlib import Path

import duckdb
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from duckicelake.commands.check import list_findings, repair_lake
from duckicelake.commands.prepare import abandon_lake, prepare_lake
from duckicelake.commands.serve import QUIET_LOGGERS
from duckicelake.config import LakeSettings
from duckicelake.embedded.home import open_home
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.embedded.stack import ROLE
from duckicelake.errors import NotServed
from duckicelake.lake import readers
from duckicelake.lake.readers import MOST_ROLES
from tests.rest.auth.ducklake.readers import PATH, ask, ask_as
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import whole_after
from tests.support.waiting import wait_for

ENDPOINT = "GET /v1/{prefix}/ducklake-credentials"
ROLES = "SELECT rolname FROM pg_roles WHERE rolname LIKE 'duckicelake_reader_%'"
COUNT = "SELECT count(*) FROM ducklake_table"
USED = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"


def list_roles(guarded: Guarded) -> set[str]:
    """Roles of Postgres that this lake knows."""
    admin = guarded.lake.psycopg()
    known = {name for (name,) in admin.execute("SELECT role_name FROM iceberg_reader").fetchall()}
    return known & {name for (name,) in admin.execute(ROLES).fetchall()}


def test_a_revoke_is_in_force_when_it_is_acknowledged(managed: Managed) -> None:
    """In sessions that are open, and in transactions that began before; and a grant of something else is in nobody's way."""
    for name in ("one", "two"):
        managed.add(name)
        managed.give("read", "namespace:a", name)
    told, other = ask(managed.guarded, managed.token("one")), ask(managed.guarded, managed.token("two")).psycopg()
    conn, session, duck = told.psycopg(), told.psycopg(), told.duckdb()
    assert duck.execute("SELECT count(*) FROM lake.a.t").fetchone() == (10,)
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = conn.execute(COUNT).fetchone()
    assert before is not None
    assert before[0] > 0
    managed.give("read", "table:b.t", "one")
    assert conn.execute(COUNT).fetchone() == before
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert other.execute(COUNT).fetchone() == before
    managed.take("read", "namespace:a", "one")
    for refused in (conn, session, other):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ask the catalog"):
            refused.execute(COUNT)
    other.execute("ROLLBACK")
    assert other.execute(COUNT).fetchone() == before, "only its transaction was too old"
    for query in ("SELECT sum(i) FROM lake.a.t", "SELECT count(*) FROM lake.a.t"):
        with pytest.raises(duckdb.Error, match="ask the catalog"):
            duck.execute(query)
    left = ask(managed.guarded, managed.token("one"))
    assert left.role != told.role
    assert left.psycopg().execute("SELECT table_name FROM ducklake_table").fetchall() == [("t",)]
    managed.take("read", "table:b.t", "one")
    assert managed.ask("one", "GET", PATH).status == 403


def test_who_is_removed_or_gets_another_secret_sees_nothing_more(managed: Managed) -> None:
    """As with tokens; and what roles give goes with them."""
    for name in ("one", "two", "three"):
        managed.add(name)
        managed.give("read", "warehouse", name)
    conns = {name: ask(managed.guarded, managed.token(name)).psycopg() for name in ("one", "two", "three")}
    managed.rotate("one")
    assert managed.manage("DELETE", "principals/two").status == 204
    assert managed.manage("POST", "roles", {"name": "some"}).status == 204
    assert managed.manage("PUT", "roles/some/members/three").status == 204
    for name in ("one", "two"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conns[name].execute("SELECT count(*) FROM ducklake_snapshot")
    assert conns["three"].execute(COUNT).fetchone() != (0,)
    assert managed.manage("DELETE", "roles/some").status == 204
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conns["three"].execute(COUNT)
    assert ask(managed.guarded, managed.token("one")).psycopg().execute("SELECT count(*) > 0 FROM ducklake_table").fetchone() == (True,)


def test_a_role_is_given_again_while_it_is_fresh_and_ends_by_itself(managed: Managed) -> None:
    """The password is the only one; the row says when it is over, and Postgres too."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    first, again, narrow = ask_as(guarded, "reader"), ask_as(guarded, "reader"), ask_as(guarded, "admin", scope="ns:a:r")
    assert first.answer["dsn"] == again.answer["dsn"]
    assert narrow.role != first.role
    row = admin.execute(
        "SELECT rolvaliduntil, rolconnlimit, rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication, r.expires_at"
        " FROM pg_roles JOIN iceberg_reader r ON r.role_name = rolname WHERE rolname = %s",
        [first.role],
    ).fetchone()
    assert row is not None
    assert row[:3] == (row[3], 8, False)
    assert abs(row[3].timestamp() * 1000 - first.answer["expires-at-ms"]) < 60_000
    conn = first.psycopg()
    admin.execute("UPDATE iceberg_reader SET expires_at = clock_timestamp() WHERE role_name = %s", [first.role])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ask the catalog"):
        conn.execute(COUNT)
    admin.execute(sql.SQL("ALTER ROLE {} VALID UNTIL '2000-01-01'").format(sql.Identifier(first.role)))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        first.psycopg()
    assert ask_as(guarded, "nested").role
    assert first.role not in list_roles(guarded)
    assert ask_as(guarded, "reader").role != first.role


@pytest.mark.whole
def test_one_principal_has_so_many_roles_and_what_they_made_goes_with_them(
    managed: Managed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The oldest unused ones are removed, large objects with them; `check --repair` removes those that are over, with their sessions."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    first = ask_as(guarded, "reader")
    conn = first.psycopg()
    conn.execute("SET default_transaction_read_only = off")
    conn.execute("SELECT lo_create(0)")
    conn.close()
    wait_for(lambda: admin.execute(USED, [first.role]).fetchone() == (0,), "the session to end")
    admin.execute(
        "INSERT INTO iceberg_reader SELECT 'gone_' || n, database_id, principal, NULL, NULL, spaces, NULL, clock_timestamp(), expires_at"
        " FROM iceberg_reader, generate_series(1, %s) n",
        [MOST_ROLES],
    )
    ask_as(guarded, "reader", scope="ns:a:r")
    assert first.role not in list_roles(guarded)
    row = admin.execute("SELECT count(*) FROM iceberg_reader WHERE principal = 'reader'").fetchone()
    assert row == (MOST_ROLES,)
    last = ask_as(guarded, "reader")
    conn = last.psycopg()
    admin.execute("UPDATE iceberg_reader SET expires_at = clock_timestamp()")
    lake = to_settings(guarded.lake)
    repair_lake(lake)
    with pytest.raises(psycopg.OperationalError):
        conn.execute("SELECT 1")
    assert admin.execute("SELECT count(*) FROM iceberg_reader").fetchone() == (0,)
    assert admin.execute("SELECT count(*) FROM pg_roles WHERE rolname = %s", [last.role]).fetchone() == (0,)
    again = ask_as(guarded, "reader")
    abandon_lake(lake)
    assert admin.execute("SELECT count(*) FROM pg_roles WHERE rolname = %s", [again.role]).fetchone() == (0,)
    assert admin.execute("SELECT to_regnamespace('lake_readers') IS NULL").fetchone() == (True,)
    left = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'iceberg%'"
    assert admin.execute(left).fetchone() == (0,)
    guarded.lake.duckdb().execute("INSERT INTO a.t VALUES (1000); DELETE FROM a.t WHERE i = 1; CREATE TABLE a.more AS SELECT 1 AS i")


def test_who_uses_all_of_its_roles_gets_no_more(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is ended for a newer one: 429 until one is closed, and others get theirs."""
    monkeypatch.setattr(readers, "MOST_ROLES", 1)
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    first = ask_as(guarded, "admin")
    conn = first.psycopg()
    narrow = {"Authorization": f"Bearer {guarded.token('admin', 'ns:a:r')}"}
    answer = guarded.server.get(PATH, narrow)
    assert (answer.status, answer.headers["retry-after"]) == (429, "60")
    assert ask_as(guarded, "reader").role
    assert conn.execute(COUNT).fetchone() != (0,)
    conn.close()
    wait_for(lambda: admin.execute(USED, [first.role]).fetchone() == (0,), "the session to end")
    assert guarded.server.get(PATH, narrow).status == 200
    assert first.role not in list_roles(guarded)


@pytest.mark.whole
def test_no_lock_of_a_readers_is_in_the_servers_way(managed: Managed, tmp_path: Path) -> None:
    """They may hold advisory locks by any key: lakes are prepared, and others get credentials."""
    guarded = managed.guarded
    conn = ask_as(guarded, "reader").psycopg()
    for name in ("prepare", "readers"):
        conn.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"duckicelake {name} lake"])
    prepare_lake(to_settings(guarded.lake), tmp_path, lambda line: None)
    new = to_settings(replace(guarded.lake, metadata_schema="new")).model_copy(update={"data_path": f"{tmp_path}/data/"})
    assert prepare_lake(new, tmp_path, lambda line: None).iceberg_path == f"{tmp_path}/iceberg/"
    assert ask_as(guarded, "nested").role


def test_another_ones_schema_stays(managed: Managed) -> None:
    """What is called as the readers' schema would be, and is not marked as theirs, is never dropped."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    admin.execute("CREATE SCHEMA lake_readers; CREATE TABLE lake_readers.theirs AS SELECT 1 AS i")
    answer = guarded.get("reader", PATH)
    assert answer.error == (501, "UnsupportedOperationException")
    assert "'lake_readers'" in answer.json["error"]["message"]
    assert admin.execute("TABLE lake_readers.theirs").fetchone() == (1,)
    admin.execute("DROP SCHEMA lake_readers CASCADE")
    assert ask_as(guarded, "reader").role
    admin.execute("COMMENT ON SCHEMA lake_readers IS 'of somebody else'")
    with pytest.raises(NotServed, match="Rename it"):
        abandon_lake(to_settings(guarded.lake))
    assert admin.execute("SELECT to_regclass('lake_readers.iceberg_me') IS NOT NULL").fetchone() == (True,)


@pytest.mark.whole
def test_views_that_are_gone_are_made_again(managed: Managed) -> None:
    """Of one inlined table, all with their schema, or the triggers that make new ones; before the next role is given out."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    writer = guarded.lake.duckdb()
    writer.execute("CREATE TABLE a.filed AS SELECT range AS i FROM range(100); DELETE FROM a.filed WHERE i = 7")
    ask_as(guarded, "reader")
    (table_id,) = admin.execute("SELECT table_id FROM ducklake_table WHERE table_name = 'filed'").fetchone() or (0,)
    scopes = iter(("ns:a:r", "ns:a:rw ns:b:r", "ns:b:r"))
    for lost in (
        sql.SQL("DROP VIEW lake_readers.{}").format(sql.Identifier(f"ducklake_inlined_delete_{table_id}")),
        sql.SQL("DROP SCHEMA lake_readers CASCADE"),
        sql.SQL("DROP TRIGGER iceberg_show_rows ON lake.ducklake_inlined_data_tables"),
    ):
        admin.execute(lost)
        conn = ask_as(guarded, "admin", scope=next(scopes)).psycopg()
        assert conn.execute("SELECT to_regclass(%s) IS NOT NULL", [f"ducklake_inlined_delete_{table_id}"]).fetchone() == (True,)
    left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'iceberg_show_%' AND NOT tgisinternal"
    assert admin.execute(left).fetchone() == (2,)


def test_a_revoke_that_was_cut_off_is_finished_by_the_next(managed: Managed) -> None:
    """Also when nothing is left to take; and a lake that an older release prepared is in no revoke's or repair's way."""
    guarded, admin = managed.guarded, managed.guarded.lake.psycopg()
    managed.add("one")
    ask_as(guarded, "reader")
    admin.execute("UPDATE iceberg_setting SET value = '41' WHERE key = 'revocation'")
    managed.take("read", "namespace:a", "one")
    assert admin.execute("SELECT last_value FROM iceberg_revocation").fetchone() == (41,)
    managed.give("read", "namespace:a", "one")
    abandon = "DROP SCHEMA lake_readers CASCADE; DROP TABLE iceberg_reader; DROP SEQUENCE iceberg_revocation;"
    admin.execute(abandon + "DELETE FROM iceberg_setting WHERE key IN ('readers', 'revocation')")
    managed.take("read", "namespace:a", "one")
    assert repair_lake(to_settings(guarded.lake)) == []


def to_settings(lake: FreshLake) -> LakeSettings:
    """How commands reach the lake."""
    return LakeSettings(
        name="lake",
        postgres_dsn=SecretStr(lake.dsn),
        metadata_schema=lake.metadata_schema,
        s3_endpoint=lake.store.endpoint,
        s3_access_key_id=lake.store.access_key_id,
        s3_secret_access_key=SecretStr(lake.store.secret_access_key),
    )


def test_no_secret_is_anywhere_but_in_the_answer(shared: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in logs, nor in what Postgres shows of sessions, nor in the record or an error; Postgres never saw the password."""
    admin = shared.lake.psycopg()
    caplog.set_level(logging.DEBUG)
    for name in QUIET_LOGGERS:
        caplog.set_level(logging.WARNING, logger=name)
    told = ask_as(shared, "owner")
    password = told.connect_by["password"]
    seen = admin.execute("SELECT string_agg(query, ' ') FROM pg_stat_activity").fetchone()
    lines = admin.execute("SELECT string_agg(a::text, ' ') FROM iceberg_audit a").fetchone()
    kept = admin.execute("SELECT string_agg(r::text, ' ') FROM iceberg_reader r").fetchone()
    keys = told.answer["storage-credentials"][0]["config"]
    for secret in (password, keys["s3.secret-access-key"], keys["s3.session-token"]):
        assert secret not in f"{caplog.text} {seen} {lines} {kept}"
    row = admin.execute(
        "SELECT principal, outcome FROM iceberg_audit WHERE operation = 'loadDucklakeCredentials' ORDER BY id DESC LIMIT 1"
    ).fetchone()
    assert row == ("owner", "done")


def test_who_reads_nothing_gets_nothing(shared: Guarded) -> None:
    """403, and without a token 401; another's warehouse is not there."""
    assert shared.get("blind", PATH).status == 403
    assert shared.server.get(PATH).status == 401
    assert shared.get("reader", "/v1/other/ducklake-credentials").status == 404
    assert ENDPOINT in shared.server.get("/v1/config", {"Authorization": f"Bearer {shared.token('reader')}"}).json["endpoints"]


@pytest.mark.parametrize("missing", whole_after(1, ["CREATEROLE", "STS"]))
def test_what_is_missing_is_said(lake: FreshLake, stack: SharedStack, missing: str) -> None:
    """501, and it is no endpoint."""
    role = sql.Identifier(f"plain_{lake.name}")
    dsn = make_conninfo(lake.dsn, user=f"plain_{lake.name}", password="plain")
    settings = {"postgres_dsn": dsn, "sts_role_arn": ROLE_ARN} if missing == "CREATEROLE" else {}
    with psycopg.connect(stack.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain' IN ROLE {}").format(role, sql.Identifier(ROLE)))
        try:
            with guard(lake, **settings) as guarded:
                answer, config = guarded.get("reader", PATH), guarded.get("reader", "/v1/config").json
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(role))
    assert answer.error == (501, "UnsupportedOperationException")
    assert missing.lower() in answer.json["error"]["message"].lower()
    assert ENDPOINT not in config["endpoints"]


@pytest.mark.whole
def test_a_check_says_what_everybody_may_make(managed: Managed, tmp_path: Path) -> None:
    """Only where there are readers."""
    lake = to_settings(managed.guarded.lake)
    home = open_home(tmp_path / "home")
    assert not [each for each in list_findings(lake, home) if each.subject == "readers of DuckLake"]
    ask_as(managed.guarded, "reader")
    assert [each.severity for each in list_findings(lake, home) if each.subject == "readers of DuckLake"] == ["warning"]


def test_where_postgres_is_may_be_said_otherwise(lake: FreshLake) -> None:
    """Readers are told the host that they reach; nothing else of the server's own."""
    with guard(lake, sts_role_arn=ROLE_ARN, ducklake_postgres="host=localhost sslmode=prefer") as guarded:
        told = ask_as(guarded, "reader")
        assert (told.connect_by["host"], told.connect_by["sslmode"]) == ("localhost", "prefer")
        assert told.connect_by["password"] not in lake.dsn
    for bad in ("host=x user=me", "host=x password=me", "postgresql://x/y", "host='x y'"):
        with pytest.raises(ValueError, match="ducklake_postgres"):
            make_settings(lake, ducklake_postgres=bad)
