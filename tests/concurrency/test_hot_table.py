"""DuckDB writes to a table whose properties and statistics Iceberg clients change without a pause."""

import json
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from threading import Event
from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from tests.crashes.process import running
from tests.rest.serving import BASE, Server, make_settings
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake

WRITERS = 8
JSON = {"content-type": "application/json"}


def to_update(number: int, round_number: int, metadata: Any) -> list[Any]:
    """Return what a writer changes: the even ones a property of their own, the others statistics of the snapshot they see."""
    if number % 2 == 0:
        return [{"action": "set-properties", "updates": {f"writer-{number}": str(round_number)}}]
    snapshot_id = metadata["current-snapshot-id"]
    sizes = {"file-size-in-bytes": 100, "file-footer-size-in-bytes": 10, "blob-metadata": []}
    file = {"snapshot-id": snapshot_id, "statistics-path": f"{metadata['location']}/metadata/{number}-{round_number}.stats", **sizes}
    return [{"action": "set-statistics", "snapshot-id": snapshot_id, "statistics": file}]


def write_until(stop: Event, server: Server, number: int, metadata: Any) -> int:
    """Commit one change after the other, none of which requires anything, and return how many landed: none may be refused."""
    landed = 0
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=120)) as connection:
        while not stop.is_set():
            body = json.dumps({"requirements": [], "updates": to_update(number, landed, metadata)})
            connection.request("POST", f"{BASE}/namespaces/main/tables/t", body, JSON)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said
            landed += 1
    return landed


@contextmanager
def hot_table(lake: FreshLake, duck: DuckDBPyConnection, count: int) -> "Generator[list[Future[int]]]":
    """Eight writers that change the table `t` until the end of the block, through so many servers."""
    duck.execute("CREATE TABLE t (i bigint)")
    duck.execute("INSERT INTO t VALUES (-1)")
    stop = Event()
    with ExitStack() as opened:
        servers = [opened.enter_context(running(make_settings(lake))).server for _ in range(count)]
        metadata = open_client(servers[0], lake).load()
        with ThreadPoolExecutor(WRITERS) as pool:
            writing = [pool.submit(write_until, stop, servers[n % count], n, metadata) for n in range(WRITERS)]
            try:
                yield writing
            finally:
                stop.set()
        properties = open_client(servers[-1], lake).load()["properties"]
        for number, each in enumerate(writing):
            assert each.result(), f"writer {number} made no progress"
            assert number % 2 or properties[f"writer-{number}"] == str(each.result() - 1), f"a commit of writer {number} is lost"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("statements", "servers"), [pytest.param(5, 1, id="five"), pytest.param(200, 2, id="two hundred", marks=pytest.mark.long)]
)
def test_duckdbs_inserts_into_a_hot_table_all_land(lake: FreshLake, statements: int, servers: int) -> None:
    """With its default settings: none is refused after DuckDB's own tries, and none that it acknowledged is missing or there twice."""
    duck = lake.duckdb()
    with hot_table(lake, duck, servers):
        for number in range(statements):
            duck.execute(f"INSERT INTO t VALUES ({number})")
    rows = [number for (number,) in duck.execute("FROM t ORDER BY ALL").fetchall()]
    assert rows == [-1, *range(statements)]
    assert duck.execute("SELECT count(changes) > 0 FROM lake.snapshots()").fetchone() == (True,)


@pytest.mark.long
def test_duckdbs_updates_and_deletes_of_a_hot_table_all_land(lake: FreshLake) -> None:
    """Each is one statement with its default settings."""
    duck = lake.duckdb()
    with hot_table(lake, duck, 2):
        duck.execute("INSERT INTO t SELECT range FROM range(100)")
        for number in range(50):
            duck.execute(f"UPDATE t SET i = {1000 + number} WHERE i = {number}")
            duck.execute(f"DELETE FROM t WHERE i = {99 - number}")
    assert duck.execute("SELECT count(*), count(DISTINCT i), min(i), max(i) FROM t WHERE i > 0").fetchone() == (50, 50, 1000, 1049)
