"""Derived Parquet files: rows that DuckLake keeps inlined in Postgres, and rows of data files that span several lake snapshots.

A flush or merge writes rows of several snapshots to one data file. Older snapshots then read derived files, which must have the
same bytes as before: the same values, with Iceberg's field ids and row lineage.
`catalog.row_files` calls this while the transaction that reads the table is open, for some commits under the lake's lock. Data files are
read from the `source` that the caller opens; nothing here uses Postgres or writes to the store.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duckicelake.errors import Unsupported
from duckicelake.store.inlined_values import FIELD_ID, NESTED, InlinedColumn, InlinedNode, build_node, format_schema, parse_nested
from duckicelake.store.parquet import SNAPSHOT_COLUMN, encode_table, find_columns, read_longs, translated_errors

__all__ = ["InlinedColumn", "DerivedFile", "LeafStats", "convert_rows", "encode_inlined", "format_lineage_schema", "split_by_snapshot"]

MAX_FIXED_BYTES = 64 * 1024 * 1024
ROW_ID, ROW_ID_FIELD = "_row_id", 2147483540
SEQUENCE_NUMBER, SEQUENCE_NUMBER_FIELD = "_last_updated_sequence_number", 2147483539

IcebergValue = bool | int | float | Decimal | str | bytes

# pyarrow's stubs do not describe arrays of unknown type, hence `Any`.
AnyArray = Any


@dataclass(frozen=True, slots=True)
class LeafStats:
    """Statistics of one leaf column in a file. `value_count` includes NULLs; bounds exclude NULL and NaN.

    `nan_count` is None for types without NaN; bounds are None if there is no value.
    """

    value_count: int
    null_count: int
    nan_count: int | None
    lower: IcebergValue | None
    upper: IcebergValue | None


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A derived Parquet file. `stats` are by field id, without the leaves inside lists and maps."""

    content: bytes
    record_count: int
    stats: Mapping[int, LeafStats]


