"""The table `shop.orders`, anew for each test."""

import pytest

from tests.interop.orders.table import Orders, fill_orders
from tests.support.readers import Served


@pytest.fixture
def orders(served: Served) -> Orders:
    """The table: appended to, deleted from, updated, given a column, appended to again."""
    return fill_orders(served)
