"""Data files of manifest entries, made from DuckLake's rows: few of them value by value, many column by column, with equal bytes.

`catalog` calls `DataFileBuilder` for loads and commits, and Spark executors that publish a large table do. `encode_metrics`
converts the statistics of many files column by column. No I/O.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from duckicelake.errors import Unsupported
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
from duckicelake.iceberg.manifest import DataFile, EncodedFile, encode_files
from duckicelake.iceberg.schema import Schema, list_leaf_fields
from duckicelake.iceberg.single_values import BOUND_LENGTH
from duckicelake.iceberg.types import PrimitiveType, find_decimal
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, FileNote, PackedColumnStats
from duckicelake.translate.client_schemas import find_client_partition
from duckicelake.translate.files import FLOATING, UNBOUNDED, LeafTypes, check_readable, choose_spec, find_lower, find_upper, to_data_file
from duckicelake.translate.locations import file_uri
from duckicelake.translate.partitions import Partitioning, PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.types import VARIANT
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


SINGLY_MAX = 20
"""The largest number of files for which row-by-row work is faster."""

CheckMapping = Callable[[DataFileRow, str, PublishedSpec], None]
"""Refuses an added file, given its row, URI and spec, if Iceberg would read it differently than DuckLake."""


def refuse_mapped(row: DataFileRow, uri: str, spec: PublishedSpec) -> None:
    """Refuse every file that was added by name mapping: only its footer shows if Iceberg reads it as DuckLake does."""
    if row.mapping_id is not None:
        raise Unsupported(f"Data file {row.path!r} was added by its names; only the server looks into such files.")


@dataclass(slots=True)
class DataFileBuilder:
    """Builds the data files of one table. Relative paths of rows start at `folder`."""

    folder: str
    schemas: Schemas
    partitioning: Partitioning
    check_mapping: CheckMapping = refuse_mapped
    known_types: dict[int, LeafTypes] = field(default_factory=dict[int, LeafTypes])

    def make(self, row: DataFileRow, note: FileNote | None, stats: Iterable[ColumnStatsRow]) -> DataFile:
        """Return one file. Raises: Unsupported: Iceberg readers cannot read it"""
        schema = self.schemas.at(row.begin_snapshot)
        uri, partition = self._get_uri_and_partition(row, schema, note)
        return with_client_values(to_data_file(row, uri, partition, stats, self.leaf_types(schema)), row, note)

    def make_many(self, rows: Sequence[DataFileRow], statistics: PackedColumnStats) -> list[EncodedFile]:
        """Return files without client notes, all of one schema, ordered by ascending id. Raises: as `make`"""
        schema = self.schemas.at(rows[0].begin_snapshot)
        files = [
            EncodedFile(*self._get_uri_and_partition(row, schema, None), row.record_count, row.file_size_bytes, row.row_id_start or 0)
            for row in rows
        ]
        metrics = encode_metrics(statistics, [row.data_file_id for row in rows], self.leaf_types(schema))
        return encode_files(files, metrics, self.schemas.format_version)

    def choose_spec(self, row: DataFileRow, schema: Schema, note: FileNote | None) -> tuple[PublishedSpec, tuple[object, ...]]:
        """Return the spec under which a file is published, and its partition tuple."""
        return find_client_partition(note, self.partitioning, schema) or choose_spec(row, self.partitioning, schema)

    def leaf_types(self, schema: Schema) -> LeafTypes:
        """Return the types of a schema's leaves that have statistics."""
        if schema.schema_id not in self.known_types:
            # DuckDB does not count the NULLs of variants.
            leaves = {field_id: type_ for field_id, type_ in list_leaf_fields(schema) if type_.name != VARIANT}
            self.known_types[schema.schema_id] = leaves
        return self.known_types[schema.schema_id]

    def _get_uri_and_partition(self, row: DataFileRow, schema: Schema, note: FileNote | None) -> tuple[str, tuple[object, ...]]:
        check_readable(row, is_client_path=note is not None)
        spec, partition = self.choose_spec(row, schema, note)
        uri = file_uri(self.folder, row.path, row.path_is_relative)
        self.check_mapping(row, uri, spec)
        return uri, partition


def with_client_values(file: DataFile, row: DataFileRow, note: FileNote | None) -> DataFile:
    """Return a file with the values from its client's note; its path is exactly the client's."""
    if note is None:
        return file
    offsets = None if note.split_offsets is None else tuple(json.loads(note.split_offsets))
    return replace(file, file_path=row.path, split_offsets=offsets, sort_order_id=note.sort_order_id)
