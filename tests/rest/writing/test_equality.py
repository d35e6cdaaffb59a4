"""Equality deletes: rows that equal those of a file are deleted, by position, wherever DuckLake has them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from duckicelake.iceberg.manifest import EQUALITY_DELETES, DataFile
from duckicelake.store.s3 import S3Bucket
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, read_rows, set_ref, write_file
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after, whole_but


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake without tables."""
    return open_client(server, lake)


def write_deletes(client: Client, metadata: Any, columns: Mapping[int, Any], **more: Any) -> DataFile:
    """An equality-delete file of rows of these columns."""
    equality = {"content": EQUALITY_DELETES, "equality_ids": tuple(columns)}
    return write_file(client, metadata, f"deletes-{len(columns)}-{id(columns)}", columns, **equality | more)


def delete(client: Client, columns: Mapping[int, Any], **more: Any) -> Answer:
    """Delete rows of main.t by equality."""
    base = client.load()
    updates = client.append(base, 9_000_000_001, [], [write_deletes(client, base, columns, **more)])
    return client.commit(updates, [assert_main(base["current-snapshot-id"])])


def ids_everywhere(lake: FreshLake, server: Server) -> list[int]:
    """The ids that are left, the same for DuckDB and PyIceberg."""
    ducks = [row[0] for row in lake.duckdb().execute("SELECT id FROM t ORDER BY 1").fetchall()]
    served = Served(lake, server).pyiceberg().catalog.load_table("main.t").scan().to_arrow()
    assert sorted(served.column("id").to_pylist()) == ducks
    return ducks


HISTORY = [
    "CREATE TABLE t (id INTEGER, name VARCHAR)",
    "INSERT INTO t SELECT i, CASE WHEN i % 2 = 0 THEN 'even' END FROM range(20) r(i)",
    "ALTER TABLE t ADD COLUMN day DATE DEFAULT '2026-01-02'",
    "INSERT INTO t VALUES (20, 'inlined', NULL), (21, NULL, NULL), (22, NULL, DATE '2026-01-02')",
    "ALTER TABLE t RENAME name TO label",
    "ALTER TABLE t ALTER id TYPE BIGINT",
    "INSERT INTO t SELECT i, NULL, NULL FROM range(30, 50) r(i)",
    "DELETE FROM t WHERE id IN (0, 31, 22)",
]
COUNT_OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
LEFT = sorted({*range(1, 22), *range(30, 50)} - {31})


@pytest.mark.parametrize(
    ("columns", "gone"),
    whole_after(
        1,
        whole_but(
            [
                pytest.param({1: pa.array([1, 20, 40, 99])}, {1, 20, 40}, id="one column, promoted"),
                pytest.param({1: pa.array([1, 20], pa.int32())}, {1, 20}, id="written as it was"),
                pytest.param(
                    {2: pa.array([None], pa.string())}, {i for i in LEFT if i in (21,) or i >= 30 or (i < 20 and i % 2)}, id="null"
                ),
                pytest.param({2: pa.array(["even", None]), 1: pa.array([4, 5])}, {4, 5}, id="two columns"),
                pytest.param({2: pa.array(["even", None]), 1: pa.array([5, 4])}, set(), id="no such pair", marks=pytest.mark.long),
                pytest.param({3: pa.array([20455], pa.date32())}, {i for i in LEFT if i < 20}, id="default of older rows"),
                pytest.param(
                    {3: pa.array([None], pa.date32())}, {i for i in LEFT if i >= 20}, id="null of newer rows", marks=pytest.mark.long
                ),
            ],
            "one column, promoted",
            "two columns",
        ),
    ),
)
def test_rows_that_equal_a_key_are_deleted(client: Client, lake: FreshLake, server: Server, columns: Any, gone: set[int]) -> None:
    """In files, inlined rows and files older than the column, under its newest name and type; NULL equals NULL."""
    conn = lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    before = conn.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()[0][0]
    done = delete(client, columns)
    assert done.status == 200, done.json
    assert ids_everywhere(lake, server) == sorted(set(LEFT) - gone)
    assert [row[0] for row in lake.duckdb().execute(f"SELECT id FROM t AT (VERSION => {before}) ORDER BY 1").fetchall()] == LEFT
    conn.execute("CALL ducklake_flush_inlined_data('lake')")
    conn.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert ids_everywhere(lake, server) == sorted(set(LEFT) - gone)


