"""The commit that makes an unreadable table readable: it sets `iceberg.unreadable-columns` = `hide`.

`commits.commit` calls this, on a thread of `rest`, after a commit has failed because the table cannot be published. No metadata exists
that other requirements and properties could be checked on, so the commit may only set this property, and name the table's uuid.
A read transaction without locks tries to build the state; full batches of its objects go to the store. A second transaction, under the
lake's lock, only writes rows, the request's audit lines and idempotency key among them. A load then publishes the table.
"""

from dataclasses import replace

import psycopg

from duckicelake.catalog.commits.requests import TableCommit
from duckicelake.catalog.publish import build_draft
from duckicelake.catalog.snapshot_building import read_state
from duckicelake.catalog.table_cache import TableCache
from duckicelake.catalog.table_changes import load_committed_table
from duckicelake.catalog.tables import LoadedTable, get_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitFailed
from duckicelake.iceberg.requests.requirements import AssertTableUuid
from duckicelake.iceberg.requests.updates import SetProperties
from duckicelake.lake.changes import NOTES_KIND
from duckicelake.lake.connect import reading
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import TableRow, TableState, TagRow
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import is_touched, to_live_rows
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.namespaces import change_tags
from duckicelake.translate.to_ducklake.tables import IdAllocator, TableStep, to_lake_steps
from duckicelake.translate.unreadable_columns import HIDE, PROPERTY


def is_hiding(request: TableCommit) -> bool:
    """Return True if a request sets the property and nothing else, and no requirement needs the table's metadata."""
    are_plain = all(isinstance(requirement, AssertTableUuid) for requirement in request.requirements)
    are_plain = are_plain and all(isinstance(update, SetProperties) and update.updates == {PROPERTY: HIDE} for update in request.updates)
    return request.only_sets_properties and are_plain


def hide_columns(warehouse: Warehouse, request: TableCommit) -> LoadedTable:
    """Set the property of a table that cannot be published, and return it as it is published then.

    Raises: NoSuchTable. CommitFailed: it has another uuid, or was changed meanwhile. Unsupported: it still cannot be published
    """
    with reading(warehouse.lake) as conn:
        table = get_table(conn, request.ident)
        _check_uuid(request, table)
        state = read_table(conn, table, LastRead())
        _check_publishable(conn, warehouse, state)
    tags = to_live_rows(state).tags
    with committing(warehouse.lake) as commit:
        if is_touched(commit.conn, table.table_id, state.position):
            raise CommitFailed(f"The table {request.ident} was changed while its columns were looked at; nothing was done. Try again.")
        rows = change_tags(table.table_id, tags, (), {} if tags.get(PROPERTY) == HIDE else {PROPERTY: HIDE})
        step = TableStep(rows=list(rows), changes_catalog=True)
        step.add_change(NOTES_KIND, table.table_id)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(table.table_uuid)
    return load_committed_table(warehouse, request.ident, table.table_uuid)


def _check_uuid(request: TableCommit, table: TableRow) -> None:
    for requirement in request.requirements:
        if isinstance(requirement, AssertTableUuid) and requirement.uuid != str(table.table_uuid):
            raise CommitFailed(f"Requirement failed: the table has the uuid {table.table_uuid}, not {requirement.uuid}.")


def _check_publishable(conn: psycopg.Connection, warehouse: Warehouse, state: TableState) -> None:
    """Raise Unsupported if the table could not be published with the property either: all that a load makes is made, and nothing names it.

    A big table may take long, so the lake is not locked meanwhile.
    """
    assumed = replace(state, tags=[*(tag for tag in state.tags if tag.key != PROPERTY), TagRow(PROPERTY, HIDE)])
    cache = TableCache()
    build_draft(conn, warehouse.objects, read_state(conn, warehouse.objects, assumed, cache), cache)
