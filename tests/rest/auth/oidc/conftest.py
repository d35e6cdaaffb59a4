"""An OIDC server, and a catalog that believes it."""

from collections.abc import Generator

import pytest

from tests.rest.auth.oidc.believing import Believing, believe
from tests.support.lakes import make_lake
from tests.support.oidc.running import Issuing, issuing
from tests.support.shared_stack import SharedStack


@pytest.fixture
def issuer() -> Generator[Issuing]:
    """An OIDC server of its own."""
    with issuing() as running:
        yield running


@pytest.fixture(scope="module")
def believing(stack: SharedStack) -> Generator[Believing]:
    """A catalog, and the issuer that it believes."""
    with make_lake(stack) as lake, issuing() as running, believe(lake, running) as found:
        yield found
