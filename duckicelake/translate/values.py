"""Iceberg values as the texts of DuckDB (statistics, partition values, column defaults): parsed for loads, formatted for commits. No I/O.

A text without an Iceberg value (an infinite date, garbage) gives None: a bound is left out then, and a partition value counts as
unproven. Executors of `verify` call `parse_value` too. A wrong text would hide a file from DuckDB's queries, so values that DuckDB might
read differently have no text.
Source: DuckDB casts to VARCHAR; DuckLake 1.0 «file_column_stats»
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.transforms import DAY_MICROS, to_civil_date
from duckicelake.iceberg.types import PrimitiveType, find_decimal

MICROS = 1_000_000

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


LIMITS: Mapping[str, tuple[int, int]] = {
    "date": (-(2**31) + 2, 2**31 - 2),
    "time": (0, DAY_MICROS),
    "timestamp": (-9_223_372_022_400_000_000, 2**63 - 2),
    "timestamptz": (-9_223_372_022_400_000_000, 2**63 - 2),
}
"""The least and the greatest value that DuckDB reads from a text; beyond them it reads infinity or fails."""
WIDE = Context(prec=200)


def decode_bound(type_: PrimitiveType, content: bytes | None) -> object | None:
    """Return the value of a bound in a manifest, or None if it is not of the type."""
    if content is None:
        return None
    try:
        return decode_value(type_, content)
    except (BadRequest, ValueError, OverflowError, struct.error):
        return None


def find_text(type_: PrimitiveType, value: object | None) -> str | None:
    """Return the text of a value, or None if DuckDB has none for it."""
    format_one = FORMATS.get(type_.name.partition("(")[0])
    return None if value is None or format_one is None or not _is_held(type_, value) else format_one(value)


def find_default_text(type_: PrimitiveType, value: object | None) -> str | None:
    """Return the text of a column's default, or None if DuckDB has none for it.

    Defaults are not compared, so that uuids and binaries have a text here; it names each byte, and is never DuckLake's word for no default.
    """
    if isinstance(value, bytes):
        return str(UUID(bytes=value)) if type_.name == "uuid" else "".join(f"\\x{byte:02X}" for byte in value)
    return find_text(type_, value)


def _is_held(type_: PrimitiveType, value: object) -> bool:
    """Return True if DuckDB reads the value's text: a bound that it cannot read would hide the file from every query."""
    if isinstance(value, Decimal):
        # `abs` rounds to 28 digits.
        decimal = find_decimal(type_)
        return decimal is not None and value.scaleb(decimal[1], WIDE).copy_abs() < 10 ** decimal[0]
    limits = LIMITS.get(type_.name)
    return limits is None or (isinstance(value, int) and limits[0] <= value <= limits[1])


def _format_float(value: float) -> str | None:
    return None if math.isnan(value) else str(np.float32(value)) if math.isfinite(value) else str(value)


def _format_double(value: float) -> str | None:
    return None if math.isnan(value) else repr(value)


def _format_decimal(value: Decimal) -> str:
    return f"{value:f}"


def _format_date(days: int) -> str:
    year, month, day = to_civil_date(days)
    return f"{year:04d}-{month:02d}-{day:02d}" if year > 0 else f"{1 - year:04d}-{month:02d}-{day:02d} (BC)"


def _format_time(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def _format_timestamp(micros: int) -> str:
    days, rest = divmod(micros, DAY_MICROS)
    return f"{_format_date(days)} {_format_time(rest)}"


def _format_timestamptz(micros: int) -> str:
    return f"{_format_timestamp(micros)}+00"


def _format_string(value: str) -> str | None:
    return None if "\0" in value else value


def _format_boolean(value: bool) -> str:
    return "true" if value else "false"


FORMATS: Mapping[str, Callable[[Any], str | None]] = {
    "boolean": _format_boolean,
    "int": str,
    "long": str,
    "float": _format_float,
    "double": _format_double,
    "decimal": _format_decimal,
    "date": _format_date,
    "time": _format_time,
    "timestamp": _format_timestamp,
    "timestamptz": _format_timestamptz,
    "string": _format_string,
}
"""Formatters by the type's name without its parameters. None for uuids (readers disagree about their order) and binaries."""
