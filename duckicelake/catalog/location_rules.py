"""The rules for names, locations and files of tables and views. Violations raise BadRequest, Forbidden or AlreadyExists.

`table_changes`, `views`, `namespace_changes`, `registration`, `dropped.undrop`, `credentials.table_access` and `commits` call this in
their own transactions, mostly under the lake's lock; other modules use the values. Only `check_store` contacts the object store, before the
lock: in another bucket than ICEBERG_PATH's it writes, reads and deletes a probe object.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from uuid import UUID

import psycopg

from duckicelake.catalog.namespaces import find_schema, format_levels
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, Forbidden, NoSuchNamespace, ServiceUnavailable, Unsupported
from duckicelake.lake.connect import reading
from duckicelake.lake.lake_format import V1_0, LakeFormat
from duckicelake.lake.locations import (
    find_overlapping_table,
    find_overlapping_view,
    find_owning_location,
    list_earlier_locations,
    read_last_version,
)
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path, read_tags
from duckicelake.lake.writing.lookups import has_view
from duckicelake.lake.writing.registration import has_uuid
from duckicelake.store.uris import parse_uri
from duckicelake.translate.locations import (
    NAMESPACE_LOCATION,
    Roots,
    has_dot_segments,
    has_empty_part,
    location_in_namespace,
    table_location,
    to_canonical,
    to_folder_uri,
    to_uri,
)
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.tables import TableTarget

NO_TABLE = -1
PATH_PROPERTIES = frozenset({"write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"})
"""Properties by which clients choose where they write; the last two are what the first was called before."""


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """The allowed places of a table's files: its former, present and requested locations, in that order, and the server's roots.

    `lake_folder` is where DuckLake puts its files. `has_data_in` says if the table has data files in another folder: those of a branch may
    lie in the lake's, and those of the lake in a merged branch's. It asks Postgres in a read transaction of its own, before the lock.
    `server_roots`: `roots`, also where the client itself may not choose.
    """

    locations: Sequence[str] = ()
    roots: Roots = field(default_factory=Roots)
    lake_folder: Roots = field(default_factory=Roots)
    has_data_in: Callable[[str], bool] = field(default=lambda _: False, compare=False)
    server_roots: Roots = field(default_factory=Roots)

    def __post_init__(self) -> None:
        """Ask Postgres once for each folder: a request may have thousands of delete files in one."""
        object.__setattr__(self, "has_data_in", cache(self.has_data_in))

    def is_own(self, uri: str) -> bool:
        """Return True if an object lies in one of the table's own locations."""
        plain = to_canonical(uri)
        return not has_dot_segments(plain) and any(plain.startswith(to_folder_uri(location)) for location in self.locations)

    def holds(self, uri: str) -> bool:
        """Return True if a data file may lie there."""
        return self.is_own(uri) or self.roots.holds(uri)

    def may_hold_deletes(self, uri: str) -> bool:
        """Return True if a delete file may lie there: DuckDB's iceberg extension writes them next to the data files."""
        if self.is_own(uri) or self.lake_folder.holds(uri):
            return True
        return not has_dot_segments(uri) and self.has_data_in(uri.rpartition("/")[0] + "/")


def get_place(conn: psycopg.Connection, ident: Ident, lake_format: LakeFormat = V1_0) -> TableTarget:
    """Return where a table of that name belongs. Its columns are written in the lake's format.

    Raises: NoSuchNamespace: its namespace does not exist
    """
    schema = find_schema(conn, ident.namespace)
    if schema is None:
        raise NoSuchNamespace(f"Namespace does not exist: {format_levels(ident.namespace)}")
    return TableTarget(schema.schema_id, schema.schema_name, schema.schema_names, ident.name, lake_format)


def check_free(conn: psycopg.Connection, ident: Ident, place: TableTarget) -> None:
    """Raise AlreadyExists when a table or view of that name exists, in any case."""
    if find_table(conn, to_schema_name(ident.namespace), ident.name) is not None:
        raise AlreadyExists(f"Table already exists: {ident}")
    if has_view(conn, place.schema_id, ident.name):
        raise AlreadyExists(f"View with same name already exists: {ident}")


def check_new_uuid(conn: psycopg.Connection, uuid: UUID) -> None:
    """Raise AlreadyExists when a table has or had a uuid that a client wants for a new one: what is granted goes by it."""
    if has_uuid(conn, uuid):
        raise AlreadyExists(f"Table already exists: one has, or had, the uuid {uuid}; send another with assign-uuid, or none.")