def test_no_transaction_waits_for_the_delete_files(
    client: Client, lake: FreshLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow store would otherwise use up the connections to Postgres."""
    conn, put_new = lake.duckdb(), S3Bucket.put_new
    for statement in HISTORY:
        conn.execute(statement)
    conn.close()
    client.load()
    open_: list[int] = []

    def count_and_put(bucket: S3Bucket, key: str, content: bytes) -> bool:
        if "/data/ducklake-" in key:
            with psycopg.connect(lake.dsn, autocommit=True) as postgres:
                [(count,)] = postgres.execute(COUNT_OPEN).fetchall()
            open_.append(count)
        return put_new(bucket, key, content)

    monkeypatch.setattr(S3Bucket, "put_new", count_and_put)
    done = delete(client, {1: pa.array([1, 20, 40])})
    assert (done.status, set(open_)) == (200, {0}), done.json


def test_the_summary_tells_of_the_positions_that_there_are(client: Client, lake: FreshLake) -> None:
    """Nobody finds equality deletes in the table afterwards."""
    lake.duckdb().execute(HISTORY[0])
    lake.duckdb().execute(HISTORY[1])
    assert delete(client, {1: pa.array([1, 2])}).status == 200
    summary = client.load()["snapshots"][-1]["summary"]
    assert (summary["mine"], summary["total-equality-deletes"], summary["total-position-deletes"]) == ("yes", "0", "2")


def test_files_that_cannot_hold_such_rows_are_not_read(client: Client, lake: FreshLake, server: Server) -> None:
    """Their bounds say so: they might as well be missing; a file that may hold one and is missing refuses the commit."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER)")
    for start in (0, 100, 200):
        conn.execute(f"INSERT INTO t SELECT i FROM range({start}, {start + 50}) r(i)")
    [(lost,)] = conn.execute("SELECT data_file FROM ducklake_list_files('lake', 't') ORDER BY 1 LIMIT 1").fetchall()
    [(low,)] = conn.execute("SELECT min(id) FROM t WHERE filename = ?", [lost]).fetchall()
    client.objects.delete(lost)
    client.load()
    rows = read_rows(lake)
    assert delete(client, {1: pa.array([low + 1])}).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    done = delete(client, {1: pa.array([start + 1 for start in (0, 100, 200) if start != low])})
    assert done.status == 200, done.json


def test_rows_of_the_same_snapshot_stay(client: Client, lake: FreshLake, server: Server) -> None:
    """An upsert deletes the older row and adds the newer; in a request of two, the second deletes from the first."""
    client.create()
    base = client.load()
    first = client.add(base, 9_000_000_001, [write_file(client, base, "a", {1: pa.array([1, 2]), 2: pa.array(["a", "b"])})])
    keys = write_deletes(client, base, {1: pa.array([2])})
    upserted = write_file(client, base, "b", {1: pa.array([2, 3]), 2: pa.array(["new", "c"])})
    second = client.add(base, 9_000_000_002, [upserted], [keys], parent=first)
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 9_000_000_002}
    adding = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    assert client.commit([*adding, ref], [assert_main(None)]).status == 200
    assert ids_everywhere(lake, server) == [1, 2, 3]
    assert lake.duckdb().execute("SELECT name FROM t WHERE id = 2").fetchall() == [("new",)]


def test_deletes_of_a_partition_stay_in_it(client: Client, lake: FreshLake, server: Server) -> None:
    """Deletes written for one partition say nothing of the others."""
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}]}
    client.create(**{"partition-spec": spec})
    base = client.load()
    files = [
        write_file(client, base, name, {1: pa.array([1, number]), 2: pa.array([name, name])}, partition=(name,))
        for number, name in ((2, "x"), (3, "y"))
    ]
    assert client.commit(client.append(base, 9_000_000_001, files), [assert_main(None)]).status == 200
    base = client.load()
    keys = write_deletes(client, base, {1: pa.array([1])}, partition=("x",))
    assert client.commit(client.append(base, 9_000_000_002, [], [keys])).status == 200
    assert ids_everywhere(lake, server) == [1, 2, 3]


