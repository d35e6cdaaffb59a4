"""Partition transforms: the partition value of a column's value, and arithmetic of dates and decimals. No I/O.

`iceberg` (specs, scan planning), `translate` and the checks of `pipeline.verify` use this. Each transform is a class; `TRANSFORMS` and
`_WITH_NUMBER` list all of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import mmh3

from duckicelake.errors import BadRequest
from duckicelake.iceberg.types import IcebergType, PrimitiveType, find_decimal, find_fixed_length

INT = PrimitiveType("int")
DATE = PrimitiveType("date")
DAY_MICROS = 86_400_000_000
HOUR_MICROS = 3_600_000_000
MICRO_TIMESTAMPS = ("timestamp", "timestamptz")
NANO_TIMESTAMPS = ("timestamp_ns", "timestamptz_ns")
TIMESTAMPS = (*MICRO_TIMESTAMPS, *NANO_TIMESTAMPS)
WHOLE = ("int", "long")
HASHED_AS_LONG = (*WHOLE, "date", "time", *TIMESTAMPS)


class Transform(Protocol):
    """The interface of every transform. `str()` gives its JSON name."""

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        """Return the type of the transform's values for a source type, or None for an unsupported type."""
        ...

    def apply(self, type: PrimitiveType, value: object) -> object:
        """Return the partition value of a column's value, which is not null."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """The value itself."""

    def __str__(self) -> str:
        return "identity"

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        return None if source.name.startswith(("geometry", "geography", "variant")) else source

    def apply(self, type: PrimitiveType, value: object) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Bucket:
    """The 32-bit Murmur3 hash of the value, modulo the number of buckets."""

    bucket_count: int

    def __str__(self) -> str:
        return f"bucket[{self.bucket_count}]"

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        hashed = source.name in (*HASHED_AS_LONG, "string", "uuid", "binary")
        return INT if hashed or find_decimal(source) or find_fixed_length(source) is not None else None

    def apply(self, type: PrimitiveType, value: object) -> object:
        return (mmh3.hash(encode_for_hash(type, value)) & 0x7FFFFFFF) % self.bucket_count


@dataclass(frozen=True, slots=True)
class Truncate:
    """Numbers rounded down to a multiple of the width; strings and binaries cut to the width."""

    width: int

    def __str__(self) -> str:
        return f"truncate[{self.width}]"

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        return source if source.name in (*WHOLE, "string", "binary") or find_decimal(source) else None

    def apply(self, type: PrimitiveType, value: object) -> object:
        match value:
            case int():
                half = 2**31 if type.name == "int" else 2**63
                # Java's arithmetic wraps around below the smallest number, and readers prune by it.
                return (value - value % self.width + half) % (2 * half) - half
            case str() | bytes():
                return value[: self.width]
            case Decimal():
                scale = get_scale(type)
                unscaled = to_unscaled(value, scale)
                return to_decimal(unscaled - unscaled % self.width, scale)
            case _:
                raise BadRequest(f"Cannot truncate {value!r} of type {type}; choose another transform")


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """Whole years, months, days or hours since 1970."""

    name: str
    sources: tuple[str, ...]
    result: PrimitiveType
    from_micros: Callable[[int], int]

    def __str__(self) -> str:
        return self.name

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        return self.result if source.name in self.sources else None

    def apply(self, type: PrimitiveType, value: object) -> object:
        return self.from_micros(to_micros(type, value))


@dataclass(frozen=True, slots=True)
class Void:
    """Always null: a removed partition field."""

    def __str__(self) -> str:
        return "void"

    def result_type(self, source: PrimitiveType) -> PrimitiveType | None:
        return source

    def apply(self, type: PrimitiveType, value: object) -> object:
        return None


def to_civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar without limits.

    Source: the usual shift to years that start in March, so that the leap day comes last
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def to_days_since_1970(year: int, month: int, day: int) -> int:
    """Return the day number of a date: the inverse of `to_civil_date`."""
    era, year_of_era = divmod(year - (month <= 2), 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _years(micros: int) -> int:
    return to_civil_date(micros // DAY_MICROS)[0] - 1970


def _months(micros: int) -> int:
    year, month, _ = to_civil_date(micros // DAY_MICROS)
    return (year - 1970) * 12 + month - 1


TRANSFORMS: Mapping[str, Transform] = {
    str(item): item
    for item in (
        Identity(),
        TimeUnit("year", ("date", *TIMESTAMPS), INT, _years),
        TimeUnit("month", ("date", *TIMESTAMPS), INT, _months),
        TimeUnit("day", ("date", *TIMESTAMPS), DATE, lambda micros: micros // DAY_MICROS),
        TimeUnit("hour", TIMESTAMPS, INT, lambda micros: micros // HOUR_MICROS),
        Void(),
    )
}
_WITH_NUMBER: Mapping[str, Callable[[int], Transform]] = {"bucket": Bucket, "truncate": Truncate}
_NUMBERED = re.compile(r"(\w+)\[(\d{1,10})\]", re.ASCII)


def parse_transform(text: str) -> Transform:
    """Return the transform of a JSON name.

    Raises: BadRequest — no such transform, or a number of buckets or width that is not positive
    """
    lower = text.lower()
    if lower in TRANSFORMS:
        return TRANSFORMS[lower]
    match = _NUMBERED.fullmatch(lower)
    if match is None or match[1] not in _WITH_NUMBER:
        known = ", ".join([*TRANSFORMS, "bucket[N]", "truncate[W]"])
        raise BadRequest(f"Cannot read transform: {text!r} is unknown; send one of {known}")
    if not 0 < int(match[2]) < 2**31:
        raise BadRequest(f"Cannot read transform: the number of {text!r} is out of range; send one from 1 to 2147483647")
    return _WITH_NUMBER[match[1]](int(match[2]))


def result_type(transform: str, source: IcebergType | None) -> PrimitiveType | None:
    """Return the type of a transform's values; None for an unsupported source type.

    `source` is None for a dropped column: transforms whose values always have the same type still return it.
    """
    found = parse_transform(transform)
    if isinstance(source, PrimitiveType):
        return found.result_type(source)
    if isinstance(found, Void):
        return INT
    if source is not None:
        return None
    return found.result if isinstance(found, TimeUnit) else INT if isinstance(found, Bucket) else None


def apply_transform(transform: str, type: PrimitiveType, value: object) -> object:
    """Return the partition value (an iceberg value) of a column's value; null gives null.

    Raises: BadRequest — the transform is unknown or cannot take that type
    """
    found = parse_transform(transform)
    if found.result_type(type) is None:
        raise BadRequest(f"Cannot apply {transform} to type {type}; choose another column or transform")
    return None if value is None else found.apply(type, value)


def encode_for_hash(type: PrimitiveType, value: object) -> bytes:
    """Return the bytes that `bucket` hashes for a value.

    Source: Iceberg spec, appendix B «32-bit Hash Requirements»
    """
    match value:
        case int():
            number = value // 1000 if type.name in NANO_TIMESTAMPS else value
            return number.to_bytes(8, "little", signed=True)
        case str():
            return value.encode()
        case bytes():
            return value
        case Decimal():
            return encode_minimal(to_unscaled(value, get_scale(type)))
        case _:
            raise BadRequest(f"Cannot hash {value!r} of type {type}; choose another transform")


def to_micros(type: PrimitiveType, value: object) -> int:
    """Return a date or timestamp as microseconds since 1970."""
    if not isinstance(value, int):
        raise BadRequest(f"Cannot read {value!r} as {type}; give a number of days, microseconds or nanoseconds")
    return value * DAY_MICROS if type.name == "date" else value // 1000 if type.name in NANO_TIMESTAMPS else value


def get_scale(type: PrimitiveType) -> int:
    """Return the scale of a decimal type."""
    found = find_decimal(type)
    return 0 if found is None else found[1]


def to_unscaled(value: Decimal, scale: int) -> int:
    """Return the unscaled integer of a decimal at that scale; digits beyond the scale are cut off."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise BadRequest(f"Cannot store {value} as a decimal; give a finite number")
    number = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    return -number if sign else number


def to_decimal(unscaled: int, scale: int) -> Decimal:
    """Return the decimal of an unscaled integer, exactly and independent of the decimal context's precision."""
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def encode_minimal(number: int) -> bytes:
    """Return an integer in two's complement, big-endian, in as few bytes as possible."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
