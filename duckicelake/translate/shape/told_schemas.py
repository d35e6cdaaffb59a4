"""Schemas as Iceberg clients told them: noted whole, and what DuckLake cannot say of them kept when DuckDB changes columns."""

import json
from collections.abc import Mapping, Sequence

from duckicelake.iceberg.encoding.json_reader import as_object
from duckicelake.iceberg.schema import Schema, can_identify, find_field, format_schema, parse_schema
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
from duckicelake.lake.rows import JsonNote
from duckicelake.values import replace


def format_note(schema: Schema) -> str:
    """Return the text a schema is noted under: its fields, without its id; an object when it has identifier fields."""
    node = format_schema(schema)
    kept: object = node["fields"]
    if schema.identifier_field_ids:
        kept = {"identifier-field-ids": sorted(schema.identifier_field_ids), "fields": kept}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


def parse_note(note: JsonNote) -> Schema:
    """Return the schema that a note stands for, under its id."""
    text = f'{{"fields":{note.json}}}' if note.json.startswith("[") else note.json
    return parse_schema({"type": "struct", "schema-id": note.id, **as_object(json.loads(text), "noted schema")})


def parse_notes(notes: Sequence[JsonNote]) -> Mapping[int, Schema]:
    """Return all noted schemas by id."""
    return {note.id: parse_note(note) for note in notes}


def carry_over(fields: tuple[NestedField, ...], before: Schema) -> Schema:
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
