"""SQLite's values, any of which may be in any column: what is of the column's type is taken as it is, and nothing else silently."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DateType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.database_checks import guard_sqlite
from duckicelake.pipeline.ingest.options import IngestMode, Status
from tests.pipeline.ingest.mill import TABLE, Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]


class Book:
    """A database of SQLite, with one table."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "book.db"
        self.source = f"jdbc:sqlite:{self.path}"

    def make(self, columns: str, *rows: Sequence[Any]) -> None:
        """The table again."""
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute("DROP TABLE IF EXISTS t")
            conn.execute(f"CREATE TABLE t ({columns})")
        self.add(*rows)

    def add(self, *rows: Sequence[Any]) -> None:
        """Rows, as they are given."""
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.executemany(f"INSERT INTO t VALUES ({', '.join('?' for _ in rows[0])})", rows)

    def options(self, *, of: str = "t", schema: str | None = None, **more: Any) -> dict[str, Any]:
        """Options of the job that takes them."""
        return {"source": self.source, "reading": {"dbtable": of} | ({"customSchema": schema} if schema else {})} | more


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """One without a table."""
    return Book(tmp_path)


def list_bad(mill: Mill) -> list[tuple[Any, str]]:
    """The rows in quarantine, in order, with what is said of them."""
    return [(json.loads(raw), reason) for raw, reason in mill.rows("trips__quarantine", "raw, reason")]


@pytest.mark.long
def test_values_of_other_types_are_quarantined(mill: Mill, book: Book) -> None:
    """Texts, fractions and BLOBs were zeros and signs of replacement; rows in are rows out and those in quarantine, as they were."""
    odd = [("abc", "x", "zz"), ("", "y", ""), (1.5, "z", None), ("9e3", b"\xff\xfe", 2), (7, None, "zz")]
    book.make("id INTEGER, v TEXT, r REAL", (1, "ok", 1.5), (2**62 + 1, "\ufffd", 2), (None, None, None), *odd)
    done = mill.run(**book.options())
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (8, 3, 5)
    assert mill.rows() == [(1, "ok", 1.5), (2**62 + 1, "\ufffd", 2.0), (None, None, None)]
    assert list_bad(mill) == [
        ({"id": "", "v": "y", "r": ""}, "column id must have a whole number (bigint)"),
        ({"id": "abc", "v": "x", "r": "zz"}, "column id must have a whole number (bigint)"),
        ({"id": 1.5, "v": "z", "r": None}, "column id must have a whole number (bigint)"),
        ({"id": 7, "v": None, "r": "zz"}, "column r must have a number"),
        ({"id": 9000, "v": "\\xFFFE", "r": 2.0}, "column v must have a text, and no BLOB"),
    ]
    with pytest.raises(BadRequest, match="5 rows are bad"):
        mill.run(**book.options(table=TABLE.with_suffix("_2"), max_quarantined=4))


@pytest.mark.long
def test_numbers_and_truths_are_exact(mill: Mill, book: Book) -> None:
    """Decimals with more digits than theirs are bad, and not those of sums; floats have 64 bits; 2 is neither true nor false."""
    good = [(1.25, 0.1, 1, b"\x00"), (0.1 + 0.2, 2, "true", "text"), (-3, None, "FALSE", None), (None, None, 0, None)]
    odd = [(1.005, 0, 0, None), (12345678901.5, 0, 0, None), ("abc", 0, 0, None), (1, "x", 0, None), (1, 0, 2, None), (1, 0, 0.5, None)]
    book.make("m DECIMAL(9,2), f FLOAT, b BOOLEAN, o BLOB", *good, *odd, (1, 0, 0, 7))
    done = mill.run(**book.options())
    assert (done.rows_out, done.rows_quarantined) == (4, 7)
    assert mill.rows(columns="m::VARCHAR, f, b, o") == [
        ("-3.00", None, False, None),
        ("0.30", 2.0, True, b"text"),
        ("1.25", 0.1, True, b"\x00"),
        (None, None, False, None),
    ]


