"""Namespaces as DuckLake schemas; their properties are tags, which DuckDB passes over."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from duckicelake.lake.changes import Change, quote_names
from duckicelake.lake.writing.rows import EndedSchema, EndedTag, LakeHead, LakeStep, NewRow, NewSchema, NewTag
from duckicelake.translate.to_ducklake.names import to_folder


def create_schema(head: LakeHead, schema_name: str, schema_uuid: UUID, properties: Mapping[str, str]) -> LakeStep:
    """Return the step that makes a schema with these tags."""
    schema_id = head.next_catalog_id
    schema = NewSchema(schema_id, schema_uuid, schema_name, to_folder(schema_name, schema_uuid))
    tags = [NewTag(schema_id, key, value) for key, value in properties.items()]
    change = Change("created_schema", quote_names(schema_name))
    return LakeStep((change,), (schema, *tags), True, schema_id + 1, head.next_file_id)


def drop_schema(head: LakeHead, schema_id: int) -> LakeStep:
    """Return the step that ends an empty schema."""
    change = Change("dropped_schema", str(schema_id))
    return LakeStep((change,), (EndedSchema(schema_id),), True, head.next_catalog_id, head.next_file_id)


def change_tags(object_id: int, live: Mapping[str, str], removals: Iterable[str], updates: Mapping[str, str]) -> Sequence[NewRow]:
    """Return the rows that take tags away from an object and give it others; those it has already stay."""
    fresh = {key: value for key, value in updates.items() if live.get(key) != value}
    ended = sorted(live.keys() & {*removals, *fresh})
    return [*(EndedTag(object_id, key) for key in ended), *(NewTag(object_id, key, fresh[key]) for key in sorted(fresh))]


def update_schema(head: LakeHead, rows: Sequence[NewRow]) -> LakeStep:
    """Return the step that changes a schema's tags; DuckLake has no word for it, and no reader of its own to tell."""
    return LakeStep((), tuple(rows), False, head.next_catalog_id, head.next_file_id)
