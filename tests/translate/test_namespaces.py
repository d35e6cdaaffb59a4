"""Nested namespaces on flat DuckLake schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.translate.namespaces import LEVEL_SEPARATOR, to_levels, to_schema_name

characters = st.characters(codec="utf-8", exclude_characters=LEVEL_SEPARATOR + "\0")
levels = st.lists(st.text(characters, min_size=1, max_size=6), min_size=1, max_size=4).map(tuple)
schema_names = st.text(st.sampled_from(["a", "B", ".", "/", " ", LEVEL_SEPARATOR, "é", "\x1f"]), min_size=1, max_size=8)


@given(levels)
def test_every_namespace_has_a_schema_of_its_own(namespace: tuple[str, ...]) -> None:
    """Levels come back from the name they make, dots, slashes and spaces and all."""
    assert to_levels(to_schema_name(namespace)) == namespace


@given(schema_names)
def test_every_schema_can_be_addressed(name: str) -> None:
    """What a DuckDB user called a schema is some namespace, and that namespace is that schema."""
    assert to_schema_name(to_levels(name)) == name


@given(st.lists(schema_names, min_size=2, max_size=2, unique=True))
def test_two_schemas_are_two_namespaces(names: list[str]) -> None:
    """No two names fall together."""
    assert to_levels(names[0]) != to_levels(names[1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("main", ("main",), id="plain"),
        pytest.param("a.b", ("a.b",), id="dot"),
        pytest.param("a/b c", ("a/b c",), id="slash and space"),
        pytest.param(f"a{LEVEL_SEPARATOR}b{LEVEL_SEPARATOR}c", ("a", "b", "c"), id="nested"),
        pytest.param(f"a{LEVEL_SEPARATOR}", (f"a{LEVEL_SEPARATOR}",), id="empty last level"),
    ],
)
def test_levels_of_a_schema(name: str, expected: tuple[str, ...]) -> None:
    """Only the separator nests."""
    assert to_levels(name) == expected


@pytest.mark.parametrize(
    "namespace",
    [
        pytest.param((), id="none"),
        pytest.param(("",), id="empty"),
        pytest.param(("a", ""), id="empty last"),
        pytest.param(("", "a"), id="empty first"),
        pytest.param((f"a{LEVEL_SEPARATOR}b",), id="separator within"),
        pytest.param(("a", f"b{LEVEL_SEPARATOR}"), id="separator at the end of a level"),
    ],
)
def test_a_namespace_that_could_not_be_told_apart_is_refused(namespace: tuple[str, ...]) -> None:
    """A level is neither empty nor does it hold the separator, when that would make it another namespace."""
    with pytest.raises(BadRequest):
        to_schema_name(namespace)
