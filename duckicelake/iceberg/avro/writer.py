"""A writer of Avro object container files, from rows that are encoded already: row by row, or column by column in Arrow.

A manifest of thousands of files is a few dozen columns. A column of bytes has one element per row, and a row is its elements joined,
so each column is encoded in one call. `avro.reader` reads the files of any writer. No I/O; it runs on the server's worker threads, in the
drivers of jobs, and in Spark executors (`publish`).

Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | deflated rows | sync marker)
Units:  whole numbers are zigzag varints; a byte count goes before strings and bytes
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MAGIC = b"Obj\x01"
BLOCK_BYTES = 1 << 16
CACHED_LONGS_MAX = 1 << 16
NULL = b"\x00"
PRESENT = b"\x02"
LONG_BITS = 64


class EncodedLongs(dict[int, bytes]):
    """A bounded cache of encoded integers."""

    def __missing__(self, number: int) -> bytes:
        if len(self) >= CACHED_LONGS_MAX:
            self.clear()
        encoded = self[number] = encode_long(number)
        return encoded


def encode_long(number: int) -> bytes:
    """Return a 32- or 64-bit integer as Avro."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    if zigzag < 0x80:
        return bytes((zigzag,))
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    if zigzag < 0x20_0000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80, zigzag >> 14))
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def encode_bytes(content: bytes) -> bytes:
    """Return bytes, or the UTF-8 of a string, as Avro."""
    return encode_long(len(content)) + content


def encode_container(metadata: Mapping[str, str], schema: str, rows: Iterable[bytes]) -> bytes:
    """Return an Avro file of the rows. The same input gives the same bytes: the sync marker is a digest of the header."""
    return build_container_encoder(metadata, schema)(rows)


def build_container_encoder(metadata: Mapping[str, str], schema: str) -> Callable[[Iterable[bytes]], bytes]:
    """Return a function that writes Avro files with this header from rows."""
    encoded = [_encode_text(text) for pair in metadata.items() for text in pair]
    header = b"".join([MAGIC, encode_long(len(metadata) + 2), *encoded, _encode_schema(schema), NULL])
    sync = blake2b(header, digest_size=16).digest()
    return lambda rows: b"".join([header, sync, *_encode_blocks(rows, sync)])


@lru_cache(maxsize=256)
def _encode_schema(schema: str) -> bytes:
    """Return the last two entries of the map in a header. Schemas are few and long, so the result is cached."""
    return b"".join(map(_encode_text, ("avro.schema", schema, "avro.codec", "deflate")))


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return encode_long(len(encoded)) + encoded


def _encode_blocks(rows: Iterable[bytes], sync: bytes) -> Iterator[bytes]:
    pending: list[bytes] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield _encode_block(pending, sync)
            pending, size = [], 0
    if pending:
        yield _encode_block(pending, sync)


def _encode_block(rows: list[bytes], sync: bytes) -> bytes:
    deflated = zlib.compress(b"".join(rows), level=1, wbits=-15)
    return b"".join([encode_long(len(rows)), encode_bytes(deflated), sync])


def count_rows(content: bytes, empty: bytes) -> int:
    """Return the number of rows by the counts of the blocks, without decompressing them. `empty` is the same file without rows.

    Return -1 for a file with another header, or a truncated file.
    """
    if not content.startswith(empty):
        return -1
    sync, place, rows = empty[-16:], len(empty), 0
    while place < len(content):
        count, place = _decode_long(content, place)
        length, place = _decode_long(content, place)
        place += max(length, 0) + len(sync)
        if count < 0 or length < 0 or content[place - len(sync) : place] != sync:
            return -1
        rows += count
    return rows


def _decode_long(content: bytes, place: int) -> tuple[int, int]:
    zigzag = shift = 0
    while place < len(content) and shift < LONG_BITS:
        byte = content[place]
        zigzag, shift, place = zigzag | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), place
    return -1, place


LongArray = NDArray[np.int64]
FlagArray = NDArray[np.bool_]

BytesColumn = Any
"""An Arrow array of bytes or null. It is Any because pyarrow's stubs do not know the element types."""

arrow: Any = pc

VARINT_LIMITS = np.array([1 << (7 * count) for count in range(1, 10)], dtype=np.uint64)


def build_bytes_column(cells: NDArray[np.uint8], kept: FlagArray) -> BytesColumn:
    """Return a column from a matrix with one row per element, of which only the kept cells count."""
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    return _build_binary_column(offsets, cells[kept])


def encode_long_column(numbers: LongArray) -> BytesColumn:
    """Return integers as Avro: `encode_long` of each."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths: LongArray = np.searchsorted(VARINT_LIMITS, zigzag, side="right") + 1
    places = np.arange(int(lengths.max(initial=1)), dtype=np.int64)
    cells: NDArray[np.uint8] = ((zigzag[:, None] >> (places * 7).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    cells[places < lengths[:, None] - 1] |= 0x80
    return build_bytes_column(cells, places < lengths[:, None])


def join_columns(*columns: BytesColumn | bytes) -> BytesColumn:
    """Return columns joined row by row; a bytes argument is repeated in every row."""
    return arrow.binary_join_element_wise(*columns, b"")


def encode_map_items(keys: BytesColumn, values: BytesColumn) -> BytesColumn:
    """Return items of maps whose values are bytes; an item is empty where its value is null."""
    filled = arrow.fill_null(values, b"")
    lengths = encode_long_column(np.asarray(arrow.binary_length(filled), dtype=np.int64))
    return empty_where_absent(np.asarray(values.is_valid()), join_columns(keys, lengths, filled))


def empty_where_absent(present: FlagArray, items: BytesColumn) -> BytesColumn:
    """Return the items, empty where they are not present."""
    return items if present.all() else arrow.if_else(pa.array(present), items, b"")


def encode_maps(items: BytesColumn, present: FlagArray, starts: LongArray, empty: bytes) -> BytesColumn:
    """Return one map per group of rows from the items of the rows; `empty` is the encoding of a map without items.

    `starts` holds the first row of each group, and the number of rows as its last element.
    """
    before = np.concatenate([[0], np.cumsum(present, dtype=np.int64)])
    counts = before[starts[1:]] - before[starts[:-1]]
    different, index = np.unique(counts, return_inverse=True)
    heads = pa.array([PRESENT + encode_long(int(count)) if count else empty for count in different], pa.binary())
    tails = pa.array([NULL if count else b"" for count in different], pa.binary())
    return join_columns(arrow.take(heads, pa.array(index)), _join_neighbors(items, starts), arrow.take(tails, pa.array(index)))


def _join_neighbors(items: BytesColumn, starts: LongArray) -> BytesColumn:
    """Return one element per group. Neighbouring elements are adjacent in memory, so a group is one longer element of the same bytes."""
    _, offsets, content = items.buffers()
    every = np.frombuffer(offsets, dtype=np.int32)[items.offset :]
    return _build_binary_column(every[starts], content)


def _build_binary_column(offsets: NDArray[np.int32], content: Any) -> BytesColumn:
    return build_from_buffers(pa.binary(), len(offsets) - 1, (None, np.ascontiguousarray(offsets), content))


def build_from_buffers(kind: Any, count: int, parts: Iterable[Any]) -> Any:
    """Return an Arrow array of that type from its buffers: validity, offsets, content."""
    buffers = [part if part is None or isinstance(part, pa.Buffer) else pa.py_buffer(part) for part in parts]
    return cast("Any", pa.Array).from_buffers(kind, count, buffers)
