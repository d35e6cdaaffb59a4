"""Parquet: position-delete files (Iceberg's and DuckLake's), limits for clients' files, and the columns of a schema.

`catalog` and other modules of this package call it. They pass the content or an open file, for some loads and commits while the
caller's transaction is open; this module opens no object itself.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.errors import Unsupported

Positions = npt.NDArray[np.int64]

FIELD_ID = b"PARQUET:field_id"
FILE_PATH_ID, POS_ID, SNAPSHOT_ID = 2147483546, 2147483545, 2147483539
MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
MAX_BATCH_BYTES, MAX_TEXT_BYTES, MAX_BATCHES = 64 * 1024 * 1024, 2 * 1024 * 1024 * 1024, 1_048_576
SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"


def read_positions(content: bytes) -> tuple[Positions, Positions | None]:
    """Return the positions in DuckLake's delete file of one data file, and the lake snapshot of each deletion if it is embedded.

    Shape:  file_path string | pos long | any; columns are found by index, since DuckLake's field ids are not Iceberg's
    Units:  positions are 0-based row numbers within one data file, in the file's order
    Raises: Unsupported — not a position-delete file
    Source: Iceberg spec «Position Delete Files»; DuckLake's delete filter
    """
    with translated_errors("position-delete file"):
        file = pq.ParquetFile(pa.BufferReader(content))
        names: list[str] = file.schema_arrow.names
        wanted = names[1:2] + [name for name in names[2:3] if name == SNAPSHOT_COLUMN]
        if len(names) not in (2, 3):
            raise Unsupported(f"A position-delete file has {len(names)} columns; it takes file_path, pos and at most one more.")
        table = file.read(columns=wanted, use_threads=False)
        columns = [read_longs(table.column(place)) for place in range(len(wanted))]
    return columns[0], columns[1] if len(columns) > 1 else None


def read_position_deletes(content: bytes, most_rows: int) -> dict[str, Positions]:
    """Return the positions in a client's position-delete file, ascending, by location of the data file.

    Raises: Unsupported — not a position-delete file, or too many rows: a small file can expand to many
    Source: Iceberg spec «Position Delete Files»
    """
    with translated_errors("position-delete file"):
        file = open_with_dictionaries(pa.BufferReader(content))
        check_size(file, most_rows)
        kinds: Any = file.schema_arrow
        if not {"file_path", "pos"} <= set(kinds.names):
            raise Unsupported("A position-delete file takes the columns file_path and pos, never NULL.")
        if kinds.field("file_path").type not in (pa.string(), pa.dictionary(pa.int32(), pa.string())):
            raise Unsupported(f"A position-delete file takes texts as file_path, not {kinds.field('file_path').type}.")
        numbers: dict[str, int] = {}
        parts = [_number_paths(batch, numbers) for batch in read_batches(file, ["file_path", "pos"], most_rows)]
    nothing = np.empty(0, dtype=np.int64)
    places, positions = (np.concatenate([nothing, *(part[column] for part in parts)]) for column in (0, 1))
    order = np.lexsort((positions, places)) if len(numbers) > 1 else slice(None)
    ends = np.searchsorted(places[order], np.arange(1, len(numbers)))
    return {path: np.unique(rows) for path, rows in zip(numbers, np.split(positions[order], ends), strict=False)}


def _number_paths(batch: Any, numbers: dict[str, int]) -> tuple[Positions, Positions]:
    paths, positions = batch.column("file_path"), batch.column("pos")
    if paths.null_count:
        raise Unsupported("A position-delete file takes the columns file_path and pos, never NULL.")
    encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
    ours = [numbers.setdefault(path, len(numbers)) for path in encoded.dictionary.to_pylist()]
    return np.asarray(ours, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)], read_longs(positions)


def encode_position_deletes(file_path: str, positions: npt.ArrayLike) -> bytes:
    """Return a position-delete file of one data file, with Iceberg's field ids; equal input gives equal bytes.

    Units:  positions are 0-based row numbers, in any order; duplicates are removed
    Source: Iceberg spec «Position Delete Files»
    """
    rows = np.sort(np.asarray(positions, dtype=np.int64))
    rows = rows[np.diff(rows, prepend=-1) > 0]
    schema = pa.schema(
        [
            pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False, metadata={FIELD_ID: str(FILE_PATH_ID)}),
            pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POS_ID)}),
        ]
    )
    path = cast("pa.Array[Any]", pa.array([file_path]))
    paths = cast("pa.Array[Any]", pa.DictionaryArray.from_arrays(np.zeros(len(rows), dtype=np.int32), path))
    return encode_table(pa.Table.from_arrays([paths, pa.array(rows)], schema=schema), compression="zstd", dictionary=["file_path"])


def encode_dated_deletes(file_path: str, positions: Positions, snapshot_ids: Positions) -> bytes:
    """Return DuckLake's delete file of one data file, with the lake snapshot of each deletion.

    Units:  positions ascend; `snapshot_ids` has one entry per position
    """
    names = ["file_path", "pos", SNAPSHOT_COLUMN]
    ids = (FILE_PATH_ID, POS_ID, SNAPSHOT_ID)
    kinds = (pa.string(), pa.int64(), pa.int64())
    parts = zip(names, kinds, ids, strict=True)
    schema = pa.schema([pa.field(name, kind, nullable=False, metadata={FIELD_ID: str(i)}) for name, kind, i in parts])
    paths = cast("pa.Array[Any]", pa.array([file_path] * len(positions), pa.string()))
    columns = [paths, pa.array(positions), pa.array(snapshot_ids)]
    return encode_table(pa.Table.from_arrays(columns, schema=schema), compression="zstd", dictionary=["file_path"])


def encode_table(table: pa.Table, *, compression: str = "snappy", dictionary: list[str] | bool = False, statistics: bool = True) -> bytes:
    """Return a Parquet file of one row group; equal tables give equal bytes with one release of pyarrow."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=cast("Any", compression),
        use_dictionary=cast("Any", dictionary),
        write_statistics=statistics,
        store_schema=False,
        store_decimal_as_integer=True,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
    return sink.getvalue().to_pybytes()


