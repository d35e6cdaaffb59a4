"""Privileges and what they are on, as texts and as values; what a bearer may do in a lake."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.access.clients import Client, SecretChecker, make_secret
from duckicelake.access.grants import NO_GRANTS, BadGrant, Grant, Grants, Rights, fold_levels, parse_grants
from duckicelake.access.policy import (
    KINDS,
    NAME,
    NAMESPACE,
    PRIVILEGES,
    TABLE,
    VIEW,
    WAREHOUSE,
    Grantee,
    HeldRights,
    LakePolicy,
    Securable,
    format_issuer_name,
    is_issuer_name,
    parse_grantee,
    parse_privileges,
    parse_securable,
    to_rights,
)
from duckicelake.access.sessions import Bearer, Session

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
LEVELS = st.lists(NAMES, min_size=2, max_size=4).map(tuple)


@given(st.sampled_from(sorted(KINDS - {WAREHOUSE})), LEVELS)
def test_what_is_written_is_read_again(kind: str, levels: tuple[str, ...]) -> None:
    """parse(format(x)) = x, whatever a name holds."""
    assert parse_securable(str(Securable(kind, levels))) == Securable(kind, levels)
    assert parse_securable(str(Securable(WAREHOUSE))) == Securable(WAREHOUSE)


@pytest.mark.parametrize(
    "text", ["", "warehouse:", "warehouse:a", "namespace", "namespace:", "table:t", "view:a..v", "schema:a", "table:a.%2"]
)
def test_what_is_nothing_to_have_rights_on_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadGrant):
        parse_securable(text)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [(["read", "every"], NAMESPACE), ([], NAMESPACE), (["create"], TABLE), (["create"], VIEW), (["READ"], TABLE)],
    ids=str,
)
def test_what_is_no_privilege_there_is_refused(texts: list[str], kind: str) -> None:
    """Nothing is made in a table."""
    with pytest.raises(BadGrant):
        parse_privileges(texts, kind)
    assert parse_privileges(["read", " list ", "read"], kind) == ("read", "list")


@pytest.mark.parametrize("kind", [WAREHOUSE, NAMESPACE, TABLE, VIEW])
def test_all_is_every_privilege_on_that_kind_of_thing(kind: str) -> None:
    """Beside others it adds what they lack."""
    expected = {"list", "read", "write", "drop", "manage"} | ({"create"} if kind in (WAREHOUSE, NAMESPACE) else set())
    assert set(parse_privileges(["all"], kind)) == set(parse_privileges([" all", "read"], kind)) == expected
    assert len(parse_privileges(["read", "all"], kind)) == len(expected)


@pytest.mark.parametrize("text", ["", "role:", "a b", "A:b", "a:", ":b", "a:%2", "a:%ff", "role:role:x", "a,b", "a|b", "ä", "x" * 129])
def test_a_name_that_settings_could_not_write_is_refused(text: str) -> None:
    """A principal's name is one that credentials can hold."""
    with pytest.raises(BadGrant):
        parse_grantee(text)
    assert [str(parse_grantee(name)) for name in ("alice", "role:all")] == ["alice", "role:all"]
    assert parse_grantee("role:all") == Grantee("all", is_role=True)


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_whom_an_issuer_names_has_one_name_here(told: str) -> None:
    """However somebody writes it, and never that of a local principal; grants for its roles are written alike."""
    name = format_issuer_name("acme", told)
    assert parse_grantee(name) == Grantee(name, is_role=False)
    assert parse_grantee(f"role:{name}") == Grantee(name, is_role=True)
    assert parse_grantee("acme:" + told.replace("%", "%25")) == Grantee(name, is_role=False)
    assert is_issuer_name(name)
    assert unquote(name.removeprefix("acme:")) == told
    assert NAME.fullmatch(name) is None


def test_only_who_manages_the_warehouse_chooses_where_files_lie() -> None:
    """No other privilege, on whatever, is all of them."""
    every = {(name, kind): to_rights(name, kind) for name in PRIVILEGES for kind in KINDS}
    assert [key for key, rights in every.items() if Rights.ALL in rights] == [("manage", WAREHOUSE)]
    assert to_rights("made up", NAMESPACE) is Rights.NONE


OBJECTS = {(TABLE, ("a", "t")): Rights.READ | Rights.WRITE, (VIEW, ("b", "c", "v")): Rights.READ}
POLICY = LakePolicy(
    {"alice": Client("alice", "", NO_GRANTS, "lake/7.1")},
    {"alice": HeldRights(Grants((Grant(("d",), Rights.LIST),)), OBJECTS), "writer": HeldRights(Grants((Grant(("x",), Rights.READ),)))},
)


