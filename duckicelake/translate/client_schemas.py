"""Schemas as Iceberg clients told them: noted whole, and what DuckLake cannot say of them kept when DuckDB changes columns."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from duckicelake.iceberg.json_reader import as_object
from duckicelake.iceberg.partition import PartitionSpec, list_partition_types
from duckicelake.iceberg.schema import Schema, can_identify, find_field, format_schema, parse_schema
from duckicelake.iceberg.single_values import format_value, parse_value
from duckicelake.iceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    find_fixed_length,
    walk_fields,
)
from duckicelake.lake.rows import FileNote, JsonNote, PartitionRow, TableNotes
from duckicelake.translate.partitions import Partitioning, PartitionKey, PublishedSpec, to_spec
from duckicelake.values import replace


def format_schema_note(schema: Schema) -> str:
    """Return the text a schema is noted under: its fields, without its id; an object when it has identifier fields."""
    node = format_schema(schema)
    kept: object = node["fields"]
    if schema.identifier_field_ids:
        kept = {"identifier-field-ids": sorted(schema.identifier_field_ids), "fields": kept}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


def parse_schema_note(note: JsonNote) -> Schema:
    """Return the schema that a note stands for, under its id."""
    text = f'{{"fields":{note.json}}}' if note.json.startswith("[") else note.json
    return parse_schema({"type": "struct", "schema-id": note.id, **as_object(json.loads(text), "noted schema")})


def parse_schema_notes(notes: Sequence[JsonNote]) -> Mapping[int, Schema]:
    """Return all noted schemas by id."""
    return {note.id: parse_schema_note(note) for note in notes}


def carry_over_schema(fields: tuple[NestedField, ...], before: Schema) -> Schema:
    """Return columns as DuckLake says them, with what an older schema said of the same ones and DuckLake cannot.

    That is: docs and NOT NULL below the root, defaults, the length of `fixed` columns, which columns identify a row, and their order.
    """
    known = {item.field_id: item for _, item in walk_fields(before.fields)}
    merged = _in_order([_merge(item, known, is_root=True) for item in fields], known)
    schema = Schema(0, merged)
    still = ((i, find_field(schema, i)) for i in before.identifier_field_ids)
    kept = tuple(i for i, item in still if item is not None and can_identify(item))
    return replace(schema, identifier_field_ids=kept)


def _merge(item: NestedField, known: Mapping[int, NestedField], *, is_root: bool) -> NestedField:
    old = known.get(item.field_id)
    merged = replace(item, type=_merge_type(item.type, old, known))
    if old is None:
        return merged
    initial = old.initial_default if merged.initial_default is None else merged.initial_default
    write = old.write_default if merged.write_default is None else merged.write_default
    merged = replace(merged, initial_default=initial, write_default=write)
    return merged if is_root else replace(merged, doc=old.doc, required=old.required)


def _in_order(fields: Sequence[NestedField], known: Mapping[int, NestedField]) -> tuple[NestedField, ...]:
    """Return siblings in the order of those that are known, new ones behind them."""
    places = {field_id: place for place, field_id in enumerate(known)}
    return tuple(sorted(fields, key=lambda item: places.get(item.field_id, len(places))))


def _merge_type(type_: IcebergType, told: NestedField | None, known: Mapping[int, NestedField]) -> IcebergType:
    match type_:
        case StructType(fields):
            return StructType(_in_order([_merge(item, known, is_root=False) for item in fields], known))
        case ListType(element_id, element_type, required):
            old = known.get(element_id)
            return ListType(element_id, _merge_type(element_type, old, known), required if old is None else old.required)
        case MapType(key_id, key_type, value_id, value_type, required):
            old = known.get(value_id)
            value_required = required if old is None else old.required
            key = _merge_type(key_type, known.get(key_id), known)
            return MapType(key_id, key, value_id, _merge_type(value_type, old, known), value_required)
        case PrimitiveType(name):
            is_fixed = told is not None and isinstance(told.type, PrimitiveType) and find_fixed_length(told.type) is not None
            return told.type if told is not None and is_fixed and name == "binary" else type_


FLOATING = frozenset({"float", "double"})


def format_spec_note(spec: PartitionSpec) -> str:
    """Return the text a told spec is noted under: its fields with their names, without its id."""
    fields = [{"source-id": f.source_id, "field-id": f.field_id, "transform": f.transform, "name": f.name} for f in spec.fields]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=512)
def parse_client_spec(note: JsonNote) -> PublishedSpec | None:
    """Return the spec of a note, or None when it is one of DuckLake's own."""
    fields = json.loads(note.json)
    if any("name" not in field for field in fields):
        return None
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, tuple(field["name"] for field in fields))


@lru_cache(maxsize=512)
def parse_spec_note(note: JsonNote) -> PublishedSpec:
    """Return the spec of a note, with no true names when it is one of DuckLake's own."""
    fields = json.loads(note.json)
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    names = tuple(field.get("name", f"field_{field['field-id']}") for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, names)


def with_client_specs(found: Partitioning, rows: Sequence[PartitionRow], schema: Schema, notes: TableNotes) -> Partitioning:
    """Return a table's partitioning with the specs that clients told, as far as their columns are still there.

    The client's default counts as long as DuckDB did not partition the table anew, or undo that.
    """
    if not notes.shapes:
        return found
    told = [spec for spec in map(parse_client_spec, notes.specs) if spec is not None and _is_whole(spec, schema)]
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


def without_unused_spec(found: Partitioning, is_used: bool) -> Partitioning:
    """Return a partitioning without the spec of unproven files, when it would be a new one and there is no such file."""
    found = replace(found, is_unproven_used=is_used)
    fresh = {note.id for note in found.new_notes if note.json == "[]"}
    if is_used or found.unproven.spec_id not in fresh or found.default_spec_id == found.unproven.spec_id:
        return found
    specs = tuple(spec for spec in found.specs if spec is not found.unproven)
    return replace(found, specs=specs, new_notes=tuple(note for note in found.new_notes if note.id not in fresh))


def format_partition(spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> str:
    """Return a partition tuple as a JSON array of single values; NaN and infinities, of which JSON has none, are strings."""
    types = list_partition_types(spec, schema)
    return json.dumps([format_tuple_value(type_, value) for type_, value in zip(types, values, strict=True)], separators=(",", ":"))


def format_tuple_value(type_: PrimitiveType, value: object) -> object:
    """Return a value of a partition tuple as JSON; NaN and infinities are strings. Raises BadRequest: it is none of the type."""
    if type_.name in FLOATING and isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return format_value(type_, value)


def parse_tuple_value(type_: PrimitiveType, node: object) -> object:
    """Return the value of a partition tuple that JSON spells."""
    return float(node) if type_.name in FLOATING and isinstance(node, str) else parse_value(type_, node)


def find_client_partition(
    note: FileNote | None, partitioning: Partitioning, schema: Schema
) -> tuple[PublishedSpec, tuple[object, ...]] | None:
    """Return the spec and the partition tuple that a client gave a file; None when it gave none that can still be said."""
    spec = None if note is None else partitioning.find(note.spec_id)
    if note is None or spec is None:
        return None
    types = list_partition_types(to_spec(spec, schema), schema)
    values: list[object] = json.loads(note.partition)
    return spec, tuple(parse_tuple_value(type_, value) for type_, value in zip(types, values, strict=True))
