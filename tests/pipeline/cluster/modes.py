"""Every mode of `ingest` on rows in several files and blocks: what the tables have before, what comes, and what has to be there then."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection

Row = tuple[Any, ...]
BASE = datetime(2026, 3, 8, 1, 30, tzinfo=UTC)
"""Before an hour that some zones do not have."""
FILES, ROWS = 4, 400
BLOCK_BYTES = 8 << 10
COUNTS = ("rows_in", "rows_out", "rows_quarantined", "rows_superseded")
HEADER = "id,seen,fare"
SELECTS = {
    "orders": "SELECT id, state, seen::VARCHAR FROM raw.orders ORDER BY ALL",
    "prices": "SELECT id, price, valid_from::VARCHAR, valid_to::VARCHAR, is_current FROM raw.prices ORDER BY ALL",
    "visits": "SELECT day::VARCHAR, id, note FROM raw.visits ORDER BY ALL",
}
TABLES = tuple(f"raw.{name}" for name in ("trips", *SELECTS))


@dataclass(frozen=True, slots=True)
class Expected:
    """The rows of a table as its statement shows them, how many of the files' were taken, and how many others of their key supersede."""

    rows: Sequence[Row]
    taken: int
    superseded: int = 0


def at(minute: int) -> str:
    """A moment, as DuckDB writes it in UTC."""
    return (BASE + timedelta(minutes=minute)).strftime("%Y-%m-%d %H:%M:%S+00")


def list_commands() -> list[Sequence[str]]:
    """A run for each mode."""
    schema = ("--schema", "id BIGINT, seen TIMESTAMP, fare DECIMAL(9,2)", "--partition-by", "bucket(4, id)")
    asked = {
        "trips": schema,
        "orders": ("--mode", "upsert", "--key", "id", "--order-by", "seen"),
        "prices": ("--mode", "scd2", "--key", "id", "--order-by", "seen"),
        "visits": ("--mode", "overwrite-partitions"),
    }
    return [("ingest", name, f"raw.{name}", *how, "--report", f"{name}.json") for name, how in asked.items()]


def fill(duck: DuckDBPyConnection, folder: Path) -> Mapping[str, Expected]:
    """Tables of DuckDB's with rows in files and inlined ones, and a folder of files for each."""
    duck.execute("CREATE SCHEMA raw")
    expected = {"trips": fill_trips(folder / "trips")}
    for name, fill_one in (("orders", fill_orders), ("prices", fill_prices), ("visits", fill_visits)):
        expected[name] = fill_one(duck, folder / name)
    for name in expected:
        assert all(path.stat().st_size > BLOCK_BYTES for path in (folder / name).iterdir()), name
    return expected


def write_lines(folder: Path, ending: str, header: Sequence[str], format_row: Callable[[int], str], bad: str) -> None:
    """Files of text with bad lines at their beginning, in their midst and at their end, and blank ones between the rows."""
    folder.mkdir()
    for number in range(FILES):
        lines = list(header)
        for place, row in enumerate(range(number * ROWS, (number + 1) * ROWS)):
            lines += [""] if place % 90 == number else []
            lines += [bad.format(row)] if place in (2, 200 + number) else []
            lines.append(format_row(row))
        (folder / f"{number} %é.{ending}").write_text("\n".join([*lines, bad.format("last"), ""]))


def fill_trips(folder: Path) -> Expected:
    """CSV for a table that is not there."""
    write_lines(folder, "csv", [HEADER], lambda n: f"{n},2026-03-08 02:{n % 60:02}:00,{n % 7}.25", "bad{},y,z")
    return Expected([], FILES * ROWS)


def fill_orders(duck: DuckDBPyConnection, folder: Path) -> Expected:
    """JSON: most keys in several files, some in rows that are older than those of the table."""
    held, keys = 300, 500
    duck.execute("CREATE TABLE raw.orders (id BIGINT, state VARCHAR, seen TIMESTAMPTZ)")
    rows: dict[int, Row] = {id_: (id_, "old", at(id_ * 4)) for id_ in range(held)}
    select = "SELECT i, 'old', $1 + i * INTERVAL '4 minutes' FROM range($2, $2 + 100) r(i)"
    for start in range(0, held, 100):
        duck.execute(f"INSERT INTO raw.orders {select}", [BASE, start])
    known = dict(rows)

    def format_row(number: int) -> str:
        one = (number * 7 % keys, f"state {number}", at(number))
        rows[one[0]] = max(rows.get(one[0], one), one, key=lambda row: row[2])
        return json.dumps({"id": one[0], "state": one[1], "seen": one[2].removesuffix("+00")})

    write_lines(folder, "jsonl", [], format_row, '{{"id":"bad{}"}}')
    taken = sum(known.get(id_) != row for id_, row in rows.items())
    return Expected(sorted(rows.values()), taken, FILES * ROWS - taken)


