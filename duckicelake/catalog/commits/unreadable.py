"""The commit that makes an unreadable table readable: it sets `iceberg.unreadable-columns` = `hide`.

`commits.commit` calls this, on a thread of `rest`, after a commit has failed because the table cannot be published. No metadata exists
that other requirements and properties could be checked on, so the commit may only set this property, and name the table's uuid.
"""

import psycopg

from duckicelake.catalog.commits.requests import TableCommit
from duckicelake.catalog.id_allocation import IdAllocator, to_lake_steps
from duckicelake.catalog.snapshot_building import read_changes
from duckicelake.catalog.table_cache import TableCache
from duckicelake.catalog.table_changes import load_committed_table
from duckicelake.catalog.tables import LoadedTable, get_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitFailed
from duckicelake.iceberg.requests.requirements import AssertTableUuid
from duckicelake.iceberg.requests.updates import SetProperties
from duckicelake.lake.changes import NOTES_KIND
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import to_live_rows
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.namespaces import change_tags
from duckicelake.translate.to_ducklake.tables import TableStep
from duckicelake.translate.unreadable_columns import HIDE, PROPERTY


def is_hiding(request: TableCommit) -> bool:
    """Return True if a request sets the property and nothing else, and no requirement needs the table's metadata."""
    are_plain = all(isinstance(requirement, AssertTableUuid) for requirement in request.requirements)
    are_plain = are_plain and all(isinstance(update, SetProperties) and update.updates == {PROPERTY: HIDE} for update in request.updates)
    return request.only_sets_properties and are_plain


def hide_columns(warehouse: Warehouse, request: TableCommit) -> LoadedTable:
    """Set the property of a table that cannot be published, and return it as it is published then.

    Raises: NoSuchTable. CommitFailed: it has another uuid. Unsupported: it still cannot be published; nothing is done then
    """
    with committing(warehouse.lake) as commit:
        table = get_table(commit.conn, request.ident)
        for requirement in request.requirements:
            if isinstance(requirement, AssertTableUuid) and requirement.uuid != str(table.table_uuid):
                raise CommitFailed(f"Requirement failed: the table has the uuid {table.table_uuid}, not {requirement.uuid}.")
        step = TableStep(rows=list_changes(commit.conn, table), changes_catalog=True)
        step.add_change(NOTES_KIND, table.table_id)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(table.table_uuid)
        # Raised here, the reason why the table is not published undoes the change.
        read_changes(commit.conn, warehouse.objects, table, TableCache())
    return load_committed_table(warehouse, request.ident, table.table_uuid)


def list_changes(conn: psycopg.Connection, table: TableRow) -> list[NewRow]:
    """Return the rows that give a table the property."""
    tags = to_live_rows(read_table(conn, table, LastRead())).tags
    return list(change_tags(table.table_id, tags, (), {} if tags.get(PROPERTY) == HIDE else {PROPERTY: HIDE}))
