"""Data files of Iceberg clients as DuckLake's rows, with statistics by which DuckDB may prune. No I/O.

`catalog` calls this for the files of commits and registrations, before the lake's lock and under it; the job `import` describes Parquet
files with it in its driver.
Bounds of a manifest are outer bounds, but DuckDB takes a table's bounds for exact values. So bounds are written per file
only, and the table's own bounds are deleted with the first file of a client.
Files without field ids have their columns by name, some only in folder names like `day=2026-03-01`. DuckDB reads the value from the path
each time, Iceberg's readers from the partition tuple; a file is accepted if both are equal.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema, list_leaf_fields, list_repeated_ids
from duckicelake.iceberg.single_values import parse_value
from duckicelake.iceberg.types import NestedField, PrimitiveType, walk_fields
from duckicelake.lake.lake_format import V1_1
from duckicelake.lake.note_rows import MappedName, NewMapping
from duckicelake.lake.writing.rows import AddedRows, NewColumnStats, NewDataFile, NewFileNote, NewRow, RemovedTableBounds
from duckicelake.translate.client_schemas import format_partition
from duckicelake.translate.name_mapping import FileColumns, NameMapping, NamePath, check_mapped_file
from duckicelake.translate.to_ducklake.columns import to_column_type
from duckicelake.translate.values import decode_bound, find_text

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
        *(row for i, added in numbered for row in _to_stats(table_id, i, added, leaves)),
        *(_to_note(table_id, i, added, schema) for i, added in numbered),
        AddedRows(table_id, next_row_id - first.row_id, size),
        RemovedTableBounds(table_id),
    ]


def _to_note(table_id: int, data_file_id: int, added: AddedFile, schema: Schema) -> NewFileNote:
    file = added.file
    partition = format_partition(added.spec, schema, file.partition)
    offsets = None if file.split_offsets is None else json.dumps(file.split_offsets, separators=(",", ":"))
    return NewFileNote(table_id, data_file_id, added.spec.spec_id, partition, file.sort_order_id, offsets)


def _to_stats(table_id: int, data_file_id: int, added: AddedFile, leaves: Sequence[_StatsLeaf]) -> Iterator[NewColumnStats]:
    file, without_nan = added.file, _list_without_nan(added)
    for leaf in leaves:
        field_id, type_ = leaf.field_id, leaf.type
        values, nulls = _find_counts(file, leaf)
        lower, upper = _find_bounds(file, field_id, type_)
        size, nans = _find_count(file.column_sizes, field_id), _find_count(file.nan_value_counts, field_id)
        if nans is None and field_id in without_nan:
            nans = 0
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


def _list_without_nan(added: AddedFile) -> set[int]:
    """Return the columns that have no NaN in a file because an identity partition gives another value to all of its rows.

    PyIceberg 0.12 does not count NaN, and a column that may have some gets no bounds.
    """
    fields = zip(added.spec.fields, added.file.partition, strict=True)
    return {item.source_id for item, value in fields if item.transform == "identity" and value == value}


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


HIVE_NULL, NULL = "__HIVE_DEFAULT_PARTITION__", "null"
_SEPARATORS = re.compile(r"[/\\]")
_FOLDER = re.compile(r"([^=?\n]+)=([^=?\n]*)")
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


class PartitionOnlyColumn(NamedTuple):
    """A column that a file has only in its partition tuple, and its position in the tuple."""

    position: int
    column: NestedField


Names = tuple[tuple[str, int], ...]
"""Names, each with the id of its column."""


def list_folder_texts(path: str) -> dict[str, str]:
    """Return the texts of `name=text` folders in a path, by name, without names that occur twice.

    Source: DuckDB 1.5, HivePartitioning::Parse
    """
    texts_by_name: dict[str, list[str]] = {}
    for folder in _SEPARATORS.split(path)[:-1]:
        match = _FOLDER.fullmatch(folder)
        if match is not None:
            texts_by_name.setdefault(match[1], []).append(match[2])
    return {name: texts[0] for name, texts in texts_by_name.items() if len(texts) == 1}


def reads_value(type_: PrimitiveType, text: str, value: object) -> bool:
    """Return True if DuckDB reads exactly this value from a folder's text, independently of session settings."""
    try:
        return parse_text(type_, text) == value
    except (ValueError, BadRequest):
        return False


