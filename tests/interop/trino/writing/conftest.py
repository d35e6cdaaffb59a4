"""Trino writes, DuckDB beside it."""

from collections.abc import Iterator

import pytest

from tests.interop.trino.writing.story import Story
from tests.support.readers import Served
from tests.support.trino.server import Trino


@pytest.fixture
def story(served: Served, trino: Trino) -> Iterator[Story]:
    """Both in front of a fresh lake with the namespaces ns and other, which Trino made."""
    story = Story(served, trino)
    story.run("CREATE SCHEMA {c}.ns")
    story.run("CREATE SCHEMA {c}.other")
    yield story
    trino.arrow(f"DROP CATALOG {story.catalog}")
