"""Running servers for the tests of the door."""

from collections.abc import Generator

import pytest

from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack


@pytest.fixture
def server(lake: FreshLake) -> Generator[Server]:
    """The application on one fresh lake."""
    with serve(make_settings(lake)) as running:
        yield running


@pytest.fixture(scope="session")
def standing_lake(stack: SharedStack) -> Generator[FreshLake]:
    """A lake that many tests share: it has the table `main.t`, and they may add to it under names of their own."""
    with make_lake(stack) as lake:
        lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
        yield lake


@pytest.fixture(scope="session")
def standing(standing_lake: FreshLake) -> Generator[Server]:
    """The application on the shared lake, for tests that need nothing of their own."""
    with serve(make_settings(standing_lake)) as running:
        yield running
