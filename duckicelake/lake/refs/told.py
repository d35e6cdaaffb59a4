"""Kept snapshots of main that are told once they have been published."""

from collections.abc import Mapping

import psycopg

UPDATE_KEPT = """
UPDATE iceberg_kept k SET json = n.json
  FROM unnest(%(snapshot_ids)s::bigint[], %(jsons)s::text[]) AS n(snapshot_id, json)
 WHERE k.table_id = %(table_id)s AND k.snapshot_id = n.snapshot_id AND k.json = ''
"""


def tell_kept(conn: psycopg.Connection, table_id: int, told: Mapping[int, str]) -> None:
    """Give kept snapshots, by their ids, the JSON that they lack."""
    conn.execute(UPDATE_KEPT, {"table_id": table_id, "snapshot_ids": list(told), "jsons": list(told.values())})
