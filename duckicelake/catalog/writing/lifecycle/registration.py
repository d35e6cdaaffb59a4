"""Tables that come: back, after they were dropped from this lake, by their newest metadata file, or from anywhere by any."""

import re
from uuid import UUID

import psycopg

from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.lifecycle.foreign import Foreign, read_foreign, read_metadata
from duckicelake.catalog.writing.lifecycle.taking import Arrival, settle, spell, take_in
from duckicelake.catalog.writing.places import NO_TABLE, Grounds, check_free, check_store, find_first_version, get_place
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.errors import AlreadyExists, BadRequest
from duckicelake.lake.changes import kinds_of_table
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path
from duckicelake.lake.registered.read import find_known, list_data_paths
from duckicelake.lake.registered.rows import FreedFile
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.locations import find_neighbour
from duckicelake.lake.writing.lookups import has_view
from duckicelake.lake.writing.revival import NotedTable, find_drop, forget_purge, forget_purged_location, has_purge, list_noted_tables
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.locations import Roots, table_folder, to_canonical, to_folder_uri
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.tables import TableStep, drop_table, revive_table

METADATA_FILE = re.compile(r"(.+)/metadata/v([1-9]\d{0,17})\.metadata\.json")
DROP = frozenset({"dropped_table"})


def register_table(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool = False) -> LoadedTable:
    """Make the table of a metadata file known under a name, with all of its snapshots; `overwrite`: in place of what has the name.

    What was dropped from this lake comes back by its newest file as DuckLake has it since.
    Raises: NoSuchNamespace. AlreadyExists: the name is taken, or the table is there. BadRequest: the file, or something it
    names, is missing, malformed, elsewhere or of a kind that DuckLake cannot hold, or DuckLake has begun to forget the table
    """
    with reading(warehouse.lake) as conn:
        _find_replaced(conn, ident, overwrite=overwrite)
        _check_place(conn, warehouse.roots, metadata_location)
        dropped = _find_dropped(conn, metadata_location)
    come = _take_in if dropped is None else _revive
    return load_committed(warehouse, ident, come(warehouse, ident, metadata_location, overwrite=overwrite))


def _check_place(conn: psycopg.Connection, roots: Roots, uri: str) -> None:
    home = to_folder_uri(read_iceberg_path(conn))
    if not Roots((*roots.folders, home), roots.anywhere).holds(uri):
        raise BadRequest(f"The metadata file {uri!r} lies neither under {home!r} nor under one of the server's allowed_locations.")


def _find_replaced(conn: psycopg.Connection, ident: Ident, *, overwrite: bool) -> TableRow | None:
    """Return the table that has the name and is to go.

    Raises: NoSuchNamespace. AlreadyExists: the name is taken, and is to stay
    """
    place = get_place(conn, ident)
    if not overwrite:
        check_free(conn, ident, place)
        return None
    if has_view(conn, place.schema_id, ident.name):
        raise AlreadyExists(f"View with same name already exists: {ident}")
    return find_table(conn, to_schema_name(ident.namespace), ident.name)


def _take_in(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool) -> UUID:
    metadata = read_metadata(warehouse.objects, metadata_location)
    with reading(warehouse.lake) as conn:
        metadata = settle(conn, metadata, warehouse.roots, _find_replaced(conn, ident, overwrite=overwrite))
        # now, and under the lock: one that ends between the two has taken what is read here
        _check_not_purged(conn, metadata_location, metadata.location)
        was_here = find_first_version(conn, metadata.location) > 0
    check_store(warehouse, metadata.location, None)
    foreign = read_foreign(warehouse, metadata, with_past=was_here)
    seen = _find_seen(warehouse, foreign) if was_here else None
    grounds = Grounds((metadata.location,), warehouse.roots)
    with committing(warehouse.lake) as commit:
        _check_not_purged(commit.conn, metadata_location, metadata.location)
        replaced = _find_replaced(commit.conn, ident, overwrite=overwrite)
        uuid = take_in(commit, Arrival(ident, metadata_location, foreign, grounds, replaced, seen))
        forget_purged_location(commit.conn, metadata.location)
        commit.remember(uuid)
    return uuid


