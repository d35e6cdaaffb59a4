"""Catalogs that want to know who asks: each request of the job itself and of Spark says it, in each way that Iceberg's clients know."""

import base64
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.pipeline.transfer.ferry import Ferry, describe, write_properties
from tests.rest.serving import WAREHOUSE, make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.reference.front import Answer, Came, format_answer, gate_before, listening
from tests.support.reference.signatures import find_signature_fault
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

KEY_ID, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token+of=a role"
PLACE = "eu-north-1/glue"
Check = Callable[[Came], str | None]

SIGNED = {"rest.access-key-id": KEY_ID, "rest.secret-access-key": SECRET, "rest.signing-region": "eu-north-1", "rest.signing-name": "glue"}
OAUTH_OPTIONS = ("scope", "audience", "resource")
OAUTH = {"credential": "acme: s:cret ", "scope": "read write", "audience": "https://catalog.example", "resource": "urn:catalog"}
FORM = {"grant_type": "client_credentials", "client_id": "acme", "client_secret": "s:cret", **{name: OAUTH[name] for name in OAUTH_OPTIONS}}


def wants(headers: Mapping[str, str]) -> Check:
    """Whoever sends these headers is let through."""
    return lambda came: None if headers.items() <= came.headers.items() else f"no {', '.join(headers)}"


def wants_signature(came: Came) -> str | None:
    """Whoever signs is let through."""
    return find_signature_fault(came, KEY_ID, SECRET, PLACE)


def wants_both(came: Came) -> str | None:
    """Signed by keys that end, with another token in what is signed."""
    told = wants({"original-authorization": "Bearer t0k", "x-amz-security-token": SESSION})(came)
    return told or wants_signature(came)


def give_token(came: Came) -> Answer:
    """What an OAuth server gives to one client, who asks as it should be asked."""
    if (came.method, came.target, came.form) == ("POST", "/realm/token", FORM):
        return format_answer(200, {"access_token": "g0od", "token_type": "bearer", "expires_in": 3600})
    return format_answer(400, {"error": "invalid_request", "error_description": f"asked for {sorted(came.form)}"})


@pytest.fixture
def tokens() -> Iterator[str]:
    """An OAuth server that is not the catalog's."""
    with listening(give_token) as uri:
        yield f"{uri}/realm/token"


@pytest.fixture
def other(stack: SharedStack) -> Iterator[Served]:
    """Another lake, with a table whose path has signs of every kind."""
    with make_lake(stack) as lake, serve(make_settings(lake)) as server:
        duck = lake.duckdb()
        duck.execute('CREATE SCHEMA "Käse␟a b+c"')
        duck.execute('CREATE TABLE "Käse␟a b+c"."50% & ~*" AS SELECT range AS i FROM range(100)')
        duck.close()
        yield Served(lake, server)


@pytest.mark.parametrize(
    ("given", "check"),
    long_but(
        [
            pytest.param({"rest.auth.type": "sigv4", **SIGNED}, wants_signature, id="signed"),
            pytest.param(
                {"rest.sigv4-enabled": "true", **SIGNED, "rest.session-token": SESSION, "token": "t0k"}, wants_both, id="signed-and-a-token"
            ),
            pytest.param(
                {"rest.auth.type": "oauth2", "oauth2-server-uri": "{tokens}", **OAUTH}, wants({"authorization": "Bearer g0od"}), id="oauth"
            ),
            pytest.param({"token": "t0k"}, wants({"authorization": "Bearer t0k"}), id="token", marks=pytest.mark.long),
            pytest.param(
                {"rest.auth.type": "basic", "rest.auth.basic.username": "me", "rest.auth.basic.password": "pä:ss", "header.X-Tenant": "7"},
                wants({"authorization": f"Basic {base64.b64encode('me:pä:ss'.encode()).decode()}", "x-tenant": "7"}),
                id="basic-and-a-header",
            ),
        ],
        "signed",
    ),
)
def test_each_request_says_who_asks(
    ferry: Ferry, other: Served, tokens: str, tmp_path: Path, given: Mapping[str, str], check: Check
) -> None:
    """A table comes in and goes out, and the gate lets everything through; both Python and Java were there."""
    store = other.lake.store
    keys = {"s3.endpoint": store.endpoint, "client.region": store.region, "s3.access-key-id": store.access_key_id}
    keys |= {"s3.secret-access-key": store.secret_access_key, "warehouse": WAREHOUSE}
    asked = write_properties(tmp_path, keys | {name: text.format(tokens=tokens) for name, text in given.items()})
    with gate_before(other.server.uri, check) as gate:
        report = ferry.bring("import", gate.uri, mode="copy", **asked)
        assert describe(report) == [("Käse.a b+c.50% & ~*", "done", 100)], report.describe()
        out = ferry.bring("export", gate.uri, into="back", **asked)
        assert describe(out) == [("back.Käse.a b+c.50% & ~*", "done", 100)], out.describe()
    assert gate.refused == []
    assert {(came.method, came.is_java) for came in gate.passed} >= {("GET", False), ("POST", False), ("GET", True)}
