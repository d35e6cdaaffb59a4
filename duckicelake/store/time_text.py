"""Dates and times from the text DuckDB prints them as.

Shape:  [year]-MM-DD[ (BC)][ hh:mm:ss[.fraction][±hh[:mm[:ss]]]], or `infinity`, `-infinity`
Units:  days or microseconds since 1970-01-01 (UTC), microseconds or nanoseconds since midnight
        infinity is the value DuckDB's own Parquet files hold for it
Raises: ValueError — any other text, saying what is wrong without the text itself
"""

import re
from collections.abc import Sequence
from datetime import date

DATE = r"(\d{4,})-(\d\d)-(\d\d)( \(BC\))?"
CLOCK = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
OFFSET = r"([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?"

EPOCH_DAY = date(1970, 1, 1).toordinal()
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
INFINITE_DAYS = 2**31 - 1
INFINITE_TICKS = 2**63 - 1
DAY_SECONDS = 86_400
SECOND_MICROS, SECOND_NANOS = 10**6, 10**9
DAY_MICROS = DAY_SECONDS * SECOND_MICROS


def parse_date(text: str) -> int:
    """Days since 1970-01-01."""
    if (infinite := _find_infinity(text, INFINITE_DAYS)) is not None:
        return infinite
    found = re.fullmatch(DATE, text)
    if found is None:
        raise ValueError("no date")
    return _days(*found.groups())


def parse_timestamp(text: str, ticks_per_second: int = SECOND_MICROS) -> int:
    """Ticks since 1970-01-01 00:00:00, without a zone; finer digits are cut off."""
    if (infinite := _find_infinity(text, INFINITE_TICKS)) is not None:
        return infinite
    found = re.fullmatch(f"{DATE} {CLOCK}", text)
    if found is None:
        raise ValueError("no timestamp")
    parts = found.groups()
    return _days(*parts[:4]) * DAY_SECONDS * ticks_per_second + _ticks(parts[4:], ticks_per_second)


def parse_timestamptz(text: str) -> int:
    """Microseconds since 1970-01-01 00:00:00 UTC, whatever zone the text is written in."""
    if (infinite := _find_infinity(text, INFINITE_TICKS)) is not None:
        return infinite
    found = re.fullmatch(f"{DATE} {CLOCK}{OFFSET}", text)
    if found is None:
        raise ValueError("no timestamp with time zone")
    parts = found.groups()
    return _days(*parts[:4]) * DAY_MICROS + _ticks(parts[4:8], SECOND_MICROS) - _offset_seconds(*parts[8:]) * SECOND_MICROS


def parse_time(text: str) -> int:
    """Microseconds since midnight; DuckDB's 24:00:00 is a whole day of them, as its Parquet files have it."""
    found = re.fullmatch(CLOCK, text)
    if found is None:
        raise ValueError("no time of day")
    micros = _ticks(found.groups(), SECOND_MICROS)
    if micros > DAY_MICROS:
        raise ValueError("later than 24:00:00")
    return micros


def parse_timetz(text: str) -> tuple[int, bool]:
    """Microseconds since midnight in UTC, as DuckDB's Parquet files have it, and whether the text says just that time."""
    found = re.fullmatch(CLOCK + OFFSET, text)
    if found is None:
        raise ValueError("no time of day with an offset")
    parts = found.groups()
    micros = _ticks(parts[:4], SECOND_MICROS)
    offset_seconds = _offset_seconds(*parts[4:])
    return (micros - offset_seconds * SECOND_MICROS) % DAY_MICROS, offset_seconds == 0 and micros < DAY_MICROS


def _find_infinity(text: str, infinite: int) -> int | None:
    return {"infinity": infinite, "-infinity": -infinite}.get(text)


def _days(year_text: str, month_text: str, day_text: str, before_christ: str | None) -> int:
    year = 1 - int(year_text) if before_christ else int(year_text)
    # The calendar repeats every 400 years, and `date` knows the years 1 to 9999 only.
    cycles, year_of_cycle = divmod(year, CYCLE_YEARS)
    day = date(CYCLE_YEARS + year_of_cycle, int(month_text), int(day_text)).toordinal()
    return day - EPOCH_DAY + (cycles - 1) * CYCLE_DAYS


def _ticks(clock: Sequence[str], ticks_per_second: int) -> int:
    hours, minutes, seconds, fraction = clock
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    nanos = int(fraction.ljust(9, "0")) if fraction else 0
    return whole * ticks_per_second + nanos * ticks_per_second // SECOND_NANOS


def _offset_seconds(sign: str, hours: str, minutes: str | None, seconds: str | None) -> int:
    offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return -offset if sign == "-" else offset