def _find_seen(warehouse: Warehouse, foreign: Foreign) -> frozenset[str]:
    """Return those data files that are there though DuckLake knows nothing of them."""
    uris = [*(found.live.file.file_path for found in foreign.files), *foreign.past]
    with reading(warehouse.lake) as conn:
        known = find_known(conn, [path for uri in uris for path in spell(uri)], NO_TABLE)
    unknown = [uri for uri in uris if not known & set(spell(uri))]
    return frozenset(uri for uri in unknown if warehouse.objects.exists(uri))


def _revive(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool) -> UUID:
    with reading(warehouse.lake) as conn:
        dropped = _find_dropped(conn, metadata_location)
        _check_not_purged(conn, metadata_location, "", NO_TABLE if dropped is None else dropped.table_id)
    if not warehouse.objects.exists(metadata_location):
        raise BadRequest(f"The metadata file {metadata_location!r} is missing: the table was dropped with its files.")
    with committing(warehouse.lake) as commit:
        replaced = _find_replaced(commit.conn, ident, overwrite=overwrite)
        table = _find_dropped(commit.conn, metadata_location)
        if table is None or table.end_snapshot is None:
            raise AlreadyExists(f"Table already exists: the one of {metadata_location!r} has just come back.")
        _check_not_purged(commit.conn, metadata_location, "", table.table_id)
        folder = table_folder(read_data_path(commit.conn), table)
        step = TableStep() if replaced is None else drop_table(replaced.table_id)
        revived = revive_table(table, get_place(commit.conn, ident), folder, table.end_snapshot)
        paths = [folder + path if is_relative else path for path, is_relative in list_data_paths(commit.conn, table.table_id)]
        step.rows += [*revived.rows, *(FreedFile(path) for path in paths)]
        step.changes += revived.changes
        step.changes_catalog = True
        apply(commit, to_lake_steps(commit.head, Ids(commit.head.next_catalog_id, commit.head.next_file_id), [[step]]))
        forget_purge(commit.conn, table.table_id)
        commit.remember(table.table_uuid)
    return table.table_uuid


def _check_not_purged(conn: psycopg.Connection, metadata_location: str, location: str, table_id: int = NO_TABLE) -> None:
    """Raise BadRequest when what the file says is about to be removed: a purge has dropped it, and has not come to its end."""
    if has_purge(conn, table_id, location):
        raise BadRequest(
            f"The table of {metadata_location!r} was dropped with its files, which are going. "
            "An hour after the drop it can be registered, if they are still there."
        )


def _find_dropped(conn: psycopg.Connection, metadata_location: str) -> NotedTable | None:
    """Return the dropped table whose newest metadata file that is, when every row of it is still there; None for other files.

    Of one that has begun to expire only the files are left that DuckLake has not removed.
    Raises: BadRequest: its location is another table's now, or what dropped it changed it too
    """
    match = METADATA_FILE.fullmatch(metadata_location)
    found = list_noted_tables(conn, match[1]) if match else []
    table = next((table for table in found if match and table.metadata_version == int(match[2])), None)
    if match is None or table is None or table.end_snapshot is None:
        return None
    neighbour = find_neighbour(conn, table.table_id, to_canonical(match[1]))
    if neighbour is not None:
        raise BadRequest(f"The location {neighbour!r} has been taken over by another table; drop that first.")
    drop = find_drop(conn, table.end_snapshot)
    if drop is None or not drop[1]:
        return None
    others = kinds_of_table(drop[0], table.table_id) - DROP
    if others:
        raise BadRequest(
            f"The transaction that dropped the table also changed it ({', '.join(sorted(others))}); what it was before cannot be told."
        )
    return table
