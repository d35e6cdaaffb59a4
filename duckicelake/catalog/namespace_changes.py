"""Create and drop namespaces, and change their properties.

`rest.routes.namespaces` calls this on worker threads. Each function is one commit of the lake.
The property `location` says where clients' new tables and views of the namespace lie (`location_rules`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.dropped.protection import check_may_drop_namespace
from duckicelake.catalog.location_rules import check_namespace_location, check_store
from duckicelake.catalog.namespaces import Namespace, find_schema, format_levels, get_parent, has_child_namespaces
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_tags
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import has_children
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import NAMESPACE_LOCATION
from duckicelake.translate.namespaces import Levels, ParentSchema, change_tags, create_schema, drop_schema, to_schema_name, update_schema

MAIN = "main"


@dataclass(frozen=True, slots=True)
class ChangedProperties:
    """The outcome for the properties that a client named."""

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


def create_namespace(warehouse: Warehouse, levels: Levels, properties: Mapping[str, str]) -> Namespace:
    """Make a namespace.

    Raises: AlreadyExists: there is one of that name, in any case. What `check_namespace_location` raises
    """
    to_schema_name(levels)
    _check_location(warehouse, properties)
    with committing(warehouse.lake) as commit:
        if _exists(commit, levels):
            raise AlreadyExists(f"Namespace already exists: {format_levels(levels)}")
        _write_schema(commit, levels, properties)
    return Namespace(levels, dict(properties))


def _check_location(warehouse: Warehouse, properties: Mapping[str, str]) -> None:
    # Each new table checks it again: allowed_locations may change, and a table may be made around it.
    location = properties.get(NAMESPACE_LOCATION)
    if location is None:
        return
    with reading(warehouse.lake) as conn:
        check_namespace_location(conn, location, warehouse.roots)
    check_store(warehouse, location, None)


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

    Raises: NoSuchNamespace: it does not exist. Unprocessable: a property is to be set and removed. What `check_namespace_location` raises
    """
    both = sorted(updates.keys() & set(removals))
    if both:
        raise Unprocessable(f"Properties {', '.join(both)} are to be set and to be removed; send each in one of the lists.")
    _check_location(warehouse, updates)
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
