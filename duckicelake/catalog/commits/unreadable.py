"""The commit that makes an unreadable table readable: it sets `iceberg.unreadable-columns` = `hide`.

`commits.commit` calls this, on a thread of `rest`, after a commit has failed because the table cannot be published. No metadata exists
that the other requirements of a commit could be checked on, so the commit may only change properties, and name the table's uuid.
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
from duckicelake.iceberg.requests.updates import RemoveProperties, SetProperties
from duckicelake.lake.changes import NOTES_KIND
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import to_live_rows
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import committing
from duckicelake.translate.namespaces import change_tags
from duckicelake.translate.to_ducklake.tables import TableStep, stored_properties
from duckicelake.translate.unreadable_columns import HIDE, PROPERTY, check_property


def is_hiding(request: TableCommit) -> bool:
    """Return True if a request sets the property, and no requirement or update needs the table's metadata."""
    are_plain = all(isinstance(requirement, AssertTableUuid) for requirement in request.requirements)
    return request.only_sets_properties and are_plain and collect_properties(request, {}).get(PROPERTY) == HIDE


def collect_properties(request: TableCommit, properties: dict[str, str]) -> dict[str, str]:
    """Return properties after the updates of a request that changes nothing else."""
    for update in request.updates:
        if isinstance(update, SetProperties):
            properties = {**properties, **update.updates}
        elif isinstance(update, RemoveProperties):
            properties = {key: value for key, value in properties.items() if key not in update.removals}
    return properties


def hide_columns(warehouse: Warehouse, request: TableCommit) -> LoadedTable:
    """Set the properties of a table that cannot be published, and return it as it is published then.

    Raises: NoSuchTable. CommitFailed: it has another uuid. Unsupported: it still cannot be published; nothing is done then
    """
    with committing(warehouse.lake) as commit:
        table = get_table(commit.conn, request.ident)
        for requirement in request.requirements:
            if isinstance(requirement, AssertTableUuid) and requirement.uuid != str(table.table_uuid):
                raise CommitFailed(f"Requirement failed: the table has the uuid {table.table_uuid}, not {requirement.uuid}.")
        step = TableStep(rows=list_changes(commit.conn, table, request), changes_catalog=True)
        step.add_change(NOTES_KIND, table.table_id)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(table.table_uuid)
        # Raised here, the reason why the table is not published undoes the change.
        read_changes(commit.conn, warehouse.objects, table, TableCache())
    return load_committed_table(warehouse, request.ident, table.table_uuid)


def list_changes(conn: psycopg.Connection, table: TableRow, request: TableCommit) -> list[NewRow]:
    """Return the rows that change a table's properties as a request asks. Raises: BadRequest: the property has another value."""
    tags = to_live_rows(read_table(conn, table, LastRead())).tags
    before = stored_properties(tags)
    after = stored_properties(collect_properties(request, before))
    check_property(after)
    updates = {key: value for key, value in after.items() if before.get(key) != value}
    return list(change_tags(table.table_id, tags, before.keys() - after.keys(), updates))
