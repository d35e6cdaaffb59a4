"""Spark with Iceberg's own runtime, unmodified, against the running catalog."""

from typing import Any

import pytest

from tests.interop.orders.table import IDENT, INSERT_LAST, INSERT_MANY, OPERATIONS, ROW_COUNTS, SNAPSHOTS, UPDATE_ONE, Orders, fill_orders
from tests.support.readers import Served, SparkReader
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def reader(orders: Orders, spark: Spark) -> SparkReader:
    """Spark in front of the filled table."""
    return orders.served.spark(spark)


def column(reader: SparkReader, sql: str, name: str) -> list[Any]:
    """One column of a query over the table, which is written `{t}`."""
    return reader.spark.arrow(sql.format(t=reader.sql_name(IDENT)))[name].to_pylist()


@pytest.mark.long
def test_namespaces_and_tables_are_listed(reader: SparkReader) -> None:
    """SHOW NAMESPACES and SHOW TABLES find what DuckDB made."""
    assert reader.spark.arrow(f"SHOW NAMESPACES IN {reader.catalog}")["namespace"].to_pylist() == ["main", "shop"]
    assert reader.spark.arrow(f"SHOW TABLES IN {reader.catalog}.shop")["tableName"].to_pylist() == ["orders"]


@pytest.mark.long
def test_version_as_of_shows_every_snapshot(reader: SparkReader) -> None:
    """VERSION AS OF shows the rows and columns of that snapshot."""
    assert {snapshot_id: len(reader.read(IDENT, snapshot_id)) for snapshot_id in SNAPSHOTS} == ROW_COUNTS
    assert reader.read(IDENT, UPDATE_ONE).column_names == ["id", "item", "price"]
    assert reader.read(IDENT).column_names == ["id", "item", "price", "note"]


@pytest.mark.long
def test_filters_find_rows_in_files_and_inlined_ones(reader: SparkReader) -> None:
    """Pruning by bounds loses nothing."""
    assert column(reader, "SELECT item FROM {t} WHERE id = 50", "item") == ["changed"]
    assert column(reader, "SELECT id FROM {t} WHERE price IS NULL", "id") == [100]
    assert column(reader, "SELECT id FROM {t} WHERE id < 20", "id") == []


@pytest.mark.long
def test_snapshots_and_history_tell_what_happened(reader: SparkReader) -> None:
    """The metadata tables list the table's snapshots in order, each with its parent."""
    assert column(reader, "SELECT * FROM {t}.snapshots ORDER BY committed_at, snapshot_id", "snapshot_id") == SNAPSHOTS
    assert column(reader, "SELECT * FROM {t}.snapshots ORDER BY committed_at, snapshot_id", "operation") == OPERATIONS
    assert column(reader, "SELECT * FROM {t}.history ORDER BY made_current_at, snapshot_id", "parent_id") == [None, *SNAPSHOTS[:-1]]
    assert column(reader, "SELECT * FROM {t}.refs", "snapshot_id") == [INSERT_LAST]


@pytest.mark.long
def test_entries_files_and_manifests_add_up(reader: SparkReader) -> None:
    """Live rows less deleted positions are the rows of the table, in every metadata table."""
    files = reader.spark.arrow(f"SELECT content, record_count, file_path FROM {reader.sql_name(IDENT)}.files").to_pylist()
    rows = sum(row["record_count"] if row["content"] == 0 else -row["record_count"] for row in files)
    assert rows == ROW_COUNTS[INSERT_LAST]
    paths = column(reader, "SELECT data_file.file_path AS path FROM {t}.entries WHERE status < 2", "path")
    assert sorted(map(str, paths)) == sorted(row["file_path"] for row in files)
    live = "added_data_files_count + existing_data_files_count + added_delete_files_count + existing_delete_files_count"
    assert column(reader, f"SELECT sum({live}) AS live FROM {{t}}.manifests", "live") == [len(files)]


def test_bounds_are_readable(reader: SparkReader) -> None:
    """The first file's metrics are those of the numbers 0 to 99."""
    metrics = "readable_metrics.id"
    query = f"SELECT {metrics}.lower_bound AS low, {metrics}.upper_bound AS high FROM {{t}}.data_files WHERE record_count = 100"
    assert (column(reader, query, "low"), column(reader, query, "high")) == ([0], [99])


@pytest.mark.long
def test_incremental_read_gives_the_inserted_rows(reader: SparkReader) -> None:
    """Between the first snapshot and the last, appends added three rows."""
    frame = reader.spark.session.read.option("start-snapshot-id", INSERT_MANY).option("end-snapshot-id", INSERT_LAST)
    table = reader.spark.collect(frame.table, reader.sql_name(IDENT))
    assert sorted(map(str, table["id"].to_pylist())) == ["100", "101", "102"]


@pytest.mark.long
def test_table_folder_is_readable_by_path(served_locally: Served, spark: Spark) -> None:
    """Spark's own path reader finds the newest metadata in the table's folder, without a catalog."""
    fill_orders(served_locally)
    location = served_locally.pyiceberg().catalog.load_table(IDENT).location()
    rows = spark.collect(spark.session.read.format("iceberg").load, location)
    assert len(rows) == ROW_COUNTS[INSERT_LAST]


def test_partitioned_tables_lose_no_row(served: Served, spark: Spark) -> None:
    """Pruning over calendar partitions finds what DuckLake finds."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE visits (id BIGINT, moment TIMESTAMP, place VARCHAR)")
    conn.execute("ALTER TABLE visits SET PARTITIONED BY (year(moment), month(moment), day(moment))")
    conn.execute("INSERT INTO visits SELECT i, TIMESTAMP '1969-12-30' + INTERVAL (i * 5) HOUR, 'p' || i % 5 FROM range(40) t(i)")
    reader = served.spark(spark)
    for where in ("moment = TIMESTAMP_NTZ '1970-01-01 02:00:00'", "moment < TIMESTAMP_NTZ '1970-01-01 00:00:00'", "place = 'p3'"):
        found = spark.arrow(f"SELECT id FROM {reader.sql_name(('main', 'visits'))} WHERE {where} ORDER BY id")["id"].to_pylist()
        expected = conn.execute(f"SELECT id FROM visits WHERE {where.replace('TIMESTAMP_NTZ', 'TIMESTAMP')} ORDER BY id").fetchall()
        assert found == [key for (key,) in expected]
        assert found
