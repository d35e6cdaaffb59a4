"""Readers that know no catalog, only where a table lies."""

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from tests.interop.rich_lake import RichLake
from tests.support.readers import PyIcebergReader
from tests.support.spark import Spark
from tests.support.tiers import long_after, whole_after

NAMES = ["trips", "visits", "measures"]


def locate(reader: PyIcebergReader, name: str) -> tuple[str, str]:
    """Where a table and its current metadata file lie."""
    table = reader.catalog.load_table(("main", name))
    return table.location(), table.metadata_location


@pytest.mark.whole
@pytest.mark.parametrize("name", long_after(1, NAMES))
def test_a_metadata_file_is_a_table(rich: RichLake, pyiceberg: PyIcebergReader, name: str) -> None:
    """PyIceberg's StaticTable and DuckDB's iceberg_scan read it, at head and at a snapshot."""
    _, metadata_file = locate(pyiceberg, name)
    expected = rich.truth.read(("main", name))
    table = StaticTable.from_metadata(metadata_file, pyiceberg.catalog.properties)
    rich.check_same(expected, table.scan().to_arrow())
    conn = rich.served.lake.bare_duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    rich.check_same(expected, conn.execute(f"FROM iceberg_scan('{metadata_file}')").to_arrow_table())
    snapshot_id = table.snapshots()[1].snapshot_id
    expected = rich.truth.read(("main", name), snapshot_id)
    rich.check_same(expected, table.scan(snapshot_id=snapshot_id).to_arrow())
    rich.check_same(expected, conn.execute(f"FROM iceberg_scan('{metadata_file}', snapshot_from_id => {snapshot_id})").to_arrow_table())


@pytest.mark.parametrize("name", whole_after(1, NAMES))
def test_a_location_is_a_table(rich: RichLake, pyiceberg: PyIcebergReader, name: str) -> None:
    """`version-hint.text` leads to the current metadata file."""
    location, _ = locate(pyiceberg, name)
    conn = rich.served.lake.bare_duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    rich.check_same(rich.truth.read(("main", name)), conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())
    rich.check_same(rich.truth.read(("main", name)), StaticTable.from_metadata(location, pyiceberg.catalog.properties).scan().to_arrow())


def test_the_hint_follows_the_loads(local: RichLake) -> None:
    """In a local folder too, a reader of the location sees what the last load saw."""
    pyiceberg, conn = local.served.pyiceberg(), local.served.lake.bare_duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    location, _ = locate(pyiceberg, "trips")
    before = local.truth.read(("main", "trips"))
    local.check_same(before, conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())
    local.truth.conn.execute("DELETE FROM trips WHERE id < 500")
    local.check_same(before, conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())
    locate(pyiceberg, "trips")
    local.check_same(local.truth.read(("main", "trips")), conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())


TIDYING = {
    "flush": "CALL ducklake_flush_inlined_data('lake')",
    "merge": "CALL ducklake_merge_adjacent_files('lake')",
    "rewrite": "CALL ducklake_rewrite_data_files('lake', 'trips', delete_threshold => 0.01)",
    "expiry": "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "clean-up": "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "column with a default": "ALTER TABLE trips ADD COLUMN rank INTEGER DEFAULT 7",
    "delete in version 3": "DELETE FROM trips WHERE id BETWEEN 900 AND 1100",
    "checkpoint": "CHECKPOINT",
    "new table": "CREATE OR REPLACE TABLE trips AS SELECT i AS id, 'n' || i AS name FROM range(40) r(i)",
}
"""What a lake's owner does to a table, one after the other."""


@pytest.mark.whole
def test_readers_of_paths_follow_what_is_done_to_the_table(local: RichLake) -> None:
    """After each load the location shows DuckDB's rows, through deletes of every form, version 3 and a new table."""
    pyiceberg, conn = local.served.pyiceberg(), local.served.lake.bare_duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    old, _ = locate(pyiceberg, "trips")
    for done, statement in TIDYING.items():
        local.truth.conn.execute(statement)
        location, metadata_file = locate(pyiceberg, "trips")
        assert (location == old) is (done != "new table")
        expected = local.truth.read(("main", "trips"))
        for path in (location, metadata_file):
            local.check_same(expected, conn.execute(f"FROM iceberg_scan('{path}')").to_arrow_table())
            local.check_same(expected, StaticTable.from_metadata(path).scan().to_arrow())


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_follows_too(local: RichLake, spark: Spark) -> None:
    """As a Hadoop table, which looks for newer versions than the hint says by itself."""
    pyiceberg = local.served.pyiceberg()
    for statement in TIDYING.values():
        local.truth.conn.execute(statement)
        location, _ = locate(pyiceberg, "trips")
        local.check_same(local.truth.read(("main", "trips")), spark.collect(spark.session.read.format("iceberg").load, location))


def test_an_old_hint_leads_to_an_older_state(local: RichLake) -> None:
    """A hint that was left behind names a state that is whole, and the next load of a changed table sets it right."""
    pyiceberg, conn = local.served.pyiceberg(), local.served.lake.bare_duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    location, metadata_file = locate(pyiceberg, "trips")
    before = local.truth.read(("main", "trips"))
    hint = Path(location.removeprefix("file://"), "metadata", "version-hint.text")
    first = hint.read_text()
    assert metadata_file.endswith(f"/v{first}.metadata.json")
    local.truth.conn.execute("DELETE FROM trips WHERE id < 500")
    locate(pyiceberg, "trips")
    hint.write_text(first)
    local.check_same(before, conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())
    local.truth.conn.execute("DELETE FROM trips WHERE id < 600")
    locate(pyiceberg, "trips")
    local.check_same(local.truth.read(("main", "trips")), conn.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())
