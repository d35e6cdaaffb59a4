"""Readers that know no catalog, only where a table lies."""

import pytest
from pyiceberg.table import StaticTable

from tests.interop.rich_lake import RichLake
from tests.support.readers import PyIcebergReader

NAMES = ["trips", "visits", "measures"]


def locate(reader: PyIcebergReader, name: str) -> tuple[str, str]:
    """Where a table and its current metadata file lie."""
    table = reader.catalog.load_table(("main", name))
    return table.location(), table.metadata_location


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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
