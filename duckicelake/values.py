"""Fast construction of the named tuples of which a large table has millions."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

Row = TypeVar("Row", bound=tuple[Any, ...])


def tuple_maker(kind: type[Row]) -> Callable[[Iterable[Any]], Row]:
    """Return a function like `kind._make`, without a Python call for each tuple."""
    return cast("Callable[[Iterable[Any]], Row]", partial(tuple.__new__, kind))
