"""Rewrite the variants of a Parquet file that DuckDB wrote, as the Parquet specification has them, and mark those of Trino.

DuckDB writes a NULL as a variant null, and says that the names of objects are sorted, when they are not. A rewritten variant is NULL where
DuckDB reads NULL, is not shredded, and does not say that its names are sorted. DuckDB reads the variants, and the new column chunks
replace the old ones; rows keep their positions and row groups, and the pages of other columns stay as they are. Row groups
are contiguous in the new file and follow each other: Java's readers compute from these offsets which split has a row group, and pass
over a row group that no split has. Trino leaves out the logical type in the footer.
`catalog.manifests` calls this while it makes manifests, and `catalog.incoming.variant_copies` before a commit. No I/O but a temporary file.

Source: Parquet «VariantEncoding.md», parquet.thrift
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, TypeVar, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.store.parquet import translated_errors
from duckicelake.store.row_ids import (
    BYTE,
    I32,
    I64,
    MAGIC,
    MAX_FOOTER_BYTES,
    STRUCT,
    TRAILER_BYTES,
    ThriftField,
    decode_int,
    encode_int,
    join_list,
    join_struct,
    split_list,
    split_struct,
)

VARIANT_LOGICAL_TYPE = 16
"""The number of the member `VARIANT` of the union `LogicalType`."""
SORTED_NAMES = 0x10
"""The bit in the first byte of a variant's metadata that says that its names are sorted."""
PARTS = ("metadata", "value")
MAX_REWRITTEN_BYTES = 1024 * 1024 * 1024
BATCH_ROWS = 2048
MAX_GROUP_BYTES, MAX_DECODED_BYTES = 1024 * 1024 * 1024, 4 * 1024 * 1024 * 1024
"""Bytes of the decoded variants of one row group, which is in memory as a whole, and of a file."""
MAX_NESTING = 100
MARK = ThriftField(10, STRUCT, join_struct([ThriftField(VARIANT_LOGICAL_TYPE, STRUCT, join_struct([ThriftField(1, BYTE, b"\x01")]))]))
"""The logical type of a variant whose encoding has version 1."""
REVISION = 2
"""The number of the way in which files are rewritten. It is in their names: copies of an earlier one are not used again."""
CONFIG: Mapping[str, str | int | bool] = {
    "threads": 1,
    "memory_limit": "1GB",
    "autoinstall_known_extensions": False,
    "arrow_large_buffer_size": True,
}

Fields = dict[int, ThriftField]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Group:
    """A variant at the root of a file: `start` and `end` of its schema elements, `first` and `last` leaf, one after the last one."""

    name: str
    start: int
    end: int
    first: int
    last: int


@contextmanager
def _translated_damage() -> Generator[None]:
    """Translate what a damaged footer leads to into Unsupported."""
    try:
        yield
    except (LookupError, ValueError, OverflowError):
        raise Unsupported("A data file's footer lacks what every footer has") from None


def rewrite_variants(content: bytes) -> bytes | None:
    """Return a file with the variants of its root rewritten; None if it has none.

    Raises: Unsupported: it is no Parquet file, or its variants cannot be read
    """
    with _translated_damage():
        return _rewrite(content)


def _rewrite(content: bytes) -> bytes | None:
    footer_bytes = int.from_bytes(content[-TRAILER_BYTES:-4], "little")
    kept = len(content) - TRAILER_BYTES - footer_bytes
    if kept < len(MAGIC) or content[-4:] != MAGIC:
        raise Unsupported("A data file is no Parquet file.")
    footer = _by_id(content[kept:-TRAILER_BYTES])
    elements = split_list(footer[2].value)[1]
    groups = _list_variants(elements)
    if not groups:
        return None
    counts = [decode_int(_by_id(group)[3].value) for group in split_list(footer[4].value)[1]]
    written = _encode(content, [group.name for group in groups], counts)
    added_bytes = len(written) - TRAILER_BYTES - int.from_bytes(written[-TRAILER_BYTES:-4], "little")
    made = _by_id(written[added_bytes:-TRAILER_BYTES])
    footer[2] = footer[2]._replace(value=_replace_elements(elements, groups, split_list(made[2].value)[1]))
    output = _Output([MAGIC], len(MAGIC))
    rows = [
        output.append_group(_by_id(old), _list_chunks(old, content, kept), _list_chunks(new, written, added_bytes), groups)
        for old, new in zip(split_list(footer[4].value)[1], split_list(made[4].value)[1], strict=True)
    ]
    footer[4] = footer[4]._replace(value=join_list(STRUCT, rows))
    if 7 in footer:
        # The order of each leaf's values: those of variants have none that a reader uses.
        kind, orders = split_list(footer[7].value)
        footer[7] = footer[7]._replace(value=join_list(kind, _splice(orders, groups, [orders[:1] * len(PARTS)] * len(groups))))
    encoded = _join(footer)
    return b"".join([*output.parts, encoded, len(encoded).to_bytes(4, "little"), MAGIC])


