"""One lake for the many tables of a module, and its rows as the server reads them."""

from collections.abc import Iterator

import pytest

from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.translate.support.room import Room


@pytest.fixture(scope="module")
def room(stack: SharedStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """A local lake, DuckDB's default options."""
    with make_lake(stack, str(tmp_path_factory.mktemp("lake"))) as lake:
        yield Room(lake, lake.duckdb(), lake.psycopg())
