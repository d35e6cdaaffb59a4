"""A fresh lake whose large manifests `publish` makes."""

import pytest

from tests.catalog.conftest import open_server
from tests.pipeline.publish.press import Press
from tests.support.readers import Served
from tests.support.spark import Spark

__all__ = ["open_server", "press"]


@pytest.fixture
def press(served: Served, spark: Spark) -> Press:
    """A press beside an empty lake."""
    return Press(served, spark)
