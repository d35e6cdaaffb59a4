"""Which routes the settings may have."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from duckicelake.access.grants import BadGrant
from duckicelake.app import build_gateway
from duckicelake.config import Settings

DSN = "postgresql://localhost/lake"


def make(route: dict[str, Any], name: str = "other", **changed: Any) -> Settings:
    """Settings with one lake and one route."""
    return Settings(**{"postgres_dsn": DSN, "routes": {name: {"uri": "https://c.example.com", **route}}, **changed})


@pytest.mark.parametrize(
    ("route", "changed", "reason"),
    [
        pytest.param({"uri": "c.example.com"}, {}, "pattern", id="uri"),
        pytest.param({"uri": "http://c.example.com"}, {}, "plain HTTP", id="plain-http"),
        pytest.param({"oauth2_uri": "http://c.example.com"}, {}, "plain HTTP", id="plain-token-uri"),
        pytest.param({"uri": "https://me:secret@c.example.com"}, {}, "pattern", id="secret-in-uri"),
        pytest.param({"auth": "bearer"}, {}, "needs token", id="bearer-without-token"),
        pytest.param({"auth": "oauth2"}, {}, "needs credential", id="oauth2-without-credential"),
        pytest.param({"token": "t"}, {}, "uses no token", id="token-without-mode"),
        pytest.param({"auth": "basic", "credential": "a:b", "credential_file": "f"}, {}, "both set", id="twice"),
        pytest.param({"auth": "sigv4", "access_key_id": "k"}, {}, "belong together", id="half-a-pair"),
        pytest.param({"access_key_id": "k", "secret_access_key": "s"}, {}, "uses no AWS keys", id="keys-without-sigv4"),
        pytest.param({"grants": ["read on route to a"]}, {}, "require_auth", id="grants-without-accounts"),
        pytest.param({"lake": "nothing"}, {"require_auth": True}, "there is none", id="lake"),
        pytest.param({"headers": {"A": "x\r\nB: y"}}, {}, "pattern", id="header"),
        pytest.param({"unknown": 1}, {}, "Extra inputs", id="unknown"),
        pytest.param({}, {"catch_all": "nothing"}, "no [routes.nothing]", id="catch-all"),
        pytest.param({}, {"warehouse": "other"}, "name of a lake", id="name-of-a-lake"),
    ],
)
def test_a_route_that_cannot_work_stops_the_start(route: dict[str, Any], changed: dict[str, Any], reason: str) -> None:
    """With a message that says why."""
    with pytest.raises(ValidationError) as found:
        make(route, **changed)
    assert reason in str(found.value)


@pytest.mark.parametrize("name", ["oauth", "config", "namespaces", "a/b", ""])
def test_names_that_paths_have_already_are_refused(name: str) -> None:
    """A route `oauth` would take the token endpoint."""
    with pytest.raises(ValidationError):
        make({}, name)


@pytest.mark.parametrize("route", [{"grants": ["read on everything to a"]}, {"namespaces": ["a..b"]}])
def test_malformed_grants_stop_the_start(route: dict[str, Any]) -> None:
    """They are parsed before the first request."""
    with pytest.raises(BadGrant):
        build_gateway(make(route, require_auth=True))


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    """Neither in the settings nor in the route."""
    (tmp_path / "secret").write_text("me:hush\n")
    settings = make({"auth": "oauth2", "credential_file": str(tmp_path / "secret"), "namespaces": ["a.b"]}, catch_all="other")
    gateway = build_gateway(settings)
    assert gateway is not None
    route = gateway.upstreams["other"].route
    assert gateway.catch_all is gateway.upstreams["other"]
    assert route.secrets.credential == "me:hush"
    assert "hush" not in f"{route}{settings}"
    assert build_gateway(Settings(postgres_dsn=DSN)) is None


@pytest.mark.parametrize(("changed", "lake"), [({"require_auth": True}, "lake"), ({}, "")])
def test_the_only_lake_holds_the_accounts(changed: dict[str, Any], lake: str) -> None:
    """With several lakes the settings name one."""
    gateway = build_gateway(make({}, **changed))
    assert gateway is not None
    assert gateway.upstreams["other"].route.lake_name == lake
    several = {"lakes": {"one": {}, "two": {}}, "require_auth": True}
    for route, name in (({}, ""), ({"lake": "two"}, "two")):
        gateway = build_gateway(make(route, **several))
        assert gateway is not None
        assert gateway.upstreams["other"].route.lake_name == name
