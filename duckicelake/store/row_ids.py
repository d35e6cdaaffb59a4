"""Fill NULLs of the column `_row_id` in a data file with inherited row ids, without changing the bytes of other columns.

The new column chunks come where the old footer was, followed by a new footer that refers to them. Footers are in Thrift's compact protocol;
structs and lists are decoded one level at a time. `catalog.incoming.row_id_copies` calls this before a commit's transaction, and writes
the file to the store. `store.variants` uses the Thrift functions, too.

Shape:  a struct is its fields as (id, kind, value) in order; a value is its encoded bytes
Source: Thrift «Compact protocol encoding»
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.errors import Unsupported
from duckicelake.store.parquet import FIELD_ID, translated_errors

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
FIXED_LENGTHS = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
MAX_DEPTH = 16
LONG_LIST, MAX_DELTA = 15, 15
MAX_SHIFT = 63


class ThriftField(NamedTuple):
    """One field of a struct."""

    id: int
    kind: int
    value: bytes


def split_struct(encoded: bytes) -> list[ThriftField]:
    """Return the fields of a struct, their ids ascending. Raises Unsupported for other bytes."""
    fields, end = read_struct(encoded, 0)
    if end != len(encoded):
        raise _damaged()
    return fields


def read_struct(encoded: bytes, place: int) -> tuple[list[ThriftField], int]:
    """Return the fields of the struct at an offset, and the offset of its end. Raises Unsupported for other bytes."""
    fields: list[ThriftField] = []
    try:
        end = _walk_struct(encoded, place, fields)
    except IndexError:
        raise _damaged() from None
    # Reject duplicate field ids: readers disagree on which one wins.
    if any(field.id >= following.id for field, following in pairwise(fields)):
        raise _damaged()
    return fields, end


def join_struct(fields: Iterable[ThriftField]) -> bytes:
    """Return the bytes of a struct; `fields` ascend by id."""
    encoded = bytearray()
    last = 0
    for field in fields:
        delta = field.id - last
        is_short = 0 < delta <= MAX_DELTA
        encoded += bytes([delta << 4 | field.kind]) if is_short else bytes([field.kind]) + encode_int(field.id)
        encoded += field.value
        last = field.id
    return bytes(encoded) + b"\0"


def split_list(encoded: bytes) -> tuple[int, list[bytes]]:
    """Return the kind of a list's items, and the items. Raises Unsupported for other bytes."""
    items: list[bytes] = []
    try:
        kind, count, place = _read_list_header(encoded, 0)
        for _ in range(count):
            end = _skip_item(encoded, place, kind, MAX_DEPTH)
            items.append(encoded[place:end])
            place = end
    except IndexError:
        raise _damaged() from None
    if place != len(encoded):
        raise _damaged()
    return kind, items


def join_list(kind: int, items: Sequence[bytes]) -> bytes:
    """Return the bytes of a list."""
    count = len(items)
    header = bytes([count << 4 | kind]) if count < LONG_LIST else bytes([LONG_LIST << 4 | kind]) + _encode_varint(count)
    return header + b"".join(items)


def encode_int(number: int) -> bytes:
    """Return the bytes of an i16, i32 or i64."""
    return _encode_varint(number << 1 ^ number >> 63)


def decode_int(encoded: bytes) -> int:
    """Return the number in the bytes of an i16, i32 or i64."""
    number, _ = _read_varint(encoded, 0)
    return number >> 1 ^ -(number & 1)


def encode_binary(content: bytes) -> bytes:
    """Return the bytes of a binary or string."""
    return _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _read_varint(encoded: bytes, place: int) -> tuple[int, int]:
    """Return the unsigned varint at an offset, and the offset of its end."""
    number = shift = 0
    while encoded[place] & 0x80:
        number |= (encoded[place] & 0x7F) << shift
        shift += 7
        place += 1
        if shift > MAX_SHIFT:
            raise _damaged()
    return number | encoded[place] << shift, place + 1


def _read_list_header(encoded: bytes, place: int) -> tuple[int, int, int]:
    kind, count = encoded[place] & 0x0F, encoded[place] >> 4
    if count < LONG_LIST:
        return kind, count, place + 1
    return kind, *_read_varint(encoded, place + 1)


def _walk_struct(encoded: bytes, place: int, found: list[ThriftField] | None, depth: int = MAX_DEPTH) -> int:
    """Return the offset of a struct's end; its fields are appended to `found`."""
    if depth == 0:
        raise _damaged()
    field_id = 0
    while encoded[place]:
        kind, delta = encoded[place] & 0x0F, encoded[place] >> 4
        place += 1
        if delta:
            field_id += delta
        else:
            number, place = _read_varint(encoded, place)
            field_id = number >> 1 ^ -(number & 1)
        end = _skip(encoded, place, kind, depth - 1)
        if found is not None:
            found.append(ThriftField(field_id, kind, encoded[place:end]))
        place = end
    return place + 1


