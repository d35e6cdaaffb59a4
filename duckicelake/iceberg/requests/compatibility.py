"""Checks of schemas, partition specs and sort orders that readers would refuse, or by which they would misread existing rows.

`table_draft` and `table_changes` call them while they apply updates or describe a new table. No I/O.
"""

from collections.abc import Mapping

import numpy

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.partition import FIRST_FIELD_ID, PartitionField, PartitionSpec, SortField, SortOrder
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.single_values import parse_value
from duckicelake.iceberg.transforms import result_type
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType, child_fields, walk_fields

VOID = "void"


def check_spec(spec: PartitionSpec, schema: Schema) -> None:
    """Raise BadRequest when the columns of the schema cannot be partitioned by the spec.

    Source: Iceberg spec «Partitioning»; texts of Java's `PartitionSpec.checkCompatibility`
    """
    for item in spec.fields:
        if item.transform != VOID:
            _check_partition_field(item, schema)
    check_partition_names(spec, schema)


def check_partition_names(spec: PartitionSpec, schema: Schema) -> None:
    """Raise BadRequest when a partition field has the name of a column that is not its source: Java could not read the table."""
    for item in spec.fields:
        column = next((column for path, column in walk_fields(schema.fields) if path == item.name), None)
        if column is not None and column.field_id != item.source_id and find_field(schema, item.source_id) is not None:
            raise BadRequest(f"Cannot create identity partition sourced from different field in schema: {item.name}")


def check_sort_order(order: SortOrder, schema: Schema) -> None:
    """Raise BadRequest when rows with the columns of the schema cannot be sorted by the order."""
    for item in order.fields:
        source = find_field(schema, item.source_id)
        if source is None:
            raise BadRequest(f"Cannot find source column for sort field: {_describe_sort_field(item)}")
        if not isinstance(source.type, PrimitiveType):
            raise BadRequest(f"Cannot sort by non-primitive source field: {source.name}")
        if result_type(item.transform, source.type) is None:
            raise BadRequest(f"Invalid source type {source.type} for transform: {item.transform}")


def check_columns(schema: Schema, metadata: TableMetadata) -> None:
    """Raise BadRequest for columns by which existing rows of main would be read differently, or not at all.

    A table whose main branch has no snapshot has no such rows; a table that is being replaced is one.
    Source: Iceberg spec «Default values»: an initial default is for rows older than the field, and never changes
    """
    if metadata.current_snapshot_id is None:
        return
    known: dict[int, list[NestedField]] = {}
    for other in metadata.schemas:
        for _, item in walk_fields(other.fields):
            known.setdefault(item.field_id, []).append(item)
    for path, item in walk_fields(schema.fields):
        before = known.get(item.field_id, [])
        if before and not any(_has_same_default(item, old) for old in before):
            raise BadRequest(
                f"Cannot change the initial default of {path} from {before[-1].initial_default!r} to {item.initial_default!r}: "
                "it is for rows older than the column; change its write-default, or add another column."
            )
    if _has_files(metadata):
        _check_new_fields(schema.fields, known, "")


def _check_new_fields(fields: tuple[NestedField, ...], known: Mapping[int, object], parent: str) -> None:
    """Raise BadRequest for a new required field without default. Fields inside a new optional field are not checked."""
    for item in fields:
        path = f"{parent}.{item.name}" if parent else item.name
        if item.field_id in known:
            _check_new_fields(child_fields(item.type), known, path)
        elif item.required and item.initial_default is None:
            raise BadRequest(
                f"Incompatible change: cannot add required column without a default value: {path}; "
                "the table has rows without it, so make it optional, or give it an initial-default."
            )


def _has_files(metadata: TableMetadata) -> bool:
    current = find_snapshot(metadata, metadata.current_snapshot_id) if metadata.current_snapshot_id is not None else None
    return current is not None and current.summary.get("total-data-files") != "0"


def _has_same_default(new: NestedField, old: NestedField) -> bool:
    """True if both fields have the same initial default. A promoted field may spell it in its new type."""
    if new.initial_default == old.initial_default:
        return True
    if not isinstance(old.type, PrimitiveType) or new.initial_default is None or old.initial_default is None:
        return False
    try:
        return _to_column_value(old.type, new.initial_default) == _to_column_value(old.type, old.initial_default)
    except BadRequest:
        return False


def _to_column_value(type_: PrimitiveType, default: object) -> object:
    """Return the value that a column of this type holds. Java writes the default of a promoted float as a double."""
    value = parse_value(type_, default)
    with numpy.errstate(over="ignore"):
        return numpy.float32(value) if type_.name == "float" and isinstance(value, float) else value


def check_field_ids(spec: PartitionSpec, specs: tuple[PartitionSpec, ...], format_version: int) -> None:
    """Raise BadRequest when a partition field id is out of range or has another meaning in another spec.

    Source: Iceberg spec «Partition Evolution»: readers unite the tuples of all specs by field id
    """
    if format_version == 1 and [item.field_id for item in spec.fields] != list(range(FIRST_FIELD_ID, FIRST_FIELD_ID + len(spec.fields))):
        raise BadRequest(f"Spec does not use sequential IDs that are required in v1: {[item.field_id for item in spec.fields]}")
    known = {item.field_id: item for other in specs for item in other.fields if item.transform != VOID}
    for item in spec.fields:
        if item.field_id < FIRST_FIELD_ID:
            raise BadRequest(f"Invalid partition field {item.name}: its id {item.field_id} is below {FIRST_FIELD_ID}; leave it out")
        found = known.get(item.field_id)
        if found is not None and not _has_same_values(item, found):
            raise BadRequest(
                f"Conflicting partition fields: {_describe_field(found)} and {_describe_field(item)}; give the new one an unused id"
            )


def _check_partition_field(item: PartitionField, schema: Schema) -> None:
    chain = list_ancestors(schema.fields, item.source_id)
    if not chain:
        raise BadRequest(f"Cannot find source column for partition field: {_describe_field(item)}")
    source = chain[-1]
    if not isinstance(source.type, PrimitiveType):
        raise BadRequest(f"Cannot partition by non-primitive source field: {source.name}")
    if result_type(item.transform, source.type) is None:
        raise BadRequest(f"Invalid source type {source.type} for transform: {item.transform}")
    parent = next((parent for parent in chain[:-1] if not isinstance(parent.type, StructType)), None)
    if parent is not None:
        raise BadRequest(f"Invalid partition field parent: {parent.name}, which is a list or map; choose a column outside of it")


def list_ancestors(fields: tuple[NestedField, ...], field_id: int) -> tuple[NestedField, ...]:
    """Return the fields from the root to the field of that id; none when there is no such field."""
    for item in fields:
        below = () if item.field_id == field_id else list_ancestors(child_fields(item.type), field_id)
        if below or item.field_id == field_id:
            return (item, *below)
    return ()


def _has_same_values(a: PartitionField, b: PartitionField) -> bool:
    return a.source_id == b.source_id and (a.transform == b.transform or VOID in (a.transform, b.transform))


def _describe_field(item: PartitionField) -> str:
    return f"{item.field_id}: {item.name}: {item.transform}({item.source_id})"


def _describe_sort_field(item: SortField) -> str:
    return f"{item.transform}({item.source_id}) {item.direction.upper()} {item.null_order.upper().replace('-', ' ')}"
