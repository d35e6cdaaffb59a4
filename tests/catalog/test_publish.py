"""What a load publishes, derived from rows and notes alone."""

import json

import pytest

from duckicelake.catalog.tables import LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchTable, NotFound, Unsupported
from duckicelake.store.s3 import S3Bucket
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, ids_by_duckdb, ids_by_iceberg, load, open_static
from tests.support.lakes import FreshLake

MANY = "SELECT i AS id, 's' || i AS name FROM range({}, {}) r(i)"
HISTORY = [
    "CREATE TABLE t (id BIGINT, name VARCHAR)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
    f"INSERT INTO t {MANY.format(10, 100)}",
    "UPDATE t SET name = 'zwei' WHERE id = 2",
    "DELETE FROM t WHERE id IN (1, 11)",
    "DELETE FROM t WHERE id BETWEEN 20 AND 60",
    "DELETE FROM t WHERE id BETWEEN 61 AND 80",
    f"INSERT INTO t {MANY.format(200, 220)}",
    "ALTER TABLE t ADD COLUMN c INTEGER",
    "INSERT INTO t VALUES (300, 'c', 3)",
    "DELETE FROM t WHERE id >= 200 AND id < 220",
]
MAINTENANCE = [
    "CALL ducklake_flush_inlined_data('lake')",
    f"INSERT INTO t (id, name) {MANY.format(400, 420)}",
    f"INSERT INTO t (id, name) {MANY.format(500, 520)}",
    "CALL ducklake_merge_adjacent_files('lake')",
    "DELETE FROM t WHERE id < 510",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
    "INSERT INTO t (id) VALUES (600)",
    "CALL ducklake_expire_snapshots('lake', versions => [3, 5])",
    "INSERT INTO t (id) VALUES (601)",
]


def test_every_snapshot_has_the_rows_duckdb_sees(lake: FreshLake, warehouse: Warehouse) -> None:
    """The law, after every statement and at every snapshot so far."""
    conn = lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    table = check_every_snapshot(lake, conn, load(warehouse))
    assert [s.summary.operation.value for s in table.metadata.snapshots if s.summary] == [
        "append",
        "append",
        "overwrite",
        "delete",
        "delete",
        "delete",
        "append",
        "append",
        "delete",
    ]


