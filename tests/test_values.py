"""Frozen values, made and changed."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from duckicelake.values import replace, tuple_maker


@dataclass(frozen=True, slots=True)
class Named:
    """A value of several fields, one of them made by its class."""

    name: str
    number: int = 0
    items: list[int] = field(default_factory=list[int], compare=False)
    folded: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folded", self.name.lower())


class Pair(NamedTuple):
    """A named tuple."""

    first: int
    second: str | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """A value of one field."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ByName:
    """A value whose fields have no places."""

    name: str


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        pytest.param(Named("A", 1, [2]), {"name": "B"}, id="one"),
        pytest.param(Named("A", 1, [2]), {"number": 2, "name": "B", "items": [3]}, id="several"),
        pytest.param(Named("A", 1, [2]), {}, id="none"),
        pytest.param(Single("a"), {"name": "b"}, id="the only one"),
        pytest.param(Single("a"), {}, id="none of one"),
    ],
)
def test_it_is_what_dataclasses_make(value: Any, changes: dict[str, Any]) -> None:
    """Equal in every field, and of the same class; the old value is as it was."""
    before = dataclasses.astuple(value)
    made = replace(value, **changes)
    assert type(made) is type(value)
    assert dataclasses.astuple(made) == dataclasses.astuple(dataclasses.replace(value, **changes))
    assert dataclasses.astuple(value) == before


def test_tuples_are_what_they_make_themselves() -> None:
    """Of any values that can be walked through, in the same order."""
    make = tuple_maker(Pair)
    for values in ((1, "a"), [2, None], iter((3, "c"))):
        made = make(values)
        assert type(made) is Pair
        assert made == Pair._make(made)
    assert make(Pair(1, "a")).second == "a"


def test_a_field_that_is_not_there_is_refused() -> None:
    """As by `dataclasses.replace`."""
    with pytest.raises(TypeError, match="nmae"):
        replace(Named("A"), nmae="B")


def test_fields_without_places_are_refused() -> None:
    """They cannot be given in their order."""
    with pytest.raises(TypeError, match="ByName"):
        replace(ByName(name="a"), name="b")
