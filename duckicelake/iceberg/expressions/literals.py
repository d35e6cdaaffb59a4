"""Values in filters, as iceberg values of the column that they are held against.

A value says less of its type than a default does: numbers of microseconds stand for times, and any offset for UTC.
"""

import math
import re
import struct
from decimal import Decimal, InvalidOperation

from duckicelake.errors import BadRequest
from duckicelake.iceberg.bounds import FLOAT_MAX
from duckicelake.iceberg.encoding.json_values import parse_value
from duckicelake.iceberg.types import PrimitiveType, find_decimal

INFINITIES = {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
NANOS = ("timestamp_ns", "timestamptz_ns")
COUNTED = ("date", "time", "timestamp", "timestamptz", *NANOS)
WHOLE_DIGITS_MAX = 40
LENGTH_MAX = 100
"""Characters of a number, a day, a time or a uuid."""
_OFFSET = re.compile(r"(.*[T ].*?)(?:Z|([+-])(\d\d):?(\d\d)(?::?00)?)?", re.ASCII | re.IGNORECASE)


def parse_literal(type: PrimitiveType, node: object) -> object:
    """The iceberg value of a literal; whole numbers may be beyond the type's range.

    Raises: BadRequest — not a value that is held against that type
    """
    try:
        return _parse(type, node)
    except (ValueError, ArithmeticError, BadRequest) as error:
        raise BadRequest(f"Cannot read filter: {str(node)[:100]!r} is no value for a column of type {type}") from error


def round_float(value: object) -> object:
    """The number as a column of floats would hold it."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if abs(value) > FLOAT_MAX:
        return math.copysign(math.inf, value)
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _parse(type: PrimitiveType, node: object) -> object:
    name = type.name
    if isinstance(node, bool):
        return parse_value(type, node)
    if isinstance(node, int) and abs(node) >= 10**WHOLE_DIGITS_MAX:
        raise ValueError("too large")
    if isinstance(node, str) and name not in ("string", "binary") and not name.startswith("fixed") and len(node) > LENGTH_MAX:
        raise ValueError("too long")
    if name in ("int", "long") and isinstance(node, int):
        return node
    if name in COUNTED and isinstance(node, int):
        # Java counts microseconds whatever the column counts
        return node * 1000 if name in NANOS else node
    if name in ("float", "double"):
        return _parse_floating(type, node)
    if find_decimal(type) is not None:
        return _parse_decimal(node)
    if name in ("timestamptz", "timestamptz_ns") and isinstance(node, str):
        return _parse_instant(type, node)
    return parse_value(type, node)


def _parse_floating(type: PrimitiveType, node: object) -> float:
    if isinstance(node, str):
        if node not in INFINITIES:
            raise ValueError("no number")
        return INFINITIES[node]
    if not isinstance(node, int | float):
        raise ValueError("no number")
    return float(node)


def _parse_decimal(node: object) -> Decimal:
    if not isinstance(node, str | int | float):
        raise ValueError("no number")
    try:
        value = Decimal(str(node))
    except InvalidOperation as error:
        raise ValueError("no number") from error
    if not value.is_finite() or abs(value.adjusted()) > 2 * WHOLE_DIGITS_MAX:
        raise ValueError("out of range")
    return value


def _parse_instant(type: PrimitiveType, text: str) -> int:
    """PyIceberg leaves out the offset, which is UTC's then."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ValueError("malformed")
    local = parse_value(PrimitiveType(type.name.replace("tz", "")), match[1])
    if not isinstance(local, int):
        raise ValueError("malformed")
    if match[2] is None:
        return local
    minutes = int(match[3]) * 60 + int(match[4])
    ahead = minutes * 60_000_000 * (1000 if type.name in NANOS else 1)
    return local - ahead if match[2] == "+" else local + ahead
