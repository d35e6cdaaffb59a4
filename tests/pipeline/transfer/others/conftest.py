"""Iceberg's own REST server as the other catalog, known to the shared Spark under a name."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.transfer.ferry import Ferry
from tests.support.reference.server import Reference, serve_reference

SPARK = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".cache-enabled": "false"}
HADOOP_FILES = {".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}


@dataclass(frozen=True, slots=True)
class Abroad:
    """The other catalog, and its name in Spark."""

    ferry: Ferry
    reference: Reference
    name: str

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.reference.uri

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run SQL in which `{o}` is the other catalog and `{h}` the lake's; the rows of the last statement."""
        return self.ferry.run(*(statement.replace("{o}", self.name) for statement in statements))


def know(ferry: Ferry, reference: Reference, files: dict[str, str]) -> Abroad:
    """Make the server known to Spark; `files` say how its files are reached."""
    name = f"other_{ferry.here}"
    for key, text in {**SPARK, ".uri": reference.uri, **files}.items():
        ferry.spark.session.conf.set(f"spark.sql.catalog.{name}{key}", text)
    return Abroad(ferry, reference, name)


@pytest.fixture
def abroad(ferry: Ferry, tmp_path: Path) -> Iterator[Abroad]:
    """The server with its files in a folder that the lake takes tables in from."""
    with serve_reference(tmp_path / "reference.log", {"warehouse": str(ferry.folder)}) as reference:
        yield know(ferry, reference, HADOOP_FILES)