@pytest.mark.whole
def test_two_snapshots_of_a_request_delete_from_a_file_with_inlined_deletes(client: Client, lake: FreshLake, server: Server) -> None:
    """Of what DuckDB had deleted, older snapshots know once, and of what the first one deletes, the first one."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM range(20) r(i)")
    conn.execute("DELETE FROM t WHERE id = 11")
    [(before,)] = conn.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
    base = client.load()
    first = client.add(base, 9_000_000_001, [], [write_deletes(client, base, {1: pa.array([12])})])
    second = client.add(base, 9_000_000_002, [], [write_deletes(client, base, {1: pa.array([13])})], parent=first)
    adding = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    done = client.commit([*adding, set_ref("main", 9_000_000_002, "branch")], [assert_main(before)])
    assert done.status == 200, done.json
    iceberg = Served(lake, server).pyiceberg().catalog.load_table("main.t")
    for snapshot_id, gone in ((before, {11}), (before + 1, {11, 12}), (before + 2, {11, 12, 13})):
        rows = lake.duckdb().execute(f"SELECT id FROM t AT (VERSION => {snapshot_id}) ORDER BY 1").fetchall()
        assert [row[0] for row in rows] == sorted(set(range(20)) - gone)
        assert sorted(iceberg.scan(snapshot_id=snapshot_id).to_arrow().column("id").to_pylist()) == [row[0] for row in rows]


def test_deletes_under_a_spec_of_void_fields_alone_count_everywhere(client: Client, lake: FreshLake, server: Server) -> None:
    """Such a spec is none: what is written under it says nothing of partitions."""
    field = {"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}
    client.create(**{"partition-spec": {"spec-id": 0, "fields": [field]}})
    base = client.load()
    files = [write_file(client, base, "x", {1: pa.array([1, 2]), 2: pa.array(["x", "x"])}, partition=("x",))]
    assert client.commit(client.append(base, 9_000_000_001, files), [assert_main(None)]).status == 200
    spec = {"spec-id": 1, "fields": [field | {"transform": "void"}]}
    assert client.commit([{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]).status == 200
    base = client.load()
    keys = write_deletes(client, base, {1: pa.array([1])}, partition=(None,))
    assert client.commit(client.append(base, 9_000_000_002, [], [keys])).status == 200
    assert ids_everywhere(lake, server) == [2]


def test_partitions_of_nan_infinity_and_either_zero_are_four(client: Client, lake: FreshLake, server: Server) -> None:
    """As Java compares them: NaN is itself, and the two zeros are not one."""
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}, {"id": 2, "name": "ratio", "required": False, "type": "double"}]
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "ratio", "transform": "identity"}]}
    assert client.create(schema={"type": "struct", "schema-id": 0, "fields": fields}, **{"partition-spec": spec}).status == 200
    base, values = client.load(), (float("nan"), 0.0, -0.0, float("-inf"))
    files = [
        write_file(client, base, f"r{place}", {1: pa.array([place, 10 + place]), 2: pa.array([value, value])}, partition=(value,))
        for place, value in enumerate(values)
    ]
    assert client.commit(client.append(base, 9_000_000_001, files), [assert_main(None)]).status == 200
    base = client.load()
    keys = [write_deletes(client, base, {1: pa.array([0, 1, 2, 3])}, partition=(value,)) for value in values[:2]]
    assert client.commit(client.append(base, 9_000_000_002, [], keys)).status == 200
    assert ids_everywhere(lake, server) == [2, 3, 10, 11, 12, 13]
    with serve(make_settings(lake)) as other:
        assert ids_everywhere(lake, other) == [2, 3, 10, 11, 12, 13]


COLUMNS = "id INTEGER, name VARCHAR, ratio DOUBLE, tags INTEGER[]"


@pytest.mark.parametrize(
    ("ids", "more", "said"),
    [
        pytest.param([3], {}, "no equality", id="floating point"),
        pytest.param([5], {}, "outside lists", id="in a list"),
        pytest.param([99], {}, "no column of the table", id="unknown column"),
        pytest.param([], {}, "equality_ids", id="no column"),
        pytest.param([2], {}, "field id 2", id="not in the file"),
        pytest.param([1], {"file_format": "AVRO"}, "AVRO", id="Avro"),
        pytest.param([1], {"record_count": 2_000_000}, "2000000 rows", id="too many"),
        pytest.param([1], {"file_path": "s3://lake/elsewhere/x.parquet"}, "does not lie in", id="elsewhere"),
    ],
)
def test_deletes_that_cannot_be_taken_change_nothing(
    client: Client, lake: FreshLake, ids: Sequence[int], more: dict[str, Any], said: str
) -> None:
    """By 400 that says why."""
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t ({COLUMNS})")
    conn.execute("INSERT INTO t SELECT i, 'n', 1.5, [i] FROM range(20) r(i)")
    base, rows = client.load(), read_rows(lake)
    keys = replace(write_deletes(client, base, {1: pa.array([1])}), equality_ids=tuple(ids), **more)
    refused = client.commit(client.append(base, 9_000_000_001, [], [keys]))
    assert refused.error == (400, "BadRequestException")
    assert said in refused.json["error"]["message"]
    assert read_rows(lake) == rows
