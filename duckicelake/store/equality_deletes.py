"""Equality deletes: match the rows of data files with the rows of an equality-delete file.

DuckLake has no equality deletes, so `catalog` turns those of a commit into position deletes. `catalog.incoming.delete_resolution` calls
this on a worker thread, before the lake's lock. It reads from the content and the files that the caller opens, and never uses Postgres.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duckicelake.errors import Unsupported
from duckicelake.store.parquet import (
    MAX_DECOMPRESSED_BYTES,
    Positions,
    check_size,
    find_columns,
    open_with_dictionaries,
    read_batches,
    translated_errors,
)

BATCH_ROWS = 131_072
NamePath = tuple[str, ...]

# pyarrow's stubs do not describe arrays of unknown type, hence `Any`.
AnyArray = Any

KINDS: Mapping[str, Any] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.binary(16),
}
"""The Arrow type in which values of an Iceberg type are compared; an int equals the long it was promoted to."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the comparison: its Iceberg type, and its value in files that lack the column.

    Units:  `default` is a value for Arrow, dates and times as integers
    """

    field_id: int
    type_name: str
    default: object | None = None

    def kind(self) -> Any:
        """Return the Arrow type of the comparison. Raises: Unsupported — values of the type cannot be compared."""
        name, _, numbers = self.type_name.partition("(")
        if name == "decimal":
            precision, scale = (int(number) for number in numbers.rstrip(")").split(","))
            return pa.decimal128(precision, scale)
        if name.startswith("fixed["):
            return KINDS["binary"]
        if name not in KINDS:
            raise Unsupported(f"Rows cannot be deleted by equality of a column of the type {self.type_name}.")
        return KINDS[name]


@dataclass(frozen=True, slots=True)
class DeleteKeys:
    """The distinct rows of an equality-delete file."""

    columns: Sequence[KeyColumn]
    rows: pa.Table

    def list_values(self, place: int) -> tuple[list[Any], bool]:
        """Return a column's distinct values in ascending order, times as integers, and true if NULL is one of them."""
        column: AnyArray = self.rows.column(place)
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
        found = set(column.to_pylist())
        return sorted(found - {None}), None in found


def read_keys(content: bytes, columns: Sequence[KeyColumn], most_rows: int) -> DeleteKeys:
    """Return the distinct rows of an equality-delete file in these columns, found by field id.

    Raises: Unsupported — not a Parquet file, too many rows, too long values, or a missing column
    Source: Iceberg spec «Equality Delete Files»
    """
    with translated_errors("equality-delete file"):
        file = open_with_dictionaries(pa.BufferReader(content))
        check_size(file, most_rows)
        paths = _get_paths(file.schema_arrow, {})
        missing = [column.field_id for column in columns if column.field_id not in paths]
        if missing:
            raise Unsupported(f"An equality-delete file has no column with field id {missing[0]}.")
        kinds = [(str(column.field_id), column.kind()) for column in columns]
        tables, size_bytes = [cast("Any", pa.schema(kinds)).empty_table()], 0
        for batch in read_batches(file, [".".join(paths[column.field_id]) for column in columns], BATCH_ROWS):
            arrays = [_take(batch, paths[column.field_id], column.kind()) for column in columns]
            tables.append(pa.Table.from_arrays(arrays, schema=tables[0].schema))
            size_bytes += tables[-1].nbytes
            _check_bytes(size_bytes)
        names: list[str] = tables[0].column_names
        rows = pa.concat_tables(tables).group_by(names, use_threads=False).aggregate([])
        return DeleteKeys(columns, rows.select(names))


