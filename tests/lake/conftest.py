"""A fresh lake as the server opens it."""

from collections.abc import Iterator

import pytest

from duckicelake.lake.connect import Lake, close_lake, open_lake
from tests.support.lakes import FreshLake


@pytest.fixture
def opened(lake: FreshLake) -> Iterator[Lake]:
    """The fresh lake, reached through a pool of connections."""
    found = open_lake("mine", lake.dsn, lake.metadata_schema, max_connections=4)
    try:
        yield found
    finally:
        close_lake(found)
