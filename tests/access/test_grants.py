"""Grants: read, written, met and folded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.access.grants import (
    ALL_GRANTS,
    CHANGE,
    WORDS,
    BadGrant,
    Grant,
    Grants,
    Rights,
    fold_levels,
    format_grants,
    parse_grants,
)

LEVELS = st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6), max_size=3).map(tuple)
GRANTS = st.builds(
    lambda pairs: Grants(tuple(Grant(fold_levels(levels), rights) for levels, rights in pairs)),
    st.lists(st.tuples(LEVELS, st.sampled_from(list(WORDS.values()))), max_size=4),
)


@given(GRANTS)
def test_what_is_written_is_read_again(grants: Grants) -> None:
    """parse(format(x)) = x, whatever a name holds."""
    text = format_grants(grants)
    assert parse_grants(text.split(" ") if text else []) == grants
    assert text.isascii()


@given(GRANTS, GRANTS, LEVELS)
def test_a_scope_never_widens(grants: Grants, scope: Grants, levels: tuple[str, ...]) -> None:
    """What is left under a scope is what both allow, in every namespace."""
    left = grants.within(scope)
    assert left.on(levels) == grants.on(levels) & scope.on(levels)
    assert grants.covers(left)
    assert scope.covers(left)


@pytest.mark.parametrize(
    ("text", "levels", "rights"),
    [
        pytest.param("ns:a:r", ("a",), Rights.READ, id="read"),
        pytest.param("ns:a:r", ("a", "b"), Rights.READ, id="nested"),
        pytest.param("ns:a:r", ("ab",), Rights.NONE, id="longer-name"),
        pytest.param("ns:a.b:rw", ("a",), Rights.NONE, id="parent"),
        pytest.param("ns:a.b:rw", ("a", "b"), Rights.READ | CHANGE, id="two-levels"),
        pytest.param("ns:a%2Eb:r", ("a.b",), Rights.READ, id="dot-in-a-name"),
        pytest.param("ns:a%2Eb:r", ("a", "b"), Rights.NONE, id="dot-is-no-level"),
        pytest.param("ns:A:w", ("a",), CHANGE, id="folded"),
        pytest.param("ns:%C3%84:w", ("ä",), Rights.NONE, id="ascii-alone-is-folded"),
        pytest.param("ns:*:r", ("any",), Rights.READ, id="every-namespace"),
        pytest.param("ns:%2A:r", ("any",), Rights.NONE, id="a-star-is-a-name"),
        pytest.param("ns:a:*", ("a",), Rights.READ | CHANGE | Rights.MANAGE, id="whole-namespace"),
    ],
)
def test_a_grant_holds_where_it_says(text: str, levels: tuple[str, ...], rights: Rights) -> None:
    """On its namespace and what is nested in it."""
    assert parse_grants([text]).on(levels) == rights


@pytest.mark.parametrize(
    "text", ["", "ns:a", "ns:a:x", "ns::r", "ns:a..b:r", "a:r", "**", "ns:a%2:r", "ns:%FF:r", "ns:a b:r", "ns:a:rw:r", "NS:a:r"]
)
def test_what_is_no_grant_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadGrant):
        parse_grants([text])


def test_a_parent_is_shown_and_no_more() -> None:
    """A right in a nested namespace lets its parents be known, without any right in them."""
    grants = parse_grants(["ns:a.b:r"])
    assert grants.shows(("a",))
    assert grants.shows(())
    assert grants.on(("a",)) == Rights.NONE
    assert not grants.shows(("b",))
    assert not grants.shows(("a", "c"))


def test_everything_is_more_than_every_namespace() -> None:
    """`*` covers `ns:*:*`, and not the other way round."""
    every = parse_grants(["ns:*:*"])
    assert ALL_GRANTS.covers(every)
    assert not every.covers(ALL_GRANTS)
