"""`duckicelake smoke`: write a small table with DuckDB, and read it through a running server with other clients.

The command line calls it. The table is in a new namespace, which is dropped at the end.
"""

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from duckdb import DuckDBPyConnection
from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table

from duckicelake.commands.facts import Facts
from duckicelake.commands.snippets import list_duckdb, list_pyiceberg
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import Home

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake", "avro", "iceberg")
TABLE = "trips"
COLUMNS = "id INTEGER NOT NULL, city VARCHAR, price DECIMAL(9, 2), day DATE, seen TIMESTAMPTZ"
STEPS = (
    "INSERT INTO trips SELECT i, 'city ' || i % 7, i * 1.25, DATE '2026-01-01' + i::INTEGER % 31, "
    "TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) MINUTE FROM range(500) r(i)",
    "INSERT INTO trips VALUES (1000, NULL, NULL, NULL, NULL)",
    "DELETE FROM trips WHERE id % 10 = 3",
    "UPDATE trips SET city = 'Łódź' WHERE id = 8",
)
QUERY = "SELECT id, city, price, day, epoch_us(seen) AS seen FROM {} ORDER BY id"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows that a client read, or the reason why it could not."""

    reader: str
    rows: Rows
    failure: str | None = None


def smoke(facts: Facts, home: Home, console: Console) -> bool:
    """Write a scratch table with DuckDB, read it through the catalog, print a report, and return True if all rows are equal."""
    namespace = f"smoke_{secrets.token_hex(4)}"
    with connect_duckdb(home.make_folder("extensions"), EXTENSIONS) as conn, _scratch(conn, facts, namespace):
        truth = conn.execute(QUERY.format(f"lake.{namespace}.{TABLE}")).fetchall()
        answers = [
            _ask("PyIceberg, over REST", lambda: _read_pyiceberg(facts, conn, namespace)),
            _ask("DuckDB's iceberg extension, over REST", lambda: _read_duckdb_iceberg(facts, conn, namespace)),
        ]
    console.print(_format_report(facts, truth, answers))
    return all(answer.failure is None and answer.rows == truth for answer in answers)


@contextmanager
def _scratch(conn: DuckDBPyConnection, facts: Facts, namespace: str) -> Generator[None]:
    attach_lake(conn, LakeAddress(facts.ducklake_dsn, facts.ducklake_metadata_schema), facts.find_s3_keys())
    conn.execute(f"CREATE SCHEMA lake.{namespace}")
    try:
        conn.execute(f"USE lake.{namespace}")
        conn.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
        for step in STEPS:
            conn.execute(step)
        yield
    finally:
        conn.execute("USE memory")
        conn.execute(f"DROP SCHEMA lake.{namespace} CASCADE")


def _ask(reader: str, read: Callable[[], Rows]) -> Answer:
    try:
        return Answer(reader, read())
    except Exception as error:  # noqa: BLE001  the report shows any error of a client
        return Answer(reader, [], f"{type(error).__name__}: {error}")


def _read_pyiceberg(facts: Facts, conn: DuckDBPyConnection, namespace: str) -> Rows:
    catalog = load_catalog("smoke", **list_pyiceberg(facts))
    found = catalog.load_table((namespace, TABLE)).scan().to_arrow()
    conn.register("found_by_pyiceberg", found)
    return conn.execute(QUERY.format("found_by_pyiceberg")).fetchall()


def _read_duckdb_iceberg(facts: Facts, conn: DuckDBPyConnection, namespace: str) -> Rows:
    for statement in list_duckdb(facts, "over_rest"):
        conn.execute(statement)
    try:
        return conn.execute(QUERY.format(f"over_rest.{namespace}.{TABLE}")).fetchall()
    finally:
        conn.execute("DETACH over_rest")


def _format_report(facts: Facts, truth: Rows, answers: list[Answer]) -> Table:
    report = Table(title=f"Warehouse {facts.warehouse} at {facts.catalog_uri}: {len(truth)} rows written by DuckDB")
    for heading in ("Reader", "Rows", "Result"):
        report.add_column(heading)
    for answer in answers:
        differing = len(set(answer.rows) ^ set(truth))
        result = answer.failure or ("same rows" if answer.rows == truth else f"{differing} rows differ")
        report.add_row(answer.reader, str(len(answer.rows)), result)
    return report
