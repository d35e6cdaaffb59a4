"""The members of a repository that a branch was made from, and where they keep files of a table that the branch reads.

`catalog.credentials` calls it on a branch's connection, in its read transaction. `catalog.commits.prepare` calls only `list_used_folders`,
for branches and the lake, in a read transaction for each call. It only reads; `in_schema` changes the connection's search path for a while.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from duckicelake.lake.install import format_search_path

# A deleted branch may leave its name to a younger one, which is no ancestor.
SELECT_ANCESTORS = sql.SQL("""
WITH RECURSIVE chain AS (
    SELECT b.number, b.parent FROM {repository}.iceberg_branch b WHERE b.schema_name = %(schema)s AND NOT b.is_deleted
     UNION ALL
    SELECT b.number, b.parent FROM chain c
      JOIN {repository}.iceberg_branch b ON b.schema_name = c.parent AND b.number < c.number AND NOT b.is_deleted
)
SELECT b.schema_name FROM chain c JOIN {repository}.iceberg_branch b ON b.number = c.number AND b.schema_name <> %(schema)s
""")


def list_ancestors(conn: psycopg.Connection, repository: str, schema: str) -> list[str]:
    """Return the schemas of the branches that a branch was made from, as far as they are not deleted, and of the lake."""
    query = SELECT_ANCESTORS.format(repository=sql.Identifier(repository))
    return [*(row[0] for row in conn.execute(query, {"schema": schema}).fetchall()), repository]


@contextmanager
def in_schema(conn: psycopg.Connection, schema: str, own: str) -> Generator[None]:
    """Let unqualified names mean those of another member; afterwards they mean the connection's own again."""
    conn.execute(format_search_path(schema))
    yield
    # After an error the transaction is rolled back, which takes the setting back too.
    conn.execute(format_search_path(own))


SELECT_IS_ALWAYS_IN = """
SELECT coalesce(bool_and(s.schema_name = %(schema_name)s), true)
  FROM ducklake_table t LEFT JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE t.table_id = %(table_id)s
"""


def is_always_in(conn: psycopg.Connection, table_id: int, schema_name: str) -> bool:
    """Return True if a table has never been in another schema of this member, so that grants on schemas are the same there."""
    row = conn.execute(SELECT_IS_ALWAYS_IN, {"table_id": table_id, "schema_name": schema_name}).fetchone()
    return bool(row and row[0])


SELECT_USED_FOLDERS = """
SELECT n.folder FROM unnest(%(folders)s::text[]) WITH ORDINALITY AS n(folder, place)
 WHERE EXISTS (SELECT FROM ducklake_data_file f WHERE f.table_id = %(table_id)s AND starts_with(f.path, n.folder))
    OR EXISTS (SELECT FROM ducklake_delete_file f WHERE f.table_id = %(table_id)s AND starts_with(f.path, n.folder))
 ORDER BY n.place
"""


def list_used_folders(conn: psycopg.Connection, table_id: int, folders: Sequence[str]) -> list[str]:
    """Return the folders in which files of a table lie, live or not."""
    return [row[0] for row in conn.execute(SELECT_USED_FOLDERS, {"table_id": table_id, "folders": list(folders)}).fetchall()]
