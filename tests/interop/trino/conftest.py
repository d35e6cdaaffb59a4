"""Trino on the rich lake."""

import pytest

from tests.interop.rich_lake import RichLake
from tests.interop.trino.reader import TrinoReader, open_trino
from tests.support.trino.server import Trino


@pytest.fixture(scope="session")
def trino_reader(rich: RichLake, trino: Trino) -> TrinoReader:
    """The rich lake as a catalog of Trino."""
    return open_trino(trino, rich.served)
