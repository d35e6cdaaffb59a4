"""The table `shop.orders`, once for each module whose tests only read it."""

from collections.abc import Iterator

import pytest

from tests.interop.orders.table import Orders, fill_orders
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack


@pytest.fixture(scope="module")
def orders(stack: SharedStack) -> Iterator[Orders]:
    """The table: appended to, deleted from, updated, given a column, appended to again. Tests only read it."""
    with make_lake(stack) as lake, serve(make_settings(lake)) as server:
        yield fill_orders(Served(lake, server))


@pytest.fixture
def own_orders(served: Served) -> Orders:
    """The same table, for a test that changes it."""
    return fill_orders(served)
