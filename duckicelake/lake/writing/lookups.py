"""What a commit asks of the lake under its lock, and no load ever asks."""

import psycopg

SELECT_CHILD = """
SELECT EXISTS (SELECT FROM ducklake_table WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
    OR EXISTS (SELECT FROM ducklake_view WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
    OR EXISTS (SELECT FROM ducklake_macro WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
"""


def has_children(conn: psycopg.Connection, schema_id: int) -> bool:
    """Tell whether a schema holds a table, view or macro."""
    row = conn.execute(SELECT_CHILD, {"schema_id": schema_id}).fetchone()
    return bool(row and row[0])
