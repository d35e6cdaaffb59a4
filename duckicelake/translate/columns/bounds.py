"""Bounds of one column over many files: those of `find_lower` and `find_upper`, thousands in one go.

Texts of a type's usual form are converted together; every other text goes the way of a single value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from duckicelake.iceberg.bounds import BOUND_LENGTH
from duckicelake.iceberg.encoding.columns import BytesColumn, Flags, Longs, arrow, bytes_column
from duckicelake.iceberg.types import PrimitiveType, find_decimal
from duckicelake.translate.files import UNBOUNDED, find_lower, find_upper
from duckicelake.translate.values import parse_value

Texts = Any
"""An Arrow array of texts or null."""

DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = "[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
EPOCH_DAY = "1970-01-01 "
UTC = "+00"
SAFE_DIGITS = 18
"""Every number of so many digits fits into 64 bits."""
BYTE_LIMITS = np.array([1 << (8 * count - 1) for count in range(1, 8)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Side:
    """Lower or upper: the bound of a single value, and the zero that is a bound of both zeros."""

    find: Callable[[PrimitiveType, object | None], bytes | None]
    zero: float


Encode = Callable[[Texts, Side], BytesColumn]
"""Encodes texts of the usual form. Raises: ValueError: one of them stands for no value after all"""

LOWER, UPPER = Side(find_lower, -0.0), Side(find_upper, 0.0)


def bound_columns(type_: PrimitiveType, least: Texts, greatest: Texts) -> tuple[BytesColumn, BytesColumn]:
    """Return the lower and the upper bounds that these texts of a type give; where one is missing, both are null."""
    if type_.name in UNBOUNDED:
        nothing = pa.nulls(len(least), pa.binary())
        return nothing, nothing
    lower, upper = encode_bounds(type_, least, LOWER), encode_bounds(type_, greatest, UPPER)
    if lower.null_count or upper.null_count:
        both = arrow.and_(lower.is_valid(), upper.is_valid())
        lower, upper = (arrow.if_else(both, side, None) for side in (lower, upper))
    return lower, upper


def encode_bounds(type_: PrimitiveType, texts: Texts, side: Side) -> BytesColumn:
    """Return one side's bounds, null where a text is null or has no safe bound."""
    form, encode = find_usual(type_)
    usual: Flags = np.asarray(arrow.fill_null(arrow.match_substring_regex(texts, f"^(?s:{form})$"), fill_value=False))
    try:
        together = encode(texts.filter(pa.array(usual)), side)
    except ValueError:
        return _encode_singly(type_, texts, side)
    if usual.all():
        return together
    both = pa.concat_arrays([together, _encode_singly(type_, texts.filter(pa.array(~usual)), side)])
    places = np.empty(len(texts), dtype=np.int64)
    places[np.concatenate([np.flatnonzero(usual), np.flatnonzero(~usual)])] = np.arange(len(texts))
    return both.take(pa.array(places))


def _encode_singly(type_: PrimitiveType, texts: Texts, side: Side) -> BytesColumn:
    encoded = texts.dictionary_encode()
    values = [None if text is None else parse_value(type_, text) for text in encoded.dictionary.to_pylist()]
    return pa.array([side.find(type_, value) for value in values], pa.binary()).take(encoded.indices)


def find_usual(type_: PrimitiveType) -> tuple[str, Encode]:
    """Return the form most texts of a type have, as a regular expression, and what encodes such texts."""
    decimal = find_decimal(type_)
    if decimal is not None:
        precision, scale = decimal
        point = rf"[.][0-9]{{{scale}}}" if scale else ""
        return f"-?[0-9]{{1,{max(1, SAFE_DIGITS - scale)}}}{point}", partial(_encode_decimals, min(precision, SAFE_DIGITS))
    return USUAL.get(type_.name, ("", _encode_nothing))


def _encode_nothing(texts: Texts, side: Side) -> BytesColumn:
    raise ValueError("no form is usual")


