"""The shim, for one test at a time: other tests have PyIceberg as it is."""

from collections.abc import Iterator

import pytest

from duckicelake.pyiceberg_v3 import install


@pytest.fixture
def shim() -> Iterator[None]:
    """PyIceberg writes version 3."""
    uninstall = install()
    yield
    uninstall()
