"""One lake with something of everything, made by DuckDB: what the read-only tests of stock clients share."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from tests.support.lakes import FreshLake
from tests.support.readers import DuckLakeReader, Ident, Served

NEW_TRIPS = """
INSERT INTO trips SELECT i, 'city ' || i % 7, i * 1.25, DATE '2026-01-01' + (i % 90)::INTEGER,
TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) MINUTE, ['a' || i % 3, NULL], {{'x': i / 4, 'y': -i}}, {last}
FROM range({start}, {end}) r(i)
"""

TRIPS = (
    "CREATE TABLE trips (id INTEGER NOT NULL, city VARCHAR, price DECIMAL(9, 2), day DATE, seen TIMESTAMPTZ, tags VARCHAR[], "
    "spot STRUCT(x DOUBLE, y DOUBLE), draft INTEGER)",
    NEW_TRIPS.format(start=0, end=1000, last="i"),
    NEW_TRIPS.format(start=1000, end=1500, last="NULL"),
    "INSERT INTO trips VALUES (2000, NULL, NULL, NULL, NULL, NULL, NULL, NULL), "
    "(2001, '', -0.01, '1969-12-31', '1969-12-31 23:59:59.999999+00', [], {'x': 1.5, 'y': -2.25}, 1), "
    "(2002, 'Łódź', 9999999.99, '9999-12-31', '2262-01-01 00:00:00+00', ['ü', ''], {'x': NULL, 'y': 0}, 2), "
    "(2003, 'gone', 0, '2026-01-01', '2026-01-01 00:00:00+00', NULL, NULL, 3)",
    "DELETE FROM trips WHERE id % 10 = 3",
    "DELETE FROM trips WHERE id = 5",
    "UPDATE trips SET city = 'Łódź' WHERE id BETWEEN 100 AND 149",
    "ALTER TABLE trips RENAME COLUMN price TO fare",
    "ALTER TABLE trips DROP COLUMN draft",
    "ALTER TABLE trips ADD COLUMN note VARCHAR",
    NEW_TRIPS.format(start=3000, end=3100, last="'new'"),
)
"""Files, inlined rows, deletes of both, an update, and columns that come, go and change their names."""

VISITS = (
    "CREATE TABLE visits (id INTEGER, day DATE, country VARCHAR, amount BIGINT)",
    "INSERT INTO visits SELECT i, DATE '2025-12-01' + (i % 14)::INTEGER, 'se', i FROM range(50) r(i)",
    "ALTER TABLE visits SET PARTITIONED BY (country, year(day), month(day))",
    "INSERT INTO visits SELECT i, DATE '2026-01-15' + INTERVAL (i % 4) MONTH, ['de', 'fr', 'pl'][1 + i % 3], i FROM range(100, 400) r(i)",
    "INSERT INTO visits VALUES (1000, '2026-02-01', 'de', NULL), (1001, NULL, NULL, 1)",
    "DELETE FROM visits WHERE id % 50 = 7",
)
"""Partitioned after it had rows, by a column and by month."""

MEASURES = (
    "CREATE TABLE measures (id INTEGER, label VARCHAR)",
    "INSERT INTO measures SELECT i, 'm' || i FROM range(200) r(i)",
    "ALTER TABLE measures ADD COLUMN rank INTEGER DEFAULT 7",
    "INSERT INTO measures SELECT i, 'm' || i, i FROM range(200, 300) r(i)",
    "DELETE FROM measures WHERE id % 9 = 0",
    "DELETE FROM measures WHERE id = 1",
    "INSERT INTO measures (id) VALUES (1000)",
)
"""A column default over old rows, which only format version 3 can say."""

ODD_NAMES = (
    'CREATE SCHEMA "a.b"',
    'CREATE TABLE "a.b"."T x" AS SELECT i AS "Ü 1", i * 2 AS "a.b" FROM range(30) r(i)',
    "CREATE SCHEMA ü",
    'CREATE TABLE ü."ü" AS SELECT i, i::VARCHAR AS "T x" FROM range(3) r(i)',
    'CREATE SCHEMA "a\u241fb"',
    'CREATE TABLE "a\u241fb".t AS SELECT i FROM range(20) r(i)',
    "CREATE TABLE empty (i INTEGER, s VARCHAR)",
)

EVERYTHING = (*TRIPS, *VISITS, *MEASURES, *ODD_NAMES)

TABLES: tuple[Ident, ...] = (("main", "trips"), ("main", "visits"), ("main", "measures"), ("main", "empty"), ("a.b", "T x"), ("ü", "ü"))
"""Every table whose namespace has one level."""


@dataclass(frozen=True, slots=True)
class RichLake:
    """The lake behind a running server, and DuckDB's own view of it."""

    served: Served
    truth: DuckLakeReader

    def check_same(self, expected: pa.Table, found: pa.Table) -> None:
        """Fail, naming a few rows, unless both are the same rows under the same names and types, in any order."""
        conn = self.truth.conn
        conn.register("expected", expected)
        conn.register("found", found)
        try:
            assert conn.sql("FROM found").columns == conn.sql("FROM expected").columns
            assert conn.sql("FROM found").types == conn.sql("FROM expected").types
            missing, extra = (
                conn.sql(f"(FROM {left}) EXCEPT ALL (FROM {right}) ORDER BY ALL").fetchall()
                for left, right in (("expected", "found"), ("found", "expected"))
            )
        finally:
            conn.unregister("expected")
            conn.unregister("found")
        assert (missing[:3], extra[:3]) == ([], []), f"{len(missing)} of {len(expected)} rows missing, {len(extra)} too many"

    def ask(self, sql: str) -> pa.Table:
        """DuckDB's answer to a query."""
        return self.truth.conn.execute(sql).to_arrow_table()

    def check_answer(self, sql: str, found: pa.Table) -> None:
        """Fail unless these are the rows DuckDB finds."""
        self.check_same(self.ask(sql), found)

    def list_inserts(self, table: str, first_snapshot_id: int, columns: str) -> pa.Table:
        """The rows that pure INSERTs added to a table since a snapshot, that one included, as DuckDB tells them."""
        conn = self.truth.conn
        (head,) = conn.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone() or (0,)
        changes = f"ducklake_table_changes('lake', 'main', '{table}', {first_snapshot_id}, {head})"
        pure = f"SELECT snapshot_id FROM {changes} GROUP BY ALL HAVING bool_and(change_type = 'insert')"
        return self.ask(f"SELECT {columns} FROM {changes} WHERE snapshot_id IN ({pure})")

    def list_files(self, table: str) -> dict[str, bool]:
        """Where DuckDB keeps a table's rows now: by Parquet file, whether rows in it are deleted by a file."""
        found = self.truth.conn.execute(f"SELECT data_file, delete_file IS NOT NULL FROM ducklake_list_files('lake', '{table}')").fetchall()
        return dict(found)


def fill_lake(lake: FreshLake, statements: Iterable[str]) -> DuckLakeReader:
    """Run the statements; returns the session that ran them."""
    conn = lake.duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    for statement in statements:
        conn.execute(statement)
    return DuckLakeReader(conn)
