"""DuckDB's texts of values, against the numbers DuckDB itself computes from them."""

import struct
from decimal import Decimal
from uuid import UUID

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.iceberg.types import PrimitiveType
from duckicelake.translate.values import days_from_civil, parse_offset, parse_value

DAY_MICROS = 86_400_000_000
LAST_DAY = 2**31 - 2
FIRST_MICRO, LAST_MICRO = -9_223_372_022_400_000_000, 2**63 - 2

EDGE_DAYS = [0, -1, 1, -719_528, -719_529, -719_893, 2_932_896, 2_932_897, 105_000_000, -200_000_000, LAST_DAY]
EDGE_MICROS = [
    0,
    -1,
    1,
    999_999,
    -1_000_000,
    DAY_MICROS - 1,
    -62_167_219_200_000_000,
    -62_167_219_200_000_001,
    253_402_300_800_000_000,
    LAST_MICRO,
]


@pytest.fixture(scope="module")
def plain() -> duckdb.DuckDBPyConnection:
    """A DuckDB session without a lake."""
    return duckdb.connect()


def texts(conn: duckdb.DuckDBPyConnection, expression: str, numbers: list[int]) -> list[str]:
    """DuckDB's text of an expression over the column n, for each number."""
    rows = conn.execute(f"SELECT ({expression})::VARCHAR FROM (SELECT unnest(?::BIGINT[]) AS n)", [numbers]).fetchall()
    return [text for (text,) in rows]


def parsed(type_name: str, found: list[str]) -> list[object]:
    """What those texts mean."""
    return [parse_value(PrimitiveType(type_name), text) for text in found]


def spread(edges: list[int], least: int, most: int) -> list[int]:
    """The edges, and numbers all over the range."""
    step = (most - least) // 1499
    return [*edges, *range(least, most, step)]


def test_dates_from_before_christ_to_the_last_one(plain: duckdb.DuckDBPyConnection) -> None:
    """Days since 1970 in the proleptic Gregorian calendar, years of any length and sign."""
    days = spread(EDGE_DAYS, -2_000_000_000, LAST_DAY)
    # DuckDB's calendar begins in the year 5877642 before Christ
    found = texts(plain, "make_date(n::INTEGER)", days)
    assert any("(BC)" in text for text in found)
    assert any(len(text) == len("5881580-07-10") for text in found)
    assert parsed("date", found) == days


def test_timestamps_from_before_christ_to_the_last_one(plain: duckdb.DuckDBPyConnection) -> None:
    """Microseconds since 1970, years of any length and sign."""
    micros = spread(EDGE_MICROS, FIRST_MICRO, LAST_MICRO)
    found = texts(plain, "make_timestamp(n)", micros)
    assert any("(BC)" in text for text in found)
    assert parsed("timestamp", found) == micros


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Africa/Monrovia", "Pacific/Apia"])
def test_timestamps_written_in_any_zone(plain: duckdb.DuckDBPyConnection, zone: str) -> None:
    """An offset gives what DuckDB reads back from its own text, which has no seconds for zones that once had them."""
    micros = spread(EDGE_MICROS[:-1], FIRST_MICRO // 2, LAST_MICRO // 2)
    plain.execute(f"SET TimeZone = '{zone}'")
    found = texts(plain, "make_timestamptz(n)", micros)
    read_back = [n for (n,) in plain.execute("SELECT epoch_us(unnest(?::VARCHAR[])::TIMESTAMPTZ)", [found]).fetchall()]
    assert parsed("timestamptz", found) == read_back
    assert zone != "UTC" or read_back == micros


@pytest.mark.parametrize("type_name", ["TIMESTAMP_S", "TIMESTAMP_MS"])
def test_timestamps_of_other_units(plain: duckdb.DuckDBPyConnection, type_name: str) -> None:
    """Seconds and milliseconds are texts of the same form."""
    unit = 1_000_000 if type_name == "TIMESTAMP_S" else 1000
    micros = [number // unit * unit for number in EDGE_MICROS[:-1]]
    assert parsed("timestamp", texts(plain, f"make_timestamp(n)::{type_name}", micros)) == micros


def test_times_up_to_the_end_of_the_day(plain: duckdb.DuckDBPyConnection) -> None:
    """Microseconds since midnight; DuckDB has 24:00:00."""
    micros = [0, 1, 999_999, 3_723_000_400, DAY_MICROS - 1, DAY_MICROS]
    assert parsed("time", texts(plain, "TIME '00:00:00' + to_microseconds(n)", micros[:-1])) == micros[:-1]
    assert parsed("time", texts(plain, "TIME '24:00:00'", [0])) == [DAY_MICROS]


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        pytest.param("date", "infinity", id="infinite date"),
        pytest.param("timestamp", "-infinity", id="infinite timestamp"),
        pytest.param("timestamptz", "infinity", id="infinite timestamptz"),
        pytest.param("date", "2020-1-1", id="short date"),
        pytest.param("date", "2020-01-01 ", id="trailing space"),
        pytest.param("date", "٢٠٢٠-01-01", id="foreign digits"),
        pytest.param("timestamp", "2020-01-01 10:00", id="short time"),
        pytest.param("time", "01:02:03.1234567", id="nanoseconds"),
        pytest.param("boolean", "yes", id="word"),
        pytest.param("decimal(9, 2)", "NaN", id="no number"),
        pytest.param("int", "1.5", id="fraction"),
        pytest.param("uuid", "550e8400", id="short uuid"),
        pytest.param("binary", "é", id="not ASCII"),
        pytest.param("fixed[4]", "abcd", id="type without texts"),
        pytest.param("timestamp_ns", "2020-01-01 00:00:00.1234567890", id="finer than nanoseconds"),
        pytest.param("timestamp_ns", "infinity", id="infinite nanoseconds"),
    ],
)
def test_what_has_no_iceberg_value_gives_none(type_name: str, text: str) -> None:
    """A bound is then left out and a partition claims nothing; nothing is guessed."""
    assert parse_value(PrimitiveType(type_name), text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=Decimal(-(10**20)), max_value=Decimal(10**20)))
