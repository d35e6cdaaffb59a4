"""Values, drawn with a liking for the edges of each type."""

import math
import struct
from decimal import Decimal
from random import Random
from uuid import UUID

from tests.differential.generator.kinds import BEYOND_WORDS, Kind, Listing, Mapping, Scalar, Struct, Value, decimal_shape

_NULL_SHARE = 0.15
_BEYOND_SHARE = 0.05
_DAY_US = 86_400_000_000
_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# From 2^31 on, uint32 in a file refuses the table; a double, which files hold for the widest, has 53 bits.
_UNSIGNED_BITS = {"uint8": 8, "uint16": 16, "uint32": 31, "uint128": 53}
_WIDEST = 2**53
_FLOATS = (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e-310, 5e-324, 1.7976931348623157e308, 0.1)
_NARROW_FLOATS = (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e-40, 3.4028234663852886e38, 0.1)
_STRINGS = (
    "",
    "a",
    "plain text",
    "it's",
    'say "x"',
    "back\\slash",
    "{'k': [1, NULL]}",
    "ü",
    "日本語テキスト",
    "𝄞 clef",
    "NULL",
    "a,b",
    "line\nbreak",
    "x" * 40,
)
_BLOBS = (b"", b"\x00", b"\x00\xff\x80", b"plain", b"\\x41", b"it's", bytes(range(40)))
_UUIDS = (UUID(int=0), UUID(int=2**128 - 1), UUID(int=2**127), UUID("123e4567-e89b-42d3-a456-426614174000"))
_DAYS = (0, -1, 1, -719162, 2932896, 19000, 11016, -25567)
_TIMES = (0, 1, _DAY_US - 1, _DAY_US // 2, 3_661_000_000)
_TIMESTAMPS = (0, -1, 1, -719162 * _DAY_US, 2932896 * _DAY_US + _DAY_US - 1, 1_700_000_000_000_000, 951_782_400_000_000, -1_000_000)
_NANOS = (0, -1, 1, -9_223_286_400_000_000_000, 9_223_286_400_123_456_789, 1_700_000_000_000_000_001)
# A time zone's own years only: the text of an instant depends on the writer's zone, local mean times included.
_INSTANTS = (0, -1, 1, -5_364_662_400_000_000, 7_258_118_400_000_000 - 1, 1_700_000_000_123_456, 1_710_054_000_000_000)


class SayableRandom(Random):
    """A source of chance for values that Iceberg has words for."""


class StrictRandom(SayableRandom):
    """A source of chance for rows of Iceberg clients, which have no NULL in NOT NULL columns."""


def draw_value(kind: Kind, rng: Random, *, plain: bool = False) -> Value:
    """A value or NULL; `plain` keeps to values that DuckDB 1.5.5 reads back from an inlined root struct."""
    return None if rng.random() < _NULL_SHARE else draw_present(kind, rng, plain=plain)


def draw_present(kind: Kind, rng: Random, *, plain: bool = False) -> Value:
    """A value that is not NULL, whatever its parts are."""
    match kind:
        case Scalar(name):
            return _draw_plain(name, rng) if plain else draw_scalar(name, rng)
        case Struct(fields):
            return tuple((part.column_id, draw_value(part.kind, rng, plain=plain)) for part in fields)
        case Listing(element):
            return tuple(draw_value(element, rng, plain=plain) for _ in range(rng.randrange(4)))
        case Mapping(key, value):
            keys = {_draw_plain(key.name, rng) if plain else draw_scalar(key.name, rng) for _ in range(rng.randrange(4))}
            return tuple((drawn, draw_value(value, rng, plain=plain)) for drawn in sorted(keys, key=repr))


def draw_scalar(name: str, rng: Random) -> Value:
    """A value of a type without parts, half of them from the type's edges."""
    if name in BEYOND_WORDS and not isinstance(rng, SayableRandom) and rng.random() < _BEYOND_SHARE:
        return rng.choice(tuple(BEYOND_WORDS[name]))
    if name in _INTEGER_BITS:
        return _draw_integer(-(2 ** (_INTEGER_BITS[name] - 1)), 2 ** (_INTEGER_BITS[name] - 1) - 1, rng)
    if name == "int128":
        return _draw_integer(-_WIDEST, _WIDEST, rng) << rng.choice((0, 0, 60))
    if name in _UNSIGNED_BITS:
        return _draw_integer(0, 2 ** _UNSIGNED_BITS[name] - 1, rng)
    if name.startswith("decimal"):
        precision, scale = decimal_shape(name)
        return Decimal(f"{_draw_integer(-(10**precision) + 1, 10**precision - 1, rng)}E-{scale}")
    if name == "float32":
        return _round_to_float32(rng.choice(_NARROW_FLOATS) if rng.random() < 0.5 else rng.uniform(-1000, 1000))
    if name == "float64":
        return rng.choice(_FLOATS) if rng.random() < 0.5 else rng.uniform(-1e6, 1e6)
    return _draw_other(name, rng)


def _draw_other(name: str, rng: Random) -> Value:
    match name:
        case "boolean":
            return rng.random() < 0.5
        case "varchar":
            return rng.choice(_STRINGS)
        case "blob":
            return rng.choice(_BLOBS)
        case "uuid":
            return rng.choice(_UUIDS) if rng.random() < 0.5 else UUID(int=rng.getrandbits(128))
        case "date":
            return rng.choice(_DAYS)
        case "time" | "timetz":
            return rng.choice(_TIMES)
        case "timestamp" | "timestamp_s" | "timestamp_ms":
            ticks = {"timestamp": 1, "timestamp_s": 1_000_000, "timestamp_ms": 1000}[name]
            return rng.choice(_TIMESTAMPS) // ticks * ticks
        case "timestamp_ns":
            return rng.choice(_NANOS)
        case "timestamptz":
            return rng.choice(_INSTANTS)
        case _:
            raise AssertionError(f"no values for {name}")


def _draw_plain(name: str, rng: Random) -> Value:
    if name == "varchar":
        return rng.choice(("a", "plain text", "ü"))
    if name in ("float32", "float64"):
        return rng.choice((0.0, 1.5, -2.25))
    return draw_scalar(name, rng)


def _draw_integer(lowest: int, highest: int, rng: Random) -> int:
    if rng.random() < 0.25:
        return rng.choice((lowest, highest, max(lowest, -1)))
    return rng.randint(max(lowest, -50), min(highest, 50))


def _round_to_float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
