"""What a manifest says of a data file is true of the file: size, counts, bounds, partition.

The file is read by PyArrow; bounds and partition values are decoded by PyIceberg.
"""

import io
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import NestedField, UUIDType

from tests.differential.manifests import read_bytes

_FIELD_ID = b"PARQUET:field_id"


def check_contents(table: IcebergTable, entry: ManifestEntry) -> None:
    """Read one file and compare it with its manifest entry."""
    data_file = entry.data_file
    content = read_bytes(table.io, data_file.file_path)
    assert len(content) == data_file.file_size_in_bytes, data_file.file_path
    if str(data_file.file_format.value).lower() != "parquet":
        return
    rows = pq.read_table(io.BytesIO(content))
    assert len(rows) == data_file.record_count, data_file.file_path
    if data_file.content == DataFileContent.DATA:
        leaves = {field_id: _Leaf(array, is_repeated) for field_id, array, is_repeated in _list_leaves(rows)}
        _check_metrics(_all_fields(table), data_file, leaves)
        _check_partition(table.specs()[data_file.spec_id], table.schema(), data_file, leaves)


class _Leaf:
    """The values of one leaf column, nested ones flattened."""

    def __init__(self, array: pa.ChunkedArray, is_repeated: bool) -> None:
        self.values = _to_iceberg(array)
        self.is_repeated = is_repeated


def _all_fields(table: IcebergTable) -> dict[int, NestedField]:
    """The newest definition of every field the table ever had."""
    fields: dict[int, NestedField] = {}
    for schema in sorted(table.schemas().values(), key=lambda schema: schema.schema_id):
        fields.update(_fields_of(schema))
    return fields


def _fields_of(schema: Schema) -> dict[int, NestedField]:
    return {field_id: schema.find_field(field_id) for field_id in schema.field_ids}


def _list_leaves(rows: pa.Table) -> Iterator[tuple[int, pa.ChunkedArray, bool]]:
    for index, field in enumerate(rows.schema):
        yield from _walk(field, rows.column(index), False)


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
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).to_pylist()
    return array.to_pylist()


def _check_metrics(fields: dict[int, NestedField], data_file: DataFile, leaves: dict[int, _Leaf]) -> None:
    where = data_file.file_path
    for field_id, count in (data_file.null_value_counts or {}).items():
        if field_id in leaves and not leaves[field_id].is_repeated:
            assert count == leaves[field_id].values.count(None), f"{where}: NULLs of {field_id}"
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


def _check_partition(spec: PartitionSpec, schema: Schema, data_file: DataFile, leaves: dict[int, _Leaf]) -> None:
    for index, part in enumerate(spec.fields):
        source = schema.find_field(part.source_id)
        transform = part.transform.transform(source.field_type)
        expected = {transform(value) for value in leaves[part.source_id].values}
        assert expected <= {data_file.partition[index]}, (
            f"{data_file.file_path}: {part.name} is {data_file.partition[index]!r}, not {expected}"
        )
