"""Frozen values, made and changed the cheap way: commits make dozens of them anew, large tables are millions."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
Row = TypeVar("Row", bound=tuple[Any, ...])


def tuple_maker(kind: type[Row]) -> Callable[[Iterable[Any]], Row]:
    """Return what makes a named tuple of as many values as it has, as its `_make` does, without a function of Python's for each."""
    return cast("Callable[[Iterable[Any]], Row]", partial(tuple.__new__, kind))


def replace(value: Value, /, **changes: object) -> Value:
    """Return a dataclass' instance with other values in some of its fields.

    The same as `dataclasses.replace` for those whose fields all go to `__init__` in their order, at half of its cost.
    Raises: TypeError: it has no such field
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
    """Return the places of a dataclass' fields, and what reads them all at once."""
    found = fields(kind)
    if not all(field.init and not field.kw_only for field in found):
        raise TypeError(f"{kind.__name__} has fields that are not for `__init__` in their order.")
    names = [field.name for field in found]
    return {name: place for place, name in enumerate(names)}, attrgetter(*names) if len(names) > 1 else partial(_read_each, names)


def _read_each(names: list[str], value: object) -> list[object]:
    """Return what `attrgetter` returns of several names, of any number."""
    return [getattr(value, name) for name in names]
