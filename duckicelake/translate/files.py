"""DuckLake's file rows as Iceberg data files, with the statistics Iceberg readers prune by.

Bounds are outer bounds or left out: those of uuids (readers disagree about their order) and of binaries (their texts
are ambiguous) always are, those of floats where a NaN may be (engines sort it above all numbers, bounds do not), and
those of columns whose NULLs are not counted. Zero bounds of floats cover both zeros.
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

    `is_client_path`: an Iceberg client gave the path, so such clients know where that is.
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
    """Refuse a file that has some column only in its path, unless its partition tuple says it.

    `spec` is the one that the file is published under: not the one that it was written by when a value of that proves nothing.
    Raises: Unsupported: names the reason
    """
    untold = field_ids - {key.source_id for key in spec.keys if key.transform == "identity"}
    if not untold:
        return
    own = None if row.partition_id is None else partitioning.by_partition_id.get(row.partition_id)
    indexes = {} if own is None else _list_identities(own)
    if not untold <= indexes.keys():
        raise Unsupported(
            f"Data file {row.path!r} has columns only in its path, and the table is not partitioned by them, which Iceberg "
            "cannot say. Copy the table with CREATE TABLE … AS SELECT."
        )
    field_id = min(untold)
    field, texts, index = find_field(schema, field_id), row.partition_values or (), indexes[field_id]
    name, value = field.name if field else str(field_id), texts[index] if index < len(texts) else None
    raise Unsupported(
        f"Data file {row.path!r} has the column {name!r} only in its path, and Iceberg has no exact partition value of its type for "
        f"{value!r}. Copy the table with CREATE TABLE … AS SELECT."
    )


def _list_identities(spec: PublishedSpec) -> dict[int, int]:
    """Return the columns that a spec takes as they are, each with the place of its text among DuckLake's partition values.

    Specs that only Iceberg knows have none there.
    """
    return {key.source_id: key.key_indexes[0] for key in spec.keys if key.transform == "identity" and key.key_indexes}


def choose_spec(row: DataFileRow, partitioning: Partitioning, schema: Schema) -> tuple[PublishedSpec, tuple[object, ...]]:
    """Return the spec a file is published under and its partition tuple; unpartitioned when its values prove nothing."""
    spec = None if row.partition_id is None else partitioning.by_partition_id.get(row.partition_id)
    partition = None if spec is None else find_partition(row, spec, schema)
    return (partitioning.unproven, ()) if spec is None or partition is None else (spec, partition)


def to_data_file(row: DataFileRow, uri: str, partition: tuple[object, ...], stats: Iterable[ColumnStatsRow], types: LeafTypes) -> DataFile:
    """Return a DuckLake data file for a manifest; `types` are those of the schema it was written by."""
    # maps are written in their own order, and equal files must give equal bytes
    known = sorted((row for row in stats if row.column_id in types), key=lambda row: row.column_id)
    nulls = _count_nulls(known)
    # Iceberg readers delete a whole file by its bounds where no NULL is counted, even if that is because none was looked for
    counted = [s for s in known if s.column_id in nulls]
    lower, upper = _bounds(counted, types)
    return DataFile(
        content=0,
        file_path=uri,
        file_format="PARQUET",
        partition=partition,
        record_count=row.record_count,
        file_size_in_bytes=row.file_size_bytes,
        # PyIceberg's table `entries` cannot do without, so an unknown size is an empty map, here and below
        column_sizes={s.column_id: s.column_size_bytes for s in known if s.column_size_bytes is not None},
        # DuckLake counts the values that are not null, Iceberg all of them
        value_counts={s.column_id: s.value_count + nulls[s.column_id] for s in counted if s.value_count is not None} or None,
        null_value_counts=nulls or None,
        nan_value_counts={s.column_id: 0 for s in known if s.contains_nan is False} or None,
        lower_bounds=lower or None,
        upper_bounds=upper or None,
        # a file without a start holds its rows' ids itself
        first_row_id=row.row_id_start or 0,
    )


def _count_nulls(stats: Sequence[ColumnStatsRow]) -> dict[int, int]:
    """Return the number of NULLs by column, where it is known. DuckLake has both counts as 0 where it counts nothing: of timetz."""
    known = ((row.column_id, row.value_count, row.null_count) for row in stats)
    return {column_id: nulls for column_id, values, nulls in known if nulls is not None and (values is None or values + nulls > 0)}


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
    """Return a lower bound for a column whose least value this is, or None when there is no safe one."""
    return _find_bound(type_, value, lower_bound, -0.0)


def find_upper(type_: PrimitiveType, value: object | None) -> bytes | None:
    """Return an upper bound for a column whose greatest value this is, or None when there is no safe one."""
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
    """Return a Puffin file with the deletion vector of one data file, for a manifest."""
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
    """Return a position delete file that holds deletes of one data file only, ascending, for a manifest."""
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
        # equal bounds of file_path tell readers that one data file is meant; they must be whole. Trino wants those of pos as well
        lower_bounds={POS_ID: first, FILE_PATH_ID: path},
        upper_bounds={POS_ID: last, FILE_PATH_ID: path},
        referenced_data_file=target.file_path,
    )