def fill_prices(duck: DuckDBPyConnection, folder: Path) -> Expected:
    """Parquet in many row groups: prices of which every other one is the price before, and rows without the key."""
    keys = 250
    duck.execute(
        "CREATE TABLE raw.prices (id BIGINT NOT NULL, price BIGINT, seen TIMESTAMPTZ, note VARCHAR,"
        " valid_from TIMESTAMPTZ, valid_to TIMESTAMPTZ, is_current BOOLEAN)"
    )
    folder.mkdir()
    duck.execute(f"INSERT INTO raw.prices SELECT i, 0, $1, 'old', $1, NULL, true FROM range(0, {keys}, 2) r(i)", [BASE])
    versions: dict[int, list[tuple[int, str]]] = {id_: [(0, at(0))] for id_ in range(0, keys, 2)}
    for number in range(FILES):
        columns: dict[str, list[Any]] = {"id": [], "price": [], "seen": [], "note": []}
        for row in range(number * ROWS, (number + 1) * ROWS):
            id_, price = (None if row % 150 == 7 else row % keys), row // (2 * keys)
            for name, value in zip(columns, (id_, price, BASE + timedelta(minutes=1 + row), "old"), strict=True):
                columns[name].append(value)
            if id_ is not None and (id_ not in versions or versions[id_][-1][0] != price):
                versions.setdefault(id_, []).append((price, at(1 + row)))
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=20)
    rows = [
        (id_, price, since, till, till is None)
        for id_, own in versions.items()
        for (price, since), till in zip(own, [*(since for _, since in own[1:]), None], strict=True)
    ]
    taken = len(rows) - keys // 2
    return Expected(sorted(rows, key=lambda row: row[:3]), taken, FILES * ROWS - len(list_bad(folder)) - taken)


def fill_visits(duck: DuckDBPyConnection, folder: Path) -> Expected:
    """CSV with two of the table's four days and a new one; every day has rows in files, and inlined ones."""
    duck.execute("CREATE TABLE raw.visits (day DATE, id BIGINT, note VARCHAR); ALTER TABLE raw.visits SET PARTITIONED BY (day)")
    duck.execute("INSERT INTO raw.visits SELECT DATE '2026-03-01' + (i % 4)::INTEGER, i, 'old' FROM range(200) r(i)")
    duck.execute("INSERT INTO raw.visits SELECT DATE '2026-03-01' + (i % 4)::INTEGER, i, 'inlined' FROM range(4) r(i)")
    kept = [(f"2026-03-{1 + i % 4:02}", i, note) for note, count in (("old", 200), ("inlined", 4)) for i in range(count) if i % 4 in (0, 3)]
    new = [(f"2026-03-{(2, 3, 5)[n % 3]:02}", n, f"new {n}") for n in range(FILES * ROWS)]
    write_lines(folder, "csv", ["day,id,note"], lambda n: ",".join(map(str, new[n])), "2026-03-01,bad{},x")
    return Expected(sorted((*kept, *new)), len(new))


def find_bad(path: Path) -> list[Row]:
    """Number, line and text of each bad row of a file; of Parquet the number alone."""
    if path.suffix == ".parquet":
        return [(number, None, None) for number, id_ in enumerate(pq.read_table(path)["id"].to_pylist()) if id_ is None]
    lines = [(line, text) for line, text in enumerate(path.read_text().splitlines(), 1) if text]
    rows = lines[1:] if path.suffix == ".csv" else lines
    return [(number, line, text) for number, (line, text) in enumerate(rows) if "bad" in text]


def list_bad(folder: Path) -> list[Row]:
    """The same of all files of a folder, by their names."""
    return sorted((path.name, *place) for path in folder.iterdir() for place in find_bad(path))


def check_taken(duck: DuckDBPyConnection, folder: Path, expected: Mapping[str, Expected]) -> None:
    """Every row of each folder is in the table as its mode asks, in UTC, or in quarantine with its place, or superseded."""
    for name, one in expected.items():
        report, bad = json.loads((folder / f"{name}.json").read_text()), list_bad(folder / name)
        rows_in = one.taken + one.superseded + len(bad)
        assert [report[count] for count in COUNTS] == [rows_in, one.taken, len(bad), one.superseded], name
        raw = "NULL" if name == "prices" else "raw"
        told = duck.execute(f"SELECT source_file, row_index, line, {raw} FROM raw.{name}__quarantine").fetchall()
        assert sorted((unquote(file).rpartition("/")[2], *place) for file, *place in told) == bad, name
        if name in SELECTS:
            assert duck.execute(SELECTS[name]).fetchall() == one.rows, name
    whole = sum(n % 7 + 0.25 for n in range(FILES * ROWS))
    sums = "SELECT count(*), count(DISTINCT id), min(seen)::VARCHAR, max(seen)::VARCHAR, sum(fare)::VARCHAR FROM raw.trips"
    there = (FILES * ROWS, FILES * ROWS, "2026-03-08 02:00:00+00", "2026-03-08 02:59:00+00", f"{whole:.2f}")
    assert duck.execute(sums).fetchone() == there
