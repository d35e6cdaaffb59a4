"""Namespaces: list, load, create, drop and change properties.

They are DuckLake's schemas; nested namespaces follow from the names of schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.dropped.protection import check_may_drop_namespace
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_schema_row, read_schemas, read_tags
from duckicelake.lake.rows import SchemaRow
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import has_children
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.namespaces import (
    Levels,
    ParentSchema,
    change_tags,
    create_schema,
    drop_schema,
    to_levels,
    to_schema_name,
    update_schema,
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as stored; its properties are the DuckLake tags of its schema."""

    levels: Levels
    properties: dict[str, str]


def list_namespaces(warehouse: Warehouse, parent: Levels) -> list[Levels]:
    """Return the direct children of a namespace, or the top level for (), in order.

    Raises: NoSuchNamespace: there is no such parent
    """
    with reading(warehouse.lake) as conn:
        known = [to_levels(row.schema_name) for row in read_schemas(conn)]
    if parent and not any(_starts(levels, parent) for levels in known):
        raise NoSuchNamespace(f"Namespace does not exist: {format_levels(parent)}")
    depth = len(parent)
    return sorted({levels[: depth + 1] for levels in known if len(levels) > depth and _starts(levels, parent)})


def load_namespace(warehouse: Warehouse, levels: Levels) -> Namespace:
    """Return a namespace under its stored spelling. A parent of a nested namespace exists without properties.

    Raises: NoSuchNamespace: it does not exist
    """
    with reading(warehouse.lake) as conn:
        row = find_schema(conn, levels)
        if row is not None:
            tags = read_tags(conn, row.schema_id)
            return Namespace(to_levels(row.schema_name), {tag.key: tag.value for tag in tags if tag.value is not None})
        return Namespace(get_parent(conn, levels), {})


def check_namespace_exists(warehouse: Warehouse, levels: Levels) -> None:
    """Raise NoSuchNamespace when it does not exist."""
    load_namespace(warehouse, levels)


def find_schema(conn: psycopg.Connection, levels: Levels) -> SchemaRow | None:
    """Return the DuckLake schema of a namespace, the exact spelling before a folded one, or None."""
    return find_schema_row(conn, to_schema_name(levels))


def get_parent(conn: psycopg.Connection, levels: Levels) -> Levels:
    """Return the stored spelling of a namespace that has no schema of its own: its children imply it.

    Raises: NoSuchNamespace: it has no children
    """
    for row in read_schemas(conn):
        found = to_levels(row.schema_name)
        if _starts(found, levels):
            return found[: len(levels)]
    raise NoSuchNamespace(f"Namespace does not exist: {format_levels(levels)}")


def has_child_namespaces(conn: psycopg.Connection, levels: Levels) -> bool:
    """Return True if other namespaces are nested in this one."""
    return any(len(found) > len(levels) and _starts(found, levels) for found in (to_levels(row.schema_name) for row in read_schemas(conn)))


def format_levels(levels: Levels) -> str:
    """Return a namespace for a message, as Iceberg's clients write it."""
    return ".".join(levels)


def _starts(levels: Levels, parent: Levels) -> bool:
    return [_fold(level) for level in levels[: len(parent)]] == [_fold(level) for level in parent]


def _fold(name: str) -> str:
    # DuckDB folds ASCII letters only, as Postgres does under the C locale
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


MAIN = "main"


@dataclass(frozen=True, slots=True)
class ChangedProperties:
    """The outcome for the properties that a client named."""

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


def create_namespace(warehouse: Warehouse, levels: Levels, properties: Mapping[str, str]) -> Namespace:
    """Make a namespace.

    Raises: AlreadyExists: there is one of that name, in any case
    """
    to_schema_name(levels)
    with committing(warehouse.lake) as commit:
        if _exists(commit, levels):
            raise AlreadyExists(f"Namespace already exists: {format_levels(levels)}")
        _write_schema(commit, levels, properties)
    return Namespace(levels, dict(properties))


def _write_schema(commit: Commit, levels: Levels, properties: Mapping[str, str]) -> None:
    """Create the schema of a namespace: where the lake's version nests schemas, one for each level that has none yet."""
    if not commit.head.lake_format.nests_schemas:
        write_steps(commit, [create_schema(commit.head, ParentSchema(), [to_schema_name(levels)], properties)])
        return
    parent, depth = ParentSchema(), 0
    for count in range(len(levels) - 1, 0, -1):
        found = find_schema(commit.conn, levels[:count])
        if found is not None:
            parent, depth = ParentSchema(found.schema_id, found.schema_names), count
            break
    write_steps(commit, [create_schema(commit.head, parent, levels[depth:], properties)])


def _exists(commit: Commit, levels: Levels) -> bool:
    return find_schema(commit.conn, levels) is not None or has_child_namespaces(commit.conn, levels)


def drop_namespace(warehouse: Warehouse, levels: Levels) -> None:
    """Drop an empty namespace.

    Raises: NoSuchNamespace: it does not exist. NamespaceNotEmpty: tables, views or namespaces are in it.
    BadRequest: it is DuckLake's own default. DropProtected: a property protects it
    """
    with committing(warehouse.lake) as commit:
        schema = find_schema(commit.conn, levels)
        if has_child_namespaces(commit.conn, levels) or (schema is not None and has_children(commit.conn, schema.schema_id)):
            raise NamespaceNotEmpty(f"Namespace {format_levels(levels)} is not empty. Drop what is in it first.")
        if schema is None:
            raise NoSuchNamespace(f"Namespace does not exist: {format_levels(levels)}")
        if schema.schema_name == MAIN:
            raise BadRequest(f"Namespace {MAIN!r} is where DuckDB starts in every lake; it stays.")
        check_may_drop_namespace(commit.conn, schema)
        write_steps(commit, [drop_schema(commit.head, schema.schema_id)])


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
            stored = get_parent(commit.conn, levels)
            if updates:
                _write_schema(commit, stored, updates)
            return ChangedProperties(sorted(updates), [], list(dict.fromkeys(removals)))
        live = {tag.key: tag.value for tag in read_tags(commit.conn, schema.schema_id) if tag.value is not None}
        rows = change_tags(schema.schema_id, live, removals, updates)
        write_steps(commit, [update_schema(commit.head, rows)] if rows else [])
    wanted = list(dict.fromkeys(removals))
    removed, missing = [key for key in wanted if key in live], [key for key in wanted if key not in live]
    return ChangedProperties(sorted(updates), removed, missing)
