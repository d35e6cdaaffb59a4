"""Namespaces: list and load. They are DuckLake's schemas; nested namespaces follow from the names of schemas.

`rest.routes` calls the operations on worker threads, and each is one read transaction. Other modules of this package call the functions
with `conn` in their own transactions. `namespace_changes` creates, drops and changes namespaces.
"""

from dataclasses import dataclass

import psycopg

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchNamespace
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_schema_row, read_schemas, read_tags
from duckicelake.lake.rows import SchemaRow
from duckicelake.translate.namespaces import Levels, to_levels, to_schema_name


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