def convert_rows(columns: Sequence[InlinedColumn], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows of one inlined table as an Arrow table, sorted by begin_snapshot and row_id.

    Shape:  a row is (row_id, begin_snapshot, value of each column in order), values as psycopg returns them
            (times should be read as text: psycopg has no 24:00:00); the last columns of the result are
            `_row_id` and `_last_updated_sequence_number`
    Raises: Unsupported — Iceberg cannot represent a type or value; names column, type and remedy
    Source: DuckLake's PostgresMetadataManager (column types) and ValueToSQL (texts)
    """
    nodes = tuple(build_node(column) for column in columns)
    ordered = sorted(rows, key=lambda row: (row[1], row[0]))
    arrays = [_build_array(node, [row[place] for row in ordered]) for place, node in enumerate(nodes, start=2)]
    arrays += [pa.array([row[place] for row in ordered], pa.int64()) for place in (0, 1)]
    return pa.Table.from_arrays(arrays, schema=format_lineage_schema(tuple(columns), nodes))


def format_lineage_schema(columns: tuple[InlinedColumn, ...], nodes: tuple[InlinedNode, ...]) -> pa.Schema:
    """Return the Arrow schema of a derived file: the columns, `_row_id` and `_last_updated_sequence_number`."""
    schema = format_schema(columns, nodes)
    for name, field_id in ((ROW_ID, ROW_ID_FIELD), (SEQUENCE_NUMBER, SEQUENCE_NUMBER_FIELD)):
        # A user's column may have the reserved name; readers find the columns by field id.
        free_name = name if name not in schema.names else f"_ducklake_internal{name}"
        schema = schema.append(pa.field(free_name, pa.int64(), metadata={FIELD_ID: str(field_id)}))
    return schema


def split_by_snapshot(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each inserting lake snapshot and its converted rows, oldest first."""
    snapshots = cast("list[int]", table.column(table.num_columns - 1).to_pylist())
    start = 0
    for end in range(1, len(snapshots) + 1):
        if end == len(snapshots) or snapshots[end] != snapshots[start]:
            yield snapshots[start], table.slice(start, end - start)
            start = end


def encode_inlined(columns: Sequence[InlinedColumn], table: pa.Table) -> DerivedFile:
    """Return converted rows as a Parquet file; equal rows give equal bytes with one release of pyarrow."""
    stats: dict[int, LeafStats] = {}
    for place, column in enumerate(columns):
        array: AnyArray = table.column(place).combine_chunks()
        _add_stats(stats, column, array)
        if _has_length(column):
            field = cast("Any", table.schema).field(place)
            fixed = _fix_lengths(column, field.type, array)
            table = table.set_column(place, field.with_type(fixed.type), fixed)
    # Parquet's statistics ignore NaN, but DuckDB prunes by them although it sorts NaN above all numbers.
    has_nan = any(leaf.nan_count for leaf in stats.values())
    return DerivedFile(encode_table(table, statistics=not has_nan), table.num_rows, stats)


def _has_length(column: InlinedColumn) -> bool:
    return column.length is not None or any(_has_length(child) for child in column.children)


def _fix_lengths(column: InlinedColumn, kind: Any, array: AnyArray) -> AnyArray:
    """Return the same values with `fixed` fields as fixed-size binary, because PyIceberg cannot read them otherwise.

    `kind` is the array's type with field ids, which pyarrow's maps lose. A field stays binary if a value has another length
    (DuckDB allows that), or if its NULLs would take too many bytes.
    """
    if column.length is not None:
        if column.length * len(array) > MAX_FIXED_BYTES:
            return array
        try:
            return array.cast(pa.binary(column.length))
        except pa.ArrowInvalid:
            return array
    if not _has_length(column):
        return array
    missing = array.is_null()
    if column.ducklake_type == "struct":
        # `flatten` applies the struct's NULLs to its children, which otherwise hold empty strings there.
        below = zip(column.children, kind, array.flatten(), strict=True)
        parts = [_fix_lengths(child, field.type, part) for child, field, part in below]
        fields = [field.with_type(part.type) for field, part in zip(kind, parts, strict=True)]
        return cast("Any", pa.StructArray).from_arrays(parts, fields=fields, mask=missing)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    offsets = cast("Any", pc).subtract(array.offsets, first)
    is_map = column.ducklake_type == "map"
    found = [(kind.key_field, array.keys), (kind.item_field, array.items)] if is_map else [(kind.value_field, array.values)]
    inner = [(child, field.type, part.slice(first, last - first)) for child, (field, part) in zip(column.children, found, strict=True)]
    parts = [_fix_lengths(*item) for item in inner]
    made = NESTED[column.ducklake_type]([field.with_type(part.type) for (field, _), part in zip(found, parts, strict=True)])
    return cast("Any", pa.MapArray if is_map else pa.ListArray).from_arrays(offsets, *parts, type=made, mask=missing)


def _build_array(node: InlinedNode, values: list[Any]) -> AnyArray:
    try:
        if node.children:
            read = [None if value is None else _parse(node, value) for value in values]
        else:
            read = [None if value is None else node.read(value) for value in values]
        array = pa.array(read, node.storage)
    except (pa.ArrowException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unsupported(
            f"Column {node.path!r} holds an inlined value that is no {node.kind}: {error}; correct it with UPDATE in DuckDB, "
            "or drop the column or change its type."
        ) from None
    return array if node.storage == node.arrow else array.cast(node.arrow)


def _parse(node: InlinedNode, text: str) -> Any:
    try:
        return parse_nested(node, text)
    except ValueError as error:
        raise Unsupported(
            f"Column {node.path!r} ({node.kind}) holds inlined text we cannot read: {error}; "
            "flush the inlined rows with DuckDB: CALL ducklake_flush_inlined_data."
        ) from None


def _add_stats(stats: dict[int, LeafStats], column: InlinedColumn, array: AnyArray) -> None:
    if column.ducklake_type == "struct":
        for child, part in zip(column.children, array.flatten(), strict=True):
            _add_stats(stats, child, part)
    elif not column.children:
        stats[column.field_id] = _measure(array)


def _measure(array: AnyArray) -> LeafStats:
    plain, nan_count = _plain(array), None
    floating = pa.types.is_floating(plain.type)
    if floating:
        is_nan = cast("Any", pc.is_nan)(plain)
        nan_count = is_nan.true_count
        if nan_count:
            plain = plain.filter(pc.invert(is_nan))
    bounds: Any = pc.min_max(plain)
    lower, upper = bounds["min"].as_py(), bounds["max"].as_py()
    if floating and lower is not None:
        # Readers may take the zeros for different values, so each bound is the outer one.
        lower, upper = -0.0 if lower == 0.0 else lower, 0.0 if upper == 0.0 else upper
    return LeafStats(len(array), array.null_count, nan_count, lower, upper)


def _plain(array: AnyArray) -> AnyArray:
    """Return the same values as bounds have them: integers for dates and times, bytes for UUIDs."""
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    if pa.types.is_date32(array.type):
        return array.view(pa.int32())
    if pa.types.is_temporal(array.type):
        return array.view(pa.int64())
    return array


ROW_ID_COLUMN = "_ducklake_internal_row_id"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EmbeddedLineage:
    """The lake snapshot and row id of each row of a data file; `row_ids` is None if they count from the file's first row id.

    `field_ids`: those of the file's columns at every level.
    """

    snapshot_ids: Positions
    row_ids: Positions | None
    field_ids: frozenset[int]

    def compute_row_ids(self, first: int | None) -> Positions | None:
        """Return the row id of each position, counted from the file's first row id if none are embedded; None without either."""
        if self.row_ids is not None or first is None:
            return self.row_ids
        return np.arange(first, first + len(self.snapshot_ids), dtype=np.int64)


def read_embedded(source: BinaryIO, newest: int | None = None) -> EmbeddedLineage:
    """Return the lake snapshot and row id of each row; only these columns and the footer are fetched from `source`.

    Rows of Iceberg clients may have no snapshot: DuckDB shows them from the file's `newest` lake snapshot on.
    Raises: Unsupported — the file embeds no lake snapshots
    """
    with translated_errors("data file"):
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        if SNAPSHOT_COLUMN not in names:
            raise Unsupported(f"A data file said to span snapshots has no column {SNAPSHOT_COLUMN}.")
        table = file.read(columns=[name for name in (SNAPSHOT_COLUMN, ROW_ID_COLUMN) if name in names], use_threads=False)
        is_numbered = ROW_ID_COLUMN in names and not table.column(ROW_ID_COLUMN).null_count
        row_ids = read_longs(table.column(ROW_ID_COLUMN)) if is_numbered else None
        snapshot_ids: AnyArray = table.column(SNAPSHOT_COLUMN)
        if newest is not None and snapshot_ids.null_count:
            snapshot_ids = snapshot_ids.fill_null(newest)
        field_ids, _ = find_columns(file.schema_arrow)
        return EmbeddedLineage(read_longs(snapshot_ids), row_ids, frozenset(i for i in field_ids.values() if i is not None))


def can_restore(columns: Sequence[InlinedColumn], embedded: EmbeddedLineage) -> bool:
    """True if a data file has all of these columns, and derived files can hold their types."""
    try:
        for column in columns:
            build_node(column)
    except Unsupported:
        return False
    return embedded.field_ids.issuperset(_field_ids(columns))


def _field_ids(columns: Sequence[InlinedColumn]) -> set[int]:
    found = {column.field_id for column in columns}
    return found.union(*(_field_ids(column.children) for column in columns))


@dataclass(frozen=True, slots=True)
class RestoredRows:
    """The rows of data files in an earlier schema; `starts`: the first row of each data file id."""

    table: pa.Table
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RowLocations:
    """File, position and row id of each row of one lake snapshot, in the order of the derived file."""

    data_file_ids: Positions
    positions: Positions
    row_ids: Positions
    snapshot_id: int


def restore_rows(columns: Sequence[InlinedColumn], contents: Mapping[int, bytes]) -> RestoredRows:
    """Return the rows of data files, given by id, in the types of converted inlined rows.

    Raises: Unsupported — a file is not Parquet, or has a value outside the column's type
    """
    nodes = [build_node(column) for column in columns]
    tables: list[pa.Table] = []
    starts: dict[int, int] = {}
    for data_file_id, content in contents.items():
        starts[data_file_id] = sum(table.num_rows for table in tables)
        with translated_errors("data file"):
            tables.append(_restore(columns, nodes, pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)))
    return RestoredRows(pa.concat_tables(tables).combine_chunks(), starts)


def _restore(columns: Sequence[InlinedColumn], nodes: Sequence[InlinedNode], table: pa.Table) -> pa.Table:
    fields: list[Any] = list(table.schema)
    places = {int(field.metadata[FIELD_ID]): place for place, field in enumerate(fields) if FIELD_ID in (field.metadata or {})}
    arrays: list[AnyArray] = []
    for column, node in zip(columns, nodes, strict=True):
        place = places[column.field_id]
        arrays.append(_rebuild(column, node, fields[place], table.column(place).combine_chunks()))
    return pa.Table.from_arrays(arrays, names=[str(column.field_id) for column in columns])


def take_rows(columns: Sequence[InlinedColumn], rows: RestoredRows, wanted: RowLocations) -> pa.Table:
    """Return restored rows with their lineage, equal to the converted inlined rows."""
    starts = np.array([rows.starts[key] for key in wanted.data_file_ids.tolist()], dtype=np.int64)
    taken = rows.table.take(cast("Any", pa.array(starts + wanted.positions)))
    inserted_at = np.full(len(wanted.row_ids), wanted.snapshot_id, dtype=np.int64)
    nodes = tuple(build_node(column) for column in columns)
    arrays: list[AnyArray] = [*taken.columns, pa.array(wanted.row_ids), pa.array(inserted_at)]
    return pa.Table.from_arrays(arrays, schema=format_lineage_schema(tuple(columns), nodes))


def _rebuild(column: InlinedColumn, node: InlinedNode, field: Any, array: AnyArray) -> AnyArray:
    """Return the same values in the type of derived files; nested fields are matched by field id."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    parts = list(zip(column.children, node.children, strict=True))
    if not parts:
        # pyarrow casts extension types only from their storage type.
        return array.cast(node.storage).cast(node.arrow)
    kind: Any = field.type
    missing = array.is_null()
    if column.ducklake_type == "struct":
        places = {int(kind.field(place).metadata[FIELD_ID]): place for place in range(kind.num_fields)}
        children = [_rebuild(c, n, kind.field(places[c.field_id]), array.field(places[c.field_id])) for c, n in parts]
        return cast("Any", pa.StructArray).from_arrays(children, fields=list(cast("Any", node.arrow)), mask=missing)
    if column.ducklake_type == "map":
        found = ((kind.key_field, array.keys), (kind.item_field, array.items))
        keys, items = (_rebuild(c, n, f, a) for (c, n), (f, a) in zip(parts, found, strict=True))
        return cast("Any", pa.MapArray).from_arrays(array.offsets, keys, items, type=node.arrow, mask=missing)
    [(child, part)] = parts
    elements = _rebuild(child, part, kind.value_field, array.values)
    return cast("Any", pa.ListArray).from_arrays(array.offsets, elements, type=node.arrow, mask=missing)
