"""Fixtures: the shared Postgres and S3, and a fresh DuckLake for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack, use_shared_stack


@pytest.fixture(scope="session")
def stack() -> Iterator[SharedStack]:
    """One running Postgres and S3 for all tests, shared between test processes."""
    with use_shared_stack() as running:
        yield running


@pytest.fixture
def lake(stack: SharedStack) -> Iterator[FreshLake]:
    """An empty DuckLake whose files lie on S3."""
    with make_lake(stack) as fresh:
        yield fresh


@pytest.fixture
def local_lake(stack: SharedStack, tmp_path: Path) -> Iterator[FreshLake]:
    """An empty DuckLake whose files lie in a local folder."""
    with make_lake(stack, str(tmp_path)) as fresh:
        yield fresh


@pytest.fixture
def other_lake(stack: SharedStack) -> Iterator[FreshLake]:
    """A second empty DuckLake, for tests that need two."""
    with make_lake(stack) as fresh:
        yield fresh
