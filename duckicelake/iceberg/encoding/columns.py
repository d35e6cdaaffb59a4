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

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]

BytesColumn = Any
"""An Arrow array of bytes or null: what pyarrow's stubs know of element types helps nobody here, nor below."""

arrow: Any = pc

VARINT_LIMITS = np.array([1 << (7 * count) for count in range(1, 10)], dtype=np.uint64)


def bytes_column(cells: NDArray[np.uint8], kept: Flags) -> BytesColumn:
    """A column from a matrix with a row per element, of which only the kept cells count."""
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    return _from_buffers(offsets, cells[kept])


def long_column(numbers: Longs) -> BytesColumn:
    """Whole numbers as Avro writes them: `encode_long` of each."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths: Longs = np.searchsorted(VARINT_LIMITS, zigzag, side="right") + 1
    places = np.arange(int(lengths.max(initial=1)), dtype=np.int64)
    cells: NDArray[np.uint8] = ((zigzag[:, None] >> (places * 7).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    cells[places < lengths[:, None] - 1] |= 0x80
    return bytes_column(cells, places < lengths[:, None])


def join_columns(*columns: BytesColumn | bytes) -> BytesColumn:
    """Columns joined row by row; bytes stand in every row."""
    return arrow.binary_join_element_wise(*columns, b"")


def map_items(keys: BytesColumn, values: BytesColumn) -> BytesColumn:
    """Items of maps with bytes as values: nothing where the value is null."""
    filled = arrow.fill_null(values, b"")
    lengths = long_column(np.asarray(arrow.binary_length(filled), dtype=np.int64))
    return only_where(np.asarray(values.is_valid()), join_columns(keys, lengths, filled))


def only_where(present: Flags, items: BytesColumn) -> BytesColumn:
    """The items, empty where they are not present."""
    return items if present.all() else arrow.if_else(pa.array(present), items, b"")


def group_maps(items: BytesColumn, present: Flags, starts: Longs, empty: bytes) -> BytesColumn:
    """A map per group of rows, from its items; `empty` stands for a map without items.

    `starts` are the rows at which groups begin, and the number of rows.
    """
    before = np.concatenate([[0], np.cumsum(present, dtype=np.int64)])
    counts = before[starts[1:]] - before[starts[:-1]]
    different, index = np.unique(counts, return_inverse=True)
    heads = pa.array([PRESENT + encode_long(int(count)) if count else empty for count in different], pa.binary())
    tails = pa.array([NULL if count else b"" for count in different], pa.binary())
    return join_columns(arrow.take(heads, pa.array(index)), _group(items, starts), arrow.take(tails, pa.array(index)))


def _group(items: BytesColumn, starts: Longs) -> BytesColumn:
    """Neighbouring elements lie next to each other in memory, so a group is one longer element of the same bytes."""
    _, offsets, content = items.buffers()
    every = np.frombuffer(offsets, dtype=np.int32)[items.offset :]
    return _from_buffers(every[starts], content)


def _from_buffers(offsets: NDArray[np.int32], content: Any) -> BytesColumn:
    return from_buffers(pa.binary(), len(offsets) - 1, (None, np.ascontiguousarray(offsets), content))


def from_buffers(kind: Any, count: int, parts: Iterable[Any]) -> Any:
    """An Arrow array of that kind, of memory laid out as Arrow has it: validity, offsets, content."""
    buffers = [part if part is None or isinstance(part, pa.Buffer) else pa.py_buffer(part) for part in parts]
    return cast("Any", pa.Array).from_buffers(kind, count, buffers)
