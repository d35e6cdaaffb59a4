"""`iceberg_manifest`: manifests that Spark executors wrote and the server imported, by the digest of the plan they were made from.

`catalog.publish` writes them in a transaction of this module's own, `manifest_import.imported` reads them in the load's transaction, and
`duckicelake check --repair` deletes them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psycopg

from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, writing
from duckicelake.lake.read import fetch_rows


@dataclass(frozen=True, slots=True)
class ImportedManifestRow:
    """`iceberg_manifest`: `digest` identifies the inputs of the manifest, `name` its bytes; `json` is its entry for manifest lists."""

    digest: str
    name: str
    json: str


SELECT_IMPORTED = """
SELECT digest, name, json FROM iceberg_manifest WHERE table_id = %(table_id)s
"""


def read_imported_manifests(conn: psycopg.Connection, table_id: int) -> list[ImportedManifestRow]:
    """Return the imported manifests of a table, in no order."""
    return fetch_rows(conn, ImportedManifestRow, SELECT_IMPORTED, table_id=table_id)


DELETE_UNUSED = """
DELETE FROM iceberg_manifest m
 WHERE m.table_id = %(table_id)s AND m.digest <> ALL(%(digests)s::text[])
    OR NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = m.table_id AND t.end_snapshot IS NULL)
"""

UPSERT_IMPORTED = """
INSERT INTO iceberg_manifest (table_id, digest, name, json)
VALUES (%(table_id)s, %(digest)s, %(name)s, %(json)s)
ON CONFLICT (table_id, digest) DO UPDATE SET name = excluded.name, json = excluded.json
"""


def write_imported_manifests(lake: Lake, table_id: int, rows: Sequence[ImportedManifestRow], needed: Sequence[str]) -> None:
    """Write the rows of imported manifests; delete the table's rows that are not in `needed`, and the rows of dropped tables."""
    with writing(lake) as conn:
        conn.execute(DELETE_UNUSED, {"table_id": table_id, "digests": list(needed)})
        with conn.cursor() as cursor:
            cursor.executemany(UPSERT_IMPORTED, [{"table_id": table_id, **asdict(row)} for row in rows])
        if lake.audit_context is not None:
            write_line(conn, lake.audit_context, None)
    if lake.audit_context is not None:
        log_line(AuditLine(lake.audit_context, DONE))


DELETE_IMPORTED = """
DELETE FROM iceberg_manifest
"""


def delete_imported_manifests(conn: psycopg.Connection) -> None:
    """Delete all rows of imported manifests: an operator may have corrected the rows that they were made from."""
    conn.execute(DELETE_IMPORTED)
