"""Who asks a catalog, and what is done when it does not know him; without Spark."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from duckicelake.errors import BadRequest, CatalogError, Forbidden, NotAuthorized, ServiceUnavailable, Unsupported
from duckicelake.pipeline.common.http_client import build_authenticator, format_auth_properties
from duckicelake.pipeline.common.rest import RestCatalog, open_rest
from tests.support.reference.front import Answer, Came, format_answer, listening, refuse
from tests.support.reference.signatures import find_signature_fault

KEYS = {"rest.auth.type": "sigv4", "rest.access-key-id": "AKID", "rest.secret-access-key": "s3cret", "rest.signing-region": "eu-west-1"}
CLIENT = {"credential": "me:s3cret"}


@dataclass(slots=True)
class Desk:
    """A catalog that gives tokens itself, numbered; `takes` says which it takes for good."""

    takes: Callable[[int], bool] = lambda number: True
    lives_s: int | None = 3600
    given: int = 0
    came: list[Came] = field(default_factory=list)

    def answer(self, came: Came) -> Answer:
        """A token, or the configuration for a token."""
        if came.target.endswith("/tokens"):
            self.given += 1
            life = {} if self.lives_s is None else {"expires_in": self.lives_s}
            return format_answer(200, {"access_token": str(self.given), "token_type": "bearer", **life})
        self.came.append(came)
        number = came.headers.get("authorization", "Bearer 0").removeprefix("Bearer ")
        return format_answer(200, {}) if self.takes(int(number)) else refuse(419, "it has ended")


def other(uri: str, properties: Mapping[str, str]) -> RestCatalog:
    """A catalog that is not the lake's."""
    return RestCatalog(uri, "", properties=properties)


def test_a_token_is_kept_as_long_as_it_lives() -> None:
    """Another one is asked for when it ends, and not before."""
    desk = Desk()
    with listening(desk.answer) as uri:
        rest = open_rest(other(uri, CLIENT))
        rest.ask("GET", "x")
    assert (desk.given, [came.headers["authorization"] for came in desk.came]) == (1, ["Bearer 1", "Bearer 1"])
    short = Desk(lives_s=0)
    with listening(short.answer) as uri:
        open_rest(other(uri, CLIENT)).ask("GET", "x")
    assert [came.headers["authorization"] for came in short.came] == ["Bearer 1", "Bearer 2"]


def test_a_token_that_is_refused_is_renewed_once() -> None:
    """It may have ended before its time, or nobody said when; a second refusal is one."""
    desk = Desk(lambda number: number > 1, lives_s=None)
    with listening(desk.answer) as uri:
        open_rest(other(uri, CLIENT))
    assert [came.headers["authorization"] for came in desk.came] == ["Bearer 1", "Bearer 2"]
    closed = Desk(lambda number: False)
    with listening(closed.answer) as uri, pytest.raises(NotAuthorized, match="it has ended"):
        open_rest(other(uri, CLIENT))
    assert closed.given == 2
    with listening(closed.answer) as uri, pytest.raises(NotAuthorized):
        open_rest(other(uri, {"token": "7"}))
    assert closed.given == 2


@pytest.mark.parametrize(
    ("given", "form"),
    [
        pytest.param({"credential": "me:a:b"}, {"client_id": "me", "client_secret": "a:b", "scope": "catalog"}, id="a-colon-in-the-secret"),
        pytest.param({"credential": "s3cret"}, {"client_secret": "s3cret", "scope": "catalog"}, id="a-secret-alone"),
        pytest.param(
            {"credential": "me:x", "scope": "PRINCIPAL_ROLE:ALL", "audience": "a b", "resource": "urn:r"},
            {"client_id": "me", "client_secret": "x", "scope": "PRINCIPAL_ROLE:ALL", "audience": "a b", "resource": "urn:r"},
            id="all",
        ),
    ],
)
def test_what_a_client_says_of_itself(given: Mapping[str, str], form: Mapping[str, str]) -> None:
    """As Java's client does."""
    asked: list[Came] = []

    def answer(came: Came) -> Answer:
        asked.append(came)
        return format_answer(200, {"access_token": "1"})

    with listening(answer) as tokens, listening(lambda came: format_answer(200, {})) as uri:
        open_rest(other(uri, {"oauth2-server-uri": f"{tokens}/t", "header.X-Tenant": "7", **given}))
    assert [(came.target, came.form, came.headers["x-tenant"]) for came in asked] == [
        ("/t", {"grant_type": "client_credentials", **form}, "7")
    ]


def test_what_signs_is_never_told() -> None:
    """A wrong secret is the catalog's to refuse; the message has neither key."""
    refused: list[str] = []

    def answer(came: Came) -> Answer:
        refused.append(find_signature_fault(came, "AKID", "another", "eu-west-1/execute-api") or "")
        return refuse(403, "The request signature does not match")

    with listening(answer) as uri, pytest.raises(Forbidden) as caught:
        open_rest(other(uri, KEYS))
    assert refused[0].startswith("another signature")
    assert not {"AKID", "s3cret"} & set(caught.value.message.split())
    assert "s3cret" not in repr(build_authenticator(KEYS, uri)) + repr(build_authenticator(CLIENT, uri)) + repr(other(uri, KEYS))


