"""Fixture: the one MinIO of the run, beside the shared Postgres."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.lakes import FreshLake, make_lake
from tests.support.minio import run_minio
from tests.support.shared_stack import SharedStack

STORES = ["seaweedfs", pytest.param("minio", marks=[pytest.mark.minio, pytest.mark.xdist_group("minio")])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is asked of a MinIO too is asked by the long suite alone, unless it is the core of what keys must hold."""
    for item in items:
        if item.get_closest_marker("minio"):
            item.add_marker("whole" if item.get_closest_marker("core") else "long")


@pytest.fixture(scope="session")
def minio_stack(stack: SharedStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStack]:
    """The shared stack with a MinIO for its S3, started when the first test asks for it and ended with the run."""
    with run_minio(tmp_path_factory.mktemp("minio") / "home") as store:
        yield replace(stack, store=store)


@pytest.fixture(scope="session", params=STORES)
def each_stack(request: pytest.FixtureRequest) -> SharedStack:
    """The shared stack with each kind of store that keys are proven on."""
    return request.getfixturevalue("stack" if request.param == "seaweedfs" else "minio_stack")


@pytest.fixture
def each_lake(each_stack: SharedStack) -> Iterator[FreshLake]:
    """An empty DuckLake on each of them."""
    with make_lake(each_stack) as fresh:
        yield fresh
