"""Statistics of many data files, from DuckLake's rows to the metrics of manifest entries, column by column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from duckicelake.iceberg.avro.writer import (
    NULL,
    PRESENT,
    BytesColumn,
    FlagArray,
    LongArray,
    arrow,
    build_bytes_column,
    build_from_buffers,
    empty_where_absent,
    encode_long_column,
    encode_map_items,
    encode_maps,
    join_columns,
)
from duckicelake.iceberg.single_values import BOUND_LENGTH
from duckicelake.iceberg.types import PrimitiveType, find_decimal
from duckicelake.lake.rows import PackedColumnStats
from duckicelake.translate.files import FLOATING, UNBOUNDED, LeafTypes, find_lower, find_upper
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
class BoundSide:
    """Lower or upper: the bound of a single value, and the zero that is a bound of both zeros."""

    find: Callable[[PrimitiveType, object | None], bytes | None]
    zero: float


Encode = Callable[[Texts, BoundSide], BytesColumn]
"""Encodes texts of the usual form. Raises: ValueError: one of them stands for no value after all"""

LOWER, UPPER = BoundSide(find_lower, -0.0), BoundSide(find_upper, 0.0)


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


def encode_bounds(type_: PrimitiveType, texts: Texts, side: BoundSide) -> BytesColumn:
    """Return one side's bounds, null where a text is null or has no safe bound."""
    form, encode = get_usual_form(type_)
    usual: FlagArray = np.asarray(arrow.fill_null(arrow.match_substring_regex(texts, f"^(?s:{form})$"), fill_value=False))
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


def _encode_singly(type_: PrimitiveType, texts: Texts, side: BoundSide) -> BytesColumn:
    encoded = texts.dictionary_encode()
    values = [None if text is None else parse_value(type_, text) for text in encoded.dictionary.to_pylist()]
    return pa.array([side.find(type_, value) for value in values], pa.binary()).take(encoded.indices)


def get_usual_form(type_: PrimitiveType) -> tuple[str, Encode]:
    """Return the form most texts of a type have, as a regular expression, and what encodes such texts."""
    decimal = find_decimal(type_)
    if decimal is not None:
        precision, scale = decimal
        point = rf"[.][0-9]{{{scale}}}" if scale else ""
        return f"-?[0-9]{{1,{max(1, SAFE_DIGITS - scale)}}}{point}", partial(_encode_decimals, min(precision, SAFE_DIGITS))
    return USUAL_FORMS.get(type_.name, ("", _encode_nothing))


def _encode_nothing(texts: Texts, side: BoundSide) -> BytesColumn:
    raise ValueError("no form is usual")


def _encode_texts(texts: Texts, side: BoundSide) -> BytesColumn:
    """A long text's upper bound is not its beginning: those differ little from file to file."""
    starts = arrow.utf8_slice_codeunits(texts, 0, BOUND_LENGTH)
    if side is LOWER:
        return starts.cast(pa.binary())
    longer: FlagArray = np.asarray(arrow.greater(arrow.utf8_length(texts), BOUND_LENGTH))
    if not longer.any():
        return starts.cast(pa.binary())
    # one code point more than a bound has stands for all that may follow
    return _encode_singly(PrimitiveType("string"), arrow.utf8_slice_codeunits(texts, 0, BOUND_LENGTH + 1), side)


def _encode_wholes(size: int, texts: Texts, side: BoundSide) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.int64()), size)


def _encode_dates(texts: Texts, side: BoundSide) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.date32()), 4)


def _encode_times(texts: Texts, side: BoundSide) -> BytesColumn:
    return _encode_timestamps(arrow.binary_join_element_wise(EPOCH_DAY, texts, ""), side)


def _encode_timestamps(texts: Texts, side: BoundSide) -> BytesColumn:
    return _encode_fixed(_to_longs(texts, pa.timestamp("us")), 8)


def _encode_timestamps_in_utc(texts: Texts, side: BoundSide) -> BytesColumn:
    return _encode_timestamps(arrow.utf8_slice_codeunits(texts, 0, -len(UTC)), side)


def _to_longs(texts: Texts, type_: Any) -> LongArray:
    parsed = texts.cast(type_)
    return np.asarray(parsed.view(pa.int32() if pa.types.is_date32(type_) else pa.int64()), dtype=np.int64)


def _encode_fixed(numbers: LongArray, size: int) -> BytesColumn:
    if size == 4 and not np.array_equal(numbers, numbers.astype(np.int32)):
        raise ValueError("wider than 32 bits")
    cells = np.ascontiguousarray(numbers.astype(f"<i{size}")).view(np.uint8).reshape(len(numbers), size)
    return build_bytes_column(cells, np.ones(cells.shape, dtype=np.bool_))


def _encode_floats(size: int, texts: Texts, side: BoundSide) -> BytesColumn:
    doubles = np.asarray(texts.cast(pa.float64()))
    with np.errstate(over="ignore"):
        numbers = doubles.astype(f"<f{size}")
    if np.isinf(numbers).any():
        raise ValueError("wider than the type")
    numbers[numbers == 0] = side.zero
    cells = numbers.view(np.uint8).reshape(len(numbers), size)
    return build_bytes_column(cells, np.ones(cells.shape, dtype=np.bool_))


