"""DuckDB's iceberg extension, unmodified, against the running catalog."""

import pytest

from tests.interop.orders.table import IDENT, INSERT_LAST, ROW_COUNTS, SNAPSHOTS, UPDATE_ONE, Orders
from tests.support.readers import Served


def test_attached_catalog_lists_namespaces_and_tables(orders: Orders) -> None:
    """SHOW ALL TABLES finds what is in the lake."""
    conn = orders.served.duckdb_iceberg().conn
    found = conn.execute("SELECT schema, name FROM (SHOW ALL TABLES) WHERE database = 'ice'").fetchall()
    assert found == [IDENT]


def test_time_travel_shows_every_snapshot(orders: Orders) -> None:
    """AT (VERSION => n) shows the rows of that snapshot."""
    reader = orders.served.duckdb_iceberg()
    assert {snapshot_id: len(reader.read(IDENT, snapshot_id)) for snapshot_id in SNAPSHOTS} == ROW_COUNTS


def test_same_query_same_answer(orders: Orders) -> None:
    """A filtered aggregate over Iceberg equals the one over DuckLake."""
    query = (
        "SELECT item[:4] AS kind, count(*), sum(price), min(id), max(note) FROM {} WHERE id BETWEEN 40 AND 101 GROUP BY ALL ORDER BY ALL"
    )
    over_iceberg = orders.served.duckdb_iceberg().conn.execute(query.format("ice.shop.orders")).fetchall()
    over_lake = orders.served.lake.duckdb().execute(query.format("lake.shop.orders")).fetchall()
    assert over_iceberg == over_lake
    assert len(over_lake) > 1


def test_snapshots_and_files_are_listed(orders: Orders) -> None:
    """iceberg_snapshots() and iceberg_metadata() read what was published."""
    conn = orders.served.duckdb_iceberg().conn
    snapshots = conn.execute("SELECT snapshot_id, sequence_number FROM iceberg_snapshots(ice.shop.orders) ORDER BY 1").fetchall()
    assert snapshots == [(snapshot_id, snapshot_id) for snapshot_id in SNAPSHOTS]
    contents = conn.execute("SELECT DISTINCT content FROM iceberg_metadata(ice.shop.orders) ORDER BY 1").fetchall()
    assert {content for (content,) in contents} == {"DATA", "POSITION_DELETES"} or len(contents) == 2


def test_metadata_is_readable_by_path(orders: Orders) -> None:
    """iceberg_scan() of the metadata file reads the same table without the catalog."""
    location = orders.served.pyiceberg().catalog.load_table(IDENT).metadata_location
    conn = orders.served.lake.bare_duckdb()
    row = conn.execute(f"SELECT count(*) FROM iceberg_scan('{location}')").fetchone()
    assert row == (ROW_COUNTS[INSERT_LAST],)


def test_table_folder_is_readable_by_its_version_hint(orders: Orders) -> None:
    """iceberg_scan() of the table's folder finds the newest metadata through version-hint.text."""
    folder = orders.served.pyiceberg().catalog.load_table(IDENT).location()
    conn = orders.served.lake.bare_duckdb()
    row = conn.execute(f"SELECT count(*) FROM iceberg_scan('{folder.rstrip('/')}')").fetchone()
    assert row == (ROW_COUNTS[INSERT_LAST],)


@pytest.mark.parametrize("transform", ["year(moment)", "year(moment), month(moment), day(moment)", "bucket(4, id)", "place"])
def test_partitioned_tables_lose_no_row(served: Served, transform: str) -> None:
    """Pruning over Iceberg finds what DuckLake finds, value by value."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE visits (id BIGINT, moment TIMESTAMP, place VARCHAR)")
    conn.execute(f"ALTER TABLE visits SET PARTITIONED BY ({transform})")
    conn.execute("INSERT INTO visits SELECT i, TIMESTAMP '1969-12-30' + INTERVAL (i * 5) HOUR, 'p' || i % 5 FROM range(40) t(i)")
    ice = served.duckdb_iceberg().conn
    for where in ("id = 7", "moment = TIMESTAMP '1970-01-01 02:00:00'", "place = 'p3'", "moment < TIMESTAMP '1970-01-01'", "id IN (3, 39)"):
        over_iceberg = ice.execute(f"FROM ice.main.visits WHERE {where} ORDER BY id").fetchall()
        over_lake = conn.execute(f"FROM visits WHERE {where} ORDER BY id").fetchall()
        assert over_iceberg == over_lake
        assert over_lake


def test_old_columns_at_old_snapshots(orders: Orders) -> None:
    """A snapshot shows the columns of its time, the head those of now."""
    reader = orders.served.duckdb_iceberg()
    assert reader.read(IDENT, UPDATE_ONE).column_names == ["id", "item", "price"]
    assert reader.read(IDENT).column_names == ["id", "item", "price", "note"]