def read_longs(column: Any) -> Positions:
    """Return a column of positions or ids. Raises: Unsupported — it has another type, or a NULL."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise Unsupported(f"A position or snapshot id must be a whole number and never NULL, not {column.type}.")
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def open_with_dictionaries(source: Any) -> pq.ParquetFile:
    """Return a client's file, read with dictionary encoding where pyarrow can: many rows may repeat one long string."""
    file = pq.ParquetFile(source)
    paths = {file.schema.column(place).path for place in range(file.metadata.num_columns)}
    return pq.ParquetFile(source, read_dictionary=[path for path in paths - {*_list_undictionaried(file)} if "." not in path])


def read_batches(file: pq.ParquetFile, columns: list[str], most_rows: int) -> Generator[Any]:
    """Yield batches of columns, with few enough rows that a long string repeated in all of them fits in memory.

    Raises: Unsupported — that takes too many batches or bytes
    """
    rows, left_bytes = most_rows, MAX_TEXT_BYTES
    for name, longest in _list_undictionaried(file).items():
        if name in columns and longest:
            rows = max(1, min(rows, MAX_BATCH_BYTES // longest))
    if file.metadata.num_rows > rows * MAX_BATCHES:
        raise Unsupported("It has too many rows of texts that may all be long; write the file again, with dictionary encoding.")
    for batch in file.iter_batches(rows, columns=columns, use_threads=False):
        left_bytes -= batch.nbytes if rows < most_rows else 0
        if left_bytes < 0:
            raise Unsupported(f"Its texts hold more than the {MAX_TEXT_BYTES} bytes that are taken; delete in smaller steps.")
        yield batch


def _list_undictionaried(file: pq.ParquetFile) -> dict[str, int]:
    """Return the string columns that pyarrow cannot read with dictionary encoding, and the largest size of a repeated string.

    Shape:  dotted paths; 0 if the file stores every repetition of a string
    """
    metadata = file.metadata
    found: dict[str, int] = {}
    for place in range(metadata.num_columns):
        chunks: list[Any] = [metadata.row_group(group).column(place) for group in range(metadata.num_row_groups)]
        encodings = {encoding for chunk in chunks for encoding in chunk.encodings}
        path = file.schema.column(place).path
        is_kept = "." not in path and encodings.isdisjoint({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
        if not is_kept and file.schema.column(place).physical_type == "BYTE_ARRAY":
            repeats = "DELTA_BYTE_ARRAY" in encodings or any("DICTIONARY" in encoding for encoding in encodings)
            found[path] = max((chunk.total_uncompressed_size for chunk in chunks), default=0) if repeats else 0
    return found


def check_size(file: pq.ParquetFile, most_rows: int) -> None:
    """Raise Unsupported for a file with more than `most_rows`, or with too many bytes after decompression."""
    metadata = file.metadata
    if metadata.num_rows > most_rows:
        raise Unsupported(f"It has {metadata.num_rows} rows, more than the {most_rows} that are allowed; delete in smaller steps.")
    size_bytes = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    if size_bytes > MAX_DECOMPRESSED_BYTES:
        raise Unsupported(f"It holds {size_bytes} bytes, more than the {MAX_DECOMPRESSED_BYTES} that are taken; delete in smaller steps.")


@contextmanager
def translated_errors(kind: str) -> Generator[None]:
    """Translate pyarrow's errors about a broken file into Unsupported."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise Unsupported(f"A {kind} of the lake is no Parquet file we can read: {error}") from None


def read_columns(source: BinaryIO) -> tuple[dict[tuple[str, ...], int | None], dict[tuple[str, ...], str]]:
    """Return a Parquet file's columns at every level: the field id of each, or None, and the Arrow types of the leaves.

    Shape:  paths of names; a list's element is `element`, a map's are `key` and `value`, whatever their names in the file
    Raises: Unsupported — not a Parquet file, a field id is not a number, or two columns have the same name and one of them has no
            field id
    """
    with translated_errors("data file"):
        return find_columns(pq.ParquetFile(source).schema_arrow)


def find_columns(schema: Any) -> tuple[dict[tuple[str, ...], int | None], dict[tuple[str, ...], str]]:
    """Return the field ids and leaf types of an Arrow schema, as `read_columns` does."""
    field_ids: dict[tuple[str, ...], int | None] = {}
    kinds: dict[tuple[str, ...], str] = {}
    for field in schema:
        _walk_columns((field.name,), field, field_ids, kinds)
    return field_ids, kinds


LISTS: Sequence[Callable[[Any], bool]] = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
"""Arrow's types for Parquet's list type."""


# pyarrow's stubs do not describe nested types, hence `Any`.
def _walk_columns(path: tuple[str, ...], field: Any, found: dict[tuple[str, ...], int | None], kinds: dict[tuple[str, ...], str]) -> None:
    metadata: dict[bytes, bytes] = field.metadata or {}
    try:
        own = int(metadata[b"PARQUET:field_id"]) if b"PARQUET:field_id" in metadata else None
    except ValueError as error:
        raise Unsupported(f"Column {'.'.join(path)!r} has the field id {metadata[b'PARQUET:field_id']!r}, which is no number.") from error
    if path in found and None in (own, found[path]):
        raise Unsupported(f"Two columns are called {'.'.join(path)!r}, and not each has a field id; rename one in the file.")
    found[path] = own
    kind: Any = field.type
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _walk_columns((*path, kind.field(place).name), kind.field(place), found, kinds)
    elif pa.types.is_map(kind):
        _walk_columns((*path, "key"), kind.key_field, found, kinds)
        _walk_columns((*path, "value"), kind.item_field, found, kinds)
    elif any(is_one(kind) for is_one in LISTS):
        _walk_columns((*path, "element"), kind.value_field, found, kinds)
    else:
        kinds[path] = str(kind.value_type if pa.types.is_dictionary(kind) else kind)