@pytest.mark.long
def test_types_that_were_said_are_held_to(mill: Mill, book: Book) -> None:
    """Texts of numbers are read as such, exactly; numbers as texts keep their digits."""
    book.make(
        "a TEXT, b TEXT, c REAL, d INTEGER", ("007", "12345678901234567890.1", 0.1 + 0.2, 5), ("1.5", "1", 0.1, 6), ("8", "1.25", 1, 7)
    )
    book.add(("9", "2", 2, 300))
    done = mill.run(**book.options(of="(SELECT a, b, c, d AS e FROM t) x", schema="a INT, b DECIMAL(38,1), c STRING, e TINYINT"))
    assert (done.rows_in, done.rows_out) == (4, 1)
    assert mill.rows(columns="a, b::VARCHAR, c, e") == [(7, "12345678901234567890.1", "0.30000000000000004", 5)]
    assert [reason for _, reason in list_bad(mill)] == [
        "column a must have a whole number (int)",
        "column b must have a number that is decimal(38,1)",
        "column e must have a whole number (tinyint)",
    ]


@pytest.mark.long
def test_a_type_that_was_guessed_stops_the_run(mill: Mill, book: Book) -> None:
    """What Spark knows nothing of is a decimal to it; the remedy that is told works."""
    book.make("id INTEGER, doc JSON", (1, '{"a": 1}'), (2, "5"))
    with pytest.raises(BadRequest, match=r"column doc must have a number .* 1 rows have none, such as .*customSchema='`doc` STRING'"):
        mill.run(**book.options())
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
    mill.run(**book.options(schema="`doc` STRING"))
    assert mill.rows() == [(1, '{"a": 1}'), (2, "5")]


@pytest.mark.long
def test_a_wrong_bookmark_stops_the_run(mill: Mill, book: Book) -> None:
    """Nobody could say whether its row was taken; other values of it may be bad, and are so once."""
    book.make("r REAL, id INTEGER", (1.5, 1), ("x", 2))
    asked = {"incremental_by": "ID", "mode": IngestMode.upsert, "key": ("id",)}
    assert mill.run(**book.options(**asked)).rows_quarantined == 1
    assert mill.run(**book.options(**asked)).status == Status.nothing_new
    book.add(("y", "abc"))
    with pytest.raises(BadRequest, match="1 rows of .* have no id"):
        mill.run(**book.options(**asked))
    with closing(sqlite3.connect(book.path)) as conn, conn:
        conn.execute("UPDATE t SET id = 3, r = 2 WHERE id = 'abc'")
    assert mill.run(**book.options(**asked)).rows_out == 1
    assert mill.rows() == [(1.5, 1), (2.0, 3)]
    assert len(list_bad(mill)) == 1


@pytest.mark.long
def test_parts_have_each_row_once(mill: Mill, book: Book) -> None:
    """Rows whose value by which the parts are made is none of numbers too."""
    book.make("id INTEGER, seen DATE", *((number, None) for number in range(20)), ("abc", None), (b"\x00", None), (None, None), (2.5, None))
    parts = {"partitionColumn": "id", "lowerBound": "0", "upperBound": "20", "numPartitions": "4"}
    asked = book.options()
    done = mill.run(**asked | {"reading": asked["reading"] | parts})
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (24, 21, 3)
    with pytest.raises(BadRequest, match="partitionColumn seen is date"):
        mill.run(**asked | {"reading": asked["reading"] | parts | {"partitionColumn": "seen"}}, table=TABLE.with_suffix("_2"))


