"""Single values of a type as bytes, as lower and upper bounds, and as JSON.

An *iceberg value* is the Python value of one Iceberg value, in all packages:
boolean bool · int long int · float double float · decimal(P,S) Decimal · date int (days since 1970) · time int (µs)
timestamp timestamptz int (µs since 1970 UTC) · timestamp_ns timestamptz_ns int (ns) · string str · uuid 16 bytes · fixed binary bytes

No I/O: the server, jobs, and Spark executors (of `publish` and `verify`) use it.
Source: Iceberg spec, appendix D «Single-value serialization»
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from uuid import UUID

import numpy

from duckicelake.errors import BadRequest
from duckicelake.iceberg.transforms import DAY_MICROS, encode_minimal, get_scale, to_civil_date, to_days_since_1970, to_decimal, to_unscaled
from duckicelake.iceberg.types import PrimitiveType, find_decimal, find_fixed_length

BOUND_LENGTH = 16
INT_TYPES = ("int", "date")
LONG_TYPES = ("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
WHOLE_SIZES: Mapping[str, int] = {name: 4 for name in INT_TYPES} | {name: 8 for name in LONG_TYPES}
FLOAT_FORMATS: Mapping[str, str] = {"float": "<f", "double": "<d"}
FLOAT_MAX = struct.unpack("<f", bytes.fromhex("ffff7f7f"))[0]
CODE_POINT_MAX = 0x10FFFF
# The factors for four-byte values of these types, which were written as an int or a date before a type promotion.
WIDENED: Mapping[str, int] = {"long": 1, "timestamp": DAY_MICROS, "timestamp_ns": DAY_MICROS * 1000}


def encode_value(type: PrimitiveType, value: object) -> bytes:
    """Return a value as Iceberg stores a single one.

    Raises: BadRequest — the value is not one of the type, or the type has no such form (variant, unknown)
    Source: Iceberg spec, appendix D «Binary single-value serialization»
    """
    encoded = _encode(type, value)
    if encoded is None:
        raise BadRequest(f"Cannot encode {value!r} as {type}; give a value of that type")
    return encoded


def decode_value(type: PrimitiveType, content: bytes) -> object:
    """Return the value of the bytes.

    Values written before the type of the column was promoted (int to long, float to double, date to timestamp) are promoted too.
    Raises: BadRequest — the bytes have the wrong length for the type, or the type has no such form
    """
    name = type.name
    if len(content) == 4 and name in WIDENED:
        return int.from_bytes(content, "little", signed=True) * WIDENED[name]
    if len(content) == WHOLE_SIZES.get(name):
        return int.from_bytes(content, "little", signed=True)
    if name in FLOAT_FORMATS and len(content) in (4, struct.calcsize(FLOAT_FORMATS[name])):
        return struct.unpack("<f" if len(content) == 4 else "<d", content)[0]
    if name == "boolean" and len(content) == 1:
        return content != b"\0"
    if find_decimal(type) and content:
        return to_decimal(int.from_bytes(content, "big", signed=True), get_scale(type))
    if name == "string":
        return _decode_text(content)
    if name == "binary" or len(content) == _byte_length(type):
        return content
    raise BadRequest(f"Cannot decode {len(content)} bytes as {type}; the bound or partition value is damaged")


def lower_bound(type: PrimitiveType, value: object) -> bytes | None:
    """Return bytes of a value that is not greater than this one: the value, or a prefix of a long string or binary.

    None for null, NaN, and a value that does not fit the type. Floating zero becomes -0.0, which orders before +0.0.
    """
    match value:
        case str() if type.name == "string":
            return _encode(type, value[:BOUND_LENGTH])
        case bytes() if type.name == "binary":
            return value[:BOUND_LENGTH]
        case float() if type.name in FLOAT_FORMATS:
            return _encode_floating_bound(type.name, value, -math.inf)
        case _:
            return _encode(type, value)


def upper_bound(type: PrimitiveType, value: object) -> bytes | None:
    """Return bytes of a value that is not less than this one: the value, or the successor of a prefix of a long string or binary.

    None for null, NaN, a value that does not fit the type, and a prefix without successor. Floating zero becomes +0.0.
    """
    match value:
        case str() if type.name == "string" and len(value) > BOUND_LENGTH:
            following = _find_next_text(value[:BOUND_LENGTH])
            return None if following is None else _encode(type, following)
        case bytes() if type.name == "binary" and len(value) > BOUND_LENGTH:
            kept = value[:BOUND_LENGTH].rstrip(b"\xff")
            return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
        case float() if type.name in FLOAT_FORMATS:
            return _encode_floating_bound(type.name, value, math.inf)
        case _:
            return _encode(type, value)


def _encode(type: PrimitiveType, value: object) -> bytes | None:
    name = type.name
    match value:
        case bool():
            return bytes((value,)) if name == "boolean" else None
        case int() if name in WHOLE_SIZES:
            return _encode_whole(value, WHOLE_SIZES[name])
        case float() if name in FLOAT_FORMATS:
            return _encode_float(name, value)
        case str() if name == "string":
            return _encode_text(value)
        case bytes():
            return value if name == "binary" or len(value) == _byte_length(type) else None
        case Decimal():
            return _encode_decimal(type, value)
        case _:
            return None


def _encode_whole(value: int, size: int) -> bytes | None:
    limit = 1 << (size * 8 - 1)
    return value.to_bytes(size, "little", signed=True) if -limit <= value < limit else None


def _encode_float(name: str, value: float) -> bytes | None:
    if name == "float" and not math.isinf(value) and abs(value) > FLOAT_MAX:
        return None
    return struct.pack(FLOAT_FORMATS[name], value)


def _encode_floating_bound(name: str, value: float, towards: float) -> bytes | None:
    """Return the value, rounded outwards where a float cannot hold it. `towards` is minus or plus infinity."""
    if math.isnan(value):
        return None
    if value == 0:
        return struct.pack(FLOAT_FORMATS[name], math.copysign(0.0, towards))
    encoded = _encode_float(name, value)
    if encoded is None or name == "double":
        return encoded
    rounded = struct.unpack("<f", encoded)[0]
    inwards = rounded < value if towards > 0 else rounded > value
    return numpy.nextafter(numpy.float32(rounded), numpy.float32(towards)).tobytes() if inwards else encoded


def _encode_text(value: str) -> bytes | None:
    try:
        return value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _encode_decimal(type: PrimitiveType, value: Decimal) -> bytes | None:
    found = find_decimal(type)
    if found is None or not value.is_finite():
        return None
    precision, scale = found
    unscaled = to_unscaled(value, scale)
    exact = to_decimal(unscaled, scale) == value
    return encode_minimal(unscaled) if exact and abs(unscaled) < 10**precision else None


def _decode_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest("Cannot decode a string bound or partition value: it is not UTF-8; the value is damaged") from error


def _byte_length(type: PrimitiveType) -> int | None:
    return 16 if type.name == "uuid" else find_fixed_length(type)


def _find_next_text(text: str) -> str | None:
    """Return the least string above every string with this prefix, without surrogates."""
    for end in range(len(text), 0, -1):
        code = ord(text[end - 1]) + 1
        if code <= CODE_POINT_MAX:
            return text[: end - 1] + chr(0xE000 if code == 0xD800 else code)
    return None


_SAME_IN_JSON = ("boolean", "int", "long", "float", "double", "string")
_DATE = re.compile(r"([+-]?\d{4,9})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_HEX = re.compile(r"([0-9a-fA-F]{2})*", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def format_value(type: PrimitiveType, value: object) -> object:
    """Return an iceberg value as JSON; null for null.

    Raises: BadRequest — not a value of the type, or one that JSON cannot represent (NaN, infinity)
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
    """Return the iceberg value of a JSON value; null is null.

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
