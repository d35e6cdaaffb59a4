"""A fresh lake that `profile` measures."""

import pytest

from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.verify.checker import open_checker
from tests.support.readers import Served
from tests.support.spark import Spark


@pytest.fixture
def measurer(served: Served, spark: Spark) -> Measurer:
    """A measurer of an empty lake."""
    return Measurer(open_checker(served, spark))