def test_decimals_keep_every_digit(number: Decimal) -> None:
    """A decimal's text is the decimal, whatever Python's precision."""
    text = duckdb.execute("SELECT (?::DECIMAL(38, 10))::VARCHAR", [number]).fetchall()[0][0]
    assert parse_value(PrimitiveType("decimal(38, 10)"), text) == number


@given(st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_whole_numbers_and_booleans(number: int, flag: bool) -> None:
    """Statistics write booleans as 0 and 1, partition values as words."""
    assert parse_value(PrimitiveType("long"), str(number)) == number
    for text in (str(int(flag)), str(flag).lower()):
        assert parse_value(PrimitiveType("boolean"), text) is flag


@given(st.floats(allow_nan=False), st.floats(width=32, allow_nan=False))
def test_floating_numbers_come_back_bit_by_bit(double: float, single: float) -> None:
    """DuckDB writes the shortest text; of a float it means the 32-bit number, also when its column is widened later."""
    row = duckdb.execute("SELECT ?::DOUBLE::VARCHAR, ?::FLOAT::VARCHAR", [double, single]).fetchall()[0]
    assert struct.pack("<d", parse_value(PrimitiveType("double"), row[0])) == struct.pack("<d", double)
    assert struct.pack("<d", parse_value(PrimitiveType("float"), row[1])) == struct.pack("<d", single)


@given(st.binary(max_size=40), st.uuids(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_blobs_uuids_and_strings(blob: bytes, uuid: UUID, string: str) -> None:
    """A blob's display stands for its bytes: everything that could be mistaken is escaped."""
    row = duckdb.execute("SELECT ?::BLOB::VARCHAR, ?::UUID::VARCHAR, ?::VARCHAR", [blob, uuid, string]).fetchall()[0]
    assert parse_value(PrimitiveType("binary"), row[0]) == blob
    assert parse_value(PrimitiveType("uuid"), row[1]) == uuid.bytes
    assert parse_value(PrimitiveType("string"), row[2]) == string


@given(st.integers(-300_000_000, 300_000_000))
def test_days_follow_one_another(days: int) -> None:
    """The day before a month's first is the last of the month before, in any year."""
    year, month = days // 12, days % 12 + 1
    length = days_from_civil(year + month // 12, month % 12 + 1, 1) - days_from_civil(year, month, 1)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    assert length == [31, 28 + is_leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1]


def test_offsets() -> None:
    """Seconds east of Greenwich, in every form DuckDB and ISO write."""
    found = {text: parse_offset(text) for text in ("Z", "+00", "-05", "+05:30", "+0530", "-00:44:30", "+13")}
    assert found == {"Z": 0, "+00": 0, "-05": -18000, "+05:30": 19800, "+0530": 19800, "-00:44:30": -2670, "+13": 46800}