def check_target_free(conn: psycopg.Connection, source: Ident, target: Ident, place: TableTarget) -> None:
    """Raise AlreadyExists when a table cannot get a name because a table or view has it, in any case."""
    if find_table(conn, to_schema_name(target.namespace), target.name) is not None:
        raise AlreadyExists(f"Cannot rename {source} to {target}. Table already exists")
    if has_view(conn, place.schema_id, target.name):
        raise AlreadyExists(f"Cannot rename {source} to {target}. View already exists")


def read_default_location(conn: psycopg.Connection, place: TableTarget, uuid: UUID) -> str:
    """Return where a new table or view lies if the client names no location: in its namespace's location, else in ICEBERG_PATH."""
    home = find_namespace_location(conn, place.schema_id)
    if home is None:
        return table_location(read_iceberg_path(conn), uuid, place.schema_name, place.table_name)
    return location_in_namespace(home, uuid, place.table_name)


def find_namespace_location(conn: psycopg.Connection, schema_id: int) -> str | None:
    """Return the property `location` of a namespace, or None. Namespaces that are nested in it do not inherit it."""
    return next((tag.value for tag in read_tags(conn, schema_id) if tag.key == NAMESPACE_LOCATION), None)


def check_may_hold_new(conn: psycopg.Connection, schema_id: int, roots: Roots) -> None:
    """Raise BadRequest if a namespace has a location in which its new tables and views may not lie. `roots`: the server's."""
    location = find_namespace_location(conn, schema_id)
    if location is not None:
        check_namespace_location(conn, location, roots)


def check_namespace_location(conn: psycopg.Connection, location: str, roots: Roots) -> None:
    """Raise what `check_location` does for tables in a namespace's location. The location itself may hold other tables."""
    _check_place(conn, f"{location.rstrip('/')}/{UUID(int=0)}", roots, f"The namespace's location {location!r}", NO_TABLE)


def check_location(conn: psycopg.Connection, location: str, roots: Roots, table_id: int = NO_TABLE) -> str:
    """Return a location in the spelling that is stored, without its trailing slash. That of a dropped table may be taken over.

    Raises: Forbidden: the client may not choose one. BadRequest: it holds ? or #, lies outside of ICEBERG_PATH and the server's roots,
    or under DATA_PATH, or in another table's location, or holds one
    """
    return _check_place(conn, location, roots, f"The location {location!r}", table_id)


def _check_place(conn: psycopg.Connection, location: str, roots: Roots, what: str, table_id: int) -> str:
    kept = to_uri(location.rstrip("/"))
    if not roots.free:
        raise Forbidden(f"{what} may not be named: the catalog, or a principal with all rights, chooses where tables lie. Leave it out.")
    if "?" in kept or "#" in kept:
        raise BadRequest(f"{what} holds '?' or '#', where clients take a path to end; choose another.")
    home = read_iceberg_path(conn)
    allowed = Roots((*roots.folders, to_folder_uri(home)), roots.anywhere)
    if not allowed.holds(kept) or "" in to_canonical(kept).partition("://")[2].lstrip("/").split("/"):
        raise BadRequest(
            f"{what} does not lie under {to_uri(home)!r}, where this catalog keeps its tables, "
            "nor under one of the server's allowed_locations."
        )
    _check_outside_data(conn, kept, what)
    other = find_overlapping_table(conn, table_id, to_canonical(kept))
    if other is not None:
        raise BadRequest(f"{what} lies in another table's, or holds one: {other!r}.")
    return kept


def check_table_location(conn: psycopg.Connection, location: str, roots: Roots, table_id: int = NO_TABLE) -> str:
    """Return the location of a table in the spelling that is stored.

    Raises: BadRequest: as `check_location` does, and when it lies in a view's place, or holds one
    """
    kept = check_location(conn, location, roots, table_id)
    view = find_overlapping_view(conn, to_canonical(kept))
    if view is not None:
        raise BadRequest(f"The location {location!r} lies in a view's, or holds one: {view!r}. Choose another.")
    return kept


def check_store(warehouse: Warehouse, location: str, table_id: int | None = NO_TABLE) -> None:
    """Raise BadRequest when the store takes no objects at a location that a client names, in another bucket than ICEBERG_PATH's.

    Called before the lake's lock. ICEBERG_PATH was proven when the server started. Nothing is written to a location that the table
    (None: it was checked before) may not have.
    Raises: ServiceUnavailable: the store does not answer at all. What `check_location` raises
    """
    uri = to_uri(location.rstrip("/"))
    with reading(warehouse.lake) as conn:
        home = to_uri(read_iceberg_path(conn))
        try:
            if parse_uri(uri).bucket == parse_uri(home).bucket:
                return
        except Unsupported as error:
            raise BadRequest(f"The location {location!r} cannot be used: {error.message}") from error
        if table_id is not None:
            check_location(conn, location, warehouse.roots, table_id)
    try:
        warehouse.objects.prove(uri)
    except ServiceUnavailable as error:
        warehouse.objects.check(home)
        raise BadRequest(f"The location {location!r} cannot be used: {error.message} Nothing was done.") from error


