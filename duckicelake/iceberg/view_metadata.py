"""View metadata: the versions of a view, each in one or more SQL dialects, and the current one, with their JSON.

No I/O: `catalog`, `translate` and the jobs of `pipeline.transfer` use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps

from duckicelake.errors import BadRequest, IllegalArgument
from duckicelake.iceberg.json_reader import (
    as_object,
    find_text,
    find_text_map,
    get_int,
    get_list,
    get_long,
    get_text,
    is_text,
    list_objects,
    refuse,
)
from duckicelake.iceberg.schema import Schema, format_schema, parse_schema

VIEW_FORMAT_VERSION = 1
WHAT = "view metadata"


@dataclass(frozen=True, slots=True)
class SqlRepresentation:
    """The SQL of a view in one dialect."""

    sql: str
    dialect: str


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """One version of a view. Names in its SQL without catalog or namespace refer to the default ones."""

    version_id: int
    schema_id: int
    timestamp_ms: int
    summary: Mapping[str, str] = field(hash=False)
    representations: tuple[SqlRepresentation, ...]
    default_namespace: tuple[str, ...]
    default_catalog: str | None = None


@dataclass(frozen=True, slots=True)
class ViewMetadata:
    """The metadata of a view. The log is (timestamp_ms, version_id), oldest first."""

    view_uuid: str
    format_version: int
    location: str
    schemas: tuple[Schema, ...]
    current_version_id: int
    versions: tuple[ViewVersion, ...]
    version_log: tuple[tuple[int, int], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


def get_current_version(view: ViewMetadata) -> ViewVersion:
    """Return the version that queries use."""
    return next(item for item in view.versions if item.version_id == view.current_version_id)


def format_view(view: ViewMetadata) -> dict[str, object]:
    """Return view metadata as JSON, keys in the specification's order."""
    return {
        "view-uuid": view.view_uuid,
        "format-version": view.format_version,
        "location": view.location,
        "schemas": [format_schema(item) for item in view.schemas],
        "current-version-id": view.current_version_id,
        "versions": [format_version(item) for item in view.versions],
        "version-log": [{"timestamp-ms": at, "version-id": version_id} for at, version_id in view.version_log],
        "properties": dict(view.properties),
    }


def encode_view(view: ViewMetadata) -> bytes:
    """Return view metadata as compact UTF-8 JSON: the content of `format_view`, always with the same bytes."""
    return dumps(format_view(view), ensure_ascii=False, separators=(",", ":")).encode()


def parse_view(value: object) -> ViewMetadata:
    """Return the view metadata of a JSON value.

    Raises: BadRequest — malformed, of another format version, or with ids that it does not contain
    Source: Iceberg view specification
    """
    node = as_object(value, WHAT)
    view = ViewMetadata(
        view_uuid=get_text(node, "view-uuid", WHAT),
        format_version=get_int(node, "format-version", WHAT),
        location=get_text(node, "location", WHAT),
        schemas=tuple(parse_schema(item) for item in get_list(node, "schemas", WHAT)),
        current_version_id=get_int(node, "current-version-id", WHAT),
        versions=tuple(parse_version(item) for item in get_list(node, "versions", WHAT)),
        version_log=tuple(_parse_log_entry(item) for item in list_objects(node, "version-log", WHAT)),
        properties=find_text_map(node, "properties", WHAT) or {},
    )
    _check_view(view)
    return view


def format_version(version: ViewVersion) -> dict[str, object]:
    """Return a view version as JSON."""
    node: dict[str, object] = {
        "version-id": version.version_id,
        "schema-id": version.schema_id,
        "timestamp-ms": version.timestamp_ms,
        "summary": dict(version.summary),
        "representations": [{"type": "sql", "sql": item.sql, "dialect": item.dialect} for item in version.representations],
    }
    if version.default_catalog is not None:
        node["default-catalog"] = version.default_catalog
    return node | {"default-namespace": list(version.default_namespace)}


def parse_version(value: object) -> ViewVersion:
    """Return the view version of a JSON value.

    Raises: BadRequest — malformed, no query, a representation that is no SQL, two queries in one dialect
    """
    node = as_object(value, "view version")
    what = f"view version {get_int(node, 'version-id', 'view version')}"
    version = ViewVersion(
        version_id=get_int(node, "version-id", what),
        schema_id=get_int(node, "schema-id", what),
        timestamp_ms=get_long(node, "timestamp-ms", what),
        summary=find_text_map(node, "summary", what) or {},
        representations=tuple(_parse_representation(item, what) for item in get_list(node, "representations", what)),
        default_namespace=_parse_namespace(node, what),
        default_catalog=find_text(node, "default-catalog", what),
    )
    _check_dialects(version, what)
    return version


def _parse_representation(value: object, what: str) -> SqlRepresentation:
    node = as_object(value, f"a representation of {what}")
    type = get_text(node, "type", f"a representation of {what}")
    if type.lower() != "sql":
        raise BadRequest(f"Found unsupported view representations: [{type}]; send SQL")
    return SqlRepresentation(sql=get_text(node, "sql", what), dialect=get_text(node, "dialect", what))


def _parse_namespace(node: Mapping[str, object], what: str) -> tuple[str, ...]:
    levels = get_list(node, "default-namespace", what)
    if not all(is_text(level) for level in levels):
        refuse(what, "default-namespace", "an array of strings")
    return tuple(str(level) for level in levels)


def _parse_log_entry(node: Mapping[str, object]) -> tuple[int, int]:
    return get_long(node, "timestamp-ms", "version log"), get_int(node, "version-id", "version log")


def _check_dialects(version: ViewVersion, what: str) -> None:
    dialects = [item.dialect.lower() for item in version.representations]
    if not dialects:
        raise BadRequest(f"Invalid {what}: it has no query; send at least one SQL representation")
    for i, dialect in enumerate(dialects):
        if dialect in dialects[:i]:
            raise IllegalArgument(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")


def _check_view(view: ViewMetadata) -> None:
    version_ids = [item.version_id for item in view.versions]
    schema_ids = {item.schema_id for item in view.schemas}
    lost = [item.version_id for item in view.versions if item.schema_id not in schema_ids]
    problems = {
        f"format version {view.format_version} is not supported": view.format_version != VIEW_FORMAT_VERSION,
        f"current-version-id {view.current_version_id} is not in versions": view.current_version_id not in version_ids,
        f"versions {lost} have a schema-id that is not in schemas": bool(lost),
        "a version id occurs twice": len(set(version_ids)) < len(version_ids),
        "a schema id occurs twice": len(schema_ids) < len(view.schemas),
    }
    for problem, found in problems.items():
        if found:
            raise BadRequest(f"Invalid view metadata: {problem}; correct the metadata file")
