"""Read-only DuckLake for principals of other issuers: by what their tokens say, no longer than these last."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import duckdb
import psycopg
import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.ducklake.readers import PATH, Told, ask
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer
from tests.support.lakes import make_lake
from tests.support.oidc.running import Issuing, issuing
from tests.support.shared_stack import SharedStack

COUNT = "SELECT count(*) FROM ducklake_table"
NAMES = "SELECT table_name FROM ducklake_table ORDER BY table_name"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A server with an issuer that it believes; the role `engineers` there is `eng` here."""

    managed: Managed
    issuer: Issuing

    @property
    def guarded(self) -> Guarded:
        """The server."""
        return self.managed.guarded

    def bear(self, sub: str, **claims: Any) -> dict[str, str]:
        """The header with a new token."""
        return {"Authorization": f"Bearer {self.issuer.token(sub, **claims)}"}

    def ask(self, sub: str, **claims: Any) -> Told:
        """Ask as somebody of the issuer."""
        return ask(self.guarded, self.bear(sub, **claims))

    def refuse(self, sub: str, **claims: Any) -> Answer:
        """Ask as somebody who gets nothing."""
        return self.guarded.server.get(PATH, self.bear(sub, **claims))


@pytest.fixture(scope="module")
def foreign(stack: SharedStack) -> Generator[Foreign]:
    """The server; tests use principals and roles of their own."""
    with make_lake(stack) as lake, issuing() as issuer:
        told = issuer.settings(roles={"engineers": "eng"})
        with guard(lake, sts_role_arn=ROLE_ARN, oidc_issuers=[told]) as guarded:
            yield Foreign(Managed(guarded), issuer)


@pytest.mark.whole
def test_what_a_principal_and_the_roles_of_its_token_are_granted_is_read_in_duckdb(foreign: Foreign) -> None:
    """And nothing else; another token of the same principal has the roles that it names itself."""
    managed = foreign.managed
    for role in ("acme:readers", "eng", "engineers"):
        assert managed.manage("POST", "roles", {"name": role}).status == 204
    assert managed.manage("POST", "principals", {"name": "acme:alice", "has-secret": False}).status == 200
    managed.give("read", "table:a.t", "role:acme:readers")
    managed.give("read", "table:a.other", "acme:alice")
    managed.give("read", "namespace:b", "role:eng")
    managed.give("read", "warehouse", "role:engineers")
    told = foreign.ask("alice", groups=["readers", "engineers", "unknown", "it's; DROP TABLE x --"])
    duck = told.duckdb()
    assert duck.execute("SELECT count(*) FROM lake.a.t").fetchone() == (10,)
    assert duck.execute("SELECT i FROM lake.a.other").fetchone() == (1,)
    assert duck.execute("SELECT count(*) FROM lake.b.t").fetchone() == (10,)
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        duck.execute('SELECT * FROM lake."deep␟er".t')
    with pytest.raises(duckdb.Error, match="read-only"):
        duck.execute("INSERT INTO lake.a.t VALUES (1)")
    names = told.psycopg().execute(NAMES).fetchall()
    assert names == [("other",), ("other",), ("t",), ("t",)]
    assert foreign.ask("alice").psycopg().execute(NAMES).fetchall() == [("other",)]
    assert foreign.ask("bob", groups="readers").psycopg().execute(NAMES).fetchall() == [("t",)]
    assert foreign.refuse("bob").status == 403
    rows = "SELECT principal, principal_id, roles FROM iceberg_reader WHERE role_name = %s"
    row = foreign.guarded.lake.psycopg().execute(rows, [told.role]).fetchone()
    assert row is not None
    assert row[:2] == ("acme:alice", None)
    assert row[2] == sorted(["acme:readers", "acme:unknown", "eng", "acme:it's;%20DROP%20TABLE%20x%20--"])


def test_a_role_ends_with_the_token_or_the_lifetime_whichever_is_earlier(foreign: Foreign) -> None:
    """It is given again to who comes with a token that lasts as long, never to one that ends before it; Postgres knows the end too."""
    managed, now = foreign.managed, int(time.time())
    managed.manage("POST", "roles", {"name": "acme:timed"})
    managed.give("read", "table:a.t", "role:acme:timed")
    admin = foreign.guarded.lake.psycopg()

    def ends_of(told: Told) -> tuple[int, int, int]:
        row = admin.execute(
            "SELECT extract(epoch FROM rolvaliduntil)::bigint, extract(epoch FROM r.expires_at)::bigint"
            " FROM pg_roles JOIN iceberg_reader r ON r.role_name = rolname WHERE rolname = %s",
            [told.role],
        ).fetchone()
        assert row is not None
        return row[0], row[1], told.answer["expires-at-ms"] // 1000

    first = foreign.ask("carol", groups=["timed"], exp=now + 500)
    assert ends_of(first) == (now + 500,) * 3
    assert foreign.ask("carol", groups=["timed"], exp=now + 501).answer["dsn"] == first.answer["dsn"]
    shorter = foreign.ask("carol", groups=["timed"], exp=now + 300)
    assert ends_of(shorter) == (now + 300,) * 3
    assert shorter.role != first.role
    longest = foreign.ask("dan", groups=["timed"], exp=now + 10**6)
    assert all(now < end <= time.time() + 3601 for end in ends_of(longest))
    within_skew = foreign.refuse("erin", groups=["timed"], exp=now - 5)
    assert within_skew.error == (401, "NotAuthorizedException")
    assert within_skew.headers["www-authenticate"].startswith("Bearer")
    conn = first.psycopg()
    assert conn.execute(COUNT).fetchone() == (1,)
    admin.execute("UPDATE iceberg_reader SET expires_at = clock_timestamp() WHERE role_name = %s", [first.role])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ask the catalog"):
        conn.execute(COUNT)


def test_what_is_taken_from_a_role_is_gone_from_whoever_a_token_made_its_member(foreign: Foreign) -> None:
    """When it is acknowledged, in open sessions and older transactions; so when the role is removed, or the principal."""
    managed = foreign.managed
    for role in ("acme:left", "acme:kept"):
        managed.manage("POST", "roles", {"name": role})
        managed.give("read", "table:a.t", f"role:{role}")
    managed.give("read", "table:b.t", "role:acme:left")
    both = foreign.ask("frank", groups=["left", "kept"])
    kept = foreign.ask("gwen", groups=["kept"]).psycopg()
    conn, duck = both.psycopg(), both.duckdb()
    assert duck.execute("SELECT count(*) FROM lake.b.t").fetchone() == (10,)
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert conn.execute(COUNT).fetchone() == (2,)
    managed.take("read", "table:b.t", "role:acme:left")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ask the catalog"):
        conn.execute(COUNT)
    with pytest.raises(duckdb.Error, match="ask the catalog"):
        duck.execute("SELECT sum(i) FROM lake.b.t")
    assert kept.execute(COUNT).fetchone() == (1,), "whom it does not concern"
    again = foreign.ask("frank", groups=["left", "kept"])
    assert again.role != both.role
    conn = again.psycopg()
    assert conn.execute(NAMES).fetchall() == [("t",)]
    assert managed.manage("DELETE", "roles/acme%3Aleft").status == 204
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(COUNT)
    assert managed.manage("POST", "principals", {"name": "acme:hugo", "has-secret": False}).status == 200
    managed.give("read", "table:a.t", "acme:hugo")
    conn = foreign.ask("hugo").psycopg()
    assert conn.execute(COUNT).fetchone() == (1,)
    assert managed.manage("DELETE", "principals/acme%3Ahugo").status == 204
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(COUNT)
    assert foreign.refuse("hugo").status == 403
