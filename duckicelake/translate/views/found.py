"""A DuckLake view as Iceberg metadata: what was told of it, and what DuckDB has made of it since."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from duckicelake.iceberg.requests.bodies import CreateView
from duckicelake.iceberg.requests.creation import NewIdentity
from duckicelake.iceberg.requests.updates import LAST_ADDED, AddSchema, AddViewVersion, SetCurrentViewVersion
from duckicelake.iceberg.schema import Schema, same_schema
from duckicelake.iceberg.views.view_application import DROP_DIALECT, apply_view_updates, new_view
from duckicelake.iceberg.views.view_metadata import (
    SqlRepresentation,
    ViewMetadata,
    ViewVersion,
    current_version,
    encode_view,
    parse_view,
)
from duckicelake.lake.note_rows import LiveView, ViewNote
from duckicelake.translate.namespaces import to_levels
from duckicelake.translate.views.held import HeldView
from duckicelake.translate.views.names import as_query
from duckicelake.translate.views.spark import DUCKDB, SPARK, find_spark_text
from duckicelake.translate.views.stand_ins import format_for_spark

COMMENT = "comment"
SUMMARY: Mapping[str, str] = {"engine-name": "duckdb"}
METADATA_PATH = "write.metadata.path"


def is_as_told(live: LiveView, note: ViewNote) -> bool:
    """Tell whether DuckLake still has the text that stands for what an Iceberg client said."""
    same = (note.view_id, note.sql, note.column_aliases) == (live.view_id, live.sql, live.column_aliases)
    return same and note.is_told


def parse_note(note: ViewNote) -> ViewMetadata:
    """Return the metadata of a note."""
    return parse_view(json.loads(note.metadata))


def with_comment(view: ViewMetadata, comment: str | None) -> ViewMetadata:
    """Return the view with DuckLake's comment as a property: COMMENT ON VIEW is seen over REST."""
    if view.properties.get(COMMENT) == comment:
        return view
    others = {key: value for key, value in view.properties.items() if key != COMMENT}
    return replace(view, properties=others if comment is None else {**others, COMMENT: comment})


def find_version(live: LiveView, schema: Schema) -> ViewVersion:
    """Return what DuckDB says that a view is. Spark takes any dialect for its own, so it gets a text that is."""
    text = as_query(live.sql)
    spark = find_spark_text(text) or format_for_spark(schema)
    return ViewVersion(
        version_id=1,
        schema_id=LAST_ADDED,
        timestamp_ms=find_time_ms(live),
        summary=SUMMARY,
        representations=(SqlRepresentation(text, DUCKDB), SqlRepresentation(spark, SPARK)),
        default_namespace=to_levels(live.schema_name),
    )


def new_found_view(live: LiveView, schema: Schema, location: str) -> ViewMetadata:
    """Return the metadata of a view that no Iceberg client has ever seen."""
    identity = NewIdentity(str(live.view_uuid), location, find_time_ms(live))
    return new_view(CreateView(live.view_name, schema, find_version(live, schema)), identity)


def follow_found_view(base: ViewMetadata, live: LiveView, schema: Schema) -> ViewMetadata:
    """Return the view with DuckDB's definition as its current version; other dialects are no longer current."""
    known, found = current_version(base), find_version(live, schema)
    known_schema = next(item for item in base.schemas if item.schema_id == known.schema_id)
    is_same = (known.representations, known.default_namespace) == (found.representations, found.default_namespace)
    if is_same and same_schema(known_schema, schema):
        return base
    now_ms = max(find_time_ms(live), _to_ms(live) if is_same else 0)
    updates = (AddSchema(schema), AddViewVersion(replace(found, timestamp_ms=now_ms)), SetCurrentViewVersion(LAST_ADDED))
    willing = replace(base, properties={**base.properties, DROP_DIALECT: "true"})
    return replace(apply_view_updates(willing, updates, now_ms), properties=base.properties)


def find_time_ms(live: LiveView) -> int:
    """Return when DuckDB made the view what it is: its lake snapshot's time, or the head's once that has expired."""
    return int((live.begun_at or live.head_at).timestamp() * 1000)


def _to_ms(live: LiveView) -> int:
    return int(live.head_at.timestamp() * 1000)


def build_note(view_id: int, base: ViewNote | None, view: ViewMetadata, held: HeldView, is_told: bool) -> ViewNote:
    """Return the note of a view's new metadata, one version above the last."""
    content = encode_view(view)
    version = 1 if base is None else base.metadata_version + 1
    digest = hashlib.sha256(content).hexdigest()[:32]
    location = metadata_location(view, version, digest)
    return ViewNote(view_id, version, location, content.decode(), held.sql, held.column_aliases, is_told)


def metadata_location(view: ViewMetadata, metadata_version: int, digest: str) -> str:
    """Return where a view's metadata file lies: by the digest of its bytes, so that no two ever share a place."""
    return f"{metadata_folder(view)}/{metadata_version:05d}-{digest}.metadata.json"


def metadata_folder(view: ViewMetadata) -> str:
    """Return the folder of a view's metadata files, without trailing slash."""
    return view.properties.get(METADATA_PATH, f"{view.location}/metadata").rstrip("/")
