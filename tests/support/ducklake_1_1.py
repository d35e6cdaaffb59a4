"""Lakes of DuckLake 1.1, made and read by ducklakepy: DuckDB 2 has no `ducklake` extension on PyPI."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from ducklakepy import DuckLakeCatalog
from psycopg import connect
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from duckicelake.lake.install import install
from tests.support.lakes import FreshLake
from tests.support.readers import Ident, PyIcebergReader, Served

MADE_SCHEMA = "made"
LOCAL: Mapping[str, Any] = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
"""The settings of a server without S3."""


def open_ducklakepy(lake: FreshLake, **options: object) -> DuckLakeCatalog:
    """ducklakepy on a lake whose files lie in a local folder."""
    parts = conninfo_to_dict(lake.dsn)
    url = URL.create(
        "postgresql+psycopg",
        *(str(parts["user"]), str(parts.get("password") or ""), str(parts["host"]), int(str(parts["port"])), str(parts["dbname"])),
    )
    text = url.render_as_string(hide_password=False)
    return DuckLakeCatalog("lake", url=text, data_path=lake.data_path, metadata_schema=lake.metadata_schema, **options)


@contextmanager
def make_nesting_lake(lake: FreshLake) -> Generator[tuple[FreshLake, DuckLakeCatalog]]:
    """A lake that ducklakepy makes at 1.1 in the database of a fresh lake, prepared for serving."""
    made = replace(lake, metadata_schema=MADE_SCHEMA)
    with connect(lake.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {MADE_SCHEMA}")
    with open_ducklakepy(made) as catalog:
        catalog.initialize()
        with connect(lake.dsn, autocommit=True) as conn:
            install(conn, MADE_SCHEMA, lake.iceberg_path)
        yield made, catalog


def read_at(catalog: DuckLakeCatalog, ident: Ident, snapshot_id: int) -> pa.Table:
    """A table's rows at a lake snapshot, as ducklakepy reads them."""
    return catalog.load_table(ident, snapshot=catalog.snapshot_by_id(snapshot_id)).to_arrow()


def check_same(served: Served, catalog: DuckLakeCatalog, ident: Ident) -> int:
    """Compare a table's rows at every snapshot that is published; return how many there were."""
    with served.pyiceberg().catalog as opened:
        reader = PyIcebergReader(opened)
        table = opened.load_table(ident)
        # The newest snapshots are there under the ids that their client chose, too.
        lake_ids = {item.snapshot_id: int((item.summary or {})["ducklake.snapshot-id"] or 0) for item in table.snapshots()}
        for snapshot_id, lake_id in lake_ids.items():
            ours, theirs = reader.read(ident, snapshot_id), read_at(catalog, ident, lake_id)
            assert to_rows(ours) == to_rows(theirs), snapshot_id
        return len(set(lake_ids.values()))


def to_rows(table: pa.Table) -> list[str]:
    """The rows as texts, in order, by the names of columns."""
    return sorted(str(sorted(row.items())) for row in table.to_pylist())