@pytest.mark.long
def test_days_and_moments_are_read_as_they_are_stored(mill: Mill, book: Book) -> None:
    """Texts of ISO 8601 with a zone or none, milliseconds as the driver writes them, Julian days; what is none is quarantined."""
    moments = [
        "2026-01-01 10:00:00",
        "2026-01-01T10:00:00Z",
        "2026-01-01T12:00:00+02:00",
        "2026-01-01 10:00",
        1767261600000,
        2461041.9166666665,
    ]
    more = [("2026-01-02", "2026-01-02 00:00:00.123456", "1900-01-01"), (-1000 * 86400, -1, 0), ("0001-01-01", None, None)]
    odd = [
        ("2026-02-30", None, None),
        ("soon", None, None),
        (None, "10:00:00", None),
        (None, "2026-01-01 24:00:00", None),
        (None, None, b"\x00"),
    ]
    book.make("d DATE, s TIMESTAMP, x DATE", *(("2026-01-01", moment, None) for moment in moments), *more, *odd)
    done = mill.run(**book.options())
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (14, 9, 5)
    assert mill.rows(columns="DISTINCT d::VARCHAR, s::VARCHAR, x::VARCHAR") == [
        ("0001-01-01", None, None),
        ("1969-12-31", "1969-12-31 23:59:59.999", "1970-01-01"),
        ("2026-01-01", "2026-01-01 10:00:00", None),
        ("2026-01-02", "2026-01-02 00:00:00.123456", "1900-01-01"),
    ]


@pytest.mark.long
def test_times_of_day_are_not_cut(mill: Mill, book: Book) -> None:
    """A column of dates with such stops the run, and the remedy works; the driver's own settings that change values are refused."""
    book.make("seen DATE", (1767261600123,), ("2026-01-02",))
    with pytest.raises(
        BadRequest, match=r"column seen must have a date without a time of day, and 1 rows .*customSchema='`seen` TIMESTAMP_NTZ'"
    ):
        mill.run(**book.options())
    mill.run(**book.options(schema="`seen` TIMESTAMP_NTZ"))
    assert mill.rows(columns="seen::VARCHAR") == [("2026-01-01 10:00:00.123",), ("2026-01-02 00:00:00",)]
    for source, more in ((f"{book.source}?date_precision=seconds", {}), (book.source, {"date_precision": "SECONDS"})):
        with pytest.raises(BadRequest, match="milliseconds"):
            mill.run(source=source, reading={"dbtable": "t"} | more, table=TABLE.with_suffix("_2"))


@pytest.mark.long
def test_a_datetime_has_its_time(mill: Mill, book: Book) -> None:
    """The driver calls it a date; where Spark tells what it was, it is a moment, and else the run stops."""
    book.make("seen DATETIME", ("2026-01-01 10:00:00",), (1767261600000,))
    try:
        mill.run(**book.options())
    except BadRequest as error:
        assert "customSchema='`seen` TIMESTAMP_NTZ'" in error.message
        mill.run(**book.options(schema="seen TIMESTAMP_NTZ"))
    assert mill.rows(columns="seen::VARCHAR") == [("2026-01-01 10:00:00",)] * 2


@pytest.mark.long
def test_names_and_many_columns_are_no_matter(tmp_path: Path) -> None:
    """Quotes in names stay there, and hundreds of columns are no deeper than SQLite allows."""
    names = ['a"b', "it's", *(f"c{number}" for number in range(300))]
    columns = StructType([StructField(name, DateType()) for name in names])
    quoted = [name.replace('"', '""') for name in names]
    with closing(sqlite3.connect(tmp_path / "x.db")) as conn:
        conn.execute("CREATE TABLE t (" + ", ".join(f'"{name}"' for name in quoted) + ")")
        conn.execute(f"INSERT INTO t VALUES ({', '.join('?' for _ in names)})", ["2026-01-01", "soon", *(None for _ in names[2:])])
        (row,) = conn.execute(f"SELECT * FROM {guard_sqlite('t', columns, {}, None).table}")
    assert row[2] == "2026-01-01"
    assert row[0] == "column it's must have a date (YYYY-MM-DD)"
    assert json.loads(row[1])["it's"] == "soon"
