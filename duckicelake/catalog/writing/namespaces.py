"""Namespaces: create, drop, change properties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from duckicelake.catalog.namespaces import Namespace, find_schema, format_levels, get_parent, has_child_namespaces
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from duckicelake.lake.read import read_tags
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.lookups import has_children
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.namespaces import Levels, to_schema_name
from duckicelake.translate.to_ducklake.namespaces import change_tags, create_schema, drop_schema, update_schema

MAIN = "main"


@dataclass(frozen=True, slots=True)
class ChangedProperties:
    """What became of the properties that a client named."""

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


def create_namespace(warehouse: Warehouse, levels: Levels, properties: Mapping[str, str]) -> Namespace:
    """Make a namespace.

    Raises: AlreadyExists: there is one of that name, in any case
    """
    schema_name = to_schema_name(levels)
    with committing(warehouse.lake) as commit:
        if _exists(commit, levels):
            raise AlreadyExists(f"Namespace already exists: {format_levels(levels)}")
        apply(commit, [create_schema(commit.head, schema_name, uuid4(), properties)])
    return Namespace(levels, dict(properties))


def _exists(commit: Commit, levels: Levels) -> bool:
    return find_schema(commit.conn, levels) is not None or has_child_namespaces(commit.conn, levels)


def drop_namespace(warehouse: Warehouse, levels: Levels) -> None:
    """Drop an empty namespace.

    Raises: NoSuchNamespace: it does not exist. NamespaceNotEmpty: tables, views or namespaces are in it.
    BadRequest: it is DuckLake's own default
    """
    with committing(warehouse.lake) as commit:
        schema = find_schema(commit.conn, levels)
        if has_child_namespaces(commit.conn, levels) or (schema is not None and has_children(commit.conn, schema.schema_id)):
            raise NamespaceNotEmpty(f"Namespace {format_levels(levels)} is not empty. Drop what is in it first.")
        if schema is None:
            raise NoSuchNamespace(f"Namespace does not exist: {format_levels(levels)}")
        if schema.schema_name == MAIN:
            raise BadRequest(f"Namespace {MAIN!r} is where DuckDB starts in every lake; it stays.")
        apply(commit, [drop_schema(commit.head, schema.schema_id)])


def update_properties(warehouse: Warehouse, levels: Levels, removals: Sequence[str], updates: Mapping[str, str]) -> ChangedProperties:
    """Change a namespace's properties; one that only its children imply becomes a schema of its own.

    Raises: NoSuchNamespace: it does not exist. Unprocessable: a property is to be set and removed
    """
    both = sorted(updates.keys() & set(removals))
    if both:
        raise Unprocessable(f"Properties {', '.join(both)} are to be set and to be removed; send each in one of the lists.")
    with committing(warehouse.lake) as commit:
        schema = find_schema(commit.conn, levels)
        if schema is None:
            name = to_schema_name(get_parent(commit.conn, levels))
            apply(commit, [create_schema(commit.head, name, uuid4(), updates)] if updates else [])
            return ChangedProperties(sorted(updates), [], list(dict.fromkeys(removals)))
        live = {tag.key: tag.value for tag in read_tags(commit.conn, schema.schema_id) if tag.value is not None}
        rows = change_tags(schema.schema_id, live, removals, updates)
        apply(commit, [update_schema(commit.head, rows)] if rows else [])
    wanted = list(dict.fromkeys(removals))
    removed, missing = [key for key in wanted if key in live], [key for key in wanted if key not in live]
    return ChangedProperties(sorted(updates), removed, missing)
