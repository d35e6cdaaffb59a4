"""DuckDB's texts of values (statistics, partition values) as Iceberg values.

A text without an Iceberg value (an infinite date, garbage) gives None: a bound is left out then, and a partition value
counts as unproven. Source: DuckDB casts to VARCHAR; DuckLake 1.0 «file_column_stats»
"""

import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from uuid import UUID

from duckicelake.iceberg.types import PrimitiveType

MICROS = 1_000_000
DAY_MICROS = 86_400 * MICROS

DATE = re.compile(r"(\d{1,7})-(\d\d)-(\d\d)( \(BC\))?", re.ASCII)
TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
TIMESTAMP = re.compile(r"(\d{1,7}-\d\d-\d\d(?: \(BC\))?)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-]\d\d(?::?\d\d){0,2}|Z)?)?", re.ASCII)
OFFSET = re.compile(r"(?:[+-]\d\d(?::?\d\d){0,2}|Z)$", re.ASCII)
ESCAPED_BYTE = re.compile(rb"\\x([0-9A-Fa-f]{2})")


def parse_value(type: PrimitiveType, text: str) -> object | None:
    """Return the Iceberg value of DuckDB's text for a value of this type, or None."""
    try:
        return PARSERS[type.name.partition("(")[0]](text)
    except (KeyError, ValueError, OverflowError, InvalidOperation):
        return None


def parse_boolean(text: str) -> bool:
    """Return the value of `0`, `1`, `true` or `false`."""
    return {"0": False, "1": True, "false": False, "true": True}[text]


def parse_float(text: str) -> float:
    """Return the 32-bit number whose shortest text this is."""
    return struct.unpack("<f", struct.pack("<f", float(text)))[0]


def parse_decimal(text: str) -> Decimal | None:
    """Return a finite decimal."""
    value = Decimal(text)
    return value if value.is_finite() else None


def parse_date(text: str) -> int | None:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar."""
    match = DATE.fullmatch(text)
    if not match:
        return None
    year = 1 - int(match[1]) if match[4] else int(match[1])
    return days_from_civil(year, int(match[2]), int(match[3]))


def parse_time(text: str) -> int | None:
    """Return microseconds since midnight."""
    match = TIME.fullmatch(text)
    if not match:
        return None
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    return seconds * MICROS + int((match[4] or "").ljust(6, "0"))


def parse_timestamp(text: str) -> int | None:
    """Return microseconds since 1970-01-01, in UTC if the text has an offset."""
    match = TIMESTAMP.fullmatch(text)
    if not match:
        return None
    days, micros = parse_date(match[1]), parse_time(match[2] or "00:00:00")
    if days is None or micros is None:
        return None
    return days * DAY_MICROS + micros - parse_offset(match[3] or "Z") * MICROS


def parse_timestamp_ns(text: str) -> int | None:
    """Return nanoseconds since 1970-01-01."""
    whole, _, fraction = text.partition(".")
    if not re.fullmatch(r"\d{0,9}", fraction, re.ASCII):
        return None
    micros = parse_timestamp(whole)
    return None if micros is None else micros * 1000 + int(fraction.ljust(9, "0"))


def parse_timestamptz_ns(text: str) -> int | None:
    """Return nanoseconds since 1970-01-01 in UTC of a text with an offset."""
    match = OFFSET.search(text)
    nanos = parse_timestamp_ns(text[: match.start()]) if match else None
    return None if match is None or nanos is None else nanos - parse_offset(match[0]) * 1_000_000_000


def parse_offset(text: str) -> int:
    """Return the seconds east of UTC of `Z`, `+hh`, `+hhmm` or `+hh:mm:ss`."""
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -seconds if text[0] == "-" else seconds


def parse_blob(text: str) -> bytes:
    """Return the bytes of DuckDB's display of a blob: ASCII, every other byte as `\\xHH`."""
    return ESCAPED_BYTE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode("ascii"))


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01; years before 1 are 0, -1, … (years counted from March, so leap days come last)."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _same(text: str) -> str:
    return text


def _uuid(text: str) -> bytes:
    return UUID(text).bytes


PARSERS: Mapping[str, Callable[[str], object | None]] = {
    "boolean": parse_boolean,
    "int": int,
    "long": int,
    "float": parse_float,
    "double": float,
    "decimal": parse_decimal,
    "date": parse_date,
    "time": parse_time,
    "timestamp": parse_timestamp,
    "timestamp_ns": parse_timestamp_ns,
    "timestamptz": parse_timestamp,
    "timestamptz_ns": parse_timestamptz_ns,
    "string": _same,
    "uuid": _uuid,
    "binary": parse_blob,
}
"""Parsers by the Iceberg type's name without its parameters."""
