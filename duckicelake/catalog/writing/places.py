"""Where tables may be: their names among others, and their locations."""

import psycopg

from duckicelake.catalog.namespaces import find_schema, format_levels
from duckicelake.catalog.tables import Ident
from duckicelake.errors import AlreadyExists, BadRequest, NoSuchNamespace
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path
from duckicelake.lake.writing.lookups import find_neighbour, has_view
from duckicelake.translate.locations import to_uri
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.tables import Place

NO_TABLE = -1


def get_place(conn: psycopg.Connection, ident: Ident) -> Place:
    """Return where a table of that name belongs.

    Raises: NoSuchNamespace: its namespace does not exist
    """
    schema = find_schema(conn, ident.namespace)
    if schema is None:
        raise NoSuchNamespace(f"Namespace does not exist: {format_levels(ident.namespace)}")
    return Place(schema.schema_id, schema.schema_name, ident.name)


def check_free(conn: psycopg.Connection, ident: Ident, place: Place) -> None:
    """Raise AlreadyExists when a table or view of that name exists, in any case."""
    if find_table(conn, to_schema_name(ident.namespace), ident.name) is not None:
        raise AlreadyExists(f"Table already exists: {ident}")
    if has_view(conn, place.schema_id, ident.name):
        raise AlreadyExists(f"View with same name already exists: {ident}")


def check_target_free(conn: psycopg.Connection, source: Ident, target: Ident, place: Place) -> None:
    """Raise AlreadyExists when a table cannot get a name because a table or view has it, in any case."""
    if find_table(conn, to_schema_name(target.namespace), target.name) is not None:
        raise AlreadyExists(f"Cannot rename {source} to {target}. Table already exists")
    if has_view(conn, place.schema_id, target.name):
        raise AlreadyExists(f"Cannot rename {source} to {target}. View already exists")


def check_location(conn: psycopg.Connection, location: str, table_id: int = NO_TABLE) -> str:
    """Return a location as it is kept, without its trailing slash.

    Raises: BadRequest: it lies outside ICEBERG_PATH, or in another table's location, or holds one
    """
    kept = to_uri(location.rstrip("/"))
    roots = [to_uri(read_iceberg_path(conn))]
    steps = kept.removeprefix(roots[0]).split("/")
    if not kept.startswith(roots[0]) or kept == roots[0].rstrip("/") or any(step in ("", ".", "..") for step in steps):
        raise BadRequest(f"The location {location!r} does not lie under {roots[0]!r}, where this catalog keeps its tables.")
    if kept.startswith(to_uri(read_data_path(conn))):
        raise BadRequest(f"The location {location!r} lies under DuckLake's DATA_PATH, where DuckLake removes files it does not know.")
    other = find_neighbour(conn, table_id, kept)
    if other is not None:
        raise BadRequest(f"The location {location!r} lies in another table's, or holds one: {other!r}.")
    return kept
