"""DuckLake's file rows as Iceberg data files, with the statistics by which Iceberg readers prune.

Bounds are outer bounds or left out. They are always left out for uuids (readers disagree about their order) and binaries (their
texts are ambiguous), for floats that may include NaN (engines sort it above all numbers, bounds do not), and for columns without
a count of NULLs. Zero bounds of floats cover both zeros.
`catalog` and `bulk_files` call this for loads and commits, and Spark executors of `publish` and `verify` do. No I/O.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from duckicelake.errors import Damaged, Unsupported
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.puffin import PuffinFile
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.single_values import lower_bound, upper_bound
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow
from duckicelake.translate.partitions import Partitioning, PublishedSpec, find_partition
from duckicelake.translate.values import parse_value
from duckicelake.translate.visibility import Longs

REACHABLE = ("s3://", "s3a://", "s3n://", "file:/", "/")
UNBOUNDED = frozenset({"uuid", "binary"})
FLOATING = frozenset({"float", "double"})
POSITION_DELETES = 1
FILE_PATH_ID, POS_ID = 2147483546, 2147483545

Bounds = dict[int, bytes]

LeafTypes = Mapping[int, PrimitiveType]
"""The types of a schema's leaves by field id."""


def check_readable(row: DataFileRow, *, is_client_path: bool = False) -> None:
    """Refuse a data file that Iceberg readers cannot read as it is, or that has no path or size in its row.

    `is_client_path`: an Iceberg client gave the path, so such clients can resolve it.
    """
    if not row.path or min(row.file_size_bytes or -1, row.record_count or 0) < 0:
        raise Damaged(
            f"Data file {row.path!r} (data_file_id {row.data_file_id}) has no path or no file_size_bytes; the lake's metadata is damaged. "
            "Correct it in Postgres; `duckicelake check` says more."
        )
    if not is_client_path and not row.path_is_relative and not row.path.startswith(REACHABLE):
        raise Unsupported(
            f"Data file {row.path!r} is neither on S3 nor an absolute local path, so Iceberg readers cannot find it. "
            "Copy the table with CREATE TABLE … AS SELECT."
        )
    if row.encryption_key is not None:
        raise Unsupported(f"Data file {row.path!r} is encrypted; no Iceberg reader can open it. Copy the table into an open lake.")


def check_hive_columns(
    row: DataFileRow, field_ids: frozenset[int], spec: PublishedSpec, partitioning: Partitioning, schema: Schema
) -> None:
    """Refuse a file that has a column only in its path, unless the partition tuple contains it.

    `spec` is the one that the file is published under; it differs from the one it was written with if a partition value is not proven.
    Raises: Unsupported: names the reason
    """
    path_only = field_ids - {key.source_id for key in spec.keys if key.transform == "identity"}
    if not path_only:
        return
    own = None if row.partition_id is None else partitioning.by_partition_id.get(row.partition_id)
    indexes = {} if own is None else _list_identities(own)
    if not path_only <= indexes.keys():
        raise Unsupported(
            f"Data file {row.path!r} has columns only in its path, and the table is not partitioned by them, which Iceberg "
            "cannot represent. Copy the table with CREATE TABLE … AS SELECT."
        )
    field_id = min(path_only)
    field, texts, index = find_field(schema, field_id), row.partition_values or (), indexes[field_id]
    name, value = field.name if field else str(field_id), texts[index] if index < len(texts) else None
    raise Unsupported(
        f"Data file {row.path!r} has the column {name!r} only in its path, and Iceberg has no exact partition value of its type for "
        f"{value!r}. Copy the table with CREATE TABLE … AS SELECT."
    )


def _list_identities(spec: PublishedSpec) -> dict[int, int]:
    """Return the columns with an identity transform, each with the index of its text in DuckLake's partition values.

    Specs that only Iceberg knows have no such texts.
    """
    return {key.source_id: key.key_indexes[0] for key in spec.keys if key.transform == "identity" and key.key_indexes}


def choose_spec(row: DataFileRow, partitioning: Partitioning, schema: Schema) -> tuple[PublishedSpec, tuple[object, ...]]:
    """Return the spec that a file is published under and its partition tuple; unpartitioned if its values are not proven."""
    spec = None if row.partition_id is None else partitioning.by_partition_id.get(row.partition_id)
    partition = None if spec is None else find_partition(row, spec, schema)
    return (partitioning.unproven, ()) if spec is None or partition is None else (spec, partition)


