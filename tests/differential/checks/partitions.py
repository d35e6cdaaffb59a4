"""What a manifest list says of a manifest's partitions is true of the manifest's entries."""

import math
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import NestedField


def list_fields(table: IcebergTable) -> dict[int, NestedField]:
    """The newest definition of every field the table ever had."""
    fields: dict[int, NestedField] = {}
    for schema in sorted(table.schemas().values(), key=lambda schema: schema.schema_id):
        fields.update(_fields_of(schema))
    return fields


def _fields_of(schema: Schema) -> dict[int, NestedField]:
    return {field_id: schema.find_field(field_id) for field_id in schema.field_ids}


def check_partitions(table: IcebergTable, manifest: ManifestFile, entries: Iterable[ManifestEntry]) -> None:
    """Every partition value of a live entry lies in the range that the list gives, NULL and NaN where it says so."""
    spec, fields = table.specs()[manifest.partition_spec_id], list_fields(table)
    summaries = manifest.partitions or []
    assert len(summaries) == len(spec.fields), manifest.manifest_path
    for index, (part, summary) in enumerate(zip(spec.fields, summaries, strict=True)):
        values = [entry.data_file.partition[index] for entry in entries]
        assert summary.contains_null or None not in values, f"{manifest.manifest_path}: {part.name} has NULL"
        numbers = [value for value in values if value is not None and not _is_nan(value)]
        assert summary.contains_nan is not False or not any(map(_is_nan, values)), f"{manifest.manifest_path}: {part.name} has NaN"
        if numbers:
            kind = part.transform.result_type(fields[part.source_id].field_type)
            assert summary.lower_bound is not None
            assert summary.upper_bound is not None
            lower, upper = (_comparable(from_bytes(kind, bound)) for bound in (summary.lower_bound, summary.upper_bound))
            inside = all(lower <= _comparable(value) <= upper for value in numbers)
            assert inside, f"{manifest.manifest_path}: {part.name} of {numbers} lies outside {lower!r} to {upper!r}"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _comparable(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value.encode() if isinstance(value, str) else value
