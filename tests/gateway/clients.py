"""What stock clients do to a catalog over a route: the same for every catalog."""

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError

from tests.support.spark import Spark, SparkRefused

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
PARTITIONING = "PARTITIONED BY (bucket(4, id))"
STATEMENTS = (
    "CREATE NAMESPACE IF NOT EXISTS {0}.{1}",
    "CREATE TABLE {0}.{1}.t (id BIGINT, name STRING) {2}",
    "INSERT INTO {0}.{1}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "DELETE FROM {0}.{1}.t WHERE id = 2",
    "ALTER TABLE {0}.{1}.t ADD COLUMN more INT",
    "MERGE INTO {0}.{1}.t t USING (SELECT 3L id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET more = 7",
)
LEFT = [{"id": 1, "name": "a", "more": None}, {"id": 3, "name": "c", "more": 7}]
"""The rows of the table that `write_by_spark` leaves."""


def write_by_spark(spark: Spark, catalog: str, namespace: str, *, partitioning: str = PARTITIONING) -> None:
    """Create, write, change, merge, rename and read a table, which is then called `u`."""
    for statement in STATEMENTS:
        spark.arrow(statement.format(catalog, namespace, partitioning))
    spark.arrow(f"ALTER TABLE {catalog}.{namespace}.t RENAME TO {namespace}.u")
    with pytest.raises(SparkRefused, match="not found|cannot be found"):
        spark.arrow(f"SELECT * FROM {catalog}.{namespace}.t")
    assert spark.arrow(f"SELECT id, name, more FROM {catalog}.{namespace}.u ORDER BY id").to_pylist() == LEFT


def drop_by_spark(spark: Spark, catalog: str, table: str) -> None:
    """Drop the only table of a namespace."""
    spark.arrow(f"DROP TABLE {catalog}.{table}")
    assert spark.arrow(f"SHOW TABLES IN {catalog}.{table.partition('.')[0]}").num_rows == 0


def read_left(catalog: RestCatalog, table: str) -> list[dict[str, object]]:
    """Return the rows of a table by PyIceberg, in order; one of another name is missing."""
    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{table}_missing")
    return catalog.load_table(table).scan().to_arrow().sort_by("id").to_pylist()
