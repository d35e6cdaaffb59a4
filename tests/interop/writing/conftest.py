"""Both doors of a fresh lake."""

import pytest

from tests.interop.writing.pair import Pair
from tests.support.readers import Served


@pytest.fixture
def pair(served: Served) -> Pair:
    """Both doors on a fresh lake with the namespace ns, made over REST."""
    pair = Pair(served)
    pair.ice.execute("CREATE SCHEMA ice.ns")
    return pair