def list_equal_rows(source: BinaryIO, keys: DeleteKeys, names: Mapping[NamePath, int]) -> Positions:
    """Return the positions, ascending, of the rows in a data file that equal a key; NULL equals NULL.

    `names`: the name mapping for files without field ids.
    Raises: Unsupported — not a Parquet file, or a file without field ids in which a column is not found by name
    """
    with translated_errors("data file"):
        file = open_with_dictionaries(source)
        paths = _get_paths(file.schema_arrow, names)
        there = [column for column in keys.columns if column.field_id in paths]
        if len(there) < len(keys.columns) and not _carries_ids(file.schema_arrow):
            raise Unsupported("A data file without field ids lacks a column that rows are deleted by.")
        if not keys.rows.num_rows:
            return np.empty(0, dtype=np.int64)
        finder = _KeyMatcher.of(keys)
        found: list[Positions] = []
        first = 0
        for batch in read_batches(file, [".".join(paths[column.field_id]) for column in there], BATCH_ROWS):
            arrays: list[AnyArray] = [
                _take(batch, paths[column.field_id], column.kind())
                if column.field_id in paths
                else cast("Any", pa).repeat(pa.scalar(cast("Any", column.default), column.kind()), batch.num_rows)
                for column in keys.columns
            ]
            found.append(finder.find(arrays) + first)
            first += batch.num_rows
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _carries_ids(schema: Any) -> bool:
    field_ids, _ = find_columns(schema)
    return any(field_id is not None for field_id in field_ids.values())


def _get_paths(schema: Any, names: Mapping[NamePath, int]) -> dict[int, NamePath]:
    field_ids, _ = find_columns(schema)
    if not _carries_ids(schema):
        return {names[path]: path for path in field_ids if path in names}
    return {field_id: path for path, field_id in field_ids.items() if field_id is not None}


def _take(rows: Any, path: NamePath, kind: Any) -> AnyArray:
    array: AnyArray = rows.column(path[0])
    if len(path) > 1:
        array = cast("Any", pc).struct_field(array, list(path[1:]))
    if isinstance(array, pa.ChunkedArray):
        array = cast("AnyArray", array.combine_chunks())
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        lengths = cast("Any", pc).binary_length(array.dictionary).take(array.indices)
        _check_bytes(cast("Any", pc).sum(lengths).as_py() or 0)
    return array.cast(kind)


def _check_bytes(size_bytes: int) -> None:
    if size_bytes > MAX_DECOMPRESSED_BYTES:
        raise Unsupported(f"Its values hold {size_bytes} bytes, more than the {MAX_DECOMPRESSED_BYTES} read at once; delete by position.")


@dataclass(frozen=True, slots=True)
class _KeyMatcher:
    """Matches rows with keys column by column: values get numbers, and so does each pair (number of the key so far, value)."""

    values: Sequence[AnyArray]
    steps: Sequence[Positions]

    @classmethod
    def of(cls, keys: DeleteKeys) -> "_KeyMatcher":
        values: list[AnyArray] = []
        steps: list[Positions] = []
        before = np.zeros(keys.rows.num_rows, dtype=np.int64)
        for place in range(len(keys.columns)):
            column: AnyArray = keys.rows.column(place).combine_chunks()
            values.append(column.unique())
            pairs = before * len(values[-1]) + _number(column, values[-1])
            steps.append(np.unique(pairs))
            before = np.searchsorted(steps[-1], pairs).astype(np.int64)
        return cls(values, steps)

    def find(self, arrays: Sequence[AnyArray]) -> Positions:
        rows = np.arange(len(arrays[0]), dtype=np.int64)
        before = np.zeros(len(rows), dtype=np.int64)
        for array, values, step in zip(arrays, self.values, self.steps, strict=True):
            numbers = _number(array, values)[rows]
            pairs = before * len(values) + numbers
            places = np.searchsorted(step, pairs)
            is_key = (numbers >= 0) & (step[np.minimum(places, len(step) - 1)] == pairs)
            rows, before = rows[is_key], places[is_key].astype(np.int64)
        return rows


def _number(array: AnyArray, values: AnyArray) -> Positions:
    """Return the index of each array element in `values`, -1 if it is not there."""
    places = cast("Any", pc).index_in(array, value_set=values)
    return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
