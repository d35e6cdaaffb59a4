"""The Parquet files beside the data: position deletes, and the snapshot ids DuckLake embeds."""

from collections.abc import Generator
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
SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"


def read_positions(content: bytes) -> tuple[Positions, Positions | None]:
    """Read which rows a position-delete file removes, and the lake snapshot that removed each, where DuckLake embedded it.

    Shape:  file_path string | pos long | anything; columns count by place, since DuckLake's field ids are not Iceberg's
    Units:  positions are 0-based row numbers within one data file, in the file's order
    Raises: Unsupported — not a position-delete file
    Source: Iceberg spec «Position Delete Files»; DuckLake's delete filter
    """
    with telling("position-delete file"):
        file = pq.ParquetFile(pa.BufferReader(content))
        names: list[str] = file.schema_arrow.names
        wanted = names[1:2] + [name for name in names[2:3] if name == SNAPSHOT_COLUMN]
        if len(names) not in (2, 3):
            raise Unsupported(f"A position-delete file has {len(names)} columns; it takes file_path, pos and at most one more.")
        table = file.read(columns=wanted, use_threads=False)
        columns = [read_longs(table.column(place)) for place in range(len(wanted))]
    return columns[0], columns[1] if len(columns) > 1 else None


def read_position_deletes(content: bytes, most_rows: int) -> dict[str, Positions]:
    """Read which rows of which data files somebody's position-delete file removes: positions ascending, by location.

    Raises: Unsupported — not a position-delete file, or one of too many rows: a small file can say a lot
    Source: Iceberg spec «Position Delete Files»
    """
    with telling("position-delete file"):
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=["file_path"])
        check_size(file, most_rows)
        table = file.read(columns=["file_path", "pos"], use_threads=False)
        if table.num_columns != len(("file_path", "pos")) or table.column(0).null_count:
            raise Unsupported("A position-delete file takes the columns file_path and pos, never NULL.")
        encoded = cast("Any", table.column(0).combine_chunks())
        if not pa.types.is_dictionary(encoded.type):
            raise Unsupported(f"A position-delete file takes texts as file_path, not {encoded.type}.")
        places: Positions = encoded.indices.to_numpy(zero_copy_only=False)
        paths: list[str] = encoded.dictionary.to_pylist()
        positions = read_longs(table.column(1))
    return {path: np.unique(positions[places == place]) for place, path in enumerate(paths)}


def encode_position_deletes(file_path: str, positions: npt.ArrayLike) -> bytes:
    """Write a position-delete file of one data file, with Iceberg's field ids; equal input gives equal bytes.

    Units:  positions are 0-based row numbers, in any order; each is written once
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
    """Write DuckLake's delete file of one data file that tells at which lake snapshot each row was deleted.

    Units:  positions ascend, and `snapshot_ids` go with them
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
    """Write a Parquet file of one row group; equal tables give equal bytes, under one release of pyarrow."""
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


def read_longs(column: "pa.ChunkedArray[Any]") -> Positions:
    """Return a column of positions or ids. Raises: Unsupported — of another type, or with NULL."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise Unsupported(f"A position or snapshot id must be a whole number and never NULL, not {column.type}.")
    return column.to_numpy().astype(np.int64, copy=False)


def check_size(file: pq.ParquetFile, most_rows: int) -> None:
    """Raise Unsupported for a file of more rows than that, or of too many bytes once it is decompressed."""
    metadata = file.metadata
    if metadata.num_rows > most_rows:
        raise Unsupported(f"It has {metadata.num_rows} rows, more than the {most_rows} that are still taken; delete in smaller steps.")
    size_bytes = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    if size_bytes > MAX_DECOMPRESSED_BYTES:
        raise Unsupported(f"It holds {size_bytes} bytes, more than the {MAX_DECOMPRESSED_BYTES} that are taken; delete in smaller steps.")


@contextmanager
def telling(kind: str) -> Generator[None]:
    """Turn what pyarrow raises over a broken file into Unsupported."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise Unsupported(f"A {kind} of the lake is no Parquet file we can read: {error}") from None


def read_columns(source: BinaryIO) -> tuple[dict[tuple[str, ...], int | None], dict[tuple[str, ...], str]]:
    """Read a Parquet file's columns at every level: the field id each carries, or None, and the Arrow types of the leaves.

    Shape:  paths of names; a list's element is `element`, a map's are `key` and `value`, however the file calls them
    """
    with telling("data file"):
        return find_columns(pq.ParquetFile(source).schema_arrow)


def find_columns(schema: Any) -> tuple[dict[tuple[str, ...], int | None], dict[tuple[str, ...], str]]:
    """Return the same of a schema in Arrow's words."""
    field_ids: dict[tuple[str, ...], int | None] = {}
    kinds: dict[tuple[str, ...], str] = {}
    for field in schema:
        _walk_columns((field.name,), field, field_ids, kinds)
    return field_ids, kinds


# what pyarrow's stubs know of nested types helps nobody here
def _walk_columns(path: tuple[str, ...], field: Any, found: dict[tuple[str, ...], int | None], kinds: dict[tuple[str, ...], str]) -> None:
    metadata: dict[bytes, bytes] = field.metadata or {}
    found[path] = int(metadata[b"PARQUET:field_id"]) if b"PARQUET:field_id" in metadata else None
    kind: Any = field.type
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _walk_columns((*path, kind.field(place).name), kind.field(place), found, kinds)
    elif pa.types.is_map(kind):
        _walk_columns((*path, "key"), kind.key_field, found, kinds)
        _walk_columns((*path, "value"), kind.item_field, found, kinds)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _walk_columns((*path, "element"), kind.value_field, found, kinds)
    else:
        kinds[path] = str(kind.value_type if pa.types.is_dictionary(kind) else kind)
