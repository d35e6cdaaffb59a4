"""Fixture: a guarded server of its own, and its administrator."""

import pytest

from tests.rest.auth.principals import Guarded
from tests.rest.auth.rules.managed import Managed


@pytest.fixture
def managed(fresh: Guarded) -> Managed:
    """A guarded server with the namespaces a, b and deep.er, each with the tables t and other and the view v."""
    return Managed(fresh)
