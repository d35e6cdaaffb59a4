"""Tables that go to another catalog: nothing of them is removed, then or later."""

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from duckicelake.catalog.tables import Ident, LoadedTable, get_table, load_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.tables import cannot_show
from duckicelake.errors import CatalogError, CommitFailed, NoSuchTable
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_data_path
from duckicelake.lake.registered.read import find_departed, find_pinned, list_data_paths
from duckicelake.lake.registered.rows import NOBODY, Haven, PinnedFile
from duckicelake.lake.rows import Position, TableRow
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.lookups import is_touched
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import metadata_uri, table_folder
from duckicelake.translate.to_ducklake.tables import drop_table

TRIES = 10


class _Moved(Exception):
    """The table changed between loading it and locking the lake: nothing may be written, not even the request's key."""


def unregister_table(warehouse: Warehouse, ident: Ident) -> LoadedTable:
    """Take a table out of the lake and return it as it was then; its files and metadata stay for whoever registers it next.

    Raises: NoSuchTable: it does not exist. CommitFailed: others change it all the time
    """
    for _ in range(TRIES):
        loaded = load_table(warehouse, ident)
        with suppress(_Moved), committing(warehouse.lake) as commit:
            table = get_table(commit.conn, ident)
            if table.table_id != loaded.table_id or is_touched(commit.conn, table.table_id, loaded.position):
                raise _Moved
            _let_go(commit, table)
            commit.remember(table.table_uuid)
            return loaded
    raise CommitFailed(f"The table {ident} was changed again and again while it was being unregistered; nothing was done. Try again.")


def find_unregistered(warehouse: Warehouse, ident: Ident, table_uuid: UUID | None) -> LoadedTable:
    """Return the table with that uuid, which was unregistered, as its answer said.

    Raises: CommitStateUnknown: DuckLake has forgotten it, or its metadata file is gone
    """
    with reading(warehouse.lake) as conn:
        found = None if table_uuid is None else find_departed(conn, table_uuid)
    if found is None:
        raise cannot_show(ident, NoSuchTable("DuckLake has forgotten the table."))
    table_id, location, version = found
    uri = metadata_uri(location, version)
    try:
        return LoadedTable(uri, warehouse.objects.read(uri), {}, table_id, Position(-1, -1))
    except CatalogError as error:
        raise cannot_show(ident, error) from error


def _let_go(commit: Commit, table: TableRow) -> None:
    """Drop the table from the lake and let DuckLake go on knowing its data files, so that it removes none of them."""
    ids = Ids(commit.head.next_catalog_id, commit.head.next_file_id)
    step = drop_table(table.table_id)
    step.rows += _keep_files(commit, table, ids)
    apply(commit, to_lake_steps(commit.head, ids, [[step]]))


def _keep_files(commit: Commit, table: TableRow, ids: Ids) -> Iterator[NewRow]:
    folder = table_folder(read_data_path(commit.conn), table)
    paths = {folder + path if is_relative else path for path, is_relative in list_data_paths(commit.conn, table.table_id)}
    fresh = sorted(paths - find_pinned(commit.conn, sorted(paths)))
    if fresh:
        yield Haven(NOBODY)
    for delete_file_id, path in enumerate(fresh, ids.take_file_ids(len(fresh))):
        yield PinnedFile(delete_file_id, NOBODY, path)
