"""Dates and times from DuckDB's text, with DuckDB as the judge."""

from collections.abc import Callable, Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.store.inlined_values import (
    DAY_MICROS,
    SECOND_NANOS,
    parse_date,
    parse_time,
    parse_timestamp,
    parse_timestamptz,
    parse_timetz,
)

LAST_DAY, LAST_MICRO, LAST_NANO = 2**31 - 2, 2**63 - 2, 2**62
FIRST_MICRO = -9_223_372_022_400_000_000


PrintAll = Callable[[list[int], str], list[str]]


@pytest.fixture(scope="module")
def print_all() -> Iterator[PrintAll]:
    """What DuckDB prints for an expression of each number `x`."""
    with duckdb.connect() as conn:
        conn.execute("SET TimeZone = 'UTC'")

        def print_numbers(numbers: list[int], expression: str) -> list[str]:
            rows = conn.execute(f"SELECT ({expression})::VARCHAR FROM unnest($1::BIGINT[]) n(x)", [numbers]).fetchall()
            return [text for (text,) in rows]

        yield print_numbers


def numbers(lowest: int, highest: int) -> st.SearchStrategy[list[int]]:
    """Numbers from the whole range, and from around 1970."""
    return st.lists(st.integers(lowest, highest) | st.integers(max(lowest, -(10**15)), min(highest, 10**15)), min_size=20, max_size=40)


@settings(max_examples=20, deadline=None)
@given(days=numbers(-LAST_DAY // 2, LAST_DAY))
def test_every_date_is_read_as_duckdb_prints_it(print_all: PrintAll, days: list[int]) -> None:
    """Dates of all years, BC included."""
    assert [parse_date(text) for text in print_all(days, "make_date(x::INTEGER)")] == days


@settings(max_examples=20, deadline=None)
@given(micros=numbers(FIRST_MICRO, LAST_MICRO))
def test_every_timestamp_is_read_as_duckdb_prints_it(print_all: PrintAll, micros: list[int]) -> None:
    """Timestamps with and without zone, to the microsecond."""
    assert [parse_timestamp(text) for text in print_all(micros, "make_timestamp(x)")] == micros
    assert [parse_timestamptz(text + "+00") for text in print_all(micros, "make_timestamp(x)")] == micros


@settings(max_examples=20, deadline=None)
@given(nanos=numbers(-LAST_NANO, LAST_NANO))
def test_every_nanosecond_is_kept(print_all: PrintAll, nanos: list[int]) -> None:
    """timestamp_ns loses nothing."""
    assert [parse_timestamp(text, SECOND_NANOS) for text in print_all(nanos, "make_timestamp_ns(x)")] == nanos


@settings(max_examples=20, deadline=None)
@given(micros=numbers(0, DAY_MICROS - 1))
def test_every_time_of_day_is_read_as_duckdb_prints_it(print_all: PrintAll, micros: list[int]) -> None:
    """Times to the microsecond."""
    assert [parse_time(text) for text in print_all(micros, "TIME '00:00:00' + to_microseconds(x)")] == micros


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Chatham"])
@pytest.mark.parametrize("micros", [0, 1_700_000_000_123_456, -1, 253_402_300_799_999_999])
def test_the_zone_of_the_text_does_not_matter(zone: str, micros: int) -> None:
    """The same instant is read from the text of any session."""
    with duckdb.connect() as conn:
        conn.execute(f"SET TimeZone = '{zone}'")
        [(text,)] = conn.execute("SELECT make_timestamptz(?)::VARCHAR", [micros]).fetchall()
    assert parse_timestamptz(text) == micros


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        pytest.param(parse_date, "infinity", 2**31 - 1, id="date-infinity"),
        pytest.param(parse_date, "-infinity", -(2**31) + 1, id="date-minus-infinity"),
        pytest.param(parse_timestamp, "infinity", 2**63 - 1, id="timestamp-infinity"),
        pytest.param(parse_timestamptz, "-infinity", -(2**63) + 1, id="timestamptz-minus-infinity"),
        pytest.param(parse_timestamptz, "1850-06-01 12:00:00-04:56:02", -3_773_718_238_000_000, id="offset-with-seconds"),
        pytest.param(parse_timestamp, "2020-01-01 00:00:00.123456789", 1577836800123456, id="nanoseconds-cut-to-micros"),
        pytest.param(parse_time, "24:00:00", 86_400_000_000, id="the-day-s-end"),
        pytest.param(parse_timetz, "01:00:00+05:30", (70_200_000_000, False), id="timetz-the-day-before"),
        pytest.param(parse_timetz, "12:00:00+05:30:15", (23_385_000_000, False), id="timetz-offset-with-seconds"),
        pytest.param(parse_timetz, "23:59:59.999999+00", (86_399_999_999, True), id="timetz-in-utc"),
        pytest.param(parse_timetz, "24:00:00+00", (0, False), id="timetz-the-day-s-end"),
    ],
)
def test_special_texts(parse: Callable[[str], object], text: str, value: object) -> None:
    """Infinity and 24:00:00 have the numbers of DuckDB's own files; an offset is subtracted, and of timetz it is told."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        pytest.param(parse_date, "2020-13-01", id="month-13"),
        pytest.param(parse_date, "2020-01-01 00:00:00", id="date-with-time"),
        pytest.param(parse_date, "", id="empty"),
        pytest.param(parse_timestamp, "2020-01-01", id="timestamp-without-time"),
        pytest.param(parse_timestamp, "2020-01-01 00:00:00+00", id="timestamp-with-zone"),
        pytest.param(parse_timestamptz, "2020-01-01 00:00:00", id="timestamptz-without-zone"),
        pytest.param(parse_time, "24:00:01", id="after-the-day-s-end"),
        pytest.param(parse_timetz, "12:00:00", id="timetz-without-offset"),
    ],
)
def test_other_texts_are_refused(parse: Callable[[str], int], text: str) -> None:
    """What DuckDB does not print for the type, or Iceberg cannot hold, is an error and never a guess."""
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)
