"""Tables that DuckDB partitioned by buckets: by `=` it looks into files whose buckets DuckLake names, and into no others."""

from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from tests.rest.serving import Server
from tests.rest.writing.client import Client, assert_main, open_client, set_ref, write_file
from tests.support.lakes import FreshLake


def make_table(lake: FreshLake, kind: str, values: str) -> str:
    """Make a table of 20 rows that DuckDB partitions by buckets of its column `x`."""
    name, session = f"w{uuid4().hex}", lake.duckdb()
    session.execute(f"CREATE TABLE {name} (x {kind})")
    session.execute(f"ALTER TABLE {name} SET PARTITIONED BY (bucket(4, x))")
    session.execute(f"INSERT INTO {name} SELECT {values} FROM range(20)")
    return name


def count(lake: FreshLake, name: str, value: str) -> list[int]:
    """How often a new session of DuckDB finds a value, by `=` and without its statistics."""
    session = lake.duckdb()
    conditions = f"x = {value}", f"x::VARCHAR = ({value})::VARCHAR"
    return [len(session.execute(f"SELECT x FROM {name} WHERE {condition}").fetchall()) for condition in conditions]


def append(client: Client, name: str, snapshot_id: int, column: pa.Array, partition: tuple[object, ...]) -> None:
    """Append one file to a table."""
    base = client.load(name)
    file = write_file(client, base, str(snapshot_id), {1: column}, partition=partition)
    done = client.commit(client.append(base, snapshot_id, [file]), [assert_main(base["current-snapshot-id"])], name=name)
    assert done.status == 200, done.body


@pytest.mark.whole
def test_rows_that_clients_add_are_found_by_their_bucket(standing: Server, standing_lake: FreshLake) -> None:
    """To clients the spec stays; DuckDB takes the table for unpartitioned, and finds what it inserts afterwards too."""
    client, name = open_client(standing, standing_lake), make_table(standing_lake, "BIGINT", "range")
    before = client.load(name)
    [spec] = [spec for spec in before["partition-specs"] if spec["spec-id"] == before["default-spec-id"]]
    assert [field["transform"] for field in spec["fields"]] == ["bucket[4]"]
    append(client, name, 9_000_000_001, pa.array([7, 34], pa.int64()), (3,))
    assert count(standing_lake, name, "7") == [2, 2]
    assert count(standing_lake, name, "34") == [1, 1]
    session = standing_lake.duckdb()
    session.execute(f"INSERT INTO {name} SELECT 34 FROM range(20)")
    assert count(standing_lake, name, "34") == [21, 21]
    after = client.load(name)
    assert after["default-spec-id"] == before["default-spec-id"]
    assert spec in after["partition-specs"]
    append(client, name, 9_000_000_002, pa.array([34], pa.int64()), (3,))
    assert count(standing_lake, name, "34") == [22, 22]
    assert count(standing_lake, f"{name} AT (VERSION => {before['current-snapshot-id']})", "7") == [1, 1]


def test_rows_are_found_in_buckets_that_iceberg_does_not_know(standing: Server, standing_lake: FreshLake) -> None:
    """DuckLake's buckets of a UUID are not Iceberg's, so clients write files of no partition."""
    client, name = open_client(standing, standing_lake), make_table(standing_lake, "UUID", "uuid()")
    value = UUID(int=34)
    append(client, name, 9_000_000_001, pa.array([value.bytes], pa.binary(16)), ())
    assert count(standing_lake, name, f"'{value}'::UUID") == [1, 1]


def test_rows_that_a_rollback_brings_back_are_found(standing: Server, standing_lake: FreshLake) -> None:
    """Files that are older than the partitioning are hidden from DuckDB by itself; those that a client brings back are not."""
    client, name, session = open_client(standing, standing_lake), f"w{uuid4().hex}", standing_lake.duckdb()
    session.execute(f"CREATE TABLE {name} AS SELECT range AS x FROM range(20)")
    first = client.load(name)["current-snapshot-id"]
    session.execute(f"DELETE FROM {name}")
    session.execute(f"ALTER TABLE {name} SET PARTITIONED BY (bucket(4, x))")
    done = client.commit([set_ref("main", first, "branch")], name=name)
    assert done.status == 200, done.body
    assert count(standing_lake, name, "7") == [1, 1]


def test_deletes_of_clients_leave_buckets_alone(standing: Server, standing_lake: FreshLake) -> None:
    """A commit that brings no files changes nothing of DuckDB's partitioning."""
    client, name = open_client(standing, standing_lake), make_table(standing_lake, "BIGINT", "range")
    done = client.commit([{"action": "remove-snapshot-ref", "ref-name": "main"}], name=name)
    assert done.status == 200, done.body
    assert count(standing_lake, name, "7") == [0, 0]
    live = """SELECT count(*) FROM ducklake_partition_info p JOIN ducklake_table t USING (table_id)
               WHERE t.table_name = %s AND p.end_snapshot IS NULL"""
    assert standing_lake.psycopg().execute(live, [name]).fetchone() == (1,)
