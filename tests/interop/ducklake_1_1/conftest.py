"""A lake of DuckLake 1.1 behind a running server."""

from collections.abc import Iterator

import pytest
from ducklakepy import DuckLakeCatalog

from tests.rest.serving import make_settings, serve
from tests.support.ducklake_1_1 import LOCAL, make_nesting_lake
from tests.support.lakes import FreshLake
from tests.support.readers import Served


@pytest.fixture
def made(local_lake: FreshLake) -> Iterator[tuple[Served, DuckLakeCatalog]]:
    """A lake that ducklakepy made, behind a running server."""
    with make_nesting_lake(local_lake) as (lake, catalog), serve(make_settings(lake, **LOCAL)) as server:
        yield Served(lake, server), catalog