def needs_correction(source: BinaryIO, size_bytes: int, columns: Mapping[int, str]) -> bool:
    """Return True if these columns of a file, names by field id, are variants that are not marked, or if DuckDB wrote the file.

    Raises: Unsupported: it is no Parquet file; BadRequest: its footer is damaged
    """
    source.seek(max(0, size_bytes - TRAILER_BYTES))
    trailer = source.read(TRAILER_BYTES)
    footer_bytes = int.from_bytes(trailer[:4], "little")
    if trailer[4:] != MAGIC or not 0 < footer_bytes <= min(MAX_FOOTER_BYTES, size_bytes - TRAILER_BYTES):
        raise Unsupported("A data file is no Parquet file, or its footer is too large.")
    source.seek(size_bytes - TRAILER_BYTES - footer_bytes)
    encoded = source.read(footer_bytes)
    try:
        with _translated_damage():
            footer = _by_id(encoded)
            elements = split_list(footer[2].value)[1]
            return bool(_list_unmarked(elements, columns)) or (_is_duckdbs(footer) and bool(_list_variants(elements)))
    except Unsupported as error:
        raise BadRequest(error.message) from None


def correct_variants(content: bytes, columns: Mapping[int, str]) -> bytes:
    """Return a file with its variants marked, and rewritten if DuckDB wrote the file. Raises: as `rewrite_variants`"""
    footer_bytes = int.from_bytes(content[-TRAILER_BYTES:-4], "little")
    kept = len(content) - TRAILER_BYTES - footer_bytes
    with _translated_damage():
        footer = _by_id(content[kept:-TRAILER_BYTES])
        elements = split_list(footer[2].value)[1]
        for place in _list_unmarked(elements, columns):
            elements[place] = _join(_by_id(elements[place]) | {10: MARK})
        footer[2] = footer[2]._replace(value=join_list(STRUCT, elements))
        is_duckdbs = _is_duckdbs(footer)
    encoded = _join(footer)
    marked = content[:kept] + encoded + len(encoded).to_bytes(4, "little") + MAGIC
    return (rewrite_variants(marked) if is_duckdbs else None) or marked


def _is_duckdbs(footer: Fields) -> bool:
    return 6 in footer and _read_binary(footer[6].value).startswith(b"DuckDB")


def _list_unmarked(elements: Sequence[bytes], columns: Mapping[int, str]) -> list[int]:
    """Return the places of the elements of these columns that are groups like variants, and are not marked as such."""
    found: list[int] = []
    place = 1
    while place < len(elements):
        end, _ = _skip_element(elements, place, 0)
        fields = _by_id(elements[place])
        name = _read_binary(fields[4].value).decode()
        is_column = decode_int(fields[9].value) in columns if 9 in fields else name in columns.values()
        parts = {_read_binary(_by_id(element)[4].value).decode() for element in elements[place + 1 : end]}
        if is_column and 5 in fields and 10 not in fields and parts.issuperset(PARTS):
            found.append(place)
        place = end
    return found


def _by_id(struct: bytes) -> Fields:
    return {field.id: field for field in split_struct(struct)}


def _join(fields: Fields) -> bytes:
    return join_struct(fields[field_id] for field_id in sorted(fields))


def _list_variants(elements: Sequence[bytes]) -> list[_Group]:
    """Return the variants at a file's root; `elements` are those of its schema, depth first."""
    found: list[_Group] = []
    place, leaf = 1, 0
    while place < len(elements):
        end, last = _skip_element(elements, place, leaf)
        fields = _by_id(elements[place])
        logical = split_struct(fields[10].value) if 10 in fields else []
        if any(member.id == VARIANT_LOGICAL_TYPE for member in logical):
            found.append(_Group(_read_binary(fields[4].value).decode(), place, end, leaf, last))
        place, leaf = end, last
    return found


def _skip_element(elements: Sequence[bytes], place: int, leaf: int) -> tuple[int, int]:
    """Return the place behind an element and all that is within it, and the number of the next leaf."""
    # The numbers of elements that are still to come, in each group that is not at its end.
    expected = [1]
    while expected:
        if place >= len(elements) or len(expected) > MAX_NESTING:
            raise Unsupported("A data file's schema is cut off, or nested too deep")
        fields = _by_id(elements[place])
        children = decode_int(fields[5].value) if 5 in fields else 0
        place, expected[-1] = place + 1, expected[-1] - 1
        if children:
            expected.append(children)
        else:
            leaf += 1
        while expected and expected[-1] <= 0:
            expected.pop()
    return place, leaf


