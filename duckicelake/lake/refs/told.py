"""Kept snapshots of main that are told once they have been published, and again when they are published otherwise."""

from collections.abc import Sequence

import psycopg

UPDATE_KEPT = """
UPDATE iceberg_kept k SET json = n.json
  FROM unnest(%(snapshot_ids)s::bigint[], %(earlier)s::text[], %(jsons)s::text[]) AS n(snapshot_id, earlier, json)
 -- what another server has told since stays
 WHERE k.table_id = %(table_id)s AND k.snapshot_id = n.snapshot_id AND k.json = n.earlier
"""


def update_kept_snapshots(conn: psycopg.Connection, table_id: int, told: Sequence[tuple[int, str, str]]) -> None:
    """Give kept snapshots, by their ids, new JSON in the place of what they have."""
    snapshot_ids, earlier, jsons = ([row[place] for row in told] for place in range(3))
    conn.execute(UPDATE_KEPT, {"table_id": table_id, "snapshot_ids": snapshot_ids, "earlier": earlier, "jsons": jsons})
