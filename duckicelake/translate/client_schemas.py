"""Schemas and partition specs of Iceberg clients: their notes, what survives in them when DuckDB changes columns, and the removed ones.

Schemas and specs that a client removed are not published, but their ids stay taken. DuckLake's rows of the past still use them, so they are
published again when a published snapshot needs them. `catalog` and `translate` call this for loads and commits, and Spark executors of
`publish` find the partitions of files with it. No I/O.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import PartitionSpec, list_partition_types
from duckicelake.iceberg.schema import Schema, can_identify, find_field, format_schema, parse_schema
from duckicelake.iceberg.single_values import format_value, parse_value
from duckicelake.iceberg.snapshots import Snapshot
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
from duckicelake.lake.note_rows import MarkedSchema, MarkedSpec
from duckicelake.lake.rows import FileNote, JsonNote, PartitionRow, TableNotes
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.partitions import UNPARTITIONED, VOID, Partitioning, PartitionKey, PublishedSpec, is_partitioned_alike, to_spec


def format_schema_note(schema: Schema) -> str:
    """Return the text of a schema's note: its fields, without its id; an object if it has identifier fields."""
    node = format_schema(schema)
    noted: object = node["fields"]
    if schema.identifier_field_ids:
        noted = {"identifier-field-ids": sorted(schema.identifier_field_ids), "fields": noted}
    return json.dumps(noted, separators=(",", ":"), ensure_ascii=False)


def parse_schema_note(note: JsonNote) -> Schema:
    """Return the schema of a note, under the note's id."""
    text = f'{{"fields":{note.json}}}' if note.json.startswith("[") else note.json
    return parse_schema({"type": "struct", "schema-id": note.id, **as_object(json.loads(text), "noted schema")})


def parse_schema_notes(notes: Sequence[JsonNote]) -> Mapping[int, Schema]:
    """Return all noted schemas by id."""
    return {note.id: parse_schema_note(note) for note in notes}


def carry_over_schema(fields: tuple[NestedField, ...], before: Schema) -> Schema:
    """Return a schema of DuckLake's columns with the properties of an older schema that DuckLake cannot store.

    These are docs and NOT NULL below the root, defaults, lengths of `fixed` columns, identifier fields, and the order of fields.
    """
    old_fields = {item.field_id: item for _, item in walk_fields(before.fields)}
    merged = _in_order([_merge(item, old_fields, is_root=True) for item in fields], old_fields)
    schema = Schema(0, merged)
    identifiers = ((i, find_field(schema, i)) for i in before.identifier_field_ids)
    kept_ids = tuple(i for i, item in identifiers if item is not None and can_identify(item))
    return replace(schema, identifier_field_ids=kept_ids)


def _merge(item: NestedField, old_fields: Mapping[int, NestedField], *, is_root: bool) -> NestedField:
    old = old_fields.get(item.field_id)
    merged = replace(item, type=_merge_type(item.type, old, old_fields))
    if old is None:
        return merged
    initial = old.initial_default if merged.initial_default is None else merged.initial_default
    write = old.write_default if merged.write_default is None else merged.write_default
    merged = replace(merged, initial_default=initial, write_default=_fit_length(merged.type, write))
    return merged if is_root else replace(merged, doc=old.doc, required=old.required)


def _fit_length(type_: IcebergType, default: object) -> object:
    """Return a default, or None for one that DuckDB gave a `fixed` column in another length."""
    length = find_fixed_length(type_) if isinstance(type_, PrimitiveType) else None
    return None if length is not None and isinstance(default, str) and len(default) != 2 * length else default


def _in_order(fields: Sequence[NestedField], old_fields: Mapping[int, NestedField]) -> tuple[NestedField, ...]:
    """Return siblings in the order of the older schema, new ones last."""
    order = {field_id: position for position, field_id in enumerate(old_fields)}
    return tuple(sorted(fields, key=lambda item: order.get(item.field_id, len(order))))


def _merge_type(type_: IcebergType, old_field: NestedField | None, old_fields: Mapping[int, NestedField]) -> IcebergType:
    match type_:
        case StructType(fields):
            return StructType(_in_order([_merge(item, old_fields, is_root=False) for item in fields], old_fields))
        case ListType(element_id, element_type, required):
            old = old_fields.get(element_id)
            return ListType(element_id, _merge_type(element_type, old, old_fields), required if old is None else old.required)
        case MapType(key_id, key_type, value_id, value_type, required):
            old = old_fields.get(value_id)
            value_required = required if old is None else old.required
            key = _merge_type(key_type, old_fields.get(key_id), old_fields)
            return MapType(key_id, key, value_id, _merge_type(value_type, old, old_fields), value_required)
        case PrimitiveType(name):
            is_fixed = old_field is not None and isinstance(old_field.type, PrimitiveType) and find_fixed_length(old_field.type) is not None
            return old_field.type if old_field is not None and is_fixed and name == "binary" else type_


