"""Drop protection: the property by which a table or namespace refuses to be dropped, unregistered or replaced over REST.

`table_changes`, `namespace_changes` and `registration` call this in the commit's transaction, under the lake's lock; a registerTable with
overwrite checks it before, too, in a read transaction. A principal who may write properties can remove the property.
"""

import psycopg

from duckicelake.errors import DropProtected
from duckicelake.lake.rows import SchemaRow, TableRow
from duckicelake.lake.writing.dropped import PROTECTION, list_protected
from duckicelake.translate.namespaces import to_levels

PROPERTY = PROTECTION


def check_may_drop_table(conn: psycopg.Connection, table: TableRow) -> None:
    """Raise DropProtected if a table, or the namespace that it is in, has the property."""
    protected = list_protected(conn, table.table_id, PROPERTY)
    if not protected:
        return
    namespace = ".".join(to_levels(table.schema_name))
    what = f"The table {namespace}.{table.table_name} is protected from being dropped"
    if table.table_id in protected:
        raise DropProtected(f"{what}; remove its property {PROPERTY!r} first.")
    raise DropProtected(f"{what} by its namespace; remove the property {PROPERTY!r} of {namespace} first.")


def check_may_move_table(conn: psycopg.Connection, table: TableRow, target_schema: str) -> None:
    """Raise DropProtected if a table would leave a namespace that protects it: outside it could be dropped.

    A table that has the property itself keeps it everywhere.
    """
    protected = list_protected(conn, table.table_id, PROPERTY)
    if target_schema == table.schema_name or not protected - {table.table_id}:
        return
    namespace = ".".join(to_levels(table.schema_name))
    raise DropProtected(
        f"The namespace {namespace} protects the table {namespace}.{table.table_name} from being dropped, so it cannot be renamed into "
        f"another one; remove the property {PROPERTY!r} of {namespace} first."
    )


def check_may_drop_namespace(conn: psycopg.Connection, schema: SchemaRow) -> None:
    """Raise DropProtected if a namespace has the property."""
    if list_protected(conn, schema.schema_id, PROPERTY):
        name = ".".join(to_levels(schema.schema_name))
        raise DropProtected(f"The namespace {name} is protected from being dropped; remove its property {PROPERTY!r} first.")