def _skip_item(encoded: bytes, place: int, kind: int, depth: int) -> int:
    """Return the offset of the end of a list item; booleans in lists take one byte."""
    return _within(encoded, place + 1) if kind in (TRUE, FALSE) else _skip(encoded, place, kind, depth)


def _skip(encoded: bytes, place: int, kind: int, depth: int) -> int:
    """Return where a value ends. Raises Unsupported, or IndexError past the end."""
    if kind in FIXED_LENGTHS:
        return _within(encoded, place + FIXED_LENGTHS[kind])
    if kind in (I16, I32, I64):
        while encoded[place] & 0x80:
            place += 1
        return place + 1
    if kind == BINARY:
        length, place = _read_varint(encoded, place)
        return _within(encoded, place + length)
    if kind == STRUCT:
        return _walk_struct(encoded, place, None, depth)
    if kind in (LIST, SET) and depth:
        kind, count, place = _read_list_header(encoded, place)
        for _ in range(count):
            place = _skip_item(encoded, place, kind, depth - 1)
        return place
    raise _damaged()


def _within(encoded: bytes, place: int) -> int:
    if place > len(encoded):
        raise _damaged()
    return place


def _damaged() -> Unsupported:
    return Unsupported("A Parquet file's footer is damaged, or of a kind that no known writer makes.")