FLOATING = frozenset({"float", "double"})


def format_spec_note(spec: PartitionSpec) -> str:
    """Return the text of a client spec's note: its fields with their names, without its id."""
    fields = [{"source-id": f.source_id, "field-id": f.field_id, "transform": f.transform, "name": f.name} for f in spec.fields]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=512)
def parse_client_spec(note: JsonNote) -> PublishedSpec | None:
    """Return the client's spec of a note, or None if the spec is one of DuckLake's own."""
    fields = json.loads(note.json)
    if any("name" not in field for field in fields):
        return None
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, tuple(field["name"] for field in fields))


@lru_cache(maxsize=512)
def parse_spec_note(note: JsonNote) -> PublishedSpec:
    """Return the spec of a note; with made-up names if it is one of DuckLake's own."""
    fields = json.loads(note.json)
    keys = tuple(PartitionKey(field["source-id"], field["transform"], ()) for field in fields)
    names = tuple(field.get("name", f"field_{field['field-id']}") for field in fields)
    return PublishedSpec(note.id, tuple(field["field-id"] for field in fields), keys, names)


def with_client_specs(derived: Partitioning, rows: Sequence[PartitionRow], schema: Schema, notes: TableNotes) -> Partitioning:
    """Return a table's partitioning with the specs of clients, as far as their columns still exist.

    The client's default spec applies unless DuckDB has partitioned the table otherwise since, or reset its partitioning.
    """
    if not notes.shapes:
        return derived
    client_specs = [spec for spec in map(parse_client_spec, notes.specs) if spec is not None and _is_whole(spec, schema)]
    is_native = notes.table is not None and notes.table.is_native
    specs: dict[int, PublishedSpec] = {} if is_native else {UNPARTITIONED.spec_id: UNPARTITIONED}
    specs |= {spec.spec_id: spec for spec in (*client_specs, *derived.by_partition_id.values())}
    unproven = next((spec for spec in specs.values() if not spec.keys), None)
    new_notes = derived.new_notes
    if unproven is None:
        taken_ids = [*specs, *(note.id for note in (*notes.specs, *new_notes))]
        unproven = PublishedSpec(max(taken_ids) + 1, (), ())
        new_notes = (*new_notes, JsonNote(unproven.spec_id, "[]"))
    specs[unproven.spec_id] = unproven
    default = specs.get(notes.shapes[-1].spec_id, unproven)
    live = [row.partition_id for row in rows if row.end_snapshot is None]
    if live:
        in_lake = derived.by_partition_id.get(live[-1], unproven)
        default = default if is_partitioned_alike(default, in_lake) else in_lake
    ordered = tuple(specs[spec_id] for spec_id in sorted(specs))
    return replace(derived, specs=ordered, default_spec_id=default.spec_id, new_notes=new_notes, unproven=unproven)


def _is_whole(spec: PublishedSpec, schema: Schema) -> bool:
    return all(key.transform == VOID or find_field(schema, key.source_id) is not None for key in spec.keys)


def without_unused_spec(partitioning: Partitioning, is_used: bool) -> Partitioning:
    """Return a partitioning without the spec of unproven files if that is new and no file needs it."""
    partitioning = replace(partitioning, is_unproven_used=is_used)
    new_ids = {note.id for note in partitioning.new_notes if note.json == "[]"}
    if is_used or partitioning.unproven.spec_id not in new_ids or partitioning.default_spec_id == partitioning.unproven.spec_id:
        return partitioning
    specs = tuple(spec for spec in partitioning.specs if spec is not partitioning.unproven)
    return replace(partitioning, specs=specs, new_notes=tuple(note for note in partitioning.new_notes if note.id not in new_ids))


