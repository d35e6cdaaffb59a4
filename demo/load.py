"""DuckDB fills the lake: five tables loaded from CSV, then corrected as real data are."""

from dataclasses import dataclass
from pathlib import Path

from duckdb import DuckDBPyConnection
from rich.console import Console

from duckicelake.embedded.ducklake import quote

FLIGHTS = 336_776
TABLES = {
    "airlines": "carrier VARCHAR NOT NULL, name VARCHAR",
    "airports": "faa VARCHAR NOT NULL, name VARCHAR, lat DOUBLE, lon DOUBLE, alt INTEGER, tz INTEGER, dst VARCHAR, tzone VARCHAR",
    "planes": "tailnum VARCHAR NOT NULL, year INTEGER, type VARCHAR, manufacturer VARCHAR, model VARCHAR, engines INTEGER, "
    "seats INTEGER, speed INTEGER, engine VARCHAR",
    "weather": "origin VARCHAR NOT NULL, year INTEGER, month INTEGER, day INTEGER, hour INTEGER, temp DECIMAL(6, 2), dewp DECIMAL(6, 2), "
    "humid DOUBLE, wind_dir INTEGER, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, "
    "time_hour TIMESTAMPTZ",
    "flights": "year INTEGER, month INTEGER, day INTEGER, dep_time INTEGER, sched_dep_time INTEGER, dep_delay INTEGER, arr_time INTEGER, "
    "sched_arr_time INTEGER, arr_delay INTEGER, carrier VARCHAR, flight INTEGER, tailnum VARCHAR, origin VARCHAR, dest VARCHAR, "
    "air_time INTEGER, distance INTEGER, hour INTEGER, minute INTEGER, time_hour TIMESTAMPTZ",
}
PREPARATIONS = ("ALTER TABLE flights SET PARTITIONED BY (month)",)
NEW_FLIGHT = "(2014, 1, 1, 5, 0, 5, 255, 250, 5, 'B6', {flight}, 'N618JB', 'JFK', '{dest}', 150, 1000, 0, 0, '2014-01-01 05:00:00+00')"
CORRECTIONS = {
    "airports: two more": "INSERT INTO airports VALUES ('XNY', 'Nowhere Field', 40.5, -74.0, 12, -5, 'A', 'America/New_York'), "
    "('XNZ', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "airports: alt renamed": "ALTER TABLE airports RENAME COLUMN alt TO altitude_ft",
    "planes without a year deleted": "DELETE FROM planes WHERE year IS NULL",
    "planes: a column with a default": "ALTER TABLE planes ADD COLUMN inspections INTEGER DEFAULT 0",
    "Boeing inspected": "UPDATE planes SET inspections = 1 WHERE manufacturer = 'BOEING' AND year >= 2005",
    "cancelled ones deleted": "DELETE FROM flights WHERE dep_time IS NULL",
    "US joins AA": "UPDATE flights SET carrier = 'AA' WHERE carrier = 'US' AND month = 12",
    "flights: a new column": "ALTER TABLE flights ADD COLUMN mph DOUBLE",
    "speeds of July": "UPDATE flights SET mph = round(60.0 * distance / air_time, 1) WHERE month = 7 AND air_time > 0",
    "flights: time_hour renamed": "ALTER TABLE flights RENAME COLUMN time_hour TO scheduled",
    "three of 2014": "INSERT INTO flights BY POSITION SELECT *, NULL FROM (VALUES "
    + ", ".join(NEW_FLIGHT.format(flight=flight, dest=dest) for flight, dest in ((1, "MCO"), (3, "SJU"), (5, "FLL")))
    + ")",
    "one deleted again": "DELETE FROM flights WHERE year = 2014 AND flight = 3",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One statement that changed the lake, and the lake snapshot it made."""

    title: str
    lake_snapshot_id: int


def load(conn: DuckDBPyConnection, files: dict[str, Path], rows: int, console: Console) -> dict[str, Step]:
    """Fill the namespace in use from CSV files, with about so many flights; returns the steps that changed flights' rows."""
    for table, columns in TABLES.items():
        conn.execute(f"CREATE TABLE {table} ({columns})")
    for statement in PREPARATIONS:
        conn.execute(statement)
    for table in TABLES:
        source = f"read_csv({quote(str(files[table]))}, header = true, nullstr = ['NA', ''], sample_size = -1)"
        # DuckLake keeps up to ten new rows in Postgres, so the airlines come in two parts to be among them.
        parts = ("LIMIT 8", "OFFSET 8") if table == "airlines" else ("",)
        step = max(1, FLIGHTS // rows) if table == "flights" else 1
        picked = f"(SELECT * EXCLUDE number FROM (SELECT *, row_number() OVER () AS number FROM {source}) WHERE number % {step} = 0)"
        for part in parts:
            conn.execute(f"INSERT INTO {table} FROM {source if step == 1 else picked} {part}")
        (count,) = conn.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
        console.print(f"  loaded {count:>7,} {table}")
    steps = {"loaded": Step("as loaded", find_lake_snapshot(conn))}
    for title, statement in CORRECTIONS.items():
        conn.execute(statement)
        console.print(f"  {title}")
        if statement.startswith(("DELETE FROM flights", "UPDATE flights", "INSERT INTO flights")):
            steps[title] = Step(title, find_lake_snapshot(conn))
    return steps


def find_lake_snapshot(conn: DuckDBPyConnection) -> int:
    """Return the newest lake snapshot."""
    (newest,) = conn.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone() or (0,)
    return newest
