"""A fresh lake that `ingest` fills from a folder, and DuckDB that looks at it."""

from pathlib import Path

import pytest

from tests.pipeline.ingest.mill import Mill, open_mill
from tests.support.readers import Served
from tests.support.spark import Spark


@pytest.fixture
def mill(served: Served, spark: Spark, tmp_path: Path) -> Mill:
    """A mill with an empty folder of files."""
    return open_mill(served, spark, tmp_path / "files")
