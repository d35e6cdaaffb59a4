"""Grants on other catalogs, in settings and in lakes."""

import pytest

from duckicelake.access.grants import BadGrant, Grant, Grants, Rights
from duckicelake.access.policy import NAMESPACE, TABLE, WAREHOUSE, HeldRights, LakePolicy, Securable, parse_route_grants, parse_securable
from duckicelake.access.sessions import Bearer, Session


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("route:r", Securable(WAREHOUSE, (), "r")),
        ("route:r/namespace:a.b", Securable(NAMESPACE, ("a", "b"), "r")),
        ("route:r-1.x/table:a.b%2Fc", Securable(TABLE, ("a", "b/c"), "r-1.x")),
    ],
)
def test_objects_of_other_catalogs_have_one_spelling(text: str, what: Securable) -> None:
    """What is parsed is written the same, and stored case-folded."""
    assert parse_securable(text) == what
    assert str(what) == text
    assert parse_securable(what.stored_kind) == what


@pytest.mark.parametrize(
    "text",
    ["route:", "route:r/", "route:/namespace:a", "route:r/warehouse", "route:r/route:s", "route:r/a", "route:r s", "route:r/table:t"],
)
def test_other_texts_are_no_objects(text: str) -> None:
    """A grant on nothing would look like one."""
    with pytest.raises(BadGrant):
        parse_securable(text)


@pytest.mark.parametrize(
    "text", ["", "read", "read on route", "fly on route to a", "read on a to b", "create on table:a.t to b", "read on route to a,b"]
)
def test_malformed_grants_of_settings_are_refused(text: str) -> None:
    """The server does not start."""
    with pytest.raises(BadGrant):
        parse_route_grants([text])


def test_all_on_a_route_is_every_right() -> None:
    """Also the choice of locations, and other prefixes by `catch_all`."""
    policy = parse_route_grants(["all on route to alice", "read on namespace:A to role:team"])
    assert Rights.ALL in policy.held["alice"].grants.on(())
    assert policy.roles["team"].grants == Grants((Grant(("a",), Rights.READ),))


def test_only_the_star_of_settings_is_valid_over_routes() -> None:
    """`ns:a:r` was written with lakes in mind; a scope limits what is left."""
    everything = Grants((Grant((), Rights.READ | Rights.ALL),))
    assert Bearer(Session("a", everything, 0)).within_route("r", (LakePolicy(),), "").grants == everything
    assert Bearer(Session("a", Grants((Grant(("n",), Rights.READ),)), 0)).within_route("r", (LakePolicy(),), "").grants == Grants()
    scoped = Bearer(Session("a", Grants(), 0), scope=Grants((Grant(("n", "m"), Rights.READ),)))
    policy = parse_route_grants(["read, write on namespace:n to a"])
    assert scoped.within_route("r", (policy,), "").grants == Grants((Grant(("n", "m"), Rights.READ),))


def test_accounts_of_other_lakes_have_no_rights() -> None:
    """Two lakes may have principals of one name; the route's lake is one of them."""
    policy = parse_route_grants(["read on route to a"])
    for origin, is_known in (("", True), ("mine/1.1", True), ("theirs/1.1", False)):
        session = Bearer(Session("a", Grants(), 0), origin=origin).within_route("r", (policy,), "mine")
        assert bool(session.grants.each) == is_known


def test_a_session_is_kept_until_a_policy_changes() -> None:
    """It is built once for many requests."""
    bearer, one, other = (
        Bearer(Session("a", Grants(), 0)),
        LakePolicy(),
        LakePolicy(held={"a": HeldRights(Grants((Grant((), Rights.READ),)))}),
    )
    first = bearer.within_route("r", (one,), "")
    assert bearer.within_route("r", (one,), "") is first
    assert bearer.within_route("r", (one, other), "").grants != first.grants
    assert bearer.within_route("r", (one,), "") is not first
