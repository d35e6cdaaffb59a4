"""Warehouses on a fresh lake, opened and closed with the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from duckicelake.catalog.warehouse import Warehouse, close_warehouse, open_warehouse
from duckicelake.store.s3 import StoreSettings
from tests.support.lakes import FreshLake

Opener = Callable[[FreshLake], Warehouse]


@pytest.fixture
def open_server() -> Iterator[Opener]:
    """What opens one more warehouse on a lake, as one more server process would."""
    with ExitStack() as opened:

        def open_one(lake: FreshLake) -> Warehouse:
            keys = lake.store
            store = StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)
            warehouse = open_warehouse("lake", lake.dsn, lake.metadata_schema, store)
            opened.callback(close_warehouse, warehouse)
            return warehouse

        yield open_one


@pytest.fixture
def warehouse(lake: FreshLake, open_server: Opener) -> Warehouse:
    """A warehouse on the test's lake."""
    return open_server(lake)
