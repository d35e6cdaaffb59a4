"""Statistics of many data files, from DuckLake's rows to the metrics of manifest entries, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from duckicelake.iceberg.encoding.avro import NULL, PRESENT
from duckicelake.iceberg.encoding.columns import (
    BytesColumn,
    Flags,
    Longs,
    arrow,
    from_buffers,
    group_maps,
    join_columns,
    long_column,
    map_items,
    only_where,
)
from duckicelake.lake.rows import PackedColumnStats
from duckicelake.translate.columns.bounds import Texts, bound_columns
from duckicelake.translate.files import FLOATING, LeafTypes

NUMBERS = 6


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of `ducklake_file_column_stats` by file and column; a negative number stands for null, 2 for a `contains_nan` that is null."""

    column_id: Longs
    column_size_bytes: Longs
    value_count: Longs
    null_count: Longs
    contains_nan: Longs
    min_value: Texts
    max_value: Texts


def encode_metrics(statistics: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> list[bytes]:
    """Return for each file, in the order given, its part of a manifest entry from `column_sizes` to `split_offsets`.

    Columns without a type are passed over. Units: the ids ascend
    """
    rows, starts = _arrange(statistics, data_file_ids, types)
    keys = long_column(rows.column_id)
    has_values = rows.value_count >= 0
    # DuckLake has both as 0 where it counts nothing
    has_nulls = (rows.null_count >= 0) & ~(has_values & (rows.value_count + rows.null_count == 0))
    counted = has_values & has_nulls
    lower, upper = _find_bounds(rows, has_nulls, types)
    maps: tuple[tuple[Flags, BytesColumn, bytes], ...] = (
        # PyIceberg's table `entries` cannot do without, so an unknown size is an empty map
        (rows.column_size_bytes >= 0, join_columns(keys, long_column(rows.column_size_bytes)), PRESENT + NULL),
        # DuckLake counts the values that are not null, Iceberg all of them
        (counted, join_columns(keys, long_column(rows.value_count + rows.null_count)), NULL),
        (has_nulls, join_columns(keys, long_column(rows.null_count)), NULL),
        (rows.contains_nan == 0, join_columns(keys, NULL), NULL),
        (np.asarray(lower.is_valid()), map_items(keys, lower), NULL),
        (np.asarray(upper.is_valid()), map_items(keys, upper), NULL),
    )
    grouped = [group_maps(only_where(told, items), told, starts, empty) for told, items, empty in maps]
    # behind them: no key metadata, no split offsets
    return join_columns(*grouped, NULL + NULL).to_pylist()


def _arrange(packed: PackedColumnStats, data_file_ids: Sequence[int], types: LeafTypes) -> tuple[Rows, Longs]:
    """Return the rows that count, by file and column, and where each file's rows begin."""
    wanted = np.array(data_file_ids, dtype=np.int64)
    files, columns, sizes, values, nulls, told = _unpack(packed.numbers)
    asked: Flags = np.searchsorted(wanted, files, side="right") > np.searchsorted(wanted, files)
    rows = np.flatnonzero(asked & np.isin(columns, list(types)))
    rows = rows[np.lexsort((columns[rows], files[rows]))]
    arranged = Rows(
        columns[rows],
        sizes[rows],
        values[rows],
        nulls[rows],
        told[rows] >> 32,
        _texts(packed.min_value, (told >> 16 & 0xFFFF) - 1).take(pa.array(rows)),
        _texts(packed.max_value, (told & 0xFFFF) - 1).take(pa.array(rows)),
    )
    return arranged, np.searchsorted(files[rows], np.append(wanted, np.iinfo(np.int64).max))


def _unpack(numbers: bytes) -> list[Longs]:
    """Return the columns of rows of numbers that lie one behind the other."""
    return list(np.frombuffer(numbers, dtype=">i8").reshape(-1, NUMBERS).T.astype(np.int64))


def _texts(packed: str, lengths: Longs) -> Texts:
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
    validity = np.packbits(lengths >= 0, bitorder="little")
    return from_buffers(pa.string(), len(lengths), (validity, offsets.astype(np.int32), packed.encode()))


def _find_bounds(rows: Rows, has_nulls: Flags, types: LeafTypes) -> tuple[BytesColumn, BytesColumn]:
    """Return the lower and the upper bounds; none of rows without a count of NULLs, nor of floats that may be NaN."""
    by_column = np.argsort(rows.column_id, kind="stable")
    floating = [column for column, type_ in types.items() if type_.name in FLOATING]
    safe: Flags = np.asarray(has_nulls & ((rows.contains_nan == 0) | ~np.isin(rows.column_id, floating)))
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


def _gather(parts: Sequence[BytesColumn], places: Longs) -> BytesColumn:
    return arrow.take(pa.concat_arrays([pa.array([], pa.binary()), *parts]), pa.array(places))