ROW_ID = 2147483540
MAX_FOOTER_BYTES = 4 * 1024 * 1024
MAX_GROUP_ROWS = 10_000_000
MAX_ROW_BYTES = 16
MAX_PAGES = 100_000
STEP_ROWS, STEP_BYTES = 250_000, 8 * 1024 * 1024
MAGIC, TRAILER_BYTES = b"PAR1", 8
CODECS = {"UNCOMPRESSED": ("none", 0), "SNAPPY": ("snappy", 1), "GZIP": ("gzip", 2), "ZSTD": ("zstd", 6)}
"""pyarrow's name and Parquet's number of each codec; a column with another codec is rewritten with the last of these."""
PLAIN, RLE = 0, 3


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The rewritten column chunk of one row group. `offset`: its start in the file."""

    offset: int
    codec: int
    rows: int
    plain_bytes: int
    content_bytes: int
    index_bytes: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class OpenRowIds:
    """A Parquet file with rows that inherit their row ids; `column`: the index of `_row_id` among its leaves."""

    source: BinaryIO
    file: pq.ParquetFile
    column: int
    footer: bytes
    kept_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        metadata: Any = self.file.metadata
        return sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))

    def fill(self, first_row_id: int) -> Generator[bytes]:
        """Yield the file in parts; a row without an id gets `first_row_id` plus its position.

        Raises: Unsupported — the file is damaged
        """
        self.source.seek(0)
        for start in range(0, self.kept_bytes, STEP_BYTES):
            wanted = min(STEP_BYTES, self.kept_bytes - start)
            self.source.seek(start)
            yield _read_all(self.source, wanted)
        offset, position = self.kept_bytes, 0
        chunks: list[_Chunk] = []
        for group in range(self.file.metadata.num_row_groups):
            content, chunk = self._fill_group(group, first_row_id + position, offset)
            yield content
            chunks.append(chunk)
            offset += len(content)
            position += chunk.rows
        try:
            footer = _with_chunks(self.footer, self.column, chunks)
        except (KeyError, IndexError, ValueError):
            raise Unsupported("A data file's footer lacks what every footer has.") from None
        yield footer + len(footer).to_bytes(4, "little") + MAGIC

    def _fill_group(self, group: int, first_row_id: int, offset: int) -> tuple[bytes, _Chunk]:
        """Return the bytes and the description of the column chunk of one row group."""
        metadata: Any = self.file.metadata.row_group(group)
        old = metadata.column(self.column)
        self._check_pages(old, metadata.num_rows)
        name, codec = CODECS.get(old.compression, CODECS["ZSTD"])
        schema = pa.schema([pa.field("_row_id", pa.int64())])
        sink, rows = pa.BufferOutputStream(), 0
        bounds: list[int] = []
        with translated_errors("data file"):
            how: Any = {"compression": name, "use_dictionary": False, "store_schema": False, "write_page_index": True}
            writer = pq.ParquetWriter(sink, schema, **how)
            with writer:
                path = self.file.schema.column(self.column).path
                for batch in self.file.iter_batches(STEP_ROWS, row_groups=[group], columns=[path], use_threads=False):
                    ids = _fill(batch.column(0), first_row_id + rows)
                    bounds += [int(ids.min()), int(ids.max())]
                    rows += len(ids)
                    column = cast("Any", pa.array(ids))
                    writer.write_table(pa.Table.from_arrays([column], schema=schema), row_group_size=len(ids))
            encoded = sink.getvalue()
            written: Any = pq.read_metadata(pa.BufferReader(encoded))
        if rows != metadata.num_rows or not rows:
            raise Unsupported(f"A row group of a data file has {rows} row ids, and is said to have {metadata.num_rows} rows.")
        parts = [written.row_group(place).column(0) for place in range(written.num_row_groups)]
        length = sum(part.total_compressed_size for part in parts)
        # The writer's row groups have one column, so the pages of all of them are contiguous.
        content = encoded.slice(parts[0].data_page_offset, length).to_pybytes()
        plain_bytes = sum(part.total_uncompressed_size for part in parts)
        end = parts[0].data_page_offset + length
        rest = encoded.slice(end).to_pybytes()
        index = _to_index(rest, end, [part.num_values for part in parts], offset - parts[0].data_page_offset)
        return content + index, _Chunk(offset, codec, rows, plain_bytes, length, len(index), min(bounds), max(bounds))

    def _check_pages(self, chunk: Any, rows: int) -> None:
        """Raise Unsupported if the page headers of a chunk announce too many bytes or pages; the footer may state less."""
        starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
        self.source.seek(min(starts, default=0))
        content = _read_all(self.source, max(0, chunk.total_compressed_size))
        place = plain_bytes = count = 0
        while place < len(content):
            fields, place = read_struct(content, place)
            sizes = [decode_int(field.value) for field in fields if field.id in (2, 3) and field.kind == I32]
            if len(sizes) < 2 or min(sizes) < 0:
                raise Unsupported("A page of a data file does not say how long it is.")
            place, plain_bytes, count = place + sizes[1], plain_bytes + sizes[0], count + 1
            if plain_bytes > MAX_ROW_BYTES * rows + STEP_BYTES or count > MAX_PAGES:
                raise Unsupported(
                    f"The row ids of a row group of {rows} rows have {plain_bytes} bytes in {count} pages, which is too much."
                )


def open_row_ids(source: BinaryIO, size_bytes: int) -> OpenRowIds | None:
    """Return a data file that has a column `_row_id` with NULLs, None for any other file.

    Raises: Unsupported — not a Parquet file, or one that is too large to be rewritten
    """
    source.seek(max(0, size_bytes - TRAILER_BYTES))
    footer_bytes = int.from_bytes(_read_all(source, TRAILER_BYTES)[:4], "little")
    if not 0 < footer_bytes <= min(MAX_FOOTER_BYTES, size_bytes - TRAILER_BYTES):
        raise Unsupported(f"A data file has a footer of {footer_bytes} bytes, more than the {MAX_FOOTER_BYTES} that can be rewritten.")
    with translated_errors("data file"):
        file = pq.ParquetFile(source)
    column = _find_column(file)
    if column is None or not _may_be_open(file, column):
        return None
    _check_groups(file, column)
    kept_bytes = size_bytes - TRAILER_BYTES - footer_bytes
    source.seek(kept_bytes)
    return OpenRowIds(source, file, column, _read_all(source, footer_bytes), kept_bytes)


def _check_groups(file: pq.ParquetFile, column: int) -> None:
    if not column:
        # parquet-mr assigns a row group to the split that contains its middle, counted from the start of its first column.
        raise Unsupported("A data file begins with its row ids; have them written behind other columns.")
    metadata: Any = file.metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if (
            not 0 < group.num_rows <= MAX_GROUP_ROWS
            or group.column(column).total_uncompressed_size > MAX_ROW_BYTES * group.num_rows + STEP_BYTES
        ):
            raise Unsupported(f"A data file has row groups of no rows, or of more than {MAX_GROUP_ROWS}, or row ids of very many bytes.")


def _find_column(file: pq.ParquetFile) -> int | None:
    """Return the index of `_row_id` among a file's leaves, None if there is no such nullable column."""
    fields: list[Any] = list(file.schema_arrow)
    own = [field for field in fields if (field.metadata or {}).get(FIELD_ID) == str(ROW_ID).encode()]
    names = {field.name for field in own if field.type == pa.int64()}
    leaves = [file.schema.column(place) for place in range(len(file.schema))]
    places = [place for place, leaf in enumerate(leaves) if leaf.path in names and leaf.physical_type == "INT64"]
    is_plain = len(places) == 1 and leaves[places[0]].max_definition_level == 1 and leaves[places[0]].max_repetition_level == 0
    return places[0] if is_plain else None


def _may_be_open(file: pq.ParquetFile, column: int) -> bool:
    """True if a column has NULLs, or its statistics are missing."""
    metadata: Any = file.metadata
    statistics = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    return any(each is None or each.null_count is None or each.null_count > 0 for each in statistics)


