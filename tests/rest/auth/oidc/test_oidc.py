"""Tokens of an issuer at the door: whose they are, what they open, and what strangers get."""

import base64
import json
import logging
from typing import Any

import pytest

from tests.rest.auth.oidc.believing import Believing, T, bear, believe
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.oidc.provider import DISCOVERY, KEYS
from tests.support.oidc.running import Issuing
from tests.support.waiting import wait_for

OTHER = "namespaces/a/tables/other"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


def test_a_principal_of_the_issuer_has_what_the_lake_grants(believing: Believing) -> None:
    """Nothing at first; from the grant on what it says, and nothing again from the revoke on, ready answers and all."""
    managed = believing.managed
    token = believing.issuer.token("carol")
    assert believing.get("/v1/config", token).status == 200
    assert believing.get(T, token).error == (404, "NoSuchTableException")
    assert managed.manage("POST", "principals", {"name": "acme:carol", "has-secret": False}).json == {"name": "acme:carol", "secret": None}
    managed.give("read", "table:a.t", "acme:carol")
    assert [believing.get(path, token).status for path in (T, T, OTHER)] == [200, 200, 404]
    body = json.dumps({"requirements": [], "updates": []}).encode()
    refused = believing.guarded.server.ask("POST", T, bear(token), body)
    assert refused.error == (403, "NotAuthorizedException")
    assert "'acme:carol' has no right" in refused.json["error"]["message"]
    unserved = believing.get("ducklake-credentials", token)
    assert unserved.error == (501, "UnsupportedOperationException"), "no keys are vended here"
    managed.take("read", "table:a.t", "acme:carol")
    assert believing.get(T, token).status == 404


def test_roles_of_the_issuer_are_the_lakes_by_its_name(believing: Believing) -> None:
    """A role that the lake has not gives nothing; a local one is not the issuer's to give, unless settings say which it means."""
    managed, issuer = believing.managed, believing.issuer
    for name in ("acme:eng", "eng"):
        assert managed.manage("POST", "roles", {"name": name}).status == 204
    managed.give("read", "table:a.other", "role:eng")
    member = issuer.token("dave", groups=["eng", "nothing here"])
    assert [believing.get(path, member).status for path in (T, OTHER)] == [404, 404]
    managed.give("read", "table:a.t", "role:acme:eng")
    assert [believing.get(path, member).status for path in (T, OTHER)] == [200, 404]
    for groups in ("en g", ["eng", 1], {"eng": True}, None):
        assert believing.get(T, sub="dave", groups=groups).status == 404
    mapped = make_settings(
        believing.guarded.lake, require_auth=True, oidc_issuers=[issuer.settings(name="corp", roles={"eng": "eng"})], audit_days=1
    )
    with serve(mapped) as server:
        assert [server.get(path, bear(member)).status for path in (T, OTHER)] == [404, 200]
    managed.take("read", "table:a.t", "role:acme:eng")
    assert believing.get(T, member).status == 404


def test_nobody_of_the_issuer_is_taken_for_somebody_here(believing: Believing) -> None:
    """Neither for a client of settings nor for a principal of the lake of that name; and none can have a secret here."""
    managed = believing.managed
    managed.add("frank")
    managed.give("read", "namespace:a", "frank")
    for name in ("admin", "frank", "*", "role:admin", "lake/1.1"):
        assert believing.get(T, sub=name).status == 404
        assert managed.manage("GET", "principals").status == 200
        assert believing.get("/management/v1/lake/principals", sub=name).status == 403
    assert believing.get(T, sub="admin", origin="lake/1.1", scope="*", auth_time=1).status == 404
    refused = managed.manage("POST", "principals", {"name": "acme:frank"})
    assert refused.error == (400, "BadRequestException")
    assert managed.manage("POST", "principals", {"name": "acme:Zoë, M.", "has-secret": False}).json["name"] == "acme:Zo%C3%AB%2C%20M."
    assert managed.manage("POST", "principals/acme%3AZo%C3%AB%2C%20M./rotate").status == 400
    managed.give("read", "table:a.t", "acme:Zo%c3%ab%2C M.")
    assert [believing.get(path, sub="Zoë, M.").status for path in (T, OTHER)] == [200, 404]
    assert managed.manage("DELETE", "principals/acme%3AZo%C3%AB%2C%20M.").status == 204
    assert believing.get(T, sub="Zoë, M.").status == 404


def unsigned(issuer: Issuing) -> str:
    """A good token that nobody signed."""
    claims = issuer.token().split(".")[1]
    return base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=") + f".{claims}."