def to_data_file(row: DataFileRow, uri: str, partition: tuple[object, ...], stats: Iterable[ColumnStatsRow], types: LeafTypes) -> DataFile:
    """Return a DuckLake data file for a manifest; `types` are those of the schema it was written with."""
    # Avro writes maps in their own order, and equal files must give equal bytes.
    known_stats = sorted((row for row in stats if row.column_id in types), key=lambda row: row.column_id)
    nulls = _count_nulls(known_stats)
    # Iceberg readers skip a file by its bounds if no NULL is counted, even if nothing was counted.
    counted = [s for s in known_stats if s.column_id in nulls]
    lower, upper = _bounds(counted, types)
    return DataFile(
        content=0,
        file_path=uri,
        file_format="PARQUET",
        partition=partition,
        record_count=row.record_count,
        file_size_in_bytes=row.file_size_bytes,
        # PyIceberg's `entries` table needs the map, so unknown sizes give an empty one, here and below.
        column_sizes={s.column_id: s.column_size_bytes for s in known_stats if s.column_size_bytes is not None},
        # DuckLake counts only non-null values, Iceberg counts all.
        value_counts={s.column_id: s.value_count + nulls[s.column_id] for s in counted if s.value_count is not None} or None,
        null_value_counts=nulls or None,
        nan_value_counts={s.column_id: 0 for s in known_stats if s.contains_nan is False} or None,
        lower_bounds=lower or None,
        upper_bounds=upper or None,
        # A file without row_id_start embeds its row ids.
        first_row_id=row.row_id_start or 0,
    )


def _count_nulls(stats: Sequence[ColumnStatsRow]) -> dict[int, int]:
    """Return the number of NULLs by column, where known. DuckLake stores 0 for both counts if it counts nothing, as for timetz."""
    counts = ((row.column_id, row.value_count, row.null_count) for row in stats)
    return {column_id: nulls for column_id, values, nulls in counts if nulls is not None and (values is None or values + nulls > 0)}


def _bounds(stats: Sequence[ColumnStatsRow], types: Mapping[int, PrimitiveType]) -> tuple[Bounds, Bounds]:
    lower: Bounds = {}
    upper: Bounds = {}
    for row in stats:
        type_ = types[row.column_id]
        if type_.name in FLOATING and row.contains_nan is not False:
            continue
        low, high = find_lower(type_, _value(type_, row.min_value)), find_upper(type_, _value(type_, row.max_value))
        if low is not None and high is not None:
            lower[row.column_id], upper[row.column_id] = low, high
    return lower, upper


def _value(type_: PrimitiveType, text: str | None) -> object | None:
    return None if text is None else parse_value(type_, text)


def find_lower(type_: PrimitiveType, value: object | None) -> bytes | None:
    """Return a lower bound for a column with this least value, or None if there is no safe one."""
    return _find_bound(type_, value, lower_bound, -0.0)


def find_upper(type_: PrimitiveType, value: object | None) -> bytes | None:
    """Return an upper bound for a column with this greatest value, or None if there is no safe one."""
    return _find_bound(type_, value, upper_bound, 0.0)


def _find_bound(
    type_: PrimitiveType, value: object | None, bound: Callable[[PrimitiveType, object], bytes | None], zero: float
) -> bytes | None:
    if value is None or type_.name in UNBOUNDED:
        return None
    if isinstance(value, float) and value == 0.0:
        value = zero
    return bound(type_, value)


def to_deletion_vector(uri: str, puffin: PuffinFile, count: int, target: AnyFile) -> DataFile:
    """Return a manifest's entry for a Puffin file with the deletion vector of one data file."""
    (blob,) = puffin.blobs
    return DataFile(
        content=POSITION_DELETES,
        file_path=uri,
        file_format="PUFFIN",
        partition=target.partition,
        record_count=count,
        file_size_in_bytes=len(puffin.content),
        column_sizes={},
        referenced_data_file=target.file_path,
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )


def to_position_deletes(uri: str, size_bytes: int, positions: Longs, target: AnyFile) -> DataFile:
    """Return a manifest's entry for a position delete file with ascending deletes of one data file only."""
    path = target.file_path.encode()
    first, last = (int(position).to_bytes(8, "little") for position in (positions[0], positions[-1]))
    return DataFile(
        content=POSITION_DELETES,
        file_path=uri,
        file_format="PARQUET",
        partition=target.partition,
        record_count=len(positions),
        file_size_in_bytes=size_bytes,
        column_sizes={},
        # Equal bounds of file_path mark deletes of a single data file; they must not be truncated. Trino also needs bounds of pos.
        lower_bounds={POS_ID: first, FILE_PATH_ID: path},
        upper_bounds={POS_ID: last, FILE_PATH_ID: path},
        referenced_data_file=target.file_path,
    )
