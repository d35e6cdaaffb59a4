"""Commits that wait in a known order: a test holds the lake's lock, one commit waits for it, and the others wait for their turn."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.rest.serving import Answer
from tests.rest.writing.client import Client
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for

LOCK = "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"
QUEUE = "duckicelake_commit_queue_length"
SELECT_DOUBLED = """
SELECT object_id, key FROM ducklake_tag WHERE end_snapshot IS NULL GROUP BY object_id, key HAVING count(*) > 1
"""
SELECT_LIVE_KEYS = """
SELECT g.key FROM ducklake_tag g JOIN ducklake_table t ON t.table_id = g.object_id AND t.end_snapshot IS NULL
 WHERE t.table_name = %s AND g.end_snapshot IS NULL
"""


@contextmanager
def locked(lake: FreshLake) -> Generator[psycopg.Connection]:
    """Hold the lake's lock: a commit that has its turn waits for it, and others wait for their turn."""
    conn = lake.psycopg(autocommit=False)
    conn.execute(LOCK)
    try:
        yield conn
    finally:
        conn.rollback()


def set_property(key: str, value: str = "v") -> dict[str, Any]:
    """Return the update that sets a property."""
    return {"action": "set-properties", "updates": {key: value}}


def wait_for_queue(client: Client, length: int) -> None:
    """Return when so many commits wait for a turn."""
    wait_for(lambda: client.server.count(QUEUE) == length, f"{length} commits in the queue")


def begin(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> "Future[Answer]":
    """Return a commit that has its turn and waits for the lake's lock."""
    first = pool.submit(client.commit, [set_property("begun")])
    wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a commit that waits for the lake")
    return first


def submit_in_line(client: Client, pool: ThreadPoolExecutor, commits: list[tuple[list[Any], list[Any]]]) -> "list[Future[Answer]]":
    """Send commits one after the other, each when the one before it waits for its turn."""
    sent: list[Future[Answer]] = []
    before = int(client.server.count(QUEUE))
    for updates, requirements in commits:
        sent.append(pool.submit(client.commit, updates, requirements))
        wait_for_queue(client, before + len(sent))
    return sent


def read_head(lake: FreshLake) -> int:
    """Return the newest lake snapshot."""
    [(head,)] = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchall()
    return head


def count_audited(lake: FreshLake) -> int:
    """Return the number of audit lines of commits."""
    [(count,)] = lake.psycopg().execute("SELECT count(*) FROM iceberg_audit WHERE operation = 'updateTable'").fetchall()
    return count


def check_published(client: Client, lake: FreshLake, name: str = "t") -> dict[str, str]:
    """Check what no commit may leave otherwise, and return the table's properties.

    Every metadata file of the log is there, and DuckLake has each key once, and none that is not shown.
    """
    assert lake.psycopg().execute(SELECT_DOUBLED).fetchall() == []
    metadata = client.load(name)
    assert all(client.objects.read(entry["metadata-file"]) for entry in metadata["metadata-log"])
    assert {key for (key,) in lake.psycopg().execute(SELECT_LIVE_KEYS, [name])} <= metadata["properties"].keys()
    return metadata["properties"]