def test_a_stranger_gets_what_strangers_get(believing: Believing) -> None:
    """401 with a challenge, in the same words whether the issuer is known or not; nothing of the token comes back."""
    issuer = believing.issuer
    tokens = [
        issuer.token(aud="another"),
        issuer.token(iss="https://evil.example.org"),
        issuer.token(iss=issuer.url + "/"),
        issuer.token(exp=1_000_000),
        issuer.token(nbf=9_000_000_000),
        issuer.token(sub=None),
        issuer.token(header={"kid": "another"}),
        issuer.token(header={"alg": "HS256"}, secret="s" * 32),
        unsigned(issuer),
        issuer.token("x" * 20_000),
    ]
    for token in tokens:
        answer = believing.get(T, token)
        assert answer.error == (401, "NotAuthorizedException")
        assert answer.headers["www-authenticate"] == 'Bearer realm="duckicelake"'
        assert token.split(".")[1].encode() not in answer.body
    form = {"grant_type": EXCHANGE, "subject_token": issuer.token(), "subject_token_type": ACCESS}
    refused = believing.guarded.ask_token(form)
    assert (refused.status, refused.json["error"]) == (400, "invalid_grant")


def test_tokens_of_both_kinds_go_side_by_side(believing: Believing) -> None:
    """The catalog's own are given and taken as ever; what clients are told leads them to no other server of tokens."""
    assert believing.guarded.get("reader", T).status == 200
    told = believing.get("/v1/config").json
    assert "oauth2-server-uri" not in {**told["defaults"], **told["overrides"]}
    assert told == believing.guarded.get("reader", "/v1/config").json


def test_a_flood_of_made_up_keys_leaves_the_issuer_alone(believing: Believing) -> None:
    """It is asked once more at most, and who has a good token goes on."""
    good, issuer = believing.issuer.token(), believing.issuer
    assert believing.get("/v1/config", good).status == 200
    before = issuer.count()
    header, claims, signature = good.split(".")
    for number in range(100):
        made_up = json.dumps({"alg": "RS256", "kid": f"made-up-{number}"}).encode()
        header = base64.urlsafe_b64encode(made_up).decode().rstrip("=")
        assert believing.get(T, f"{header}.{claims}.{signature}").status == 401
    assert issuer.count() <= before + 2
    assert believing.get("/v1/config", good).status == 200
    assert 1 <= believing.count_fetches() <= issuer.count()


def test_the_record_names_who_it_was(believing: Believing) -> None:
    """By the name that grants have."""
    believing.managed.manage("POST", "principals", {"name": "acme:erin", "has-secret": False})
    believing.managed.give("write", "table:a.t", "acme:erin")
    body = json.dumps({"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}).encode()
    assert believing.guarded.server.ask("POST", T, bear(believing.issuer.token("erin")), body).status == 200
    conn = believing.guarded.lake.psycopg()
    conn.execute("SET search_path TO lake, public")
    found = conn.execute("SELECT operation, objects, outcome FROM iceberg_audit WHERE principal = 'acme:erin'").fetchall()
    assert found == [("updateTable", ["a.t"], "done")]


@pytest.mark.parametrize(
    "answers",
    [{DISCOVERY: {"issuer": "https://evil.example.org", "jwks_uri": "https://evil.example.org/keys"}}, {KEYS: {"keys": []}}],
    ids=["liar", "no keys"],
)
def test_an_issuer_that_is_not_believed_stops_nobody_else(
    lake: FreshLake, issuer: Issuing, answers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its tokens are 503, and told to come again; the log says why; others come in."""
    caplog.set_level(logging.WARNING, "duckicelake.issuers")
    issuer.do(answers=answers)
    with believe(lake, issuer) as believing:
        refused = believing.get(T)
        assert refused.error == (503, "SlowDownException")
        assert "acme" in refused.json["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert believing.guarded.get("reader", T).status == 200
        wait_for(lambda: believing.guarded.server.count("duckicelake_issuer_fetches_total", outcome="failed") == 1, "the count")
    assert "acme" in caplog.text


def test_an_issuer_may_be_away_when_the_server_starts_and_later(lake: FreshLake, issuer: Issuing) -> None:
    """Its keys serve while it is away; nobody else notices."""
    with believe(lake, issuer) as believing:
        token = issuer.token("admin")
        assert believing.get("/v1/config", token).status == 200
        issuer.stop()
        assert [believing.get("/v1/config", token).status, believing.guarded.get("reader", T).status] == [200, 200]
    with serve(make_settings(lake, require_auth=True, oidc_issuers=[issuer.settings()])) as server:
        assert server.get("/v1/config", bear(token)).status == 503
        assert server.get("/v1/config", bear("x.y.z")).status == 401