def test_keys_are_found_as_awss_own_tools_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, when no property names them."""
    for name, text in {"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "env", "AWS_DEFAULT_REGION": "us-west-2"}.items():
        monkeypatch.setenv(name, text)
    faults: list[str | None] = []

    def answer(came: Came) -> Answer:
        faults.append(find_signature_fault(came, "AKIDENV", "env", "us-west-2/s3tables"))
        return format_answer(200, {})

    with listening(answer) as uri:
        rest = open_rest(other(uri, {"rest.auth.type": "SIGV4", "rest.signing-name": "s3tables"}))
        rest.ask("POST", "x%20y/%C3%A4?b=2&a=%C3%A4%20%2B&b=", {})
    assert faults == [None, None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"rest.auth.type": "basic", "rest.auth.basic.username": "me"}, "needs rest.auth.basic.password", id="half a pair"),
        pytest.param({"rest.auth.type": "oauth2"}, "needs token", id="no token"),
        pytest.param({"rest.auth.type": "google"}, "none of none, basic, oauth2, sigv4", id="another kind"),
        pytest.param({"rest.auth.type": "sigv4", "rest.auth.sigv4.delegate-auth-type": "sigv4"}, "cannot be sigv4", id="itself"),
        pytest.param(
            {"rest.auth.type": "sigv4", "rest.access-key-id": "a", "rest.secret-access-key": "b"}, "rest.signing-region", id="no region"
        ),
        pytest.param({"rest.auth.type": "sigv4", "rest.access-key-id": "a"}, "belong together", id="half a key"),
    ],
)
def test_what_is_missing_is_named(given: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody is asked."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(BadRequest, match=message):
        open_rest(other("http://127.0.0.1:1", given))


def test_nobody_says_nothing() -> None:
    """Neither with `none` beside a credential, nor without any; a header of the user's own goes along, and no wish for keys."""
    came: list[Came] = []

    def answer(one: Came) -> Answer:
        came.append(one)
        return format_answer(200, {})

    with listening(answer) as uri:
        open_rest(other(uri, {"rest.auth.type": "none", **CLIENT}))
        open_rest(other(uri, {"header.Authorization": "Custom x"}))
    assert [one.headers.get("authorization") for one in came] == [None, "Custom x"]
    assert not any("x-iceberg-access-delegation" in one.headers for one in came)


def test_spark_is_told_the_same() -> None:
    """The kind, where tokens are, and the wish for keys unless the user has one of his own."""
    wish = "header.X-Iceberg-Access-Delegation"
    assert format_auth_properties({}, "http://c") == {"rest.auth.type": "none"}
    assert format_auth_properties(CLIENT, "http://c/") == {
        "rest.auth.type": "oauth2",
        "oauth2-server-uri": "http://c/v1/oauth/tokens",
        "scope": "catalog",
        wish: "vended-credentials,remote-signing",
    }
    assert format_auth_properties({**KEYS, wish.lower(): "remote-signing"}, "http://c") == {"rest.auth.type": "sigv4"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        pytest.param(400, {"error": {"message": "m", "type": "T", "code": 400}}, BadRequest, "m", id="iceberg"),
        pytest.param(401, {"error": "invalid_client", "error_description": "who?"}, NotAuthorized, "who?", id="oauth"),
        pytest.param(401, {"error": "invalid_client"}, NotAuthorized, "invalid_client", id="oauth-in-a-word"),
        pytest.param(403, {"message": "Missing Authentication Token"}, Forbidden, "Missing Authentication Token", id="gateway"),
        pytest.param(403, {"Message": "no"}, Forbidden, "no", id="aws"),
        pytest.param(404, {"error": {"message": None}}, CatalogError, "the catalog answered 404", id="no-message"),
        pytest.param(429, "slow down", ServiceUnavailable, "the catalog answered 429", id="too-many"),
        pytest.param(400, ["x"], BadRequest, "the catalog answered 400", id="a-list"),
        pytest.param(501, {}, Unsupported, "the catalog answered 501", id="not-served"),
    ],
)
def test_refusals_of_every_shape_are_told(status: int, body: object, kind: type[CatalogError], message: str) -> None:
    """With what the catalog says, if it says something."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    with listening(lambda came: (status, content, {})) as uri, pytest.raises(kind) as caught:
        open_rest(other(uri, {}))
    assert caught.value.message == message


def test_who_asks_is_not_told_to_another_server() -> None:
    """A catalog that sends elsewhere is told with the place, without what may be secret in it; within itself it may send on."""
    came: list[Came] = []

    def elsewhere(one: Came) -> Answer:
        came.append(one)
        return format_answer(200, {"access_token": "1"})

    with listening(elsewhere) as place:

        def answer(one: Came) -> Answer:
            sent = {"/v1/config": "/here", "/v1/lost": f"{place}/v1/config?signature=s3cret"}.get(one.target, f"{place}/token")
            return format_answer(200, {"overrides": {"prefix": "found"}}) if one.target == "/here" else (302, b"", {"location": sent})

        with listening(answer) as uri:
            rest = open_rest(other(uri, {"token": "t0k"}))
            assert rest.base == f"{uri}/v1/found"
            with pytest.raises(BadRequest, match="the catalog is elsewhere") as caught:
                replace(rest, base=f"{uri}/v1").ask("GET", "lost")
            assert caught.value.message.endswith(f"{place}/v1/config")
            with pytest.raises(BadRequest, match="elsewhere"):
                open_rest(other(uri, {**CLIENT, "oauth2-server-uri": f"{uri}/token"}))
    assert came == []