def _read_binary(encoded: bytes) -> bytes:
    length = shift = place = 0
    while encoded[place] & 0x80:
        length |= (encoded[place] & 0x7F) << shift
        shift, place = shift + 7, place + 1
    return encoded[place + 1 :]


def _read_variants(content: bytes, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the variants of a file, not shredded, by the names of their columns, a few rows at a time.

    Raises: Unsupported: they cannot be read, or have more than `MAX_DECODED_BYTES`
    """
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    columns = ", ".join(f"variant_to_parquet_variant({name}), {name} IS NULL" for name in quoted)
    decoded_bytes = 0
    with NamedTemporaryFile(suffix=".parquet") as file:
        file.write(content)
        file.flush()
        with _translated_reading(), duckdb.connect(config=dict(CONFIG)) as conn:
            found = conn.execute(f"SELECT {columns} FROM read_parquet(?)", [file.name])  # noqa: S608 - quoted names
            for batch in cast("Any", found).to_arrow_reader(BATCH_ROWS):
                decoded_bytes += batch.nbytes
                if decoded_bytes > MAX_DECODED_BYTES:
                    raise Unsupported(f"They have more than {MAX_DECODED_BYTES} bytes when they are decoded")
                arrays = [_to_parts(batch.column(place), batch.column(place + 1)) for place in range(0, 2 * len(names), 2)]
                yield cast("Any", pa.RecordBatch).from_arrays(arrays, schema=_build_schema(names))


@contextmanager
def _translated_reading() -> Generator[None]:
    """Translate errors of DuckDB and of its Arrow stream into Unsupported."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise Unsupported(f"DuckDB cannot read them: {error}") from None


def _build_schema(names: Sequence[str]) -> pa.Schema:
    parts = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in PARTS])
    return pa.schema([pa.field(name, parts) for name in names])


def _to_parts(variants: Any, missing: Any) -> Any:
    """Return variants as their two parts, NULL where `missing`, and without the word that their names are sorted."""
    metadata, value = (_to_binary(variants.field(place)) for place in range(2))
    offsets = np.frombuffer(metadata.buffers()[1], dtype=np.int64)[: len(metadata) + 1]
    content = np.frombuffer(metadata.buffers()[2], dtype=np.uint8).copy() if offsets[-1] else np.zeros(0, dtype=np.uint8)
    starts = offsets[:-1][np.diff(offsets) > 0]
    content[starts] &= np.uint8(0xFF ^ SORTED_NAMES)
    buffers = [None, metadata.buffers()[1], pa.py_buffer(content.tobytes())]
    cleared = pa.Array.from_buffers(pa.large_binary(), len(metadata), buffers)
    fields = [pa.field(name, pa.large_binary(), nullable=False) for name in PARTS]
    return cast("Any", pa.StructArray).from_arrays([cleared, value], fields=fields, mask=missing)


def _to_binary(values: Any) -> Any:
    """Return an array without NULLs, from its first byte on."""
    filled = values.cast(pa.large_binary()).fill_null(b"")
    return pa.concat_arrays([pa.array([], pa.large_binary()), filled])


def _encode(content: bytes, names: Sequence[str], counts: Sequence[int]) -> bytes:
    """Return a Parquet file of a file's variants with as many rows in each row group as `counts` says."""
    sink = pa.BufferOutputStream()
    with translated_errors("data file"):
        options: Any = {"compression": "zstd", "use_dictionary": ["nothing"], "store_schema": False, "write_statistics": False}
        with pq.ParquetWriter(sink, _build_schema(names), **options) as writer:
            for count, group in zip(counts, _split_groups(_read_variants(content, names), counts), strict=True):
                writer.write_table(pa.Table.from_batches(group, _build_schema(names)), row_group_size=count)
    return sink.getvalue().to_pybytes()


