"""Lakes that anything may be sent to."""

from collections.abc import Iterator

import pytest

from tests.rest.hostile.target import Range, open_range
from tests.support.shared_stack import SharedStack


@pytest.fixture(scope="module")
def targets(stack: SharedStack) -> Iterator[Range]:
    """Lakes to send to, one after the other."""
    with open_range(stack) as made:
        yield made
