"""Create, drop and rename tables, and load a table after its commit.

`rest/routes/tables.py` calls this on worker threads; `commits` and `registration` use `load_committed_table`. Each operation is one
transaction under the lake's lock, with the request's audit line and idempotency key; a staged create only notes its location, in one
without the lock. Before the lock, the store is asked about a location that a client names: it is listed, or gets a test object if it lies
in another bucket than ICEBERG_PATH. For a table with vended keys, the DATA_PATHs of the server's other lakes are read from their Postgres.
A purge lists the table's objects before the lock; they are deleted after COMMIT if no grace period is set. A create ends with a load,
which publishes the table; a drop of a table as a client was shown it begins with one.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.cleanup import list_table_objects, purge_objects
from duckicelake.catalog.credentials.table_access import check_exclusive
from duckicelake.catalog.dropped.protection import check_may_drop_table, check_may_move_table
from duckicelake.catalog.location_rules import (
    NO_TABLE,
    AllowedLocations,
    check_free,
    check_may_hold_new,
    check_path_properties,
    check_store,
    check_table_location,
    check_target_free,
    find_namespace_location,
    get_last_version,
    get_place,
    read_default_location,
)
from duckicelake.catalog.tables import LOAD_TRIES, Ident, LoadedTable, get_table, load_table, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, CommitFailed, CommitStateUnknown, Forbidden, NoSuchTable
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.table_changes import NewIdentity, build_new_metadata
from duckicelake.lake.connect import read_format, reading, writing
from duckicelake.lake.locations import write_staged
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path
from duckicelake.lake.rows import Position
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import is_touched
from duckicelake.lake.writing.registration import find_live_table_name, write_purge
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.locations import Roots, named_location, table_folder, to_canonical, to_uri
from duckicelake.translate.namespaces import to_levels, to_schema_name
from duckicelake.translate.to_ducklake import tables as rows
from duckicelake.translate.to_ducklake.tables import IdAllocator, TableTarget, to_lake_steps


@dataclass(frozen=True, slots=True)
class _LocationRules:
    """The rules for the location of a new table. `needs_alone`: it must be exclusive. `server_roots`: where namespaces may have theirs."""

    roots: Roots
    server_roots: Roots
    needs_alone: bool = False
    neighbours: Sequence[str] = ()


def create_table(warehouse: Warehouse, ident: Ident, asked: CreateTable, *, needs_keys: bool = False) -> LoadedTable:
    """Create a table, or, staged, only return what it would be: the commit that follows creates it.

    `needs_keys`: the client will read and write the table with vended keys, or with signatures.
    Raises: NoSuchNamespace, AlreadyExists, BadRequest: DuckLake cannot hold what is asked for. Forbidden: the client may not name that
    location. Unsupported: no credentials could be vended for it
    """
    choice = _get_location_rules(warehouse, ident, asked, needs_keys=needs_keys)
    if asked.stage_create:
        with writing(warehouse.lake) as conn:
            place = get_place(conn, ident, read_format(conn))
            check_free(conn, ident, place)
            new = _describe(conn, place, asked, choice)
            rows.create_table(0, place, new)
            if asked.location is None:
                # in a place that a client chose others may have files too
                write_staged(conn, new.location)
        return LoadedTable(None, encode_metadata(new), {}, -1, Position(-1, -1), location=new.location)
    with committing(warehouse.lake) as commit:
        place = get_place(commit.conn, ident, commit.head.lake_format)
        check_free(commit.conn, ident, place)
        new = _describe(commit.conn, place, asked, choice)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        table_id = ids.take_catalog_id()
        step = rows.create_table(table_id, place, new, get_last_version(commit.conn, new.location))
        step.rows += rows.partition_table(ids, table_id, new, step.rows, place.lake_format)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(UUID(new.table_uuid))
    return load_committed_table(warehouse, ident, UUID(new.table_uuid))


def _get_location_rules(warehouse: Warehouse, ident: Ident, asked: CreateTable, *, needs_keys: bool) -> _LocationRules:
    """Return how a new table's location is checked.

    A client that may not choose may still name the one location that has the table's name, when nothing is there: tools that always
    name a location work then. Not for a staged table: two clients could be given keys for one location.
    Raises: Forbidden: something is there
    """
    if asked.location is None:
        return _LocationRules(warehouse.roots, warehouse.server_roots, needs_keys, warehouse.neighbours.find() if needs_keys else ())
    roots = warehouse.roots
    if not roots.free and not asked.stage_create and _is_named(warehouse, ident, asked.location):
        if next(warehouse.objects.list_under(f"{to_uri(asked.location.rstrip('/'))}/"), None) is not None:
            raise Forbidden(f"The location {asked.location!r} has objects in it, so only a principal with all rights may name it.")
        return _LocationRules(Roots(), warehouse.server_roots, True, warehouse.neighbours.find())
    check_store(warehouse, asked.location)
    return _LocationRules(roots, warehouse.server_roots, needs_keys, warehouse.neighbours.find() if needs_keys else ())


def _is_named(warehouse: Warehouse, ident: Ident, location: str) -> bool:
    """Return True if a location is exactly ICEBERG_PATH/<namespace>/<table>."""
    with reading(warehouse.lake) as conn:
        named = named_location(read_iceberg_path(conn), ident.namespace, ident.name)
    return named is not None and to_canonical(location.rstrip("/")) == to_canonical(named)


def _describe(conn: psycopg.Connection, place: TableTarget, asked: CreateTable, choice: _LocationRules) -> TableMetadata:
    """Return the metadata of the table that is asked for."""
    uuid = uuid4()
    new = build_new_metadata(asked, NewIdentity(str(uuid), "", time.time_ns() // 1_000_000))
    if asked.location is None:
        check_may_hold_new(conn, place.schema_id, choice.server_roots)
        location = read_default_location(conn, place, uuid)
    else:
        location = check_table_location(conn, asked.location, choice.roots)
    if choice.needs_alone and (asked.location is not None or find_namespace_location(conn, place.schema_id) is not None):
        check_exclusive(conn, location, choice.neighbours)
    check_path_properties(conn, NO_TABLE, AllowedLocations((location,), choice.roots), new.properties, {})
    return replace(new, location=location)


def load_committed_table(warehouse: Warehouse, ident: Ident, table_uuid: UUID | None) -> LoadedTable:
    """Return a table after its commit, by its uuid, because it may have been renamed.

    Raises: CommitStateUnknown: it cannot be published now, but it is done
    """
    try:
        loaded = _load_by_uuid(warehouse, ident, table_uuid)
    except CatalogError as error:
        raise to_state_unknown(ident, error) from error
    note_answer(warehouse, loaded)
    return loaded


def _load_by_uuid(warehouse: Warehouse, ident: Ident, table_uuid: UUID | None) -> LoadedTable:
    name = ident
    for _ in range(LOAD_TRIES):
        with suppress(NoSuchTable):
            loaded = load_table(warehouse, name)
            # an older server noted no uuid with its keys, and answered by name
            if table_uuid is None or loaded.table_uuid == table_uuid:
                return loaded if name == ident else replace(loaded, moved_to=name)
        if table_uuid is None:
            break
        with reading(warehouse.lake) as conn:
            found = find_live_table_name(conn, table_uuid, NO_TABLE)
        if found is None:
            break
        name = Ident(to_levels(found[0]), found[1])
    raise NoSuchTable("the table has been dropped or replaced since.")


def note_answer(warehouse: Warehouse, loaded: LoadedTable) -> None:
    """Remember that the client whose commit made a state is answered now; loads then need not show it its own snapshot ids."""
    if loaded.published is None or not loaded.published.is_unanswered:
        return
    cache = warehouse.caches.of(loaded.table_id)
    # Do not wait: the thread that holds the lock probably publishes a newer state.
    if cache.lock.acquire(blocking=False):
        try:
            if cache.table.published is loaded.published:
                cache.table = replace(cache.table, published=replace(loaded.published, is_unanswered=False))
        finally:
            cache.lock.release()


def to_state_unknown(ident: Ident, error: CatalogError) -> CommitStateUnknown:
    """Return the error for a commit that landed and whose metadata could not be published."""
    return CommitStateUnknown(f"The commit to {ident} is done, but its metadata cannot be shown now: {error.message}")


def drop_table(warehouse: Warehouse, ident: Ident, *, purged: bool = False, shown: str | None = None) -> None:
    """Drop a table; `purged`: with what only Iceberg readers need of it; `shown`: while it is as that metadata file shows it.

    Its data stays, for DuckLake's time travel, until DuckLake expires the lake snapshots that name it.
    Raises: NoSuchTable: it does not exist. CommitFailed: something concerned it since it was shown so.
    DropProtected: a property protects it
    """
    table_objects = None
    seen = None if shown is None else _get_shown_state(warehouse, ident, shown)
    if purged:
        with reading(warehouse.lake) as conn:
            table = get_table(conn, ident)
        table_objects = list_table_objects(warehouse, table)
    with committing(warehouse.lake) as commit:
        table = get_table(commit.conn, ident)
        if seen is not None and (table.table_id != seen.table_id or is_touched(commit.conn, table.table_id, seen.position)):
            raise _cannot_drop(ident)
        check_may_drop_table(commit.conn, table)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        write_steps(commit, to_lake_steps(commit.head, ids, [[rows.drop_table(table.table_id)]]))
        commit.write_object(table.table_uuid)
        noted = None
        if table_objects is not None and table_objects.table.table_id == table.table_id and table_objects.locations:
            noted = write_purge(commit.conn, table, table_objects.locations, warehouse.purge_grace_hours)
    if table_objects is not None and noted is not None and not warehouse.purge_grace_hours:
        purge_objects(warehouse, table_objects, noted)


@dataclass(frozen=True, slots=True)
class _ShownState:
    """The table that a metadata file shows, and how much of the lake that is."""

    table_id: int
    position: Position


def _get_shown_state(warehouse: Warehouse, ident: Ident, metadata_location: str) -> _ShownState:
    table, published = publish_table(warehouse, ident)
    if published.metadata_location != metadata_location:
        raise _cannot_drop(ident)
    return _ShownState(table.table_id, published.position)


def _cannot_drop(ident: Ident) -> CommitFailed:
    return CommitFailed(f"The table {ident} has changed since it was shown so; nothing was done.")


def rename_table(warehouse: Warehouse, source: Ident, target: Ident) -> None:
    """Give a table another name, in its namespace or another; location, files and history stay.

    Raises: NoSuchTable, NoSuchNamespace: of the target. AlreadyExists: the name is taken. DropProtected: its namespace protects it
    """
    with committing(warehouse.lake) as commit:
        table = get_table(commit.conn, source)
        place = get_place(commit.conn, target)
        found = find_table(commit.conn, to_schema_name(target.namespace), target.name)
        if found is None or found.table_id != table.table_id or str(source) == str(target):
            check_target_free(commit.conn, source, target, place)
        check_may_move_table(commit.conn, table, place.schema_name)
        stays = place.schema_name == table.schema_name
        folder = table.path if stays else table_folder(read_data_path(commit.conn), table)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        step = rows.rename_table(table, place, folder, path_is_relative=stays and table.path_is_relative)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
