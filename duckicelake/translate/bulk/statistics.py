"""Statistics of many data files, converted from DuckLake's rows to the metrics of manifest entries, column by column."""

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
"""An Arrow array of texts and nulls."""

DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = "[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
EPOCH_DAY = "1970-01-01 "
UTC = "+00"
SAFE_DIGITS = 18
"""Every number with this many digits fits into 64 bits."""
BYTE_LIMITS = np.array([1 << (8 * count - 1) for count in range(1, 8)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BoundSide:
    """The lower or upper side: the bound of a single value, and the zero that bounds both zeros."""

    find: Callable[[PrimitiveType, object | None], bytes | None]
    zero: float


Encode = Callable[[Texts, BoundSide], BytesColumn]
"""Encodes texts of the usual form. Raises: ValueError: one of them is no value of the type"""

LOWER, UPPER = BoundSide(find_lower, -0.0), BoundSide(find_upper, 0.0)


def bound_columns(type_: PrimitiveType, least: Texts, greatest: Texts) -> tuple[BytesColumn, BytesColumn]:
    """Return the lower and the upper bounds for texts of a type; where one is missing, both are null."""
    if type_.name in UNBOUNDED:
        nulls = pa.nulls(len(least), pa.binary())
        return nulls, nulls
    lower, upper = encode_bounds(type_, least, LOWER), encode_bounds(type_, greatest, UPPER)
    if lower.null_count or upper.null_count:
        both = arrow.and_(lower.is_valid(), upper.is_valid())
        lower, upper = (arrow.if_else(both, side, None) for side in (lower, upper))
    return lower, upper


def encode_bounds(type_: PrimitiveType, texts: Texts, side: BoundSide) -> BytesColumn:
    """Return the bounds of one side; null where a text is null or has no safe bound."""
    form, encode = get_usual_form(type_)
    usual: FlagArray = np.asarray(arrow.fill_null(arrow.match_substring_regex(texts, f"^(?s:{form})$"), fill_value=False))
    try:
        encoded = encode(texts.filter(pa.array(usual)), side)
    except ValueError:
        return _encode_singly(type_, texts, side)
    if usual.all():
        return encoded
    both = pa.concat_arrays([encoded, _encode_singly(type_, texts.filter(pa.array(~usual)), side)])
    positions = np.empty(len(texts), dtype=np.int64)
    positions[np.concatenate([np.flatnonzero(usual), np.flatnonzero(~usual)])] = np.arange(len(texts))
    return both.take(pa.array(positions))


def _encode_singly(type_: PrimitiveType, texts: Texts, side: BoundSide) -> BytesColumn:
    encoded = texts.dictionary_encode()
    values = [None if text is None else parse_value(type_, text) for text in encoded.dictionary.to_pylist()]
    return pa.array([side.find(type_, value) for value in values], pa.binary()).take(encoded.indices)


def get_usual_form(type_: PrimitiveType) -> tuple[str, Encode]:
    """Return the regular expression that most texts of a type match, and the encoder of such texts."""
    decimal = find_decimal(type_)
    if decimal is not None:
        precision, scale = decimal
        point = rf"[.][0-9]{{{scale}}}" if scale else ""
        return f"-?[0-9]{{1,{max(1, SAFE_DIGITS - scale)}}}{point}", partial(_encode_decimals, min(precision, SAFE_DIGITS))
    return USUAL_FORMS.get(type_.name, ("", _encode_nothing))


def _encode_nothing(texts: Texts, side: BoundSide) -> BytesColumn:
    raise ValueError("no form is usual")


def _encode_texts(texts: Texts, side: BoundSide) -> BytesColumn:
    """Encode texts. Upper bounds of long texts are computed once per distinct start, because starts differ little from file to file."""
    starts = arrow.utf8_slice_codeunits(texts, 0, BOUND_LENGTH)
    if side is LOWER:
        return starts.cast(pa.binary())
    longer: FlagArray = np.asarray(arrow.greater(arrow.utf8_length(texts), BOUND_LENGTH))
    if not longer.any():
        return starts.cast(pa.binary())
    # The bound depends on at most one code point after its own length.
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
"""The usual form of each type's texts, and its encoder. Booleans have few values, so each is encoded once."""


NUMBERS_PER_ROW = 6


@dataclass(frozen=True, slots=True)
class StatsRows:
    """Rows of `ducklake_file_column_stats` by file and column; a negative number means null, and so does 2 in `contains_nan`."""

    column_id: LongArray
    column_size_bytes: LongArray
    value_count: LongArray
    null_count: LongArray
    contains_nan: LongArray
    min_value: Texts
    max_value: Texts


def encode_metrics(statistics: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> list[bytes]:
    """Return for each file, in the order given, its part of a manifest entry from `column_sizes` to `split_offsets`.

    Columns without a type are skipped. Units: the ids ascend
    """
    rows, starts = _arrange(statistics, data_file_ids, types)
    keys = encode_long_column(rows.column_id)
    has_values = rows.value_count >= 0
    # DuckLake stores 0 for both counts if it counts nothing.
    has_nulls = (rows.null_count >= 0) & ~(has_values & (rows.value_count + rows.null_count == 0))
    counted = has_values & has_nulls
    lower, upper = _compute_bounds(rows, has_nulls, types)
    maps: tuple[tuple[FlagArray, BytesColumn, bytes], ...] = (
        # PyIceberg's `entries` table needs the map, so unknown sizes give an empty one.
        (rows.column_size_bytes >= 0, join_columns(keys, encode_long_column(rows.column_size_bytes)), PRESENT + NULL),
        # DuckLake counts only non-null values, Iceberg counts all.
        (counted, join_columns(keys, encode_long_column(rows.value_count + rows.null_count)), NULL),
        (has_nulls, join_columns(keys, encode_long_column(rows.null_count)), NULL),
        (rows.contains_nan == 0, join_columns(keys, NULL), NULL),
        (np.asarray(lower.is_valid()), encode_map_items(keys, lower), NULL),
        (np.asarray(upper.is_valid()), encode_map_items(keys, upper), NULL),
    )
    grouped = [encode_maps(empty_where_absent(is_present, items), is_present, starts, empty) for is_present, items, empty in maps]
    # The two NULLs that follow are key metadata and split offsets.
    return join_columns(*grouped, NULL + NULL).to_pylist()


def _arrange(packed: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> tuple[StatsRows, LongArray]:
    """Return the rows of the wanted files and columns, ordered by file and column, and the index of each file's first row."""
    wanted = np.array(data_file_ids, dtype=np.int64)
    files, columns, sizes, values, nulls, flags = _unpack(packed.numbers)
    is_wanted: FlagArray = np.searchsorted(wanted, files, side="right") > np.searchsorted(wanted, files)
    rows = np.flatnonzero(is_wanted & np.isin(columns, list(types)))
    rows = rows[np.lexsort((columns[rows], files[rows]))]
    arranged = StatsRows(
        columns[rows],
        sizes[rows],
        values[rows],
        nulls[rows],
        flags[rows] >> 32,
        _texts(packed.min_value, (flags >> 16 & 0xFFFF) - 1).take(pa.array(rows)),
        _texts(packed.max_value, (flags & 0xFFFF) - 1).take(pa.array(rows)),
    )
    return arranged, np.searchsorted(files[rows], np.append(wanted, np.iinfo(np.int64).max))


def _unpack(numbers: bytes) -> list[LongArray]:
    """Return the columns of a row-wise array of numbers."""
    return list(np.frombuffer(numbers, dtype=">i8").reshape(-1, NUMBERS_PER_ROW).T.astype(np.int64))


def _texts(packed: str, lengths: LongArray) -> Texts:
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
    validity = np.packbits(lengths >= 0, bitorder="little")
    return build_from_buffers(pa.string(), len(lengths), (validity, offsets.astype(np.int32), packed.encode()))


def _compute_bounds(rows: StatsRows, has_nulls: FlagArray, types: LeafTypes) -> tuple[BytesColumn, BytesColumn]:
    """Return the lower and the upper bounds; null for rows without a count of NULLs, and for floats that may include NaN."""
    by_column = np.argsort(rows.column_id, kind="stable")
    floating = [column for column, type_ in types.items() if type_.name in FLOATING]
    safe: FlagArray = np.asarray(has_nulls & ((rows.contains_nan == 0) | ~np.isin(rows.column_id, floating)))
    safe_texts = (arrow.if_else(pa.array(safe), texts, None) for texts in (rows.min_value, rows.max_value))
    least, greatest = (texts.take(pa.array(by_column)) for texts in safe_texts)
    different, starts = np.unique(rows.column_id[by_column], return_index=True)
    bounds = [
        bound_columns(types[int(column)], least[start:end], greatest[start:end])
        for column, start, end in zip(different, starts, np.append(starts, len(by_column))[1:], strict=True)
    ]
    positions = np.empty(len(by_column), dtype=np.int64)
    positions[by_column] = np.arange(len(by_column))
    return _gather([lower for lower, _ in bounds], positions), _gather([upper for _, upper in bounds], positions)


def _gather(parts: Sequence[BytesColumn], positions: LongArray) -> BytesColumn:
    return arrow.take(pa.concat_arrays([pa.array([], pa.binary()), *parts]), pa.array(positions))
