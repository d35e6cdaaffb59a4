"""Stock clients of a served lake, each reading a table at head or at a snapshot into Arrow."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog as PyIcebergCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import DataScan, IncrementalAppendScan

from duckicelake.pipeline.common.rest import RestCatalog
from tests.rest.serving import WAREHOUSE, Server
from tests.support.lakes import FreshLake
from tests.support.spark import Spark

Ident = tuple[str, str]


class Reader(Protocol):
    """Something that shows a table's rows; `snapshot_id` None means now.

    `blurs_nulls`: it shows NULL as empty in lists and maps of structs.
    """

    @property
    def name(self) -> str: ...

    @property
    def blurs_nulls(self) -> bool: ...

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table: ...


def quote_ident(ident: Ident) -> str:
    """A namespace and a table as SQL with double quotes."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in ident)


@dataclass(frozen=True, slots=True)
class DuckLakeReader:
    """DuckDB's own view of the lake, where a snapshot is a lake snapshot."""

    conn: DuckDBPyConnection
    name: str = "DuckDB"
    blurs_nulls: bool = False

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table:
        at = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
        return self.conn.execute(f"FROM lake.{quote_ident(ident)}{at}").to_arrow_table()


@dataclass(frozen=True, slots=True)
class DuckDBIcebergReader:
    """DuckDB's Iceberg extension over REST, attached as `ice`."""

    conn: DuckDBPyConnection
    name: str = "DuckDB-iceberg"
    blurs_nulls: bool = False

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table:
        at = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
        return self.conn.execute(f"FROM ice.{quote_ident(ident)}{at}").to_arrow_table()


def format_iceberg_attach(server: Server, warehouse: str = WAREHOUSE) -> str:
    """The statement that attaches a served catalog to DuckDB as `ice`."""
    # DuckDB takes the schema `main` for its own default, which an Iceberg catalog does not have unless it is named.
    options = f"TYPE iceberg, ENDPOINT '{server.uri}', AUTHORIZATION_TYPE none, ACCESS_DELEGATION_MODE none, DEFAULT_SCHEMA 'main'"
    return f"ATTACH '{warehouse}' AS ice ({options})"


@dataclass(frozen=True, slots=True)
class PyIcebergReader:
    """PyIceberg over REST."""

    catalog: PyIcebergCatalog
    name: str = "PyIceberg"
    blurs_nulls: bool = True

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table:
        return read_scan(self.catalog.load_table(ident).scan(snapshot_id=snapshot_id))


def read_scan(scan: DataScan | IncrementalAppendScan) -> pa.Table:
    """A scan's rows; PyArrow cannot make an empty table with a uuid inside a list, so none is asked for."""
    if any(True for _ in scan.plan_files()):
        return scan.to_arrow()
    return pa.Table.from_batches([], schema_to_pyarrow(scan.projection()))


@dataclass(frozen=True, slots=True)
class SparkReader:
    """Spark SQL over REST, under the catalog name given."""

    spark: Spark
    catalog: str
    name: str = "Spark"
    blurs_nulls: bool = False

    def sql_name(self, ident: Ident) -> str:
        """A table as Spark's SQL writes it."""
        return ".".join(f"`{part}`" for part in (self.catalog, *ident))

    def read(self, ident: Ident, snapshot_id: int | None = None) -> pa.Table:
        at = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return self.spark.arrow(f"SELECT * FROM {self.sql_name(ident)}{at}")


@dataclass(frozen=True, slots=True)
class Served:
    """A fresh lake, the server in front of it, and the clients that know both."""

    lake: FreshLake
    server: Server
    warehouse: str = WAREHOUSE

    def pyiceberg(self) -> PyIcebergReader:
        """A new PyIceberg catalog."""
        store = self.lake.store
        properties = {
            "uri": self.server.uri,
            "warehouse": self.warehouse,
            "s3.endpoint": store.endpoint,
            "s3.region": store.region,
            "s3.access-key-id": store.access_key_id,
            "s3.secret-access-key": store.secret_access_key,
        }
        catalog = PyIcebergCatalog("lake", **properties)
        self.lake.opened.callback(catalog.close)
        return PyIcebergReader(catalog)

    def duckdb_iceberg(self) -> DuckDBIcebergReader:
        """A new DuckDB session with the catalog attached as `ice`."""
        conn = self.lake.bare_duckdb()
        conn.execute(format_iceberg_attach(self.server, self.warehouse))
        return DuckDBIcebergReader(conn)

    def spark(self, spark: Spark) -> SparkReader:
        """The shared Spark session, with this catalog added."""
        return SparkReader(spark, spark.add(self.rest_catalog()))

    def rest_catalog(self) -> RestCatalog:
        """The catalog in Spark's words."""
        store = self.lake.store
        return RestCatalog(self.server.uri, self.warehouse, store.endpoint, store.region, store.access_key_id, store.secret_access_key)
