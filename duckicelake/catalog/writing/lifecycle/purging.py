"""Objects that go with a dropped table: what Iceberg readers alone need. DuckLake's time travel keeps its files.

The drop notes where they are. The note goes after the objects: what a crash leaves between the two is finished later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError
from duckicelake.lake.connect import reading, writing
from duckicelake.lake.notes import read_notes
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.locations import find_neighbour, list_earlier_locations, list_named_paths, list_other_paths
from duckicelake.lake.writing.revival import Purge, forget_purge, list_noted_tables, list_purges
from duckicelake.translate.locations import file_uri, table_folder, to_canonical, to_uri


@dataclass(frozen=True, slots=True)
class Belongings:
    """What lay in a table's locations before it was dropped. Whatever comes there later is another's."""

    table: TableRow
    uris: Sequence[str]
    locations: Sequence[str] = ()


def list_belongings(warehouse: Warehouse, table: TableRow) -> Belongings:
    """Return the objects of a live table; where another one was before it, its metadata files alone."""
    with reading(warehouse.lake) as conn:
        notes = read_notes(conn, table.table_id)
        if notes.table is None:
            return Belongings(table, [])
        locations = [notes.table.location, *list_earlier_locations(conn, table.table_id)]
        shared = {location for location in locations if len(list_noted_tables(conn, location)) > 1}
    own = {f"/metadata/v{row.metadata_version}.metadata.json" for row in notes.metadata_log}
    return Belongings(
        table,
        [
            uri
            for location in locations
            for uri, _ in warehouse.objects.list_under(location)
            if location not in shared or uri.removeprefix(location) in own
        ],
        locations,
    )


def purge(warehouse: Warehouse, belongings: Belongings) -> None:
    """Remove what a table left that no row of DuckLake names; its drop has landed, so a store that fails leaves the rest."""
    try:
        with reading(warehouse.lake) as conn:
            named = _list_named(conn, belongings)
        warehouse.objects.delete_many(uri for uri in belongings.uris if to_canonical(uri) not in named)
        with writing(warehouse.lake) as conn:
            forget_purge(conn, belongings.table.table_id)
    except CatalogError:
        # nobody may be told that the table is still there; the purge is noted
        return


def finish_noted(warehouse: Warehouse, table_uuid: UUID | None) -> None:
    """Remove what is left of a purged table, when its drop is asked for again."""
    if table_uuid is None:
        return
    try:
        with reading(warehouse.lake) as conn:
            purges = list_purges(conn, table_uuid)
        for purge_ in purges:
            finish(warehouse, purge_)
    except CatalogError:
        return


def finish(warehouse: Warehouse, noted: Purge) -> list[str]:
    """Remove what a purge that was broken off has left of a table's objects, and return it.

    What was written after the drop is another's, and so is a location where another table is; where another one was before, the
    table's own metadata files alone are its own.
    """
    with reading(warehouse.lake) as conn:
        own = {f"/metadata/v{row.metadata_version}.metadata.json" for row in read_notes(conn, noted.table_id).metadata_log}
        free = [location for location in noted.locations if find_neighbour(conn, noted.table_id, to_canonical(location)) is None]
        shared = {location for location in free if any(table.table_id != noted.table_id for table in list_noted_tables(conn, location))}
    left = [
        uri
        for location in free
        for uri, modified in warehouse.objects.list_modified(location)
        if modified <= noted.begun_at and (location not in shared or uri.removeprefix(location) in own)
    ]
    with reading(warehouse.lake) as conn:
        paths = [path for path, is_relative in list_named_paths(conn, noted.table_id, noted.locations) if not is_relative]
        named = {to_canonical(to_uri(path)) for path in (*paths, *list_other_paths(conn, noted.locations, noted.table_id))}
    gone = [uri for uri in left if to_canonical(uri) not in named]
    warehouse.objects.delete_many(gone)
    with writing(warehouse.lake) as conn:
        forget_purge(conn, noted.table_id)
    return gone


def _list_named(conn: psycopg.Connection, gone: Belongings) -> set[str]:
    folder = table_folder(read_data_path(conn), gone.table)
    paths = list_named_paths(conn, gone.table.table_id, gone.locations)
    return {to_canonical(file_uri(folder, path, is_relative)) for path, is_relative in paths}
