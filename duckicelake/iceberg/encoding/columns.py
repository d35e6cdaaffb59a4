"""Avro column by column: a column of bytes has an element per row, and a row is its elements joined.

A manifest of thousands of files is a few dozen columns; each is encoded in one go.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from duckicelake.iceberg.encoding.avro import NULL, PRESENT, encode_long

LongArray = NDArray[np.int64]
FlagArray = NDArray[np.bool_]

BytesColumn = Any
"""An Arrow array of bytes or null: what pyarrow's stubs know of element types helps nobody here, nor below."""

arrow: Any = pc

VARINT_LIMITS = np.array([1 << (7 * count) for count in range(1, 10)], dtype=np.uint64)


def build_bytes_column(cells: NDArray[np.uint8], kept: FlagArray) -> BytesColumn:
    """A column from a matrix with a row per element, of which only the kept cells count."""
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    return _build_binary_column(offsets, cells[kept])


def encode_long_column(numbers: LongArray) -> BytesColumn:
    """Whole numbers as Avro writes them: `encode_long` of each."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths: LongArray = np.searchsorted(VARINT_LIMITS, zigzag, side="right") + 1
    places = np.arange(int(lengths.max(initial=1)), dtype=np.int64)
    cells: NDArray[np.uint8] = ((zigzag[:, None] >> (places * 7).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    cells[places < lengths[:, None] - 1] |= 0x80
    return build_bytes_column(cells, places < lengths[:, None])


def join_columns(*columns: BytesColumn | bytes) -> BytesColumn:
    """Columns joined row by row; bytes stand in every row."""
    return arrow.binary_join_element_wise(*columns, b"")


def encode_map_items(keys: BytesColumn, values: BytesColumn) -> BytesColumn:
    """Items of maps with bytes as values: nothing where the value is null."""
    filled = arrow.fill_null(values, b"")
    lengths = encode_long_column(np.asarray(arrow.binary_length(filled), dtype=np.int64))
    return empty_where_absent(np.asarray(values.is_valid()), join_columns(keys, lengths, filled))


def empty_where_absent(present: FlagArray, items: BytesColumn) -> BytesColumn:
    """The items, empty where they are not present."""
    return items if present.all() else arrow.if_else(pa.array(present), items, b"")


def encode_maps(items: BytesColumn, present: FlagArray, starts: LongArray, empty: bytes) -> BytesColumn:
    """A map per group of rows, from its items; `empty` stands for a map without items.

    `starts` are the rows at which groups begin, and the number of rows.
    """
    before = np.concatenate([[0], np.cumsum(present, dtype=np.int64)])
    counts = before[starts[1:]] - before[starts[:-1]]
    different, index = np.unique(counts, return_inverse=True)
    heads = pa.array([PRESENT + encode_long(int(count)) if count else empty for count in different], pa.binary())
    tails = pa.array([NULL if count else b"" for count in different], pa.binary())
    return join_columns(arrow.take(heads, pa.array(index)), _join_neighbors(items, starts), arrow.take(tails, pa.array(index)))


def _join_neighbors(items: BytesColumn, starts: LongArray) -> BytesColumn:
    """Neighbouring elements lie next to each other in memory, so a group is one longer element of the same bytes."""
    _, offsets, content = items.buffers()
    every = np.frombuffer(offsets, dtype=np.int32)[items.offset :]
    return _build_binary_column(every[starts], content)


def _build_binary_column(offsets: NDArray[np.int32], content: Any) -> BytesColumn:
    return build_from_buffers(pa.binary(), len(offsets) - 1, (None, np.ascontiguousarray(offsets), content))


def build_from_buffers(kind: Any, count: int, parts: Iterable[Any]) -> Any:
    """An Arrow array of that kind, of memory laid out as Arrow has it: validity, offsets, content."""
    buffers = [part if part is None or isinstance(part, pa.Buffer) else pa.py_buffer(part) for part in parts]
    return cast("Any", pa.Array).from_buffers(kind, count, buffers)
