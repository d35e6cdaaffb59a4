"""Schemas and partition specs that an Iceberg client removed: they are not published, but their ids stay taken.

DuckLake's rows of the past still use them, so they are published again when a published snapshot needs them.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.note_rows import MarkedSchema, MarkedSpec
from duckicelake.lake.rows import JsonNote, TableNotes
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate import client_schemas
from duckicelake.translate.partitions import to_spec


def with_removed(metadata: TableMetadata, notes: TableNotes) -> TableMetadata:
    """Return the metadata that a request is applied to: it includes removed schemas and specs, so that their ids are not reused.

    It also includes specs that are not published because a column of theirs is gone.
    """
    published_ids = {schema.schema_id for schema in metadata.schemas}, {spec.spec_id for spec in metadata.partition_specs}
    schemas = tuple(client_schemas.parse_schema_note(note) for note in _removed(notes.schemas) if note.id not in published_ids[0])
    specs = tuple(to_spec(client_schemas.parse_spec_note(note), Schema(0, ())) for note in notes.specs if note.id not in published_ids[1])
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
    own = removed & {note.id for note in notes.specs if client_schemas.parse_client_spec(note) is None}
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
