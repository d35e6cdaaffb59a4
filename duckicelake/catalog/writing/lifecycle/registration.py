"""Tables that come back: dropped from this lake and registered again by their newest metadata file."""

import re

import psycopg

from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.places import check_free, get_place
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.errors import AlreadyExists, BadRequest
from duckicelake.lake.changes import kinds_of_table
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_data_path
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.locations import find_neighbour
from duckicelake.lake.writing.revival import NotedTable, find_drop, list_noted_tables
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.locations import table_folder, to_canonical
from duckicelake.translate.to_ducklake.tables import revive_table

METADATA_FILE = re.compile(r"(.+)/metadata/v([1-9]\d{0,17})\.metadata\.json")
DROP = frozenset({"dropped_table"})


def register_table(warehouse: Warehouse, ident: Ident, metadata_location: str) -> LoadedTable:
    """Bring a dropped table back under a name: as DuckLake has it since, with all of its snapshots.

    Raises: NoSuchNamespace. AlreadyExists: the name is taken, or the table is there. BadRequest: the file is of no table
    dropped from this lake, not its newest one or gone, or DuckLake has begun to forget the table
    """
    with reading(warehouse.lake) as conn:
        check_free(conn, ident, get_place(conn, ident))
        _find_dropped(conn, metadata_location)
    if not warehouse.objects.exists(metadata_location):
        raise BadRequest(f"The metadata file {metadata_location!r} is missing: the table was dropped with its files.")
    with committing(warehouse.lake) as commit:
        place = get_place(commit.conn, ident)
        check_free(commit.conn, ident, place)
        table, dropped_at = _find_dropped(commit.conn, metadata_location)
        _check_whole(commit.conn, table, dropped_at)
        folder = table_folder(read_data_path(commit.conn), table)
        step = revive_table(table, place, folder, dropped_at)
        apply(commit, to_lake_steps(commit.head, Ids(commit.head.next_catalog_id, commit.head.next_file_id), [[step]]))
    return load_committed(warehouse, ident)


def _find_dropped(conn: psycopg.Connection, metadata_location: str) -> tuple[NotedTable, int]:
    """Return the table whose newest metadata file that is, and the lake snapshot that dropped it."""
    match = METADATA_FILE.fullmatch(metadata_location)
    found = list_noted_tables(conn, match[1]) if match else []
    if match is None or not found:
        raise BadRequest(
            f"The metadata file {metadata_location!r} is of no table of this lake. Tables of other catalogs are not registered yet; "
            "copy their rows, or add their files with `ducklake_add_data_files` in DuckDB."
        )
    table = next((table for table in found if table.metadata_version == int(match[2])), None)
    if table is None:
        newest = ", ".join(f"v{table.metadata_version}" for table in found)
        raise BadRequest(f"The metadata file {metadata_location!r} is not the newest one of its table ({newest}); register that.")
    if table.end_snapshot is None:
        raise AlreadyExists(f"Table already exists: {table.schema_name}.{table.table_name} has that metadata file; rename it.")
    neighbour = find_neighbour(conn, table.table_id, to_canonical(match[1]))
    if neighbour is not None:
        raise BadRequest(f"The location {neighbour!r} has been taken over by another table; drop that first.")
    return table, table.end_snapshot


def _check_whole(conn: psycopg.Connection, table: NotedTable, dropped_at: int) -> None:
    """Raise BadRequest unless every row that ended with the table is still there, and none ended there otherwise."""
    drop = find_drop(conn, dropped_at)
    if drop is None or not drop[1]:
        raise BadRequest(
            f"DuckLake has expired the lake snapshots around {dropped_at}, in which the table was dropped, and may have removed its files."
        )
    others = kinds_of_table(drop[0], table.table_id) - DROP
    if others:
        raise BadRequest(
            f"The transaction that dropped the table also changed it ({', '.join(sorted(others))}); what it was before cannot be told."
        )
