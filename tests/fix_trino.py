"""Fixture: the one Trino server of the run."""

from collections.abc import Iterator

import pytest

from tests.support.trino.server import Trino, start_trino


@pytest.fixture(scope="session")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    """One Trino server, started when the first test asks for it and ended with the run."""
    with start_trino(tmp_path_factory.mktemp("trino")) as running:
        yield running
