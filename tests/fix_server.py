"""Fixtures: the real server in front of a fresh lake, and the one Spark session of the run."""

from collections.abc import Iterator

import pytest

from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.spark import OLDER_ICEBERG, Spark, start_spark


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--iceberg VERSION`: Spark has an older Iceberg than the one that the jobs fetch."""
    parser.addoption("--iceberg", choices=sorted(OLDER_ICEBERG), help="the release of Iceberg that Spark has, if an older one")


@pytest.fixture(scope="session")
def iceberg(pytestconfig: pytest.Config) -> str | None:
    """The older release of Iceberg that Spark has, or None."""
    return pytestconfig.getoption("iceberg")


@pytest.fixture
def served(lake: FreshLake) -> Iterator[Served]:
    """A fresh lake behind a running server, with its stock clients."""
    with serve(make_settings(lake)) as server:
        yield Served(lake, server)


@pytest.fixture
def served_locally(local_lake: FreshLake) -> Iterator[Served]:
    """A fresh lake whose files lie in a local folder, behind a running server."""
    with serve(make_settings(local_lake, s3_endpoint=None, s3_access_key_id=None, s3_secret_access_key=None)) as server:
        yield Served(local_lake, server)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, iceberg: str | None) -> Iterator[Spark]:
    """One Spark session, started when the first test asks for it and ended with the run."""
    with start_spark(tmp_path_factory.mktemp("spark"), iceberg) as running:
        yield running
