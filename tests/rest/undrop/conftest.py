"""Fixture: a guarded server of its own, and its administrator."""

from collections.abc import Generator

import pytest

from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.support.lakes import FreshLake


@pytest.fixture
def managed(lake: FreshLake) -> Generator[Managed]:
    """A guarded server with the namespaces a, b and deep.er, each with the tables t and other and the view v."""
    with guard(lake) as running:
        yield Managed(running)
