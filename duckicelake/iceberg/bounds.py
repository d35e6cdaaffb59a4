"""Single values as bytes, and outer bounds of them.

An *iceberg value* is what the whole project holds for one value of a type:
boolean bool · int long int · float double float · decimal(P,S) Decimal · date int (days since 1970) · time int (µs)
timestamp timestamptz int (µs since 1970 UTC) · timestamp_ns timestamptz_ns int (ns) · string str · uuid 16 bytes · fixed binary bytes
"""

import math
import struct
from collections.abc import Mapping
from decimal import Decimal

import numpy

from duckicelake.errors import BadRequest
from duckicelake.iceberg.transforms import DAY_MICROS, encode_minimal, get_scale, to_decimal, to_unscaled
from duckicelake.iceberg.types import PrimitiveType, find_decimal, find_fixed_length

BOUND_LENGTH = 16
INT_TYPES = ("int", "date")
LONG_TYPES = ("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
WHOLE_SIZES: Mapping[str, int] = {name: 4 for name in INT_TYPES} | {name: 8 for name in LONG_TYPES}
FLOAT_FORMATS: Mapping[str, str] = {"float": "<f", "double": "<d"}
FLOAT_MAX = struct.unpack("<f", bytes.fromhex("ffff7f7f"))[0]
CODE_POINT_MAX = 0x10FFFF
# Four bytes under one of these types were written when it was an int, or a date: what they count.
WIDENED: Mapping[str, int] = {"long": 1, "timestamp": DAY_MICROS, "timestamp_ns": DAY_MICROS * 1000}


def encode_value(type: PrimitiveType, value: object) -> bytes:
    """A value as Iceberg stores a single one.

    Raises: BadRequest — the value is not one of the type, or the type has no such form (variant, unknown)
    Source: Iceberg spec, appendix D «Binary single-value serialization»
    """
    encoded = _encode(type, value)
    if encoded is None:
        raise BadRequest(f"Cannot encode {value!r} as {type}; give a value of that type")
    return encoded


def decode_value(type: PrimitiveType, content: bytes) -> object:
    """The value those bytes hold.

    Values written before the column's type was widened (int to long, float to double, date to timestamp) are widened too.
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
    """Bytes of a value not above this one: the value, or the beginning of a long string or binary.

    None for null, NaN, and what does not fit the type. Floating zero becomes -0.0, which orders before +0.0.
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
    """Bytes of a value not below this one: the value, or the next string or binary after a long one's beginning.

    None for null, NaN, what does not fit the type, and where there is no next one. Floating zero becomes +0.0.
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
    """The value, rounded outwards where a float cannot hold it: `towards` is minus or plus infinity."""
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
    except UnicodeEncodeError:  # half a surrogate pair
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
    """The least string above every string that begins with this one, without surrogates."""
    for end in range(len(text), 0, -1):
        code = ord(text[end - 1]) + 1
        if code <= CODE_POINT_MAX:
            return text[: end - 1] + chr(0xE000 if code == 0xD800 else code)
    return None