def _encode_texts(texts: Texts, side: Side) -> BytesColumn:
    """A long text's upper bound is not its beginning: those differ little from file to file."""
    starts = arrow.utf8_slice_codeunits(texts, 0, BOUND_LENGTH)
    if side is LOWER:
        return starts.cast(pa.binary())
    longer: Flags = np.asarray(arrow.greater(arrow.utf8_length(texts), BOUND_LENGTH))
    if not longer.any():
        return starts.cast(pa.binary())
    # one code point more than a bound has stands for all that may follow
    return _encode_singly(PrimitiveType("string"), arrow.utf8_slice_codeunits(texts, 0, BOUND_LENGTH + 1), side)


def _encode_wholes(size: int, texts: Texts, side: Side) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.int64()), size)


def _encode_dates(texts: Texts, side: Side) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.date32()), 4)


def _encode_times(texts: Texts, side: Side) -> BytesColumn:
    return _encode_timestamps(arrow.binary_join_element_wise(EPOCH_DAY, texts, ""), side)


def _encode_timestamps(texts: Texts, side: Side) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.timestamp("us")), 8)


def _encode_timestamps_in_utc(texts: Texts, side: Side) -> BytesColumn:
    return _encode_timestamps(arrow.utf8_slice_codeunits(texts, 0, -len(UTC)), side)


def _to_longs(texts: Texts, type_: Any) -> Longs:
    parsed = texts.cast(type_)
    return np.asarray(parsed.view(pa.int32() if pa.types.is_date32(type_) else pa.int64()), dtype=np.int64)


def _encode_fixed(numbers: Longs, size: int) -> BytesColumn:
    if size == 4 and not np.array_equal(numbers, numbers.astype(np.int32)):
        raise ValueError("wider than 32 bits")
    cells = np.ascontiguousarray(numbers.astype(f"<i{size}")).view(np.uint8).reshape(len(numbers), size)
    return bytes_column(cells, np.ones(cells.shape, dtype=np.bool_))


def _encode_floats(size: int, texts: Texts, side: Side) -> BytesColumn:
    doubles = np.asarray(texts.cast(pa.float64()))
    with np.errstate(over="ignore"):
        numbers = doubles.astype(f"<f{size}")
    if np.isinf(numbers).any():
        raise ValueError("wider than the type")
    numbers[numbers == 0] = side.zero
    cells = numbers.view(np.uint8).reshape(len(numbers), size)
    return bytes_column(cells, np.ones(cells.shape, dtype=np.bool_))


def _encode_decimals(precision: int, texts: Texts, side: Side) -> BytesColumn:
    unscaled = _to_longs(arrow.replace_substring(texts, ".", ""), pa.int64())
    magnitude = unscaled ^ (unscaled >> 63)
    if (np.abs(unscaled) >= 10**precision).any():
        raise ValueError("more digits than the type has")
    lengths = np.searchsorted(BYTE_LIMITS, magnitude, side="right") + 1
    cells = unscaled.astype(">i8").view(np.uint8).reshape(len(unscaled), 8)
    return bytes_column(cells, np.arange(8) >= 8 - lengths[:, None])


USUAL: Mapping[str, tuple[str, Encode]] = {
    "int": ("-?[0-9]{1,10}", partial(_encode_wholes, 4)),
    "long": (f"-?[0-9]{{1,{SAFE_DIGITS}}}", partial(_encode_wholes, 8)),
    "float": (r"-?[0-9]+([.][0-9]+)?(e[+-]?[0-9]+)?", partial(_encode_floats, 4)),
    "double": (r"-?[0-9]+([.][0-9]+)?(e[+-]?[0-9]+)?", partial(_encode_floats, 8)),
    "date": (DATE, _encode_dates),
    "time": (TIME, _encode_times),
    "timestamp": (f"{DATE} {TIME}", _encode_timestamps),
    "timestamptz": (f"{DATE} {TIME}[+]00", _encode_timestamps_in_utc),
    "string": (".*", _encode_texts),
}
"""The usual form of each type's texts, and what encodes them. Booleans have few values: each is encoded once."""
