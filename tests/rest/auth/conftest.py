"""Guarded servers for the tests of who may do what."""

from collections.abc import Generator

import pytest

from tests.rest.auth.principals import Guarded, guard
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack


@pytest.fixture(scope="session")
def guarded(stack: SharedStack) -> Generator[Guarded]:
    """A guarded server that many tests share; they leave its tables as they are."""
    with make_lake(stack) as lake, guard(lake) as running:
        yield running


@pytest.fixture
def fresh(lake: FreshLake) -> Generator[Guarded]:
    """A guarded server on a lake of its own."""
    with guard(lake) as running:
        yield running