def test_a_load_holds_no_connection_while_it_writes_objects(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow store would otherwise use up the pool of Postgres connections."""
    idle: list[bool] = []
    write = S3Bucket.put_new

    def write_and_count(store: S3Bucket, key: str, content: bytes) -> bool:
        statistics = warehouse.lake.pool.get_stats()
        idle.append(statistics["pool_available"] == statistics["pool_size"])
        return write(store, key, content)

    monkeypatch.setattr(S3Bucket, "put_new", write_and_count)
    conn = lake.duckdb()
    for statement in HISTORY[:5]:
        conn.execute(statement)
        load(warehouse)
    assert len(idle) > 5
    assert all(idle)


@pytest.mark.whole
def test_maintenance_changes_no_rows(lake: FreshLake, warehouse: Warehouse) -> None:
    """Flush, merge, rewrite and expiry rewrite how the past is stored, never what it holds."""
    conn = lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    for statement in MAINTENANCE:
        conn.execute(statement)
        check_every_snapshot(lake, conn, load(warehouse))


@pytest.mark.whole
def test_going_on_equals_starting_over(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A server that saw every step and one that sees only the last publish the same metadata, byte for byte."""
    conn = lake.duckdb()
    for statement in [*HISTORY, *MAINTENANCE]:
        conn.execute(statement)
        seen = load(warehouse)
        fresh = load(open_server(lake))
        assert fresh.metadata_location == seen.metadata_location
        assert fresh.metadata == seen.metadata


@pytest.mark.whole
def test_published_objects_are_disposable(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """Delete them all and load again: every answer is as before, and readable."""
    conn = lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    before = load(warehouse)
    for uri, _ in list(warehouse.objects.list_under(lake.iceberg_path)):
        warehouse.objects.delete(uri)
    after = load(open_server(lake))
    assert (after.metadata_location, after.metadata) == (before.metadata_location, before.metadata)
    check_every_snapshot(lake, conn, after)


def test_a_load_shows_the_commit_before_it_through_any_server(lake: FreshLake, open_server: Opener) -> None:
    """alice loads through one server, bob through another; both see what DuckDB has committed."""
    conn = lake.duckdb()
    conn.execute(HISTORY[0])
    alice, bob = open_server(lake), open_server(lake)
    for number in range(5):
        conn.execute(f"INSERT INTO t VALUES ({number}, 'x')")
        for server in (alice, bob):
            assert ids_by_iceberg(open_static(lake, load(server))) == list(range(number + 1))


def test_the_current_snapshot_is_the_lake_snapshot(lake: FreshLake, warehouse: Warehouse) -> None:
    """Its id is that of the lake snapshot that last changed the rows; a change of columns moves nothing."""
    conn = lake.duckdb()
    for statement in HISTORY[:3]:
        conn.execute(statement)
    metadata = parse(load(warehouse))
    assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"] == 3
    assert metadata["properties"]["ducklake.snapshot-id"] == "3"
    conn.execute("ALTER TABLE t ADD COLUMN extra INTEGER")
    conn.execute("COMMENT ON TABLE t IS 'a table'")
    conn.execute("CREATE TABLE other (i INTEGER)")
    after = parse(load(warehouse))
    assert after["current-snapshot-id"] == 3
    assert after["properties"]["comment"] == "a table"
    assert after["current-schema-id"] == 1
    assert [s["sequence-number"] for s in after["snapshots"]] == [2, 3]


def test_metadata_versions_are_dense_and_the_hint_follows(lake: FreshLake, warehouse: Warehouse) -> None:
    """Path readers find v1, v2, … without a gap, the log names them, and the hint names the newest."""
    conn = lake.duckdb()
    conn.execute(HISTORY[0])
    locations = [load(warehouse).metadata_location or ""]
    for statement in HISTORY[1:4]:
        conn.execute(statement)
        locations.append(load(warehouse).metadata_location or "")
        assert load(warehouse).metadata_location == locations[-1]
    assert [location.rsplit("/", 1)[1] for location in locations] == [f"v{n}.metadata.json" for n in range(1, 5)]
    log = parse(load(warehouse))["metadata-log"]
    assert [entry["metadata-file"] for entry in log] == locations[:-1]
    hint = locations[0].replace("v1.metadata.json", "version-hint.text")
    assert warehouse.objects.read(hint) == b"4"


def test_a_replaced_table_is_another_table(lake: FreshLake, warehouse: Warehouse) -> None:
    """Drop and create under the old name: another uuid, another location, nothing of the old one."""
    conn = lake.duckdb()
    for statement in HISTORY[:3]:
        conn.execute(statement)
    old = parse(load(warehouse))
    conn.execute("DROP TABLE t")
    with pytest.raises(NoSuchTable, match=r"main\.t"):
        load(warehouse)
    conn.execute("CREATE TABLE t (id VARCHAR)")
    conn.execute("INSERT INTO t VALUES ('new')")
    new = load(warehouse)
    assert parse(new)["table-uuid"] != old["table-uuid"]
    assert parse(new)["location"] != old["location"]
    assert ids_by_iceberg(open_static(lake, new)) == ["new"]


@pytest.mark.whole
def test_a_renamed_table_keeps_its_place(lake: FreshLake, warehouse: Warehouse) -> None:
    """Rename, then create another under the old name: uuids, locations and rows stay with their tables."""
    conn = lake.duckdb()
    for statement in HISTORY[:3]:
        conn.execute(statement)
    before = parse(load(warehouse))
    conn.execute("ALTER TABLE t RENAME TO renamed")
    conn.execute("CREATE TABLE t (id INTEGER)")
    conn.execute("INSERT INTO t VALUES (7)")
    renamed = load(warehouse, "renamed")
    assert [parse(renamed)[key] for key in ("table-uuid", "location")] == [before[key] for key in ("table-uuid", "location")]
    assert ids_by_iceberg(open_static(lake, load(warehouse))) == [7]
    assert len(ids_by_iceberg(open_static(lake, renamed))) == 92


def test_a_table_whose_last_change_expired_still_has_it(lake: FreshLake, warehouse: Warehouse) -> None:
    """The current snapshot keeps the id of the last change, although DuckDB can no longer travel to it."""
    conn = lake.duckdb()
    for statement in HISTORY[:5]:
        conn.execute(statement)
    conn.execute("CREATE TABLE other (i INTEGER)")
    conn.execute("CALL ducklake_expire_snapshots('lake', versions => [2, 3, 4, 5])")
    table = open_static(lake, load(warehouse))
    assert [s.snapshot_id for s in table.metadata.snapshots] == [5]
    assert ids_by_iceberg(table) == ids_by_duckdb(conn, 6)


def test_unpublished_things_are_refused_by_name_and_the_remedy_works(lake: FreshLake, warehouse: Warehouse) -> None:
    """One bad column: the message names it, its type and what to do; doing that publishes the table."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, big UBIGINT)")
    conn.execute("INSERT INTO t VALUES (1, 18446744073709551615)")
    with pytest.raises(Unsupported, match=r"'big'.*'uint64'.*DECIMAL\(20, 0\)"):
        load(warehouse)
    conn.execute("ALTER TABLE t ADD COLUMN big2 DECIMAL(20, 0)")
    conn.execute("UPDATE t SET big2 = big")
    conn.execute("ALTER TABLE t DROP COLUMN big")
    assert str(open_static(lake, load(warehouse)).scan().to_arrow().column("big2")[0]) == "18446744073709551615"


def test_an_added_default_counts_for_older_rows(lake: FreshLake, warehouse: Warehouse) -> None:
    """It needs format version 3, where deletes are deletion vectors and row ids go on."""
    conn = lake.duckdb()
    for statement in HISTORY[:6]:
        conn.execute(statement)
    conn.execute("ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 7")
    conn.execute("INSERT INTO t VALUES (500, 'x', 8)")
    table = check_every_snapshot(lake, conn, load(warehouse))
    assert table.metadata.format_version == 3
    found = sorted(map(str, table.scan().to_arrow().column("d").to_pylist()))
    assert found == sorted(str(row[0]) for row in conn.execute("SELECT d FROM t").fetchall())
    assert {"7", "8"} == set(found)


def test_a_vanished_file_is_named(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A delete file removed behind our back: the answer says which object is missing."""
    conn = lake.duckdb()
    for statement in [*HISTORY[:3], "DELETE FROM t WHERE id BETWEEN 20 AND 60"]:
        conn.execute(statement)
    (uri,) = [uri for uri, _ in warehouse.objects.list_under(lake.data_path) if uri.endswith("-delete.parquet")]
    warehouse.objects.delete(uri)
    with pytest.raises(NotFound, match="-delete.parquet"):
        load(open_server(lake))


def test_a_lake_on_local_files(local_lake: FreshLake, open_server: Opener) -> None:
    """Without S3: paths become file URIs, and a reader of paths reads them."""
    conn = local_lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    loaded = load(open_server(local_lake))
    assert str(loaded.metadata_location).startswith("file:///")
    check_every_snapshot(local_lake, conn, loaded)


def parse(loaded: LoadedTable) -> dict:
    """Return the loaded metadata as JSON."""
    return json.loads(loaded.metadata)
