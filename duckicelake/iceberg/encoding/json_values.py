"""Single values as JSON: column defaults, and what scan plans say.

Source: Iceberg spec, appendix D «JSON single-value serialization»
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from duckicelake.errors import BadRequest
from duckicelake.iceberg.bounds import encode_value
from duckicelake.iceberg.transforms import DAY_MICROS, get_scale, to_civil_date, to_days_since_1970
from duckicelake.iceberg.types import PrimitiveType

_SAME_IN_JSON = ("boolean", "int", "long", "float", "double", "string")
_DATE = re.compile(r"([+-]?\d{4,9})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_HEX = re.compile(r"([0-9a-fA-F]{2})*", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def format_value(type: PrimitiveType, value: object) -> object:
    """An iceberg value as JSON; null for null.

    Raises: BadRequest — not a value of the type, or one that JSON cannot say (NaN, infinity)
    """
    if value is None:
        return None
    encode_value(type, value)
    name = type.name
    match value:
        case float() if not math.isfinite(value):
            raise BadRequest(f"Cannot write {value} as JSON; choose a finite number")
        case bool() | float() | str():
            return value
        case int():
            return _FORMATS[name](value) if name in _FORMATS else value
        case Decimal():
            return f"{value:f}" if value.as_tuple().exponent == -get_scale(type) else f"{value:.{get_scale(type)}f}"
        case bytes():
            return str(UUID(bytes=value)) if name == "uuid" else value.hex()
        case _:
            raise BadRequest(f"Cannot write a value of type {type} as JSON; choose another type")


def parse_value(type: PrimitiveType, node: object) -> object:
    """The iceberg value that JSON spells; null is null.

    Raises: BadRequest — not a value of the type
    """
    if node is None:
        return None
    try:
        value = _parse(type, node)
        encode_value(type, value)
    except (ValueError, BadRequest) as error:
        raise BadRequest(f"Cannot read {str(node)[:100]!r} as {type}; send a JSON single value of that type") from error
    return value


def _parse(type: PrimitiveType, node: object) -> object:
    name = type.name
    if name in ("float", "double") and isinstance(node, int) and not isinstance(node, bool) and abs(node) <= 2**53:
        return float(node)
    if name in ("float", "double") and isinstance(node, float) and not math.isfinite(node):
        raise ValueError("not finite")
    if name in _SAME_IN_JSON:
        return node
    if not isinstance(node, str):
        raise ValueError("not a string")
    if name in _PARSERS:
        return _PARSERS[name](node)
    if name.startswith("decimal"):
        return Decimal(_match(_DECIMAL, node)[0])
    return bytes.fromhex(_match(_HEX, node)[0])


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError("malformed")
    return match


def _format_date(days: int) -> str:
    year, month, day = to_civil_date(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def _format_time(count: int, digits: int = 6) -> str:
    seconds, fraction = divmod(count, 10**digits)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"


def _format_timestamp(count: int, digits: int = 6) -> str:
    days, rest = divmod(count, DAY_MICROS * 10 ** (digits - 6))
    return f"{_format_date(days)}T{_format_time(rest, digits)}"


def _parse_date(text: str) -> int:
    match = _match(_DATE, text)
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    days = to_days_since_1970(year, month, day)
    if not 1 <= month <= 12 or to_civil_date(days) != (year, month, day):
        raise ValueError("no such day")
    return days


def _parse_time(text: str, digits: int = 6) -> int:
    match = _match(_TIME, text)
    fraction = match[4] or ""
    if fraction[digits:].strip("0"):
        raise ValueError("too fine")
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)
    return seconds * 10**digits + int(fraction[:digits].ljust(digits, "0"))


def _parse_timestamp(text: str, digits: int = 6) -> int:
    date, _, time = text.partition("T")
    return _parse_date(date) * DAY_MICROS * 10 ** (digits - 6) + _parse_time(time, digits)


def _without_zone(text: str) -> str:
    for zone in ("+00:00", "Z"):
        if text.endswith(zone):
            return text.removesuffix(zone)
    raise ValueError("not in UTC")


_FORMATS: dict[str, Callable[[int], str]] = {
    "date": _format_date,
    "time": _format_time,
    "timestamp": _format_timestamp,
    "timestamptz": lambda count: _format_timestamp(count) + "+00:00",
    "timestamp_ns": lambda count: _format_timestamp(count, 9),
    "timestamptz_ns": lambda count: _format_timestamp(count, 9) + "+00:00",
}
_PARSERS: dict[str, Callable[[str], object]] = {
    "date": _parse_date,
    "time": _parse_time,
    "timestamp": _parse_timestamp,
    "timestamptz": lambda text: _parse_timestamp(_without_zone(text)),
    "timestamp_ns": lambda text: _parse_timestamp(text, 9),
    "timestamptz_ns": lambda text: _parse_timestamp(_without_zone(text), 9),
    "uuid": lambda text: UUID(_match(_UUID, text)[0]).bytes,
}
