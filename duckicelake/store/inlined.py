"""Parquet files for the rows DuckLake keeps inlined in Postgres: their values exactly, with Iceberg's ids and lineage."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from duckicelake.errors import Unsupported
from duckicelake.store.inlined_types import FIELD_ID, NESTED, InlinedColumn, Node, build_node, format_schema
from duckicelake.store.nested_text import parse_nested
from duckicelake.store.parquet import encode_table

__all__ = ["InlinedColumn", "InlinedFile", "LeafStats", "convert_rows", "encode_inlined", "format_lineage_schema", "split_by_snapshot"]

MAX_FIXED_BYTES = 64 * 1024 * 1024
ROW_ID, ROW_ID_FIELD = "_row_id", 2147483540
SEQUENCE_NUMBER, SEQUENCE_NUMBER_FIELD = "_last_updated_sequence_number", 2147483539

IcebergValue = bool | int | float | Decimal | str | bytes

# Arrays of any type: what pyarrow's stubs know of their element types helps nobody here.
AnyArray = Any


@dataclass(frozen=True, slots=True)
class LeafStats:
    """What a file holds of one leaf column. `value_count` counts NULLs too; bounds leave out NULL and NaN.

    `nan_count` is None where the type knows no NaN; bounds are None where no value is left to bound.
    """

    value_count: int
    null_count: int
    nan_count: int | None
    lower: IcebergValue | None
    upper: IcebergValue | None


@dataclass(frozen=True, slots=True)
class InlinedFile:
    """A derived Parquet file. `stats` has the leaves by field id, those inside lists and maps left out."""

    content: bytes
    record_count: int
    stats: Mapping[int, LeafStats]


def convert_rows(columns: Sequence[InlinedColumn], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Turn rows of one inlined table into an Arrow table, sorted by begin_snapshot and row_id.

    Shape:  a row is (row_id, begin_snapshot, value of each column in order), values as psycopg returns them
            (times best read as text: psycopg has no 24:00:00); behind the columns come
            `_row_id` and `_last_updated_sequence_number`
    Raises: Unsupported — a type or a value Iceberg cannot say, naming column, type and remedy
    Source: DuckLake's PostgresMetadataManager (column types) and ValueToSQL (texts)
    """
    nodes = tuple(build_node(column) for column in columns)
    ordered = sorted(rows, key=lambda row: (row[1], row[0]))
    arrays = [_build_array(node, [row[place] for row in ordered]) for place, node in enumerate(nodes, start=2)]
    arrays += [pa.array([row[place] for row in ordered], pa.int64()) for place in (0, 1)]
    return pa.Table.from_arrays(arrays, schema=format_lineage_schema(tuple(columns), nodes))


def format_lineage_schema(columns: tuple[InlinedColumn, ...], nodes: tuple[Node, ...]) -> pa.Schema:
    """The Arrow schema of a derived file: the columns, `_row_id` and `_last_updated_sequence_number`."""
    schema = format_schema(columns, nodes)
    for name, field_id in ((ROW_ID, ROW_ID_FIELD), (SEQUENCE_NUMBER, SEQUENCE_NUMBER_FIELD)):
        # A user's column may bear the reserved name; readers go by the id.
        free_name = name if name not in schema.names else f"_ducklake_internal{name}"
        schema = schema.append(pa.field(free_name, pa.int64(), metadata={FIELD_ID: str(field_id)}))
    return schema


def split_by_snapshot(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The converted rows of each inserting lake snapshot, oldest first."""
    snapshots = cast("list[int]", table.column(table.num_columns - 1).to_pylist())
    start = 0
    for end in range(1, len(snapshots) + 1):
        if end == len(snapshots) or snapshots[end] != snapshots[start]:
            yield snapshots[start], table.slice(start, end - start)
            start = end


def encode_inlined(columns: Sequence[InlinedColumn], table: pa.Table) -> InlinedFile:
    """Write converted rows as one Parquet file; equal rows give equal bytes, under one release of pyarrow."""
    stats: dict[int, LeafStats] = {}
    for place, column in enumerate(columns):
        array: AnyArray = table.column(place).combine_chunks()
        _add_stats(stats, column, array)
        if _has_length(column):
            field = cast("Any", table.schema).field(place)
            fixed = _fix_lengths(column, field.type, array)
            table = table.set_column(place, field.with_type(fixed.type), fixed)
    # Parquet's statistics pass over NaN, and DuckDB prunes by them although it sorts NaN above all numbers.
    has_nan = any(leaf.nan_count for leaf in stats.values())
    return InlinedFile(encode_table(table, statistics=not has_nan), table.num_rows, stats)


def _has_length(column: InlinedColumn) -> bool:
    return column.length is not None or any(_has_length(child) for child in column.children)


def _fix_lengths(column: InlinedColumn, kind: Any, array: AnyArray) -> AnyArray:
    """Return the same values with the lengths of `fixed` parts, for PyIceberg reads those by no other type.

    `kind` is the array's type with field ids, which pyarrow's maps lose. A part with a value of another length,
    which DuckDB takes, stays as it is; so does one whose NULLs would take much room.
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
        # flattened, for below a struct that is null pyarrow has empty texts
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


def _build_array(node: Node, values: list[Any]) -> AnyArray:
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


def _parse(node: Node, text: str) -> Any:
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
    """The same values in the form bounds are given in: whole numbers for dates and times, bytes for UUIDs."""
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    if pa.types.is_date32(array.type):
        return array.view(pa.int32())
    if pa.types.is_temporal(array.type):
        return array.view(pa.int64())
    return array
