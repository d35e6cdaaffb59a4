"""Named tuples that are made quickly."""

from typing import NamedTuple

from duckicelake.values import tuple_maker


class Pair(NamedTuple):
    """A named tuple."""

    first: int
    second: str | None = None


def test_tuples_are_what_they_make_themselves() -> None:
    """Of any values that can be walked through, in the same order."""
    make = tuple_maker(Pair)
    for values in ((1, "a"), [2, None], iter((3, "c"))):
        made = make(values)
        assert type(made) is Pair
        assert made == Pair._make(made)
    assert make(Pair(1, "a")).second == "a"
