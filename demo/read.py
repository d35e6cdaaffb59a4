"""The readers: DuckDB through DuckLake, and three that know nothing but the Iceberg catalog."""

import gc
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.catalog import Catalog, load_catalog

from demo.questions import Question, Source
from duckicelake.commands.facts import Facts
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb, format_secret, quote
from duckicelake.embedded.home import Home

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake", "avro", "iceberg")
TRUTH = "DuckDB"


class Reader(Protocol):
    """Something that answers a question."""

    @property
    def name(self) -> str: ...

    def ask(self, question: Question) -> pa.Table: ...


class SqlReader:
    """An engine that speaks SQL; `at` is how it writes a snapshot, `run` runs a query."""

    def __init__(self, name: str, run: Callable[[str], pa.Table], prefix: str, at: str) -> None:
        self.name, self.run, self.prefix, self.at = name, run, prefix, at

    def ask(self, question: Question) -> pa.Table:
        """The rows of the answer."""
        return self.run(question.sql.format(**{name: self._format(source) for name, source in question.sources.items()}))

    def _format(self, source: Source) -> str:
        at = "" if source.snapshot_id is None else self.at.format(source.snapshot_id)
        where = f" WHERE {source.where}" if source.where else ""
        return f"(SELECT {', '.join(source.columns) or '*'} FROM {self.prefix}.{source.table}{at}{where})"


class PyIcebergReader:
    """PyIceberg, which scans; what it has found is joined and counted by a DuckDB that has no catalog."""

    name = "PyIceberg"

    def __init__(self, catalog: Catalog, namespace: str, conn: DuckDBPyConnection) -> None:
        self.catalog, self.namespace, self.conn = catalog, namespace, conn

    def ask(self, question: Question) -> pa.Table:
        """The rows of the answer."""
        for name, source in question.sources.items():
            self.conn.register(name, self._scan(source))
        try:
            return self.conn.execute(question.sql.format(**{name: name for name in question.sources})).to_arrow_table()
        finally:
            for name in question.sources:
                self.conn.unregister(name)

    def _scan(self, source: Source) -> pa.Table:
        table = self.catalog.load_table((self.namespace, source.table))
        scan = table.scan(selected_fields=source.columns or ("*",), snapshot_id=source.snapshot_id)
        return (scan.filter(source.where) if source.where else scan).to_arrow()


@contextmanager
def open_duckdb(facts: Facts, home: Home) -> Generator[DuckDBPyConnection]:
    """DuckDB with the lake attached as `lake` and the Iceberg catalog as `ice`, in UTC."""
    with connect_duckdb(home.make_folder("extensions"), EXTENSIONS) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        attach_lake(conn, LakeAddress(facts.ducklake_dsn, facts.ducklake_metadata_schema), facts.find_s3_keys())
        yield conn


@contextmanager
def open_readers(facts: Facts, home: Home, namespace: str, cache: Path | None) -> Generator[Sequence[Reader]]:
    """The readers, DuckDB's own view first; Spark is among them when there is a folder for its jars."""
    with ExitStack() as opened:
        truth, iceberg, bare = (opened.enter_context(open_duckdb(facts, home)) for _ in range(3))
        keys = facts.find_s3_keys()
        if keys is not None:
            iceberg.execute(format_secret(keys))
        options = f"TYPE iceberg, ENDPOINT {quote(facts.catalog_uri)}, AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none'"
        iceberg.execute(f"ATTACH {quote(facts.warehouse)} AS ice ({options})")
        readers: list[Reader] = [
            SqlReader(TRUTH, _runner(truth), f"lake.{namespace}", " AT (VERSION => {})"),
            SqlReader("DuckDB-iceberg", _runner(iceberg), f"ice.{namespace}", " AT (VERSION => {})"),
            PyIcebergReader(open_pyiceberg(facts), namespace, bare),
        ]
        if cache is not None:
            readers.append(opened.enter_context(_open_spark(facts, namespace, cache)))
        yield readers


def _runner(conn: DuckDBPyConnection) -> Callable[[str], pa.Table]:
    return lambda sql: conn.execute(sql).to_arrow_table()


def open_pyiceberg(facts: Facts) -> Catalog:
    """PyIceberg's catalog over REST."""
    properties = {
        "type": "rest",
        "uri": facts.catalog_uri,
        "warehouse": facts.warehouse,
        "s3.endpoint": facts.s3_endpoint,
        "s3.region": facts.s3_region,
        "s3.access-key-id": facts.s3_access_key_id,
        "s3.secret-access-key": facts.s3_secret_access_key,
    }
    return load_catalog("demo", **{name: value for name, value in properties.items() if value is not None})


@contextmanager
def _open_spark(facts: Facts, namespace: str, cache: Path) -> Generator[SqlReader]:
    from duckicelake.pipeline.common.rest import RestCatalog  # noqa: PLC0415  loaded with what follows
    from duckicelake.pipeline.common.spark_session import SparkPlan, add_catalog, spark_session  # noqa: PLC0415  Spark is an extra

    log = logging.getLogger("demo")
    with tempfile.TemporaryDirectory(prefix="duckicelake-demo-spark-") as scratch, ExitStack() as running:
        plan = SparkPlan(cache=cache, scratch=Path(scratch), driver_memory="2g")
        session = running.enter_context(spark_session(plan, os.environ, log.warning))
        where = (facts.s3_endpoint, facts.s3_region, facts.s3_access_key_id, facts.s3_secret_access_key)
        add_catalog(session, "ice", RestCatalog(facts.catalog_uri, facts.warehouse, *where))

        def run(sql: str) -> pa.Table:
            # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                rows = session.sql(sql).toArrow()
                gc.collect()
                return rows

        yield SqlReader("Spark", run, f"ice.{namespace}", " VERSION AS OF {}")