def _encode_decimals(precision: int, texts: Texts, side: BoundSide) -> BytesColumn:
    unscaled = _to_longs(arrow.replace_substring(texts, ".", ""), pa.int64())
    magnitude = unscaled ^ (unscaled >> 63)
    if (np.abs(unscaled) >= 10**precision).any():
        raise ValueError("more digits than the type has")
    lengths = np.searchsorted(BYTE_LIMITS, magnitude, side="right") + 1
    cells = unscaled.astype(">i8").view(np.uint8).reshape(len(unscaled), 8)
    return build_bytes_column(cells, np.arange(8) >= 8 - lengths[:, None])


USUAL_FORMS: Mapping[str, tuple[str, Encode]] = {
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


NUMBERS_PER_ROW = 6


@dataclass(frozen=True, slots=True)
class StatsRows:
    """Rows of `ducklake_file_column_stats` by file and column; a negative number stands for null, 2 for a `contains_nan` that is null."""

    column_id: LongArray
    column_size_bytes: LongArray
    value_count: LongArray
    null_count: LongArray
    contains_nan: LongArray
    min_value: Texts
    max_value: Texts


def encode_metrics(statistics: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> list[bytes]:
    """Return for each file, in the order given, its part of a manifest entry from `column_sizes` to `split_offsets`.

    Columns without a type are passed over. Units: the ids ascend
    """
    rows, starts = _arrange(statistics, data_file_ids, types)
    keys = encode_long_column(rows.column_id)
    has_values = rows.value_count >= 0
    # DuckLake has both as 0 where it counts nothing
    has_nulls = (rows.null_count >= 0) & ~(has_values & (rows.value_count + rows.null_count == 0))
    counted = has_values & has_nulls
    lower, upper = _compute_bounds(rows, has_nulls, types)
    maps: tuple[tuple[FlagArray, BytesColumn, bytes], ...] = (
        # PyIceberg's table `entries` cannot do without, so an unknown size is an empty map
        (rows.column_size_bytes >= 0, join_columns(keys, encode_long_column(rows.column_size_bytes)), PRESENT + NULL),
        # DuckLake counts the values that are not null, Iceberg all of them
        (counted, join_columns(keys, encode_long_column(rows.value_count + rows.null_count)), NULL),
        (has_nulls, join_columns(keys, encode_long_column(rows.null_count)), NULL),
        (rows.contains_nan == 0, join_columns(keys, NULL), NULL),
        (np.asarray(lower.is_valid()), encode_map_items(keys, lower), NULL),
        (np.asarray(upper.is_valid()), encode_map_items(keys, upper), NULL),
    )
    grouped = [encode_maps(empty_where_absent(told, items), told, starts, empty) for told, items, empty in maps]
    # behind them: no key metadata, no split offsets
    return join_columns(*grouped, NULL + NULL).to_pylist()


def _arrange(packed: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> tuple[StatsRows, LongArray]:
    """Return the rows that count, by file and column, and where each file's rows begin."""
    wanted = np.array(data_file_ids, dtype=np.int64)
    files, columns, sizes, values, nulls, told = _unpack(packed.numbers)
    asked: FlagArray = np.searchsorted(wanted, files, side="right") > np.searchsorted(wanted, files)
    rows = np.flatnonzero(asked & np.isin(columns, list(types)))
    rows = rows[np.lexsort((columns[rows], files[rows]))]
    arranged = StatsRows(
        columns[rows],
        sizes[rows],
        values[rows],
        nulls[rows],
        told[rows] >> 32,
        _texts(packed.min_value, (told >> 16 & 0xFFFF) - 1).take(pa.array(rows)),
        _texts(packed.max_value, (told & 0xFFFF) - 1).take(pa.array(rows)),
    )
    return arranged, np.searchsorted(files[rows], np.append(wanted, np.iinfo(np.int64).max))


def _unpack(numbers: bytes) -> list[LongArray]:
    """Return the columns of rows of numbers that lie one behind the other."""
    return list(np.frombuffer(numbers, dtype=">i8").reshape(-1, NUMBERS_PER_ROW).T.astype(np.int64))


def _texts(packed: str, lengths: LongArray) -> Texts:
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
    validity = np.packbits(lengths >= 0, bitorder="little")
    return build_from_buffers(pa.string(), len(lengths), (validity, offsets.astype(np.int32), packed.encode()))


def _compute_bounds(rows: StatsRows, has_nulls: FlagArray, types: LeafTypes) -> tuple[BytesColumn, BytesColumn]:
    """Return the lower and the upper bounds; none of rows without a count of NULLs, nor of floats that may be NaN."""
    by_column = np.argsort(rows.column_id, kind="stable")
    floating = [column for column, type_ in types.items() if type_.name in FLOATING]
    safe: FlagArray = np.asarray(has_nulls & ((rows.contains_nan == 0) | ~np.isin(rows.column_id, floating)))
    told = (arrow.if_else(pa.array(safe), texts, None) for texts in (rows.min_value, rows.max_value))
    least, greatest = (texts.take(pa.array(by_column)) for texts in told)
    different, starts = np.unique(rows.column_id[by_column], return_index=True)
    found = [
        bound_columns(types[int(column)], least[start:end], greatest[start:end])
        for column, start, end in zip(different, starts, np.append(starts, len(by_column))[1:], strict=True)
    ]
    places = np.empty(len(by_column), dtype=np.int64)
    places[by_column] = np.arange(len(by_column))
    return _gather([lower for lower, _ in found], places), _gather([upper for _, upper in found], places)


def _gather(parts: Sequence[BytesColumn], places: LongArray) -> BytesColumn:
    return arrow.take(pa.concat_arrays([pa.array([], pa.binary()), *parts]), pa.array(places))
