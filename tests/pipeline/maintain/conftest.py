"""A fresh lake that `maintain` puts in order."""

import pytest

from tests.pipeline.maintain.keeper import Keeper
from tests.pipeline.verify.checker import open_checker
from tests.support.readers import Served
from tests.support.spark import Spark


@pytest.fixture
def keeper(served: Served, spark: Spark) -> Keeper:
    """A keeper of an empty lake."""
    return Keeper(open_checker(served, spark))
