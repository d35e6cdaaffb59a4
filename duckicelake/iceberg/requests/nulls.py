"""Data files that bring NULLs into required columns, as far as their own counts say so. The plan of a commit calls this under the lock."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import list_leaf_fields
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType

METRICS = "write.metadata.metrics."
MAX_INFERRED = f"{METRICS}max-inferred-column-defaults"
MAX_INFERRED_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class RequiredColumns:
    """The required columns of a table by full name, and its specs. `is_counted`: writers note something of every column of a file."""

    required: Sequence[tuple[str, NestedField]]
    specs: Mapping[int, PartitionSpec]
    is_counted: bool


def build_required_columns(metadata: TableMetadata) -> RequiredColumns:
    """Return what the current schema of a table asks of its new files.

    Java (1.11) notes neither counts nor sizes of columns whose metrics are off, as they are for those above the first 100.
    """
    schema, properties = get_current_schema(metadata), metadata.properties
    modes = [value for key, value in properties.items() if key.startswith(METRICS)]
    is_off = MAX_INFERRED in properties or any(mode.lower() == "none" for mode in modes)
    required = list(_list_required(schema.fields, ""))
    is_counted = bool(required) and not is_off and len(list(list_leaf_fields(schema))) <= MAX_INFERRED_DEFAULT
    return RequiredColumns(required, {spec.spec_id: spec for spec in metadata.partition_specs}, is_counted)


def check_required_columns(file: DataFile, spec_id: int, rules: RequiredColumns) -> None:
    """Raise BadRequest for a data file whose counts say that a required column holds a NULL, or is not in the file.

    Files that count nothing are taken. Identity partition values stand in for columns that a file lacks.
    Source: Iceberg spec «Column Projection»
    """
    if not rules.required or not file.record_count:
        return
    spec = rules.specs.get(spec_id)
    identity = {item.source_id for item in spec.fields if item.transform == "identity"} if spec is not None else set[int]()
    for path, item in rules.required:
        nulls = (file.null_value_counts or {}).get(item.field_id, 0)
        if nulls > 0:
            raise BadRequest(
                f"Data file {file.file_path!r} has {nulls} NULLs in column {path!r}, which is required; "
                "write values there, or make the column optional first."
            )
        if rules.is_counted and _is_missing(file, item) and item.field_id not in identity:
            raise BadRequest(
                f"Data file {file.file_path!r} lacks column {path!r}, which is required and has no initial default; "
                "write the column, or make it optional first."
            )


def _list_required(fields: Iterable[NestedField], parent: str) -> Iterator[tuple[str, NestedField]]:
    """Return the required leaves that are part of required structs only: in others, a NULL may be that of what a leaf is part of."""
    for item in fields:
        path = f"{parent}.{item.name}" if parent else item.name
        if item.required and isinstance(item.type, StructType):
            yield from _list_required(item.type.fields, path)
        elif item.required and isinstance(item.type, PrimitiveType):
            yield path, item


def _is_missing(file: DataFile, item: NestedField) -> bool:
    """Return True if a file says something of other columns and nothing of this one, which has no default."""
    told = {*(file.column_sizes or ()), *(file.value_counts or ()), *(file.null_value_counts or ())}
    return bool(file.value_counts) and item.field_id not in told and item.initial_default is None
