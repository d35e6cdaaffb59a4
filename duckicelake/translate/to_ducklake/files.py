"""Data files of Iceberg clients as DuckLake's rows, with statistics by which DuckDB may prune.

Bounds of a manifest are outer bounds, but DuckDB takes a table's bounds for exact values. So bounds are written per file
only, and the table's own bounds are deleted with the first file of a client.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema, list_leaf_fields, list_repeated_ids
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.writing.rows import AddedRows, NewColumnStats, NewDataFile, NewFileNote, NewRow, RemovedTableBounds
from duckicelake.translate.client_schemas import format_partition
from duckicelake.translate.to_ducklake.texts import decode_bound, find_text

FLOATING = frozenset({"float", "double"})
DOUBLE = PrimitiveType("double")
PARQUET = "PARQUET"
PLAIN_FLOATS = (1e-3, 1e15)
"""The range in which DuckDB writes floats without an exponent."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file that a client added, and the spec of its partition tuple.

    `first_row_id`: set if its rows have ids already.
    """

    file: DataFile
    spec: PartitionSpec
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class FirstIds:
    """The first ids for new files and rows."""

    data_file_id: int
    row_id: int


def check_file(added: AddedFile) -> None:
    """Raise BadRequest for a file that DuckLake cannot store."""
    file = added.file
    if file.file_format != PARQUET:
        raise BadRequest(f"Data file {file.file_path!r} has the format {file.file_format}; DuckLake holds Parquet only.")
    if file.record_count < 0 or file.file_size_in_bytes <= 0:
        raise BadRequest(f"Data file {file.file_path!r} claims {file.record_count} rows in {file.file_size_in_bytes} bytes.")


class _StatsLeaf(NamedTuple):
    """A primitive field at any level; `is_root`: it is a column of the table itself, `is_repeated`: it is within a list or map."""

    field_id: int
    type: PrimitiveType
    is_root: bool
    is_repeated: bool


def add_files(table_id: int, files: Sequence[AddedFile], schema: Schema, first: FirstIds) -> list[NewRow]:
    """Return the rows of data files in the order in which row ids are assigned."""
    numbered = list(enumerate(files, first.data_file_id))
    starts: list[int] = []
    next_row_id = first.row_id
    for added in files:
        starts.append(next_row_id if added.first_row_id is None else added.first_row_id)
        next_row_id += added.file.record_count
    repeated = list_repeated_ids(schema)
    roots = {field.field_id for field in schema.fields}
    leaves = [_StatsLeaf(i, type_, i in roots, i in repeated) for i, type_ in list_leaf_fields(schema)]
    size = sum(added.file.file_size_in_bytes for added in files)
    return [
        *(
            NewDataFile(i, table_id, added.file.file_path, added.file.record_count, added.file.file_size_in_bytes, start)
            for (i, added), start in zip(numbered, starts, strict=True)
        ),
        *(row for i, added in numbered for row in _to_stats(table_id, i, added.file, leaves)),
        *(_to_note(table_id, i, added, schema) for i, added in numbered),
        AddedRows(table_id, next_row_id - first.row_id, size),
        RemovedTableBounds(table_id),
    ]


def _to_note(table_id: int, data_file_id: int, added: AddedFile, schema: Schema) -> NewFileNote:
    file = added.file
    partition = format_partition(added.spec, schema, file.partition)
    offsets = None if file.split_offsets is None else json.dumps(file.split_offsets, separators=(",", ":"))
    return NewFileNote(table_id, data_file_id, added.spec.spec_id, partition, file.sort_order_id, offsets)


def _to_stats(table_id: int, data_file_id: int, file: DataFile, leaves: Sequence[_StatsLeaf]) -> Iterator[NewColumnStats]:
    for leaf in leaves:
        field_id, type_ = leaf.field_id, leaf.type
        values, nulls = _find_counts(file, leaf)
        lower, upper = _find_bounds(file, field_id, type_)
        size, nans = _find_count(file.column_sizes, field_id), _find_count(file.nan_value_counts, field_id)
        row = NewColumnStats(
            data_file_id=data_file_id,
            table_id=table_id,
            column_id=field_id,
            column_size_bytes=size,
            # DuckLake counts only non-null values, Iceberg counts all.
            value_count=None if values is None or nulls is None else values - nulls,
            null_count=nulls,
            min_value=lower,
            max_value=upper,
            contains_nan=nans > 0 if nans is not None and type_.name in FLOATING else None,
        )
        if size is not None or nulls is not None or lower is not None:
            yield row


def _find_counts(file: DataFile, leaf: _StatsLeaf) -> tuple[int | None, int | None]:
    """Return the number of values of a column in a file, and how many of them are NULL; None if unknown or contradictory."""
    values, nulls = _find_count(file.value_counts, leaf.field_id), _find_count(file.null_value_counts, leaf.field_id)
    if nulls is None:
        return None, None
    if values is None and leaf.is_root:
        values = file.record_count
    if values is None:
        # Without the number of values it is unknown if NULLs of rows with a NULL struct are counted.
        return None, nulls if nulls > 0 or leaf.is_repeated else None
    if not leaf.is_repeated:
        # Iceberg 1.11 does not count NULLs of floating-point fields in a NULL struct, and its readers do not count such rows.
        nulls += max(0, file.record_count - values)
        values = max(values, file.record_count)
    return (values, nulls) if values >= nulls else (None, None)


def _find_count(counts: Mapping[int, int] | None, field_id: int) -> int | None:
    count = None if counts is None else counts.get(field_id)
    return None if count is None or count < 0 else count


def _find_bounds(file: DataFile, field_id: int, type_: PrimitiveType) -> tuple[str | None, str | None]:
    """Return both bounds as texts, or neither: one bound alone proves nothing, and bounds in the wrong order prove nothing either."""
    lower = decode_bound(type_, (file.lower_bounds or {}).get(field_id))
    upper = decode_bound(type_, (file.upper_bounds or {}).get(field_id))
    # A float's shortest text is that of another double, and the column may become a double.
    exact = DOUBLE if type_.name == "float" else type_
    low, high = (lower, upper) if exact is type_ else (_widen_float(lower, -math.inf), _widen_float(upper, math.inf))
    texts = find_text(exact, low), find_text(exact, high)
    if None in texts or not _is_ordered(lower, upper):
        return None, None
    return texts


def _widen_float(value: object, towards: float) -> object:
    """Return a float's bound, one float further out if its text may have an exponent.

    DuckLake compares such a text as a double, which may lie inside the float's own value.
    """
    if not isinstance(value, float) or not math.isfinite(value) or value == 0.0 or PLAIN_FLOATS[0] <= abs(value) < PLAIN_FLOATS[1]:
        return value
    # Beyond the largest float is infinity, of which numpy warns.
    with np.errstate(over="ignore"):
        return float(np.nextafter(np.float32(value), np.float32(towards)))


def _is_ordered(lower: object, upper: object) -> bool:
    try:
        return lower <= upper  # pyright: ignore
    except TypeError:
        return False
