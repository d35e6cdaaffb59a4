"""Objects that go with a dropped table: what Iceberg readers alone need. DuckLake's time travel keeps its files."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError
from duckicelake.lake.connect import reading
from duckicelake.lake.notes import read_notes
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.locations import list_earlier_locations, list_named_paths
from duckicelake.lake.writing.revival import list_noted_tables
from duckicelake.translate.locations import file_uri, table_folder, to_canonical


@dataclass(frozen=True, slots=True)
class Belongings:
    """What lay in a table's locations before it was dropped. Whatever comes there later is another's."""

    table: TableRow
    uris: Sequence[str]


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
    )


def purge(warehouse: Warehouse, belongings: Belongings) -> None:
    """Remove what a table left that no row of DuckLake names; its drop has landed, so a store that fails leaves the rest."""
    try:
        with reading(warehouse.lake) as conn:
            named = _list_named(conn, belongings.table)
        warehouse.objects.delete_many(uri for uri in belongings.uris if to_canonical(uri) not in named)
    except CatalogError:
        # nobody may be told that the table is still there
        return


def _list_named(conn: psycopg.Connection, table: TableRow) -> set[str]:
    folder = table_folder(read_data_path(conn), table)
    return {to_canonical(file_uri(folder, path, is_relative)) for path, is_relative in list_named_paths(conn, table.table_id)}