def _split_groups(batches: Iterator[pa.RecordBatch], counts: Sequence[int]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches of each row group. Raises: Unsupported: the rows are not as many as `counts` says, or a group is too large"""
    rest: pa.RecordBatch | None = None
    for count in counts:
        group: list[pa.RecordBatch] = []
        rows = group_bytes = 0
        while rows < count:
            batch = next(batches, None) if rest is None else rest
            if batch is None:
                raise Unsupported("They are fewer than the rows that the footer states")
            taken = batch.slice(0, count - rows)
            rest = batch.slice(taken.num_rows) if taken.num_rows < batch.num_rows else None
            rows, group_bytes = rows + taken.num_rows, group_bytes + taken.nbytes
            if group_bytes > MAX_GROUP_BYTES:
                raise Unsupported(f"Those of a row group have more than {MAX_GROUP_BYTES} bytes when they are decoded")
            group.append(taken)
        yield group
    if rest is not None or next(batches, None) is not None:
        raise Unsupported("They are more than the rows that the footer states")


def _splice(items: Sequence[Item], groups: Sequence[_Group], parts: Sequence[Sequence[Item]]) -> list[Item]:
    """Return items of leaves, with those of each group replaced by its part."""
    spliced: list[Item] = []
    place = 0
    for group, part in zip(groups, parts, strict=True):
        spliced += [*items[place : group.first], *part]
        place = group.last
    return [*spliced, *items[place:]]


def _replace_elements(elements: Sequence[bytes], groups: Sequence[_Group], made: Sequence[bytes]) -> bytes:
    """Return the schema of a file whose variants have two parts; the new file `made` has nothing but these variants."""
    replaced: list[bytes] = []
    place = 0
    for number, group in enumerate(groups):
        own = _by_id(elements[group.start])
        own[5] = ThriftField(5, I32, encode_int(len(PARTS)))
        first = 2 + number * (1 + len(PARTS))
        # The pages have definition levels of an optional group, whatever the old ones had.
        own[3] = _by_id(made[first - 1])[3]
        replaced += [*elements[place : group.start], _join(own), *made[first : first + len(PARTS)]]
        place = group.end
    return join_list(STRUCT, [*replaced, *elements[place:]])


@dataclass(frozen=True, slots=True)
class _ColumnChunk:
    """A column chunk in the file `content`, whose pages end before `end`: `metadata` are the fields of its `ColumnMetaData`."""

    metadata: Fields
    content: memoryview
    end: int

    def read(self, start: int, length: int) -> memoryview:
        """Return bytes of the file. Raises: Unsupported: they are not all before the footer"""
        if not len(MAGIC) <= start <= start + length <= self.end:
            raise Unsupported("A data file's footer states places that the file does not have.")
        return self.content[start : start + length]


def _list_chunks(group: bytes, content: bytes, end: int) -> list[_ColumnChunk]:
    chunks = split_list(_by_id(group)[1].value)[1]
    return [_ColumnChunk(_by_id(_by_id(chunk)[3].value), memoryview(content), end) for chunk in chunks]


@dataclass(slots=True)
class _Output:
    """The bytes of the new file so far, and their number."""

    parts: list[bytes | memoryview]
    size_bytes: int

    def append_group(self, fields: Fields, old: Sequence[_ColumnChunk], new: Sequence[_ColumnChunk], groups: Sequence[_Group]) -> bytes:
        """Append a row group and return its `RowGroup`; `new` are the chunks of its variants, `old` those that it had."""
        start = self.size_bytes
        spliced = _splice(old, groups, [new[place : place + len(PARTS)] for place in range(0, len(new), len(PARTS))])
        moved = [self._append_pages(chunk) for chunk in spliced]
        total_bytes = self.size_bytes - start
        for chunk in moved:
            self._append_bloom_filter(chunk)
        chunks = [join_struct([ThriftField(2, I64, encode_int(0)), ThriftField(3, STRUCT, _join(chunk.metadata))]) for chunk in moved]
        fields[1] = fields[1]._replace(value=join_list(STRUCT, chunks))
        fields[2] = fields[2]._replace(value=encode_int(sum(decode_int(chunk.metadata[6].value) for chunk in moved)))
        # The columns of a sort order are numbered by leaves, which are others now.
        fields.pop(4, None)
        fields[5], fields[6] = ThriftField(5, I64, encode_int(start)), ThriftField(6, I64, encode_int(total_bytes))
        return _join(fields)

    def _append_pages(self, chunk: _ColumnChunk) -> _ColumnChunk:
        """Append the pages of a chunk, and return the chunk with their new offsets."""
        metadata = dict(chunk.metadata)
        offsets = {place: decode_int(metadata[place].value) for place in (9, 10, 11) if place in metadata}
        start = min(offset for place, offset in offsets.items() if offset or place == 9)
        pages = chunk.read(start, decode_int(metadata[7].value))
        for place, offset in offsets.items():
            metadata[place] = metadata[place]._replace(value=encode_int(offset - start + self.size_bytes))
            if not offset:
                del metadata[place]
        self._append(pages)
        return replace(chunk, metadata=metadata)

    def _append_bloom_filter(self, chunk: _ColumnChunk) -> None:
        """Append the Bloom filter of a chunk, if it has one of a known length, and change its offset."""
        offset, length = (chunk.metadata.pop(place, None) for place in (14, 15))
        if offset is None or length is None:
            return
        content = chunk.read(decode_int(offset.value), decode_int(length.value))
        chunk.metadata[14], chunk.metadata[15] = offset._replace(value=encode_int(self.size_bytes)), length
        self._append(content)

    def _append(self, content: memoryview) -> None:
        self.parts.append(content)
        self.size_bytes += len(content)
