"""Spark's ALTER TABLE, every form that is about how rows lie: DuckDB has the same rows after each statement, and goes on."""

import pytest

from tests.interop.writing.spark.story import Story, alter
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.long]

LAYOUTS = (
    "ADD COLUMN day date",
    "INSERT INTO {t} SELECT id, 'a', date '2024-01-31' + cast(id AS int) FROM range(20)",
    "ADD PARTITION FIELD bucket(4, id)",
    "ADD PARTITION FIELD days(day) AS d",
    "INSERT INTO {t} SELECT id, 'b', date '2024-01-31' + cast(id % 3 AS int) FROM range(20, 40)",
    "REPLACE PARTITION FIELD d WITH months(day) AS m",
    "INSERT INTO {t} SELECT id, 'c', date '2024-01-31' + cast(id AS int) FROM range(40, 60)",
    "DROP PARTITION FIELD bucket(4, id)",
    "DELETE FROM {t} WHERE day > date '2024-03-20'",
    "DROP PARTITION FIELD m",
    "WRITE ORDERED BY id DESC NULLS LAST, name",
    "INSERT INTO {t} SELECT id, 'd', NULL FROM range(60, 80)",
    "ADD PARTITION FIELD truncate(1, name)",
    "WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY id",
    "INSERT INTO {t} SELECT id, 'e', NULL FROM range(80, 100)",
    "WRITE UNORDERED",
    "UPDATE {t} SET name = 'f' WHERE id % 9 = 0",
    "SET TBLPROPERTIES ('test.a' = '1', 'test.b' = '2')",
    "UNSET TBLPROPERTIES ('test.b')",
)
"""As `alter` takes them."""


@pytest.mark.parametrize("format_version", [2, 3])
def test_layouts_change(served: Served, spark: Spark, format_version: int) -> None:
    """Partition fields added, replaced and dropped, sort orders and distributions, properties; then the table's name."""
    story = Story(served, spark, "", f"'format-version' = '{format_version}'")
    metadata = alter(story, LAYOUTS)
    (spec,) = (spec for spec in metadata["partition-specs"] if spec["spec-id"] == metadata["default-spec-id"])
    assert [field["transform"] for field in spec["fields"]] == ["truncate[1]"]
    assert metadata["default-sort-order-id"] == 0
    assert (metadata["properties"]["test.a"], metadata["properties"].get("test.b")) == ("1", None)
    assert len(metadata["sort-orders"]) == 3
    story.run("ALTER TABLE {t} RENAME TO ns.u")
    check_going_on(served, ("ns", "u"), travels_after_merge=False)


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_replacement_brings_rows_under_a_new_spec(served: Served, spark: Spark, format_version: int) -> None:
    """The spec of a column that is gone keeps its id, which Spark takes for the new one in the same commit."""
    story = Story(served, spark, "PARTITIONED BY (name)", f"'format-version' = '{format_version}'")
    story.run("INSERT INTO {t} SELECT id, concat('n', id % 2) FROM range(10)")
    story.run("REPLACE TABLE {t} USING iceberg AS SELECT id, id * 2 AS twice FROM range(5)")
    story.check(5)
    story.run("REPLACE TABLE {t} USING iceberg PARTITIONED BY (kind) AS SELECT id, concat('k', id % 3) AS kind FROM range(30)")
    story.check(30)
    story.run("INSERT INTO {t} SELECT id, concat('k', id % 4) FROM range(30, 40)")
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'k1' FROM range(100, 120)")
    story.run("DELETE FROM {t} WHERE kind = 'k2'")
    story.check(47)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)