def _fill(found: Any, first: int) -> Any:
    counted = np.arange(first, first + len(found), dtype=np.int64)
    return np.where(np.asarray(found.is_null()), counted, np.asarray(found.fill_null(0), dtype=np.int64))


def _read_all(source: BinaryIO, length: int) -> bytes:
    content = source.read(length)
    if len(content) != length:
        raise Unsupported("A data file is shorter than it is said to be.")
    return content


# Field numbers below are those of parquet.thrift.


def _with_chunks(footer: bytes, column: int, chunks: Sequence[_Chunk]) -> bytes:
    """Return a footer (`FileMetaData`) with these chunks of a column in its row groups."""
    fields = split_struct(footer)
    for place, field in enumerate(fields):
        if field.id == 4:
            kind, groups = split_list(field.value)
            groups = [_with_chunk(group, column, chunk) for group, chunk in zip(groups, chunks, strict=True)]
            fields[place] = field._replace(value=join_list(kind, groups))
    return join_struct(fields)


def _by_id(struct: bytes) -> dict[int, ThriftField]:
    return {field.id: field for field in split_struct(struct)}


def _with_chunk(group: bytes, column: int, chunk: _Chunk) -> bytes:
    """Return a `RowGroup` with a replaced column chunk and updated sizes."""
    fields = _by_id(group)
    kind, columns = split_list(fields[1].value)
    metadata = _by_id(_by_id(columns[column])[3].value)
    index = [ThriftField(4, I64, encode_int(chunk.offset + chunk.content_bytes)), ThriftField(5, I32, encode_int(chunk.index_bytes))]
    columns[column] = join_struct([ThriftField(2, I64, encode_int(0)), ThriftField(3, STRUCT, _to_metadata(metadata, chunk)), *index])
    fields[1] = fields[1]._replace(value=join_list(kind, columns))
    # In a chunk, 6 and 7 are the uncompressed and compressed size; in a row group, 2 and 6 are.
    for ours, theirs, size in ((2, 6, chunk.plain_bytes), (6, 7, chunk.content_bytes)):
        if ours in fields:
            number = decode_int(fields[ours].value) - decode_int(metadata[theirs].value) + size
            fields[ours] = fields[ours]._replace(value=encode_int(number))
    return join_struct(fields[field_id] for field_id in sorted(fields))


def _to_index(rest: bytes, end: int, counts: Sequence[int], shift: int) -> bytes:
    """Return the `OffsetIndex` of a chunk: that of the temporary file, with row groups of `counts` joined, moved by `shift` bytes.

    `rest`: the bytes of the temporary file after its pages, from offset `end` on. Trino cannot skip pages of another column without it.
    """
    footer_bytes = int.from_bytes(rest[-TRAILER_BYTES:-4], "little")
    groups = split_list(_by_id(rest[-TRAILER_BYTES - footer_bytes : -TRAILER_BYTES])[4].value)[1]
    pages: list[bytes] = []
    for group, earlier in zip(groups, accumulate(counts, initial=0), strict=False):
        chunk = _by_id(split_list(_by_id(group)[1].value)[1][0])
        start, length = decode_int(chunk[4].value) - end, decode_int(chunk[5].value)
        for page in split_list(_by_id(rest[start : start + length])[1].value)[1]:
            place = _by_id(page)
            moved = {1: decode_int(place[1].value) + shift, 3: decode_int(place[3].value) + earlier}
            pages.append(join_struct(place[i]._replace(value=encode_int(moved[i])) if i in moved else place[i] for i in sorted(place)))
    return join_struct([ThriftField(1, LIST, join_list(STRUCT, pages))])


def _to_metadata(old: dict[int, ThriftField], chunk: _Chunk) -> bytes:
    """Return the `ColumnMetaData` of a chunk, with the type and name of the old one."""
    lowest, highest = (encode_binary(number.to_bytes(8, "little", signed=True)) for number in (chunk.lowest, chunk.highest))
    statistics = [ThriftField(3, I64, encode_int(0)), ThriftField(5, BINARY, highest), ThriftField(6, BINARY, lowest)]
    return join_struct(
        [
            old[1],
            ThriftField(2, LIST, join_list(I32, [encode_int(PLAIN), encode_int(RLE)])),
            old[3],
            ThriftField(4, I32, encode_int(chunk.codec)),
            ThriftField(5, I64, encode_int(chunk.rows)),
            ThriftField(6, I64, encode_int(chunk.plain_bytes)),
            ThriftField(7, I64, encode_int(chunk.content_bytes)),
            ThriftField(9, I64, encode_int(chunk.offset)),
            ThriftField(12, STRUCT, join_struct(statistics)),
        ]
    )
