"""A lake and a warehouse folder for each test; Spark is the run's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.transfer.ferry import Ferry, open_ferry
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark


@pytest.fixture
def ferry(stack: SharedStack, spark: Spark, tmp_path: Path) -> Iterator[Ferry]:
    """Both ends, empty."""
    with open_ferry(stack, spark, tmp_path) as ferry:
        yield ferry
