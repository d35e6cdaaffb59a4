"""PyIceberg, unmodified, against the running catalog."""

from pyiceberg.table import StaticTable, Table

from tests.interop.orders.table import IDENT, INSERT_LAST, INSERT_MANY, INSERT_ONE, OPERATIONS, ROW_COUNTS, SNAPSHOTS, UPDATE_ONE, Orders
from tests.support.readers import Served


def load(orders: Orders) -> Table:
    """The table as PyIceberg loads it."""
    return orders.served.pyiceberg().catalog.load_table(IDENT)


def test_namespaces_and_tables_are_listed(orders: Orders) -> None:
    """What DuckDB made is what PyIceberg finds, and nothing else."""
    catalog = orders.served.pyiceberg().catalog
    assert sorted(catalog.list_namespaces()) == [("main",), ("shop",)]
    assert catalog.list_tables("shop") == [IDENT]
    assert catalog.list_tables("main") == []
    assert catalog.table_exists(IDENT)
    assert not catalog.table_exists(("shop", "nothing"))


def test_time_travel_shows_every_snapshot(orders: Orders) -> None:
    """Each snapshot has the rows and the columns of its time."""
    table = load(orders)
    assert {snapshot_id: len(table.scan(snapshot_id=snapshot_id).to_arrow()) for snapshot_id in SNAPSHOTS} == ROW_COUNTS
    assert table.scan(snapshot_id=UPDATE_ONE).to_arrow().column_names == ["id", "item", "price"]
    assert table.scan().to_arrow().column_names == ["id", "item", "price", "note"]


def test_filters_find_rows_in_files_and_inlined_ones(orders: Orders) -> None:
    """Pruning by bounds loses nothing."""
    table = load(orders)
    assert table.scan("id = 50").to_arrow()["item"].to_pylist() == ["changed"]
    assert table.scan("id = 100").to_arrow()["item"].to_pylist() == ["extra"]
    assert table.scan("id = 5").to_arrow().num_rows == 0
    assert table.scan("id >= 98 AND id < 102").to_arrow().num_rows == 4
    assert table.scan("price IS NULL").to_arrow()["id"].to_pylist() == [100]


def test_snapshots_and_history_tell_what_happened(orders: Orders) -> None:
    """inspect.snapshots() and inspect.history() list the table's snapshots in order, each with its parent."""
    table = load(orders)
    snapshots = table.inspect.snapshots().to_pylist()
    assert [row["snapshot_id"] for row in snapshots] == SNAPSHOTS
    assert [row["parent_id"] for row in snapshots] == [None, *SNAPSHOTS[:-1]]
    assert [row["operation"] for row in snapshots] == OPERATIONS
    history = table.inspect.history().to_pylist()
    assert [row["snapshot_id"] for row in history] == SNAPSHOTS
    assert all(row["is_current_ancestor"] for row in history)
    assert [row["made_current_at"] for row in history] == [row["committed_at"] for row in snapshots]


def test_summaries_count_rows_and_files(orders: Orders) -> None:
    """A summary says what its snapshot added and what there is in all."""
    summaries = {row["snapshot_id"]: dict(row["summary"]) for row in load(orders).inspect.snapshots().to_pylist()}
    assert summaries[INSERT_MANY]["added-records"] == "100"
    assert summaries[INSERT_ONE]["added-records"] == "1"
    assert summaries[INSERT_ONE]["total-records"] == "101"
    last = summaries[INSERT_LAST]
    assert int(last["total-records"]) - int(last["total-position-deletes"]) == ROW_COUNTS[INSERT_LAST]


def test_refs_name_the_newest_snapshot(orders: Orders) -> None:
    """main is the current snapshot."""
    refs = load(orders).inspect.refs().to_pylist()
    assert [(row["name"], row["type"], row["snapshot_id"]) for row in refs] == [("main", "BRANCH", INSERT_LAST)]


def test_entries_and_files_add_up(orders: Orders) -> None:
    """The rows of the live files less the deleted positions are the rows of the table."""
    table = load(orders)
    files = table.inspect.files().to_pylist()
    rows = sum(row["record_count"] for row in files if row["content"] == 0)
    deleted = sum(row["record_count"] for row in files if row["content"] == 1)
    assert rows - deleted == ROW_COUNTS[INSERT_LAST]
    entries = [row for row in table.inspect.entries().to_pylist() if row["status"] < 2]
    assert sorted(row["data_file"]["file_path"] for row in entries) == sorted(row["file_path"] for row in files)
    assert {row["snapshot_id"] for row in entries} <= set(SNAPSHOTS)


def test_bounds_are_readable(orders: Orders) -> None:
    """The first file's metrics are those of the numbers 0 to 99."""
    files = load(orders).inspect.data_files().to_pylist()
    first = next(row["readable_metrics"]["id"] for row in files if row["record_count"] == 100)
    assert (first["lower_bound"], first["upper_bound"], first["null_value_count"], first["value_count"]) == (0, 99, 0, 100)


def test_manifests_count_their_files(orders: Orders) -> None:
    """inspect.manifests() agrees with inspect.entries()."""
    table = load(orders)
    manifests = table.inspect.manifests().to_pylist()
    live = sum(row["added_data_files_count"] + row["existing_data_files_count"] for row in manifests)
    live += sum(row["added_delete_files_count"] + row["existing_delete_files_count"] for row in manifests)
    assert live == sum(row["status"] < 2 for row in table.inspect.entries().to_pylist())


def test_partitions_are_true(served: Served) -> None:
    """inspect.partitions() has one line per value, with its rows."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE visits (id BIGINT, day DATE, place VARCHAR)")
    conn.execute("ALTER TABLE visits SET PARTITIONED BY (place)")
    conn.execute("INSERT INTO visits SELECT i, DATE '2024-01-01' + i::INTEGER, ['a b', 'ü/%', NULL][i % 3 + 1] FROM range(60) t(i)")
    table = served.pyiceberg().catalog.load_table(("main", "visits"))
    partitions = {row["partition"]["place"]: row["record_count"] for row in table.inspect.partitions().to_pylist()}
    assert partitions == {"a b": 20, "ü/%": 20, None: 20}
    planned = list(table.scan("place = 'a b'").plan_files())
    assert len(planned) == 1
    assert table.scan("place = 'ü/%'").to_arrow().num_rows == 20


def test_metadata_files_are_readable_without_the_catalog(orders: Orders) -> None:
    """The metadata location holds what the catalog answered; the log names its forerunners, all readable."""
    table = load(orders)
    alone = StaticTable.from_metadata(table.metadata_location, table.io.properties)
    assert alone.metadata == table.metadata
    assert alone.scan().to_arrow().num_rows == ROW_COUNTS[INSERT_LAST]
    for entry in table.metadata.metadata_log:
        assert StaticTable.from_metadata(entry.metadata_file, table.io.properties).metadata.table_uuid == table.metadata.table_uuid


def test_refresh_shows_the_next_commit(own_orders: Orders) -> None:
    """After DuckDB's COMMIT returns, a refresh shows it."""
    table = load(own_orders)
    own_orders.served.lake.duckdb().execute("INSERT INTO shop.orders VALUES (500, 'new', 1, NULL)")
    assert table.refresh().scan("id = 500").to_arrow().num_rows == 1
    assert table.metadata.current_snapshot_id == INSERT_LAST + 1
