"""A client's change of properties or statistics alone changes nothing that DuckDB's transactions on the table depend on."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_but

SET = {"action": "set-properties", "updates": {"k": "v"}}


@pytest.fixture
def server(lake: FreshLake) -> Generator[Server]:
    """A server of the lake."""
    with serve(make_settings(lake)) as running:
        yield running


def set_statistics(client: Client) -> list[Any]:
    """Return the update that gives the current snapshot a statistics file."""
    metadata = client.load()
    file = {
        "snapshot-id": metadata["current-snapshot-id"],
        "statistics-path": f"{metadata['location']}/metadata/s.puffin",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    return [{"action": "set-statistics", "snapshot-id": metadata["current-snapshot-id"], "statistics": file}]


@pytest.mark.parametrize(
    "change",
    whole_but(
        [
            pytest.param(lambda client: [SET], id="property"),
            pytest.param(lambda client: [SET, {"action": "remove-properties", "removals": ["comment"]}], id="comment"),
            pytest.param(set_statistics, id="statistics"),
            pytest.param(lambda client: [{"action": "upgrade-format-version", "format-version": 3}], id="format version"),
        ],
        "property",
        "statistics",
    ),
)
@pytest.mark.parametrize(
    ("statement", "rows"),
    whole_but(
        [
            pytest.param("INSERT INTO t VALUES (9, 'i')", [(1, "a"), (2, "b"), (9, "i")], id="insert inlined"),
            pytest.param("INSERT INTO t SELECT 8, 'f' FROM range(50)", [(1, "a"), (2, "b"), *[(8, "f")] * 50], id="insert file"),
            pytest.param("UPDATE t SET s = 'u' WHERE i = 1", [(1, "u"), (2, "b")], id="update"),
            pytest.param("DELETE FROM t WHERE i = 1", [(2, "b")], id="delete"),
        ],
        "insert file",
        "update",
    ),
)
def test_duckdbs_transaction_lands(
    lake: FreshLake, server: Server, change: Callable[[Client], list[Any]], statement: str, rows: list[tuple[int, str]]
) -> None:
    """Begun before the change and committed after it; both are there then, in DuckDB and over REST."""
    duck, client = lake.duckdb(), open_client(server, lake)
    duck.execute("CREATE TABLE t AS SELECT * FROM (VALUES (1, 'a'), (2, 'b')) v(i, s)")
    duck.execute("COMMENT ON TABLE t IS 'c'")
    updates = change(client)
    duck.execute("BEGIN")
    duck.execute(statement)
    answer = client.commit(updates)
    assert answer.status == 200, answer.body
    duck.execute("COMMIT")
    assert duck.execute("FROM t ORDER BY ALL").fetchall() == rows
    assert duck.execute("SELECT count(changes) FROM lake.snapshots()").fetchone()
    metadata = client.load()
    [(newest,)] = duck.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()
    assert metadata["current-snapshot-id"] == newest
    changed = answer.json["metadata"]
    assert metadata["properties"].get("k") == changed["properties"].get("k")
    assert metadata["format-version"] == changed["format-version"]
    assert len(metadata.get("statistics", [])) == len(changed.get("statistics", []))


def test_every_server_sees_the_change_at_once(lake: FreshLake, server: Server) -> None:
    """It is found by the watch of a server that has the table ready, and by the look-up of one that loads it again."""
    client = open_client(server, lake)
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS i")
    with serve(make_settings(lake)) as second:
        other = open_client(second, lake)
        assert "k" not in other.load()["properties"]
        shown = client.load()
        assert client.commit([SET]).status == 200
        assert other.load()["properties"]["k"] == "v"
        assert other.commit([{"action": "remove-properties", "removals": ["k"]}]).status == 200
        assert "k" not in client.load()["properties"]
        assert [s["snapshot-id"] for s in client.load()["snapshots"]] == [s["snapshot-id"] for s in shown["snapshots"]]
