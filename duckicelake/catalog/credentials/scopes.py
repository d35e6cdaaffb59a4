"""The folders and files that credentials for one table may cover: folders that no other table has, and else single files.

`credentials.table_access` calls this on worker threads in a read transaction; `create_table` checks a chosen location with it in the
commit's transaction. Tables may share a folder: DuckDB uses names of folders again, and SeaweedFS ignores case.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import psycopg

from duckicelake.catalog.location_rules import (
    NO_TABLE,
    check_free,
    check_new_location,
    find_namespace_location,
    get_place,
    read_default_location,
)
from duckicelake.catalog.tables import Ident, get_table
from duckicelake.catalog.warehouse import FIXED_LOCATIONS, Warehouse
from duckicelake.errors import NoSuchTable, Unsupported
from duckicelake.lake.branches.ancestors import in_schema, is_always_in, list_ancestors, list_used_folders
from duckicelake.lake.connect import reading
from duckicelake.lake.locations import (
    TableLocation,
    has_path,
    list_live_table_names,
    list_namespace_locations,
    list_outside_paths,
    list_table_locations,
)
from duckicelake.lake.read import read_data_path, read_iceberg_path
from duckicelake.lake.rows import TableRow
from duckicelake.store.credentials.vending import CredentialScope
from duckicelake.translate.locations import PLAIN_NAME, S3_SCHEMES, file_uri, table_folder, to_canonical, to_folder_uri
from duckicelake.translate.namespaces import to_levels
from duckicelake.translate.to_ducklake.tables import TableTarget

ZERO_UUID = UUID(int=0)
STAGED = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/.")
NAMED = re.compile(r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)-" + STAGED.pattern)
MAX_FILES = 64
"""More objects than any policy has room for."""


def read_scope(warehouse: Warehouse, ident: Ident, location: str) -> CredentialScope:
    """Return what there is to read of a table, and as writable its present location.

    Raises: NoSuchTable: it has gone
    """
    neighbours = warehouse.neighbours.find()
    with reading(warehouse.lake) as conn:
        table = get_table(conn, ident)
        folder = table_folder(read_data_path(conn), table)
        scope = read_folders(conn, table, location, neighbours)
        unlisted = read_base_folders(conn, warehouse, table, neighbours)
        return replace(scope, files=_list_files(conn, table.table_id, folder, (*scope.folders, *unlisted)), unlisted=unlisted)


def read_folders(conn: psycopg.Connection, table: TableRow, location: str, neighbours: Sequence[str]) -> CredentialScope:
    """Return the same without single files: the folders that are the table's alone."""
    data_path = read_data_path(conn)
    places = list_table_locations(conn)
    own = [location, *(place.location for place in places if place.table_id == table.table_id and place.location)]
    others = _list_others(places, table.table_id, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    wanted = list(dict.fromkeys(to_folder_uri(place) for place in (*own, table_folder(data_path, table))))
    alone = tuple(place for place in wanted if is_exclusive(place, others, (data_path, read_iceberg_path(conn))))
    return CredentialScope(alone, (), tuple(place for place in alone if place == to_folder_uri(location)))


def read_base_folders(conn: psycopg.Connection, warehouse: Warehouse, table: TableRow, neighbours: Sequence[str]) -> tuple[str, ...]:
    """Return the folders in which a branch reads files of the members that it was made from, as far as they are the table's alone there.

    They hold what was written to the table there since, too, so its rights must be the same there: it must have been in no other schema.
    """
    if warehouse.repository is None:
        return ()
    found: list[str] = []
    for schema in list_ancestors(conn, warehouse.repository, warehouse.lake.metadata_schema):
        with in_schema(conn, schema, warehouse.lake.metadata_schema):
            if is_always_in(conn, table.table_id, table.schema_name):
                found += _list_alone(conn, table.table_id, neighbours)
    return tuple(list_used_folders(conn, table.table_id, list(dict.fromkeys(found))))


def _list_alone(conn: psycopg.Connection, table_id: int, neighbours: Sequence[str]) -> list[str]:
    data_path, places = read_data_path(conn), list_table_locations(conn)
    own = [place.location if place.folder is None else place.resolve(data_path) for place in places if place.table_id == table_id]
    others = _list_others(places, table_id, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    folders = [to_folder_uri(place) for place in own]
    return [folder for folder in folders if is_exclusive(folder, others, (data_path, read_iceberg_path(conn)))]


def read_staged_folder(conn: psycopg.Connection, ident: Ident, uri: str) -> CredentialScope:
    """Return the location that a URI lies in, if a table of that name, which is not there, may have been given it when it was staged.

    Raises: NoSuchTable: it may not. What `check_free` and `check_new_location` raise: it could not be made there any more
    """
    place = get_place(conn, ident)
    check_free(conn, ident, place)
    iceberg_path = read_iceberg_path(conn)
    start = to_canonical(read_default_location(conn, place, ZERO_UUID)).removesuffix(str(ZERO_UUID))
    found = STAGED.match(uri.removeprefix(start)) if uri.startswith(start) else None
    if found is None or not _has_names(conn, place):
        raise NoSuchTable(f"Table does not exist: {ident}")
    location = start + found[1]
    check_new_location(conn, location, location, FIXED_LOCATIONS)
    data_path = read_data_path(conn)
    if not is_exclusive(location + "/", _list_others(list_table_locations(conn), NO_TABLE, data_path), (data_path, iceberg_path)):
        raise NoSuchTable(f"Table does not exist: {ident}")
    return CredentialScope((location + "/",), (), (location + "/",))


def _has_names(conn: psycopg.Connection, place: TableTarget) -> bool:
    """Return True if the default locations of new tables of that name cannot be those of a staged table of another name or namespace."""
    home = find_namespace_location(conn, place.schema_id)
    if home is None:
        return all(PLAIN_NAME.fullmatch(name) for name in (place.table_name, place.schema_name))
    sharing = [found for found in list_namespace_locations(conn) if to_folder_uri(found) == to_folder_uri(home)]
    return PLAIN_NAME.fullmatch(place.table_name) is not None and len(sharing) == 1


def find_owner(conn: psycopg.Connection, uri: str) -> Ident | None:
    """Return the one live table that has a place which a URI (`s3://…`) lies in, else the one that may be staged there; None: not just one.

    The caller checks if the table may have the object.
    """
    data_path = read_data_path(conn)
    live = {name.table_id: Ident(to_levels(name.schema_name), name.table_name) for name in list_live_table_names(conn)}
    near = {
        place.table_id for place in list_table_locations(conn) if place.table_id in live and uri.startswith(_to_folder(place, data_path))
    }
    if near:
        return live[near.pop()] if len(near) == 1 else None
    staged = NAMED.match(uri.removeprefix(to_canonical(to_folder_uri(read_iceberg_path(conn)))))
    return Ident(to_levels(staged[1]), staged[2]) if staged else None


def _to_folder(place: TableLocation, data_path: str) -> str:
    return to_canonical(to_folder_uri(place.location if place.folder is None else place.resolve(data_path)))


def owns_file(conn: psycopg.Connection, table: TableRow, uri: str) -> bool:
    """Return True if one of the table's files, live or not, has that URI (`s3://…`)."""
    folder = to_canonical(table_folder(read_data_path(conn), table))
    relative = uri.removeprefix(folder) if uri.startswith(folder) else None
    return has_path(conn, table.table_id, relative, [scheme + uri.removeprefix("s3://") for scheme in ("s3://", *S3_SCHEMES)])


def _list_others(places: Sequence[TableLocation], table_id: int, data_path: str) -> frozenset[str]:
    """Return the folders and locations of all other tables that ever were, folded."""
    found: set[str] = set()
    for place in places:
        if place.table_id != table_id:
            found.add(to_folder_uri(place.location if place.folder is None else place.resolve(data_path)).lower())
    return frozenset(found)


def is_exclusive(folder: str, others: frozenset[str], lake_paths: Sequence[str]) -> bool:
    """Return True if no other table has a folder, lies in it or contains it, ignoring case.

    What holds all of the lake's data, or all of its locations, is for the tables to come too.
    """
    folded = folder.lower()
    if any(to_folder_uri(path).lower().startswith(folded) for path in lake_paths):
        return False
    return not any(other.startswith(folded) or folded.startswith(other) for other in others)


def check_exclusive(conn: psycopg.Connection, location: str, neighbours: Sequence[str]) -> None:
    """Raise Unsupported when a new table would share its location: no credentials to write there could be vended.

    No keys are needed for what is not on S3.
    """
    if not to_canonical(location).startswith("s3://"):
        return
    data_path = read_data_path(conn)
    others = _list_others(list_table_locations(conn), NO_TABLE, data_path) | {to_folder_uri(path).lower() for path in neighbours}
    if not is_exclusive(to_folder_uri(location), others, (data_path, read_iceberg_path(conn))):
        raise Unsupported(
            f"{format_not_exclusive(location)} Nothing was made: choose another location. "
            "That of a dropped table is free when DuckLake has expired and cleaned up the table."
        )


def format_not_exclusive(location: str) -> str:
    """Return the error message for a location that write credentials cannot be limited to."""
    return f"The location {location!r} is not this table's alone, so no key to write there is given."


def _list_files(conn: psycopg.Connection, table_id: int, folder: str, alone: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the table that lie in none of the folders that are its alone."""
    outside = list_outside_paths(conn, table_id, folder, list(alone), MAX_FILES)
    return tuple(sorted(file_uri(folder, path, is_relative) for path, is_relative in outside))
