"""Fast construction and copying of frozen values: a commit copies dozens of them, a large table consists of millions."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
Row = TypeVar("Row", bound=tuple[Any, ...])


def tuple_maker(kind: type[Row]) -> Callable[[Iterable[Any]], Row]:
    """Return a function like `kind._make`, without a Python call for each tuple."""
    return cast("Callable[[Iterable[Any]], Row]", partial(tuple.__new__, kind))


def replace(value: Value, /, **changes: object) -> Value:
    """Return a copy of a dataclass instance with other values in some fields.

    Equal to `dataclasses.replace` for dataclasses whose fields are all positional parameters of `__init__`, at half of its cost.
    Raises: TypeError: the dataclass has no such field
    """
    places, read = _get_layout(type(value))
    values = [*read(value)]
    try:
        for name in changes:
            values[places[name]] = changes[name]
    except KeyError as error:
        raise TypeError(f"{type(value).__name__} has no field {error}.") from None
    return type(value)(*values)


@lru_cache(maxsize=1024)
def _get_layout(kind: Any) -> tuple[dict[str, int], Any]:
    """Return the positions of a dataclass' fields, and a function that reads all fields at once."""
    found = fields(kind)
    if not all(field.init and not field.kw_only for field in found):
        raise TypeError(f"{kind.__name__} has fields that are not for `__init__` in their order.")
    names = [field.name for field in found]
    return {name: place for place, name in enumerate(names)}, attrgetter(*names) if len(names) > 1 else partial(_read_each, names)


def _read_each(names: list[str], value: object) -> list[object]:
    """Return the values of the fields, as `attrgetter` does for two names or more."""
    return [getattr(value, name) for name in names]
