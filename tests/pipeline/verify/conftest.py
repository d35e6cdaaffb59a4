"""A fresh lake that `verify` looks at."""

import pytest

from tests.pipeline.verify.checker import Checker, open_checker
from tests.support.readers import Served
from tests.support.spark import Spark


@pytest.fixture
def checker(served: Served, spark: Spark) -> Checker:
    """A checker of an empty lake."""
    return open_checker(served, spark)