def format_partition(spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> str:
    """Return a partition tuple as a JSON array of single values; NaN and infinities, which JSON lacks, are strings."""
    types = list_partition_types(spec, schema)
    return json.dumps([format_tuple_value(type_, value) for type_, value in zip(types, values, strict=True)], separators=(",", ":"))


def format_tuple_value(type_: PrimitiveType, value: object) -> object:
    """Return a value of a partition tuple as JSON; NaN and infinities are strings. Raises BadRequest: it does not have the type."""
    if type_.name in FLOATING and isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return format_value(type_, value)


def parse_tuple_value(type_: PrimitiveType, node: object) -> object:
    """Return the value of a partition tuple from its JSON."""
    return float(node) if type_.name in FLOATING and isinstance(node, str) else parse_value(type_, node)


def find_client_partition(
    note: FileNote | None, partitioning: Partitioning, schema: Schema
) -> tuple[PublishedSpec, tuple[object, ...]] | None:
    """Return the spec and the partition tuple that a client gave a file; None if it gave none, or its spec is gone."""
    spec = None if note is None else partitioning.find(note.spec_id)
    if note is None or spec is None:
        return None
    types = list_partition_types(to_spec(spec, schema), schema)
    values: list[object] = json.loads(note.partition)
    return spec, tuple(parse_tuple_value(type_, value) for type_, value in zip(types, values, strict=True))


def with_removed(metadata: TableMetadata, notes: TableNotes) -> TableMetadata:
    """Return the metadata that a request is applied to: it includes removed schemas and specs, so that their ids are not reused.

    It also includes specs that are not published because a column of theirs is gone.
    """
    published_ids = {schema.schema_id for schema in metadata.schemas}, {spec.spec_id for spec in metadata.partition_specs}
    schemas = tuple(parse_schema_note(note) for note in _removed(notes.schemas) if note.id not in published_ids[0])
    specs = tuple(to_spec(parse_spec_note(note), Schema(0, ())) for note in notes.specs if note.id not in published_ids[1])
    if not schemas and not specs:
        return metadata
    return replace(
        metadata,
        schemas=tuple(sorted((*metadata.schemas, *schemas), key=lambda item: item.schema_id)),
        partition_specs=tuple(sorted((*metadata.partition_specs, *specs), key=lambda item: item.spec_id)),
    )


def mark_removed(table_id: int, notes: TableNotes, base: TableMetadata, new: TableMetadata, used_specs: Collection[int]) -> list[NewRow]:
    """Return the marks for schemas and specs that a request removes; `used_specs` are those of the files it adds.

    A schema or spec that the request uses is no longer marked as removed.
    Raises: BadRequest: a spec is DuckLake's own
    """
    rows: list[NewRow] = []
    before = {note.id for note in _removed(notes.schemas)}
    removed = {item.schema_id for item in base.schemas} - {item.schema_id for item in new.schemas}
    after = (before | removed) - {new.current_schema_id}
    rows += (MarkedSchema(table_id, schema_id, schema_id in after) for schema_id in sorted(before ^ after))
    before = {note.id for note in _removed(notes.specs)}
    removed = {item.spec_id for item in base.partition_specs} - {item.spec_id for item in new.partition_specs}
    own = removed & {note.id for note in notes.specs if parse_client_spec(note) is None}
    if own:
        raise BadRequest(f"Cannot remove partition spec {min(own)}: DuckDB made it, and its partitioning stays in the lake's history.")
    after = (before | removed) - {new.default_spec_id, *used_specs}
    rows += (MarkedSpec(table_id, spec_id, spec_id in after) for spec_id in sorted(before ^ after))
    return rows


def check_unused(base: TableMetadata, new: TableMetadata, used: Collection[int]) -> None:
    """Raise BadRequest if a spec is removed that manifests of the remaining snapshots use."""
    removed = {item.spec_id for item in base.partition_specs} - {item.spec_id for item in new.partition_specs}
    if removed & set(used):
        raise BadRequest(
            f"Cannot remove partition spec {min(removed & set(used))}: files of a snapshot have it; remove the snapshot first."
        )


def select_visible_schemas(
    schemas: Iterable[Schema], notes: TableNotes, current_id: int, snapshots: Iterable[Snapshot]
) -> tuple[Schema, ...]:
    """Return the schemas without the removed ones, except the current schema and those of snapshots."""
    hidden = {note.id for note in _removed(notes.schemas)}
    if hidden:
        hidden -= {current_id, *(snapshot.schema_id for snapshot in snapshots if snapshot.schema_id is not None)}
    return tuple(schema for schema in schemas if schema.schema_id not in hidden)


def select_visible_specs(specs: Iterable[PartitionSpec], notes: TableNotes, needed: Collection[int]) -> tuple[PartitionSpec, ...]:
    """Return the specs without the removed ones, unless they are needed."""
    hidden = {note.id for note in _removed(notes.specs)} - set(needed)
    return tuple(spec for spec in specs if spec.spec_id not in hidden)


def _removed(notes: Iterable[JsonNote]) -> list[JsonNote]:
    return [note for note in notes if note.is_removed]
