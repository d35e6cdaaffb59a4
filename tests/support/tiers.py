"""Which parameters of a test run with `scripts/test`, which with `--all`, and which with `--long` alone: docs/tests.md."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(values: Iterable[Any], *kept: object) -> list[Any]:
    """Return the values as parameters of a test; all but the kept ones are marked `long`."""
    return _mark_but(pytest.mark.long, values, kept)


def whole_but(values: Iterable[Any], *kept: object) -> list[Any]:
    """Return the values as parameters of a test; all but the kept ones are marked `whole`."""
    return _mark_but(pytest.mark.whole, values, kept)


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test; all after the first `count` are marked `long`."""
    return _mark_after(pytest.mark.long, count, values)


def whole_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test; all after the first `count` are marked `whole`."""
    return _mark_after(pytest.mark.whole, count, values)


def _mark_after(mark: pytest.MarkDecorator, count: int, values: Iterable[Any]) -> list[Any]:
    parameters = _to_parameters(values)
    return [*parameters[:count], *(pytest.param(*item.values, id=item.id, marks=[*item.marks, mark]) for item in parameters[count:])]


def _to_parameters(values: Iterable[Any]) -> list[Any]:
    return [value if hasattr(value, "marks") else pytest.param(*(value if isinstance(value, tuple) else (value,))) for value in values]


def _mark_but(mark: pytest.MarkDecorator, values: Iterable[Any], kept: tuple[object, ...]) -> list[Any]:
    """Return parameters, marked unless their id is kept, or their only value where they have no id.

    Raises: pytest.UsageError: something kept is not among the values
    """
    parameters = _to_parameters(values)
    names = [parameter.values[0] if parameter.id is None and len(parameter.values) == 1 else parameter.id for parameter in parameters]
    if missing := [name for name in kept if name not in names]:
        raise pytest.UsageError(f"{missing} are none of the parameters of this test")
    pairs = zip(parameters, names, strict=True)
    return [pytest.param(*given.values, id=given.id, marks=[*given.marks, *([] if name in kept else [mark])]) for given, name in pairs]