def parse_text(type_: PrimitiveType, text: str) -> object:
    """Return the value that DuckDB reads from a folder's text.

    Raises: ValueError, BadRequest: it reads none, or which one depends on its settings
    Source: DuckDB 1.5, HivePartitioning::GetValue
    """
    if text == HIVE_NULL or text.lower() == NULL:
        return None
    plain = unquote_to_bytes(text).decode()
    if "\0" in plain:
        raise ValueError("a NUL cannot be stored")
    if type_.name == "string":
        return plain
    parse = _PARSERS.get(type_.name.partition("(")[0])
    if parse is None:
        raise ValueError("the type has several spellings")
    return parse(type_, plain)


def _match(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError("another spelling")
    return text


def _parse_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError("another spelling")
    return _BOOLEANS[text]


# PyIceberg rounds doubles of partitions, a float's text is that of another double, and a timestamptz depends on the session's zone.
_PARSERS: Mapping[str, Callable[[PrimitiveType, str], object]] = {
    "boolean": lambda _, text: _parse_boolean(text),
    "int": lambda _, text: int(_match(_INTEGER, text)),
    "long": lambda _, text: int(_match(_INTEGER, text)),
    "decimal": lambda _, text: Decimal(_match(_DECIMAL, text)),
    "date": lambda type_, text: parse_value(type_, _match(_DATE, text)),
    "timestamp": lambda type_, text: parse_value(type_, _match(_TIMESTAMP, text).replace(" ", "T")),
}


def list_partition_folders(file: DataFile, partition_only: Sequence[PartitionOnlyColumn], field_ids: Mapping[NamePath, int]) -> Names:
    """Return the folder names from which DuckDB reads these columns of a file; `field_ids` are the columns by name.

    Raises: BadRequest: there is no such folder, or DuckDB would read another value than the file's partition tuple has
    """
    texts = list_folder_texts(file.file_path)
    return tuple(sorted(_get_partition_folder(file, column, texts, field_ids) for column in partition_only))


def _get_partition_folder(
    file: DataFile, partition_only: PartitionOnlyColumn, texts: Mapping[str, str], field_ids: Mapping[NamePath, int]
) -> tuple[str, int]:
    column = partition_only.column
    if partition_only.position >= len(file.partition):
        raise BadRequest(f"Data file {file.file_path!r} has {len(file.partition)} partition values, and its spec more fields; rewrite it.")
    value = file.partition[partition_only.position]
    names = [name for name in texts if field_ids.get((name,)) == column.field_id]
    if len(names) != 1:
        raise BadRequest(
            f"Data file {file.file_path!r} has the column {column.name!r} in its partition alone, and in no name of a folder like "
            f"'{column.name}=…' where DuckLake would look for it; rewrite it."
        )
    [name] = names
    if not isinstance(column.type, PrimitiveType) or not reads_value(column.type, texts[name], value):
        raise BadRequest(
            f"Data file {file.file_path!r} has the column {column.name!r} in its path alone, and DuckDB may take '{name}={texts[name]}' "
            f"for another {column.type} than {str(value)[:100]!r}, which its partition says; rewrite it."
        )
    return name, column.field_id


def build_partition_stats(
    table_id: int, data_file_id: int, file: DataFile, partition_only: Sequence[PartitionOnlyColumn]
) -> list[NewColumnStats]:
    """Return the statistics of partition-only columns, which manifests may omit: the column's only value in the file."""
    maps = [file.column_sizes, file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds]
    rows: list[NewColumnStats] = []
    for index, column in partition_only:
        if isinstance(column.type, PrimitiveType) and not any(column.field_id in (counts_by_id or {}) for counts_by_id in maps):
            value, count = file.partition[index], file.record_count
            text, counts = find_text(column.type, value), (0, count) if value is None else (count, 0)
            rows.append(NewColumnStats(data_file_id, table_id, column.field_id, None, *counts, text, text, None))
    return rows


IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """The columns of a file without field ids: those at its root, and those in the names of its folders."""

    columns: Names
    folders: Names = ()


def find_names(path: str, columns: FileColumns, metadata: TableMetadata, known_names: Mapping[NamePath, int]) -> NamedFile | None:
    """Return the columns of a file without field ids, by the known names; None for a file with field ids.

    Raises: BadRequest: Iceberg's readers and DuckDB would read the file differently
    """
    roots = {name[0]: field_id for name, field_id in columns.field_ids.items() if len(name) == 1}
    carried = {field_id for field_id in columns.field_ids.values() if field_id is not None}
    if carried and None in roots.values():
        raise BadRequest(f"Data file {path!r} carries field ids for some of its columns only; rewrite it.")
    return None if carried else NamedFile(_name_roots(path, columns, metadata, known_names))


def list_partition_only(
    path: str, columns: FileColumns, metadata: TableMetadata, spec_id: int, named: NamedFile | None
) -> tuple[PartitionOnlyColumn, ...]:
    """Return the columns that a file has only in its partition tuple.

    Raises: BadRequest: the file has field ids, so DuckLake would not find such columns
    """
    spec = next((spec for spec in metadata.partition_specs if spec.spec_id == spec_id), None)
    live = {item.field_id: item for item in get_current_schema(metadata).fields}
    carried = {field_id for field_id in columns.field_ids.values() if field_id is not None}
    present = carried if named is None else {field_id for _, field_id in named.columns}
    partition_only = tuple(
        PartitionOnlyColumn(index, live[item.source_id])
        for index, item in enumerate(spec.fields if spec else ())
        if item.transform == IDENTITY and item.source_id in live and item.source_id not in present
    )
    if partition_only and named is None:
        raise BadRequest(
            f"Data file {path!r} carries field ids and has the column {partition_only[0].column.name!r} in its partition alone, which "
            "DuckLake would not see; rewrite it."
        )
    return partition_only


def _name_roots(path: str, columns: FileColumns, metadata: TableMetadata, known_names: Mapping[NamePath, int]) -> Names:
    if any(len(name) > 1 for name in columns.field_ids):
        raise BadRequest(f"Data file {path!r} has nested columns and carries no field ids, which is not supported yet; rewrite it.")
    named = tuple(sorted((name, known_names[name,]) for (name,) in columns.field_ids if (name,) in known_names))
    if len({field_id for _, field_id in named}) < len(named):
        raise BadRequest(f"Data file {path!r} has two columns for one by the name mapping; rewrite it.")
    _check_readers(path, columns, metadata, dict(named))
    return named


def _check_readers(path: str, columns: FileColumns, metadata: TableMetadata, named: Mapping[str, int]) -> None:
    ids = {field_id for _, item in walk_fields(get_current_schema(metadata).fields) for field_id in [item.field_id]}
    # The table's own format has checked its columns. The newest format names the type of every column, also of `unknown` ones.
    leaves = list_leaf_fields(get_current_schema(metadata))
    types = {field_id: frozenset({to_column_type(leaf, path, V1_1)}) for field_id, leaf in leaves}
    live_names = {(name,): field_id for name, field_id in named.items() if field_id in ids}
    try:
        check_mapped_file(path, 0, columns, NameMapping({0: live_names}, live_names, {}, frozenset(ids), types))
    except Unsupported as error:
        message = error.message.replace(", added with ducklake_add_data_files,", "")
        raise BadRequest(message.replace("Copy the table with CREATE TABLE … AS SELECT.", "Rewrite it.")) from error


def add_mapping(table_id: int, mapping_id: int, names: NamedFile, live: set[int]) -> list[NewRow]:
    """Return the mapping by which DuckDB finds the columns of files without field ids."""
    rows = [*((name, field_id, False) for name, field_id in names.columns), *((name, field_id, True) for name, field_id in names.folders)]
    live_rows = [row for row in rows if row[1] in live]
    return [
        NewMapping(mapping_id, table_id),
        *(MappedName(mapping_id, index, *row) for index, row in enumerate(live_rows)),
    ]
