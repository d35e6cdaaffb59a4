"""How the server authenticates at the catalog behind a route, by the fake catalog's view."""

import json
from collections.abc import Mapping
from urllib.parse import parse_qs

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from duckicelake.gateway.route import AuthMode, Route, RouteSecrets, TokenService
from tests.gateway.fake import Reply, Seen, fake, routes

TABLE = "/v1/other/namespaces/a%1Fb/tables/t%2Fx"
CALLER = {"Authorization": "Bearer callers-token"}
UNAUTHORIZED = Reply(401, json.dumps({"error": {"message": "no", "type": "NotAuthorizedException", "code": 401}}).encode())
TOKENS = "/v1/oauth/tokens"
SECRETS = RouteSecrets(token="fixed", credential="me:secret")


def read_form(seen: Seen) -> Mapping[str, str]:
    """The form of a token request."""
    return {name: values[0] for name, values in parse_qs(seen.body.decode()).items()}


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        pytest.param("none", None, id="none"),
        pytest.param("passthrough", "Bearer callers-token", id="passthrough"),
        pytest.param("bearer", "Bearer fixed", id="bearer"),
        pytest.param("basic", "Basic bWU6c2VjcmV0", id="basic"),
    ],
)
def test_the_upstream_gets_the_account_of_the_mode(auth: AuthMode, expected: str | None) -> None:
    """With every request, also those for the configuration; the caller's header only by passthrough."""
    with fake() as catalog, routes(Route("other", catalog.uri, auth=auth, secrets=SECRETS)) as server:
        assert server.get("/v1/other/namespaces", CALLER).status == 200
        assert [seen.headers.get("authorization") for seen in catalog.seen] == [expected, expected]


@pytest.mark.parametrize("auth", ["none", "bearer", "basic"])
def test_a_refused_account_of_the_settings_is_503(auth: AuthMode) -> None:
    """The caller's own token was right; a 401 would make clients ask for another one of ours."""
    with fake(lambda _: UNAUTHORIZED) as catalog, routes(Route("other", catalog.uri, auth=auth, secrets=SECRETS)) as server:
        assert server.get("/v1/other/namespaces", CALLER).error == (503, "SlowDownException")


def test_a_refused_account_of_the_caller_is_401() -> None:
    """By passthrough the upstream's challenge reaches the client."""
    refused = Reply(401, UNAUTHORIZED.body, {"Content-Type": "application/json", "WWW-Authenticate": "Bearer realm=theirs"})
    with fake(lambda _: refused) as catalog, routes(Route("other", catalog.uri, auth="passthrough")) as server:
        answer = server.get("/v1/other/namespaces", CALLER)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer realm=theirs")


def test_client_credentials_are_shared_and_renewed_once() -> None:
    """One token for many requests; a refused one is replaced, and a second refusal is 503."""
    given: list[str] = []
    is_closed = False

    def answer(seen: Seen) -> Reply:
        if seen.path == TOKENS:
            given.append(f"token-{len(given)}")
            assert read_form(seen) == {
                "grant_type": "client_credentials",
                "client_id": "me",
                "client_secret": "secret",
                "scope": "all",
                "audience": "x",
            }
            return Reply(body=json.dumps({"access_token": given[-1], "expires_in": 3600}).encode())
        is_right = seen.headers["authorization"] == f"Bearer {given[-1]}" and not (
            is_closed or seen.headers["authorization"] == "Bearer token-0"
        )
        return Reply() if is_right else UNAUTHORIZED

    with fake(answer) as catalog:
        route = Route("other", catalog.uri, auth="oauth2", secrets=SECRETS, tokens=TokenService(scope="all", parameters={"audience": "x"}))
        with routes(route) as server:
            for _ in range(3):
                assert server.get("/v1/other/namespaces").status == 200
            assert given == ["token-0", "token-1"]
            is_closed = True
            assert server.get("/v1/other/namespaces").error == (503, "SlowDownException")
            assert len(given) == 3


@pytest.mark.parametrize("status", [400, 401])
def test_refused_client_credentials_are_503(status: int) -> None:
    """Nothing is sent to the catalog itself."""
    with fake(lambda _: Reply(status, b'{"error":"invalid_client"}')) as catalog:
        with routes(Route("other", catalog.uri, auth="oauth2", secrets=SECRETS)) as server:
            assert server.get("/v1/other/namespaces").error == (503, "SlowDownException")
        assert {seen.path for seen in catalog.seen} == {TOKENS}


def test_each_caller_has_a_token_by_exchange() -> None:
    """Got for the caller's own token, and kept; without one the request is 401."""

    def answer(seen: Seen) -> Reply:
        if seen.path != TOKENS:
            return Reply(body=json.dumps({"namespaces": [[seen.headers["authorization"]]]}).encode())
        form = read_form(seen)
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
        assert form["subject_token_type"] == "urn:ietf:params:oauth:token-type:access_token"
        if form["subject_token"] == "stranger":
            return Reply(400, b'{"error":"invalid_request"}')
        return Reply(body=json.dumps({"access_token": f"for-{form['subject_token']}"}).encode())

    with fake(answer) as catalog, routes(Route("other", catalog.uri, auth="exchange", secrets=SECRETS)) as server:
        for name in ("alice", "bob", "alice"):
            answered = server.get("/v1/other/namespaces", {"Authorization": f"Bearer {name}"})
            assert answered.json == {"namespaces": [[f"Bearer for-{name}"]]}
        assert len([seen for seen in catalog.seen if seen.path == TOKENS]) == 2
        assert server.get("/v1/other/namespaces").error == (401, "NotAuthorizedException")
        assert server.get("/v1/other/namespaces", {"Authorization": "Bearer stranger"}).error == (403, "NotAuthorizedException")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_aws_signatures_are_those_that_aws_computes(method: str) -> None:
    """Verified by signing what arrived once more, with escaped names and a query."""
    keys = RouteSecrets(access_key_id="AK", secret_access_key="SK")
    body = b'{"a":1}' if method == "POST" else None
    with (
        fake() as catalog,
        routes(Route("other", catalog.uri, auth="sigv4", secrets=keys, region="eu-west-1", signing_name="glue")) as server,
    ):
        assert server.ask(method, f"{TABLE}?snapshots=all&x=%20y", {"Content-Type": "application/json"}, body).status == 200
        seen = catalog.asked[0]
    names = seen.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-content-sha256", "x-amz-date"} <= set(names)
    assert "/eu-west-1/glue/aws4_request" in seen.headers["authorization"]
    again = AWSRequest(seen.method, f"{catalog.uri}{seen.path}", {name: seen.headers[name] for name in names}, seen.body)
    again.context["timestamp"] = seen.headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AK", "SK"), "glue", "eu-west-1")
    assert seen.headers["authorization"].endswith(signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again))


def test_headers_of_the_settings_are_sent_with_every_request() -> None:
    """Polaris chooses the realm by one."""
    with fake() as catalog, routes(Route("other", catalog.uri, headers={"Polaris-Realm": "r"})) as server:
        assert server.get("/v1/other/namespaces", {"Polaris-Realm": "mine", "Cookie": "c=1"}).status == 200
        assert [seen.headers["polaris-realm"] for seen in catalog.seen] == ["r", "r"]
        assert all("cookie" not in seen.headers for seen in catalog.seen)
