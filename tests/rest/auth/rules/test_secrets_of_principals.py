"""Secrets of principals that a lake keeps: shown once, and worth nothing after they are gone."""

import json
import logging

import pytest

from duckicelake.access.tokens import ACCESS_TOKEN, TOKEN_EXCHANGE
from tests.rest.auth.principals import GRANTS, guard, secret_of
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import WAREHOUSE, make_settings, serve
from tests.support.lakes import FreshLake

T = "namespaces/a/tables/t"


def exchange(managed: Managed, token: str) -> int:
    """The answer to who exchanges a token without a secret."""
    form = {"grant_type": TOKEN_EXCHANGE, "subject_token": token, "subject_token_type": ACCESS_TOKEN}
    return managed.guarded.ask_token(form).status


def test_rotating_ends_the_old_secret_and_its_tokens(managed: Managed) -> None:
    """At once; the new ones hold the same grants."""
    managed.add("alice")
    managed.give("read", "namespace:a", "alice")
    token, secret = managed.token("alice"), managed.secrets["alice"]
    assert managed.guarded.server.get(T, token).status == 200
    assert exchange(managed, token["Authorization"].removeprefix("Bearer ")) == 200
    managed.rotate("alice")
    assert managed.guarded.server.get(T, token).error == (401, "NotAuthorizedException")
    assert exchange(managed, token["Authorization"].removeprefix("Bearer ")) == 400
    assert managed.guarded.ask_token({"grant_type": "client_credentials"}, ("alice", secret)).status == 401
    assert managed.statuses("alice", T) == [200]


def test_who_is_removed_is_gone_at_once(managed: Managed) -> None:
    """And whoever gets the name next inherits neither tokens nor grants."""
    managed.add("alice")
    managed.give("read", "namespace:a", "alice")
    token = managed.token("alice")
    assert managed.guarded.server.get(T, token).status == 200
    assert managed.manage("DELETE", "principals/alice").status == 204
    for path in (T, "/v1/config"):
        assert managed.guarded.server.get(path, token).error == (401, "NotAuthorizedException")
    assert managed.ask_token("alice").status == 401
    managed.add("alice")
    assert managed.guarded.server.get(T, token).status == 401
    assert managed.statuses("alice", T) == [404]
    assert [managed.manage("DELETE", path).status for path in ("principals/nobody", "roles/nobody")] == [404, 404]
    assert managed.manage("POST", "principals", {"name": "alice"}).error == (409, "AlreadyExistsException")


def test_a_name_of_settings_is_settings_own(managed: Managed) -> None:
    """A secret that the lake has for it opens nothing; settings' does."""
    managed.add("reader")
    assert managed.ask_token("reader").status == 401
    assert managed.guarded.get("reader", T).status == 200


def test_secrets_are_kept_as_hashes_and_never_told(managed: Managed, caplog: pytest.LogCaptureFixture) -> None:
    """Not in Postgres, not in lists, not in the record, not in the log."""
    with caplog.at_level(logging.DEBUG):
        managed.add("alice")
        token = managed.token("alice")["Authorization"].removeprefix("Bearer ")
    listed = managed.manage("GET", "principals").body.decode()
    conn = managed.guarded.lake.psycopg()
    kept = [row for table in ("principal", "audit") for row in conn.execute(f"SELECT x::text FROM iceberg_{table} x").fetchall()]  # pyright: ignore
    told = caplog.text + listed + str(kept)
    assert "$argon2id$" in str(kept)
    assert "$argon2id$" not in caplog.text + listed
    assert managed.secrets["alice"] not in told
    assert token not in told


def test_a_principal_of_one_lake_is_nobody_in_another(lake: FreshLake, other_lake: FreshLake) -> None:
    """Though it has the same name there, and grants; whose secret was shown decides."""
    other_lake.duckdb().execute("CREATE SCHEMA a; CREATE TABLE a.t AS SELECT 1 AS i")
    names = {"postgres_dsn": other_lake.dsn, "metadata_schema": other_lake.metadata_schema}
    mine = {"postgres_dsn": lake.dsn, "metadata_schema": lake.metadata_schema}
    sections = {WAREHOUSE: mine, "other": names}
    with guard(lake, lakes=sections, postgres_dsn=None) as guarded:
        managed = Managed(guarded)
        managed.add("alice")
        managed.give("read", "namespace:a", "alice")
        theirs = guarded.ask("admin", "POST", "/management/v1/other/principals", {"name": "alice"}).json["secret"]
        body = {"privileges": ["read"], "on": "namespace:a", "to": "alice"}
        assert guarded.ask("admin", "POST", "/management/v1/other/grants", body).status == 204
        mine_token = managed.token("alice")
        managed.secrets["alice"] = theirs
        their_token = managed.token("alice")
        for token, statuses in ((mine_token, [200, 404]), (their_token, [404, 200])):
            assert [guarded.server.get(f"/v1/{name}/{T}", token).status for name in (WAREHOUSE, "other")] == statuses


def test_who_manages_one_lake_manages_no_other(lake: FreshLake, other_lake: FreshLake) -> None:
    """Neither what its paths name nor what they only begin with."""
    other_lake.duckdb().execute("CREATE SCHEMA a; CREATE TABLE a.t AS SELECT 1 AS i")
    sections = {
        WAREHOUSE: {"postgres_dsn": lake.dsn, "metadata_schema": lake.metadata_schema},
        "other": {"postgres_dsn": other_lake.dsn, "metadata_schema": other_lake.metadata_schema},
    }
    with guard(lake, lakes=sections, postgres_dsn=None) as guarded:
        managed = Managed(guarded)
        managed.add("alice")
        managed.give("manage,read,write,create,drop", "warehouse", "alice")
        token = managed.token("alice")
        named = json.dumps({"namespace": ["mine"], "name": "mine"}).encode()
        for base, listed, statuses in (
            (f"/v1/{WAREHOUSE}", True, [200, 200]),
            ("/v1/other", False, [403, 404]),
            ("/v1/%6fther", False, [403, 404]),
        ):
            assert bool(guarded.server.get(f"{base}/namespaces", token).json["namespaces"]) is listed
            assert guarded.server.ask("POST", f"{base}/namespaces", token, named).status == statuses[0]
            assert guarded.server.get(f"{base}/{T}", token).status == statuses[1]
        for base, status in ((f"/management/v1/{WAREHOUSE}", 200), ("/management/v1/other", 403), ("/management/v1/%6fther", 403)):
            assert guarded.server.get(f"{base}/principals", token).status == status
            assert guarded.server.ask("POST", f"{base}/principals", token, named).status == status
        assert guarded.server.get("/v1/config?warehouse=other", token).status == 200
        assert guarded.server.get("/v1/none/namespaces", token).status == 404


def test_a_server_without_clients_in_its_settings_serves_those_of_the_lake(lake: FreshLake) -> None:
    """Whoever has the lake's Postgres makes the first one."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("alice")
        managed.give("read", "namespace:a", "alice")
    assert secret_of("reader") not in str(GRANTS)
    with serve(make_settings(lake, require_auth=True)) as server:
        managed.guarded = type(guarded)(lake, server)
        assert managed.statuses("alice", T) == [200]
