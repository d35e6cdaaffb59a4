"""Which parameters of a test run with `scripts/test --all`, and which with `--long` alone: docs/tests.md."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(values: Iterable[Any], *kept: object) -> list[Any]:
    """Return the values as parameters of a test; all are marked `long` but the kept ones, which are given by value or by id.

    Raises: pytest.UsageError: something kept is not among the values
    """
    missing = list(kept)
    parameters: list[Any] = []
    for value in values:
        given = value if hasattr(value, "marks") else pytest.param(*(value if isinstance(value, tuple) else (value,)))
        names = [name for name in kept if name == (given.id or given.values[0] if len(given.values) == 1 else given.id)]
        missing = [name for name in missing if name not in names]
        parameters.append(pytest.param(*given.values, id=given.id, marks=[*given.marks, *([] if names else [pytest.mark.long])]))
    if missing:
        raise pytest.UsageError(f"{missing} are none of the parameters of this test")
    return parameters
