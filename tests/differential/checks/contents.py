"""What a manifest says of a data file is true of the file: size, counts, bounds, partition.

The file is read by PyArrow; bounds and partition values are decoded by PyIceberg.
"""

import io
import math
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import NestedField, UUIDType

from tests.differential.checks.deletes import Targets, check_deletes
from tests.differential.checks.manifests import read_bytes
from tests.differential.checks.partitions import list_fields

_FIELD_ID = b"PARQUET:field_id"


def check_contents(table: IcebergTable, entry: ManifestEntry, targets: Targets) -> None:
    """Read one file and compare it with its manifest entry; `targets` are what deletes may mean."""
    data_file = entry.data_file
    content = read_bytes(table.io, data_file.file_path)
    assert len(content) == data_file.file_size_in_bytes, data_file.file_path
    if data_file.content != DataFileContent.DATA:
        check_deletes(data_file, content, targets)
        return
    rows = pq.read_table(io.BytesIO(content))
    assert len(rows) == data_file.record_count, data_file.file_path
    leaves = {field_id: _Leaf(array, is_repeated) for field_id, array, is_repeated in _list_leaves(rows, _list_names(table))}
    _check_metrics(list_fields(table), data_file, leaves)
    _check_partition(table, data_file, leaves)


def _list_names(table: IcebergTable) -> dict[str, int]:
    """The root columns of files without field ids."""
    mapping = table.name_mapping()
    fields = [] if mapping is None else mapping.root
    return {name: field.field_id for field in fields if field.field_id is not None for name in field.names}


class _Leaf:
    """The values of one leaf column, nested ones flattened."""

    def __init__(self, array: pa.ChunkedArray, is_repeated: bool) -> None:
        self.values = _to_iceberg(array)
        self.is_repeated = is_repeated


def _list_leaves(rows: pa.Table, names: Mapping[str, int]) -> Iterator[tuple[int, pa.ChunkedArray, bool]]:
    for index, field in enumerate(rows.schema):
        if field.metadata and _FIELD_ID in field.metadata:
            yield from _walk(field, rows.column(index), False)
        elif field.name in names and not pt.is_nested(field.type):
            yield names[field.name], rows.column(index), False


def _walk(field: pa.Field, array: Any, is_repeated: bool) -> Iterator[tuple[int, pa.ChunkedArray, bool]]:
    if pt.is_struct(field.type):
        parts = array.flatten()
        for index, part in enumerate(parts):
            yield from _walk(field.type.field(index), part, is_repeated)
    elif pt.is_map(field.type):
        keys = pa.chunked_array([chunk.keys for chunk in array.chunks], field.type.key_type)
        items = pa.chunked_array([chunk.items for chunk in array.chunks], field.type.item_type)
        yield from _walk(field.type.key_field, keys, True)
        yield from _walk(field.type.item_field, items, True)
    elif pt.is_list(field.type) or pt.is_large_list(field.type):
        values = pa.chunked_array([chunk.flatten() for chunk in array.chunks], field.type.value_type)
        yield from _walk(field.type.value_field, values, True)
    elif field.metadata and _FIELD_ID in field.metadata:
        yield int(field.metadata[_FIELD_ID]), array, is_repeated


def _to_iceberg(array: Any) -> list[Any]:
    """Values as PyIceberg's transforms and bounds know them."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.cast(array.type.storage_type)
    if pt.is_date(array.type):
        return array.cast(pa.int32()).to_pylist()
    if pt.is_time(array.type):
        return array.cast(pa.time64("us")).cast(pa.int64()).to_pylist()
    if pt.is_timestamp(array.type):
        unit = "ns" if array.type.unit == "ns" else "us"
        return array.cast(pa.timestamp(unit, array.type.tz)).cast(pa.int64()).to_pylist()
    return array.to_pylist()


def _check_metrics(fields: dict[int, NestedField], data_file: DataFile, leaves: dict[int, _Leaf]) -> None:
    where = data_file.file_path
    for field_id, count in (data_file.null_value_counts or {}).items():
        if field_id in leaves and not leaves[field_id].is_repeated:
            assert count == leaves[field_id].values.count(None), f"{where}: {count} NULLs of {field_id}"
    for field_id, count in (data_file.value_counts or {}).items():
        if field_id in leaves and not leaves[field_id].is_repeated:
            assert count == len(leaves[field_id].values), f"{where}: values of {field_id}"
    for bounds, is_lower in ((data_file.lower_bounds, True), (data_file.upper_bounds, False)):
        for field_id, encoded in (bounds or {}).items():
            if field_id in leaves:
                _check_bound(fields[field_id], encoded, leaves[field_id].values, is_lower, where)


def _check_bound(field: NestedField, encoded: bytes, values: list[Any], is_lower: bool, where: str) -> None:
    bound = _comparable(field, from_bytes(field.field_type, encoded))
    for value in values:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        value = _comparable(field, value)
        inside = bound <= value if is_lower else value <= bound
        assert inside, f"{where}: {value!r} of {field.name} lies outside its {'lower' if is_lower else 'upper'} bound {bound!r}"


def _comparable(field: NestedField, value: Any) -> Any:
    if isinstance(field.field_type, UUIDType):
        return value if isinstance(value, bytes) else value.bytes
    return value.encode() if isinstance(value, str) else value


def _check_partition(table: IcebergTable, data_file: DataFile, leaves: Mapping[int, _Leaf]) -> None:
    fields = list_fields(table)
    for index, part in enumerate(table.specs()[data_file.spec_id].fields):
        # A column that is in the file's path alone is in no leaf; what readers show of it is the partition value.
        if part.source_id in leaves:
            source = fields[part.source_id]
            transform = part.transform.transform(source.field_type)
            expected = {transform(value) for value in leaves[part.source_id].values}
            said = data_file.partition[index]
            said = _comparable(source, said) if isinstance(said, UUID) else said
            assert expected <= {said}, f"{data_file.file_path}: {part.name} is {said!r}, not {expected}"
