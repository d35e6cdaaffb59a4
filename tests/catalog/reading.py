"""What the tests of the catalog ask of a published table, through PyIceberg."""

from typing import Any

from duckdb import DuckDBPyConnection
from pyiceberg.table import StaticTable

from duckicelake.catalog.tables import Ident, LoadedTable, load_table
from duckicelake.catalog.warehouse import Warehouse
from tests.support.lakes import FreshLake


def load(warehouse: Warehouse, name: str = "t", namespace: str = "main") -> LoadedTable:
    """Load a table of the lake."""
    return load_table(warehouse, Ident((namespace,), name))


def open_static(lake: FreshLake, loaded: LoadedTable) -> StaticTable:
    """Open the metadata file of a load, as a reader of paths would."""
    keys = lake.store
    properties = {
        "s3.endpoint": keys.endpoint or "",
        "s3.region": keys.region,
        "s3.access-key-id": keys.access_key_id or "",
        "s3.secret-access-key": keys.secret_access_key or "",
    }
    return StaticTable.from_metadata(loaded.metadata_location, properties)


def ids_by_iceberg(table: StaticTable, snapshot_id: int | None = None) -> list[Any]:
    """Return the column `id` at a snapshot, sorted."""
    return sorted(table.scan(snapshot_id=snapshot_id).to_arrow().column("id").to_pylist())


def ids_by_duckdb(conn: DuckDBPyConnection, snapshot_id: int, name: str = "t") -> list[Any]:
    """Return the column `id` as DuckDB reads it at a lake snapshot, sorted."""
    return sorted(row[0] for row in conn.execute(f"SELECT id FROM {name} AT (VERSION => {snapshot_id})").fetchall())


def check_every_snapshot(lake: FreshLake, conn: DuckDBPyConnection, loaded: LoadedTable, name: str = "t") -> StaticTable:
    """Compare both sides at every snapshot that is published, and return the table."""
    table = open_static(lake, loaded)
    for snapshot in table.metadata.snapshots:
        assert ids_by_iceberg(table, snapshot.snapshot_id) == ids_by_duckdb(conn, snapshot.snapshot_id, name), snapshot
    return table
