"""What DuckLake keeps of an Iceberg view: a query that DuckDB reads as the view means it, or one that says why not."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from duckicelake.iceberg.requests.bodies import CreateView
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.updates import LAST_ADDED, AddSchema, AddViewVersion, SetCurrentViewVersion
from duckicelake.iceberg.requests.view_changes import DROP_DIALECT, apply_view_updates, build_new_view
from duckicelake.iceberg.schema import Schema, is_same_schema
from duckicelake.iceberg.view_metadata import (
    SqlRepresentation,
    ViewMetadata,
    ViewVersion,
    encode_view,
    get_current_version,
    parse_view,
)
from duckicelake.lake.note_rows import LiveView, ViewNote
from duckicelake.translate.namespaces import fold_name, to_levels
from duckicelake.translate.views.columns import format_sql_type, quote
from duckicelake.translate.views.names import NameContext, as_query, find_qualified_query
from duckicelake.translate.views.parser import Parser
from duckicelake.translate.views.spark import DUCKDB, SPARK, find_spark_text, find_translation

SPARK_COLUMNS = "spark.query-column-names"


@dataclass(frozen=True, slots=True)
class DuckLakeView:
    """The text and the column names of a `ducklake_view`. `is_readable`: DuckDB can select from it."""

    sql: str
    column_aliases: str
    is_readable: bool = True


def to_ducklake_view(parser: Parser, view: ViewMetadata, catalog_name: str) -> DuckLakeView:
    """Return what DuckLake keeps of a view's current version."""
    version = get_current_version(view)
    schema = next(item for item in view.schemas if item.schema_id == version.schema_id)
    is_own = version.default_catalog is None or fold_name(version.default_catalog) == fold_name(catalog_name)
    names = NameContext(version.default_namespace, catalog_name, is_own)
    text = _find_duckdb_text(version, _find_spark_columns(view, schema))
    whole = None if text is None else find_qualified_query(parser, text, names)
    if whole is None or not _has_distinct_names(schema):
        dialects = [item.dialect for item in version.representations]
        return DuckLakeView(format_for_duckdb(dialects, schema), "", is_readable=False)
    return DuckLakeView(whole, ",".join(quote(item.name) for item in schema.fields))


def _find_duckdb_text(version: ViewVersion, spark_columns: tuple[str, ...] | None) -> str | None:
    by_dialect = {item.dialect.lower(): item.sql for item in version.representations}
    if DUCKDB in by_dialect:
        return by_dialect[DUCKDB]
    return find_translation(by_dialect[SPARK], spark_columns) if SPARK in by_dialect else None


def _find_spark_columns(view: ViewMetadata, schema: Schema) -> tuple[str, ...] | None:
    told = view.properties.get(SPARK_COLUMNS)
    names = () if told is None else tuple(told.split(","))
    return names if names and len(names) == len(schema.fields) else None


def _has_distinct_names(schema: Schema) -> bool:
    return len({fold_name(item.name) for item in schema.fields}) == len(schema.fields)


WHERE = "AS reason) AS stand_in WHERE (reason IS NULL)"


def format_for_duckdb(dialects: Iterable[str], schema: Schema) -> str:
    """Return the text of a view that has none for DuckDB."""
    told = (
        f"This view has no SQL that DuckDB can read as it is meant; its dialects: {', '.join(dialects)}. Query it with an engine of those."
    )
    reason = told.replace("'", "''").replace("{", "(").replace("\0", "")
    columns = [f"CAST(NULL AS {format_sql_type(item.type)}) AS {quote(item.name)}" for item in schema.fields]
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT error('{reason}')", WHERE))


def format_for_spark(schema: Schema) -> str:
    """Return the text of a DuckDB view that may mean something else in Spark, which would read DuckDB's as its own."""
    columns = ["NULL AS `" + item.name.replace("`", "``") + "`" for item in schema.fields]
    reason = "This view is written in the SQL of DuckDB, and may mean something else in Spark. Query it with DuckDB."
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT raise_error('{reason}')", WHERE))


COMMENT = "comment"
SUMMARY: Mapping[str, str] = {"engine-name": "duckdb"}
METADATA_PATH = "write.metadata.path"


def is_unchanged(live: LiveView, note: ViewNote) -> bool:
    """Tell whether DuckLake still has the text that stands for what an Iceberg client said."""
    same = (note.view_id, note.sql, note.column_aliases) == (live.view_id, live.sql, live.column_aliases)
    return same and note.is_told


def parse_view_note(note: ViewNote) -> ViewMetadata:
    """Return the metadata of a note."""
    return parse_view(json.loads(note.metadata))


def with_comment(view: ViewMetadata, comment: str | None) -> ViewMetadata:
    """Return the view with DuckLake's comment as a property: COMMENT ON VIEW is seen over REST."""
    if view.properties.get(COMMENT) == comment:
        return view
    others = {key: value for key, value in view.properties.items() if key != COMMENT}
    return replace(view, properties=others if comment is None else {**others, COMMENT: comment})


def build_version(live: LiveView, schema: Schema) -> ViewVersion:
    """Return what DuckDB says that a view is. Spark takes any dialect for its own, so it gets a text that is."""
    text = as_query(live.sql)
    spark = find_spark_text(text) or format_for_spark(schema)
    return ViewVersion(
        version_id=1,
        schema_id=LAST_ADDED,
        timestamp_ms=get_time_ms(live),
        summary=SUMMARY,
        representations=(SqlRepresentation(text, DUCKDB), SqlRepresentation(spark, SPARK)),
        default_namespace=to_levels(live.schema_name),
    )


def build_ducklake_view(live: LiveView, schema: Schema, location: str) -> ViewMetadata:
    """Return the metadata of a view that no Iceberg client has ever seen."""
    identity = NewIdentity(str(live.view_uuid), location, get_time_ms(live))
    return build_new_view(CreateView(live.view_name, schema, build_version(live, schema)), identity)


def update_from_ducklake(base: ViewMetadata, live: LiveView, schema: Schema) -> ViewMetadata:
    """Return the view with DuckDB's definition as its current version; other dialects are no longer current."""
    known, found = get_current_version(base), build_version(live, schema)
    known_schema = next(item for item in base.schemas if item.schema_id == known.schema_id)
    is_same = (known.representations, known.default_namespace) == (found.representations, found.default_namespace)
    if is_same and is_same_schema(known_schema, schema):
        return base
    now_ms = max(get_time_ms(live), _to_ms(live) if is_same else 0)
    updates = (AddSchema(schema), AddViewVersion(replace(found, timestamp_ms=now_ms)), SetCurrentViewVersion(LAST_ADDED))
    willing = replace(base, properties={**base.properties, DROP_DIALECT: "true"})
    return replace(apply_view_updates(willing, updates, now_ms), properties=base.properties)


def get_time_ms(live: LiveView) -> int:
    """Return when DuckDB made the view what it is: its lake snapshot's time, or the head's once that has expired."""
    return int((live.begun_at or live.head_at).timestamp() * 1000)


def _to_ms(live: LiveView) -> int:
    return int(live.head_at.timestamp() * 1000)


def build_view_note(view_id: int, base: ViewNote | None, view: ViewMetadata, held: DuckLakeView, is_told: bool) -> ViewNote:
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
