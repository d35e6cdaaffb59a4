"""Spark reads and writes branches with equality deletes, which it never writes itself, and main when it has taken them over."""

import pyarrow as pa
import pytest

from tests.rest.writing.client import open_client
from tests.rest.writing.refs.test_equality_beside import Rows, equal, fill, grow, ids, in_order, read, write, write_upserts
from tests.support.readers import Served, SparkReader
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.long]

MODES = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}


def read_spark(reader: SparkReader, ref: str = "main") -> Rows:
    """A branch as Spark has it."""
    reader.spark.arrow(f"REFRESH TABLE {reader.sql_name(('main', 't'))}")
    found = reader.spark.arrow(f"SELECT id, name FROM {reader.sql_name(('main', 't'))} VERSION AS OF '{ref}'")
    return in_order([(row["id"], row["name"]) for row in found.to_pylist()])


@pytest.mark.parametrize("format_version", [2, 3])
def test_spark_goes_on_where_rows_are_deleted_by_equality(served: Served, spark: Spark, format_version: int) -> None:
    """On the branch, by fast-forward and on main right after it: everybody has the same rows at every step."""
    session, client = served.lake.duckdb(), open_client(served.server, served.lake)
    fill(client, session, properties=MODES | {"format-version": str(format_version)})
    reader, rows = served.spark(spark), write_upserts(client)
    table = reader.sql_name(("main", "t"))
    assert read_spark(reader, "dev") == rows
    spark.arrow(f"DELETE FROM {table}.branch_dev WHERE id IN (6, 7002)")
    spark.arrow(f"INSERT INTO {table}.branch_dev VALUES (7004, 'spark')")
    rows = in_order([*(row for row in rows if row[0] not in (6, 7002)), (7004, "spark")])
    keys = equal(client, client.load(), {1: pa.array([0, 7004])})
    assert grow(client, [write(client, client.load(), ids(7004))], [keys]).status == 200
    rows = in_order([*(row for row in rows if row[0] not in (0, 7004)), (7004, "new")])
    assert read_spark(reader, "dev") == rows
    spark.arrow(f"CALL {reader.catalog}.system.fast_forward('main.t', 'main', 'dev')")
    assert read(session) == read_spark(reader) == rows
    spark.arrow(f"DELETE FROM {table} WHERE id IN (8, 900)")
    rows = [row for row in rows if row[0] not in (8, 900)]
    assert read(session) == read_spark(reader) == rows
    spark.arrow(f"UPDATE {table} SET name = 'late' WHERE id = 7004")
    rows = in_order([(i, "late" if i == 7004 else name) for i, name in rows])
    assert read(session) == read_spark(reader) == rows


def test_deletes_of_a_partition_stay_in_it_for_spark_too(served: Served, spark: Spark) -> None:
    """Read where they are staged, and published."""
    client, reader = open_client(served.server, served.lake), served.spark(spark)
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}]}
    assert client.create(**{"partition-spec": spec}).status == 200
    base = client.load()
    files = [write(client, base, ids(1, 2, name=name), partition=(name,)) for name in ("x", "y")]
    assert client.commit(client.append(base, 9_000_000_001, files)).status == 200
    base = client.load()
    staged = client.append(base, 9_000_000_002, [], [equal(client, base, {1: pa.array([1])}, partition=("x",))])
    staged[0]["snapshot"]["summary"]["wap.id"] = "w1"
    done = client.commit(staged[:1])
    assert done.status == 200, done.json
    made = max(item["snapshot-id"] for item in done.json["metadata"]["snapshots"] if "ducklake.alias-of" not in item["summary"])
    rows = in_order([(1, "y"), (2, "x"), (2, "y")])
    found = reader.read(("main", "t"), made)
    assert in_order([(row["id"], row["name"]) for row in found.to_pylist()]) == rows
    spark.arrow(f"CALL {reader.catalog}.system.publish_changes('main.t', 'w1')")
    assert read(served.lake.duckdb()) == read_spark(reader) == rows
