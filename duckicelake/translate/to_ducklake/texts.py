"""Iceberg values as the texts that DuckDB reads, for column defaults and file statistics; `translate.values` parses them. No I/O.

`to_ducklake` calls it when a commit is planned. A wrong text would hide a file from DuckDB's queries, so unknown values become None.
"""

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.transforms import DAY_MICROS, to_civil_date
from duckicelake.iceberg.types import PrimitiveType, find_decimal

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
