"""Trino plans by the sketches of `profile`."""

import pytest

from tests.interop.trino.writing.story import Rows, Story
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.verify.checker import open_checker
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.trino.server import Trino

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.xdist_group("trino")]


def find_distinct(shown: Rows) -> dict[str, float | None]:
    """How many different values each column has, as `SHOW STATS` tells it."""
    return {row[0]: row[2] for row in shown if row[0] is not None}


@pytest.mark.long
def test_trino_counts_by_the_sketches(served: Served, spark: Spark, trino: Trino) -> None:
    """It knows of no distinct values before, and afterwards as many as there are."""
    story = Story(served, trino)
    story.run("CREATE SCHEMA {c}.ns")
    story.ask("CREATE TABLE {t} (id BIGINT, name VARCHAR, x DOUBLE)")
    story.ask("INSERT INTO {t} SELECT i, 'n' || (i % 37), i / 3 FROM range(3000) r(i)")
    assert find_distinct(story.run("SHOW STATS FOR {t}")) == {"id": None, "name": None, "x": None}
    assert Measurer(open_checker(served, spark)).run("ns.t").status == 0
    assert find_distinct(story.run("SHOW STATS FOR {t}")) == {"id": 3000.0, "name": 37.0, "x": 3000.0}
    trino.arrow(f"DROP CATALOG {story.catalog}")