def check_given_location(location: str, given: str) -> None:
    """Raise Forbidden for another location than the one that the catalog gave, from a client that may not choose."""
    if location != given:
        raise Forbidden(f"Where tables and views lie is chosen by the catalog, or by principals with all rights: leave {location!r} out.")


def check_new_location(conn: psycopg.Connection, location: str, default: str, roots: Roots) -> str:
    """Return the location of a table that is made by a commit: the one it was given when it was staged, or another.

    Raises: as `check_table_location` does. Forbidden: it is a dropped table's, and the client may not choose one
    """
    if roots.free or location != default:
        return check_table_location(conn, location, roots)
    if get_last_version(conn, location):
        raise Forbidden(f"The location {location!r} was another table's; stage the table again.")
    # The default may lie in its namespace's location, outside of ICEBERG_PATH.
    return check_table_location(conn, location, Roots((to_folder_uri(default.rpartition("/")[0]),)))


def get_last_version(conn: psycopg.Connection, location: str) -> int:
    """Return the last metadata version of the dropped tables that were at a location: a new one goes on from there."""
    return read_last_version(conn, to_canonical(location))


def check_still_own(conn: psycopg.Connection, table_id: int, location: str) -> None:
    """Raise BadRequest if another table is at the location of a dropped table that is to come back, or at one that it had earlier."""
    for own in (location, *list_earlier_locations(conn, table_id)):
        neighbour = find_overlapping_table(conn, table_id, to_canonical(own))
        if neighbour is not None:
            raise BadRequest(f"The dropped table's location {own!r} has been taken over by a table at {neighbour!r}; drop that first.")


def check_files(conn: psycopg.Connection, table_id: int, allowed: AllowedLocations, uris: Sequence[str]) -> None:
    """Raise BadRequest for new data files that lie where the table may have none."""
    for uri in uris:
        if not allowed.holds(uri):
            raise BadRequest(
                f"Data file {uri!r} does not lie in the table's location {allowed.locations[-1]!r}, "
                "nor under one of the server's allowed_locations; write files there."
            )
        if has_empty_part(uri):
            raise BadRequest(f"Data file {uri!r} has an empty part in its path, which some stores leave out; write it elsewhere.")
    foreign = [uri for uri in uris if not allowed.is_own(uri)]
    for uri in foreign:
        _check_outside_data(conn, uri, f"Data file {uri!r}")
    owned = find_owning_location(conn, table_id, [to_canonical(uri) for uri in foreign]) if foreign else None
    if owned is not None:
        raise BadRequest(f"A data file lies in the location of another table, {owned!r}; write files into the table's own.")


def check_path_properties(
    conn: psycopg.Connection, table_id: int, allowed: AllowedLocations, told: Mapping[str, str], known: Mapping[str, str]
) -> None:
    """Raise BadRequest when properties that are not `known` yet lead writers to where the table may have no files.

    Vended credentials and the checks of commits ignore these properties, but a client with its own credentials would write there.
    """
    for name in PATH_PROPERTIES & told.keys():
        path, place = told[name], to_uri(told[name].rstrip("/"))
        if path == known.get(name) or allowed.is_own(f"{place}/"):
            continue
        what = f"{name}={path!r}"
        if has_empty_part(place):
            raise BadRequest(f"{what} has an empty part, which some stores leave out; write it without.")
        if not allowed.roots.holds(place):
            raise BadRequest(
                f"{what} lies neither in the table's location {allowed.locations[-1]!r} nor under one of the server's allowed_locations."
            )
        _check_outside_data(conn, place, what)
        other = find_overlapping_table(conn, table_id, to_canonical(place)) or find_overlapping_view(conn, to_canonical(place))
        if other is not None:
            raise BadRequest(f"{what} lies in the location of another table or view, or holds one: {other!r}.")


def _check_outside_data(conn: psycopg.Connection, uri: str, what: str) -> None:
    data = to_folder_uri(read_data_path(conn))
    if to_canonical(uri).startswith(data):
        raise BadRequest(f"{what} lies under DuckLake's DATA_PATH, where DuckLake removes files it does not know.")
    if data.startswith(to_folder_uri(uri)):
        raise BadRequest(f"{what} holds DuckLake's DATA_PATH, where the files of all tables are.")
