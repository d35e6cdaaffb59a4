"""`iceberg_manifest`: manifests that executors of Spark wrote, by what they were made of."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psycopg

from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, writing
from duckicelake.lake.read import fetch_rows


@dataclass(frozen=True, slots=True)
class ImportedManifestRow:
    """`iceberg_manifest`: `digest` is of what the manifest was made of, `name` that of its bytes; `json` is what a list says of it."""

    digest: str
    name: str
    json: str


SELECT_IMPORTED = """
SELECT digest, name, json FROM iceberg_manifest WHERE table_id = %(table_id)s
"""


def read_imported_manifests(conn: psycopg.Connection, table_id: int) -> list[ImportedManifestRow]:
    """Return the manifests of a table that were taken over, in no order."""
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
    """Note manifests that were taken over, and forget those of the table that are not `needed` any more, and those of dropped tables."""
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
    """Forget all manifests that were taken over: somebody may have corrected the rows that they were made of."""
    conn.execute(DELETE_IMPORTED)
