"""POST /v1/oauth/tokens, and what its tokens open."""

import logging
from http.client import HTTPConnection

import jwt
import pytest

from tests.rest.auth.principals import Guarded, secret_of
from tests.rest.serving import Server

CREDENTIALS = {"grant_type": "client_credentials"}
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


def test_a_token_is_given_in_rfc_6749s_words(guarded: Guarded) -> None:
    """All that Java, PyIceberg and DuckDB read, and nobody may keep it."""
    answer = guarded.ask_token({**CREDENTIALS, "scope": "catalog"}, ("reader", secret_of("reader")))
    told = answer.json
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert told["token_type"] == "bearer"
    assert told["issued_token_type"] == ACCESS
    assert told["expires_in"] == 3600
    assert told["scope"] == "ns:a:r"
    assert guarded.server.get("/v1/config", {"Authorization": f"Bearer {told['access_token']}"}).status == 200


def test_a_wrong_secret_is_401_with_a_challenge(guarded: Guarded) -> None:
    """In OAuth's shape, and without saying which of both was wrong."""
    known = guarded.ask_token(CREDENTIALS, ("reader", "wrong-secret"))
    unknown = guarded.ask_token(CREDENTIALS, ("nobody", "wrong-secret"))
    for answer in (known, unknown):
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert answer.json["error"] == "invalid_client"
    assert known.body == unknown.body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"", "invalid_request", id="empty"),
        pytest.param(b"\xff=\xff", "invalid_request", id="not-utf-8"),
        pytest.param(b"grant_type=client_credentials&grant_type=client_credentials", "invalid_request", id="twice"),
        pytest.param(b"grant_type=client_credentials&" + b"a=" + b"b" * 70_000, "invalid_request", id="too-long"),
        pytest.param(b"{}", "invalid_request", id="json"),
        pytest.param(b"grant_type=authorization_code", "unsupported_grant_type", id="other-grant"),
    ],
)
def test_a_malformed_request_is_400(guarded: Guarded, body: bytes, code: str) -> None:
    """By RFC 6749's words, never a 500."""
    answer = guarded.server.ask("POST", "/v1/oauth/tokens", {"Content-Type": "application/x-www-form-urlencoded"}, body)
    assert (answer.status, answer.json["error"]) == (400, code)


@pytest.mark.parametrize("basic", ["!!!", "cmVhZGVy", "/w=="])
def test_broken_basic_authentication_is_400(guarded: Guarded, basic: str) -> None:
    """No base64, no colon, no UTF-8."""
    answer = guarded.server.ask("POST", "/v1/oauth/tokens", {"Authorization": f"Basic {basic}"}, b"grant_type=client_credentials")
    assert (answer.status, answer.json["error"]) == (400, "invalid_request")


def test_a_bearer_exchanges_its_token(guarded: Guarded) -> None:
    """As Java does when it was given a token and no secret."""
    old = guarded.token("writer", "ns:a:r")
    form = {"grant_type": EXCHANGE, "subject_token": old, "subject_token_type": ACCESS}
    told = guarded.ask_token(form).json
    assert told["access_token"] != old
    assert told["scope"] == "ns:a:r"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"Authorization": ""}, id="empty"),
        pytest.param({"Authorization": "Bearer"}, id="no-token"),
        pytest.param({"Authorization": "Bearer x.y.z"}, id="no-token-of-ours"),
        pytest.param({"Authorization": "Basic cmVhZGVyOnNlY3JldC1vZi1yZWFkZXI="}, id="secret-itself"),
        pytest.param({"Authorization": f"Bearer {jwt.encode({'sub': 'admin', 'scope': '*'}, None, 'none')}"}, id="unsigned"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/config", "/v1/lake/namespaces/a/tables/t", "/v1/none", "/docs", "//v1/oauth/tokens", "/v1/oauth%2Ftokens"]
)
def test_without_a_token_nothing_is_told(guarded: Guarded, path: str, headers: dict[str, str]) -> None:
    """401 with a challenge, for paths that are there and for those that are not."""
    answer = guarded.server.get(path, headers)
    assert answer.error == (401, "NotAuthorizedException")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_two_tokens_are_none(guarded: Guarded) -> None:
    """Whoever stands between might read the other one."""

    connection = HTTPConnection("127.0.0.1", guarded.server.port, timeout=60)
    connection.putrequest("GET", "/v1/config")
    for principal in ("admin", "reader"):
        connection.putheader("Authorization", f"Bearer {guarded.token(principal)}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/openapi.json"])
def test_operators_need_no_token(guarded: Guarded, path: str) -> None:
    """They see numbers, no names of tables."""
    answer = guarded.server.get(path)
    assert answer.status == 200
    without_help = b"\n".join(line for line in answer.body.splitlines() if not line.startswith(b"#"))
    assert b"other" not in without_help or path == "/openapi.json"


def test_a_log_line_names_who_asked(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the request was let through or not; nobody where there is no token that is known."""
    caplog.set_level(logging.INFO, "duckicelake.access")
    token = guarded.token("reader")
    caplog.clear()
    for headers in ({"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer wrong"}):
        guarded.server.get("/v1/config", headers)
        guarded.server.get("/management/v1/lake/principals", headers)
    fields = [vars(record)["fields"] for record in caplog.records if record.name == "duckicelake.access"]
    assert [(each["status"], each["principal"]) for each in fields] == [(200, "reader"), (403, "reader"), (401, None), (401, None)]


def test_a_server_without_accounts_gives_no_tokens(standing: Server) -> None:
    """And wants none: whoever sends one anyway is answered as ever."""
    answer = standing.ask("POST", "/v1/oauth/tokens", {}, b"grant_type=client_credentials")
    assert answer.error == (501, "UnsupportedOperationException")
    assert standing.get("/v1/config", {"Authorization": "Bearer anything"}).status == 200
