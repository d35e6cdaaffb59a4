"""The model's types and values as PyIceberg and Arrow take them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, assert_never

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from tests.differential.generator.kinds import Column, Kind, Listing, Scalar, Struct, Value, format_iceberg_type
from tests.differential.generator.kinds import Mapping as MapKind


def to_schema(columns: Sequence[Column]) -> Schema:
    """The Iceberg schema of columns, with ids that the catalog may give again."""
    ids = count(1)
    return Schema(*(_to_field(column, ids) for column in columns))


def to_iceberg_type(kind: Kind) -> IcebergType:
    """One type, its parts numbered from 1."""
    return _to_type(kind, count(1))


def _to_field(column: Column, ids: Iterator[int]) -> NestedField:
    return NestedField(next(ids), column.name, _to_type(column.kind, ids), required=column.required)


def _to_type(kind: Kind, ids: Iterator[int]) -> IcebergType:
    match kind:
        case Scalar():
            return NestedField(1, "x", format_iceberg_type(kind)).field_type
        case Struct(fields):
            return StructType(*(_to_field(part, ids) for part in fields))
        case Listing(element):
            return ListType(next(ids), _to_type(element, ids), element_required=False)
        case MapKind(key, value):
            return MapType(next(ids), _to_type(key, ids), next(ids), _to_type(value, ids), value_required=False)
        case _:
            assert_never(kind)


def to_arrow(columns: Sequence[Column], rows: Iterable[Mapping[int, Value]], schema: Schema) -> pa.Table:
    """Rows of the model as a table that PyIceberg writes under a schema of the same columns."""
    cells = [{column.name: _to_python(column.kind, row.get(column.column_id)) for column in columns} for row in rows]
    return pa.Table.from_pylist(cells, schema=schema_to_pyarrow(schema))


def _to_python(kind: Kind, value: Value) -> Any:
    if value is None:
        return None
    match kind:
        case Scalar():
            return value
        case Struct(fields):
            by_id = dict(value)
            return {part.name: _to_python(part.kind, by_id.get(part.column_id)) for part in fields}
        case Listing(element):
            return [_to_python(element, part) for part in value]
        case MapKind(key, part_kind):
            return [(_to_python(key, k), _to_python(part_kind, v)) for k, v in value]
        case _:
            assert_never(kind)
