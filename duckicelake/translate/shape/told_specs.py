"""Partition specs as Iceberg clients told them, beside those that DuckLake's own partitionings map to.

DuckLake knows nothing of a told spec: its table is unpartitioned there, and files that DuckDB writes go under a spec
without fields. Only a client's own files have values for it, noted with each file.
"""

import json
import math
from collections.abc import Sequence
from functools import lru_cache

from duckicelake.iceberg.encoding.json_values import format_value, parse_value
from duckicelake.iceberg.partition import PartitionSpec, partition_types
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.rows import FileNote, JsonNote, PartitionRow, TableNotes
from duckicelake.translate.partitions import Partitioning, PartitionKey, PublishedSpec, to_spec
from duckicelake.values import replace

FLOATING = frozenset({"float", "double"})


def format_note(spec: PartitionSpec) -> str:
    """Return the text a told spec is noted under: its fields with their names, without its id."""
    fields = [{"source-id": f.source_id, "field-id": f.field_id, "transform": f.transform, "name": f.name} for f in spec.fields]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=512)
def parse_note(note: JsonNote) -> PublishedSpec | None:
    """Return the spec of a note, or None when it is one of DuckLake's own."""
    fields = json.loads(note.json)
    if any("name" not in field for field in fields):
        return None
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, tuple(field["name"] for field in fields))


@lru_cache(maxsize=512)
def parse_any(note: JsonNote) -> PublishedSpec:
    """Return the spec of a note, with no true names when it is one of DuckLake's own."""
    fields = json.loads(note.json)
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    names = tuple(field.get("name", f"field_{field['field-id']}") for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, names)


def with_told_specs(found: Partitioning, rows: Sequence[PartitionRow], schema: Schema, notes: TableNotes) -> Partitioning:
    """Return a table's partitioning with the specs that clients told, as far as their columns are still there.

    The client's default counts as long as DuckDB did not partition the table anew, or undo that.
    """
    if not notes.shapes:
        return found
    told = [spec for spec in map(parse_note, notes.specs) if spec is not None and _is_whole(spec, schema)]
    is_native = notes.table is not None and notes.table.is_native
    specs: dict[int, PublishedSpec] = {spec.spec_id: spec for spec in found.specs if spec.spec_id or not is_native}
    specs |= {spec.spec_id: spec for spec in told}
    unproven = next((spec for spec in specs.values() if not spec.keys), None)
    new_notes = found.new_notes
    if unproven is None:
        taken = [*specs, *(note.id for note in (*notes.specs, *new_notes))]
        unproven = PublishedSpec(max(taken) + 1, (), ())
        new_notes = (*new_notes, JsonNote(unproven.spec_id, "[]"))
    specs[unproven.spec_id] = unproven
    by_duckdb = any(row.end_snapshot is None for row in rows)
    default = specs.get(found.default_spec_id if by_duckdb else notes.shapes[-1].spec_id, unproven)
    if by_duckdb and found.default_spec_id == 0:
        default = unproven
    ordered = tuple(specs[spec_id] for spec_id in sorted(specs))
    return replace(found, specs=ordered, default_spec_id=default.spec_id, new_notes=new_notes, unproven=unproven)


def _is_whole(spec: PublishedSpec, schema: Schema) -> bool:
    return all(key.transform == "void" or find_field(schema, key.source_id) is not None for key in spec.keys)


def without_unused(found: Partitioning, is_used: bool) -> Partitioning:
    """Return a partitioning without the spec of unproven files, when it would be a new one and there is no such file."""
    found = replace(found, is_unproven_used=is_used)
    fresh = {note.id for note in found.new_notes if note.json == "[]"}
    if is_used or found.unproven.spec_id not in fresh or found.default_spec_id == found.unproven.spec_id:
        return found
    specs = tuple(spec for spec in found.specs if spec is not found.unproven)
    return replace(found, specs=specs, new_notes=tuple(note for note in found.new_notes if note.id not in fresh))


def format_partition(spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> str:
    """Return a partition tuple as a JSON array of single values; NaN and infinities, of which JSON has none, are strings."""
    types = partition_types(spec, schema)
    return json.dumps([format_tuple_value(type_, value) for type_, value in zip(types, values, strict=True)], separators=(",", ":"))


def format_tuple_value(type_: PrimitiveType, value: object) -> object:
    """Return a value of a partition tuple as JSON; NaN and infinities are strings. Raises BadRequest: it is none of the type."""
    if type_.name in FLOATING and isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return format_value(type_, value)


def parse_tuple_value(type_: PrimitiveType, node: object) -> object:
    """Return the value of a partition tuple that JSON spells."""
    return float(node) if type_.name in FLOATING and isinstance(node, str) else parse_value(type_, node)


def find_partition(note: FileNote | None, partitioning: Partitioning, schema: Schema) -> tuple[PublishedSpec, tuple[object, ...]] | None:
    """Return the spec and the partition tuple that a client gave a file; None when it gave none that can still be said."""
    spec = None if note is None else partitioning.find(note.spec_id)
    if note is None or spec is None:
        return None
    types = partition_types(to_spec(spec, schema), schema)
    values: list[object] = json.loads(note.partition)
    return spec, tuple(parse_tuple_value(type_, value) for type_, value in zip(types, values, strict=True))