def bear(name: str = "alice", grants: Grants = NO_GRANTS, scope: str = "", origin: str = "lake/7.1") -> Bearer:
    """The bearer of a token."""
    wanted = parse_grants([scope]) if scope else None
    return Bearer(Session(name, grants if wanted is None else grants.within(wanted), 1e12), wanted, origin)


def test_rights_on_an_object_are_its_own_and_no_twins() -> None:
    """By kind and name; the names that lead to it are shown, and not what is beside it."""
    session = bear().within("lake", POLICY)
    assert session.rights_at(TABLE, ("A",), "T") == Rights.READ | Rights.WRITE
    assert session.rights_at(VIEW, ("a",), "t") is Rights.NONE
    assert session.rights_at(TABLE, ("a", "t"), "t") is Rights.NONE
    assert session.rights_on(("a",)) is Rights.NONE
    assert [session.shows(levels) for levels in ((), ("a",), ("b",), ("b", "c"), ("d",), ("e",), ("a", "t"))] == [True] * 5 + [False] * 2
    assert [session.lists(levels) for levels in (("a",), ("b",), ("b", "c"), ("d",))] == [True, False, True, True]
    assert session.rights_at(TABLE, ("d",), "any") == Rights.LIST


@given(st.sampled_from(["ns:a:r", "ns:a:w", "ns:b:r", "ns:*:rw", "*", "ns:b.c:*", "ns:z:r"]))
def test_a_scope_leaves_what_both_allow(scope: str) -> None:
    """Of objects as of namespaces."""
    whole, narrow = bear().within("lake", POLICY), bear(scope=scope).within("lake", POLICY)
    allowed = parse_grants([scope])
    for kind, levels in OBJECTS:
        told = narrow.rights_at(kind, levels[:-1], levels[-1])
        assert told == whole.rights_at(kind, levels[:-1], levels[-1]) & allowed.on(fold_levels(levels[:-1]))


def test_a_lake_knows_its_own_and_those_of_settings() -> None:
    """An account of another lake holds nothing here, whatever it is called; another secret is another account."""
    assert bear(origin="other/7.1").within("lake", POLICY).rights_at(TABLE, ("a",), "t") is Rights.NONE
    joined = bear("writer", parse_grants(["ns:w:rw"]), origin="").within("lake", POLICY)
    assert (joined.rights_on(("x",)), bool(joined.rights_on(("w",)) & Rights.WRITE)) == (Rights.READ, True)
    assert bear().is_known(POLICY)
    assert not any(bear(origin=origin).is_known(POLICY) for origin in ("lake/7.2", "lake/8.1", "other/7.1", ""))
    assert not bear("bob").is_known(POLICY)


def test_roles_that_a_token_names_give_what_the_lake_gave_them() -> None:
    """Beside what the principal holds itself; a role that the lake has not gives nothing."""
    roles = {"acme:eng": HeldRights(Grants((Grant(("x",), Rights.WRITE),)), {(TABLE, ("a", "t")): Rights.DROP})}
    policy = LakePolicy({}, {"acme:alice": HeldRights(Grants(), {(TABLE, ("a", "t")): Rights.READ})}, roles)
    session = Bearer(Session("acme:alice", NO_GRANTS, 1e12), roles=("acme:none", "acme:eng", "writer")).within("lake", policy)
    assert (session.rights_on(("x",)), session.rights_on(("y",))) == (Rights.WRITE, Rights.NONE)
    assert session.rights_at(TABLE, ("a",), "t") == Rights.READ | Rights.DROP
    assert Bearer(Session("acme:alice", NO_GRANTS, 1e12)).within("lake", policy).rights_on(("x",)) is Rights.NONE


def test_a_session_is_made_anew_with_the_policy() -> None:
    """What was remembered of paths goes with it."""
    bearer = bear()
    first = bearer.within("lake", POLICY)
    first.remember(b"/path", Rights.READ)
    assert bearer.within("lake", POLICY) is first
    second = bearer.within("lake", LakePolicy())
    assert second.decided == {}
    assert second.rights_at(TABLE, ("a",), "t") is Rights.NONE


def test_a_made_secret_is_known_by_its_hash() -> None:
    """Of two alike names the one whose secret it is; a name of settings is theirs alone."""
    (secret, hashed), (other, other_hashed) = make_secret(), make_secret()
    kept = [{"me": Client("me", hashed, NO_GRANTS, "one/1.1")}, {"me": Client("me", other_hashed, NO_GRANTS, "two/1.1")}]
    checker = SecretChecker({}, b"k" * 32)
    assert [(checker.find("me", told, kept) or kept[0]["me"]).origin for told in (secret, other)] == ["one/1.1", "two/1.1"]
    assert checker.find("me", "wrong", kept) is None
    assert checker.find("nobody", secret, kept) is None
    assert SecretChecker({"me": Client("me", "plain", NO_GRANTS)}, b"k" * 32).find("me", secret, kept) is None
