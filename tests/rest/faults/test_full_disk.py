"""A full local disk: what was asked for is refused with its name, nothing half-written stays, and all goes on when there is room."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rest.faults.process import Process, serve_apart
from tests.rest.serving import Answer
from tests.rest.writing.client import COLUMNS, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

TABLES = "namespaces/main/tables"
JSON = {"content-type": "application/json"}


@pytest.fixture
def process(local_lake: FreshLake) -> Iterator[Process]:
    """A server of a lake with a table of a hundred rows and one inlined row, that nobody has asked for yet."""
    with local_lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
        conn.execute("INSERT INTO t VALUES (1000)")
    with serve_apart(local_lake) as running:
        yield running


def post(process: Process, path: str, body: Any) -> Answer:
    """Send JSON."""
    return process.server.ask("POST", path, JSON, json.dumps(body).encode())


def list_files(lake: FreshLake) -> dict[str, int]:
    """What lies under ICEBERG_PATH, with sizes."""
    return {str(path): path.stat().st_size for path in Path(lake.iceberg_path).rglob("*") if path.is_file()}


@pytest.mark.whole
@pytest.mark.parametrize("left_bytes", long_after(1, [0, 1200]), ids=lambda count: f"{count} bytes left")
def test_a_load_says_that_the_disk_is_full(process: Process, local_lake: FreshLake, left_bytes: int) -> None:
    """503 that names the file; files that are there are whole, and the load succeeds when there is room."""
    process.fill_disk(left_bytes)
    refused = process.server.get(f"{TABLES}/t")
    assert refused.error == (503, "SlowDownException")
    assert "The disk does not let us write" in refused.json["error"]["message"]
    assert local_lake.iceberg_path in refused.json["error"]["message"]
    assert process.server.get(TABLES).status == 200
    before = list_files(local_lake)
    assert not [path for path in before if Path(path).name.startswith(".part-")]
    process.empty_disk()
    loaded = process.server.get(f"{TABLES}/t")
    assert loaded.status == 200
    after = list_files(local_lake)
    assert before.items() <= after.items()
    assert loaded.json["metadata-location"].removeprefix("file://") in after


@pytest.mark.whole
def test_a_write_is_done_or_not(process: Process, local_lake: FreshLake) -> None:
    """What landed before the disk was full is there afterwards, and its repetition says so; a view or a table is made once."""
    assert process.server.get(f"{TABLES}/t").status == 200
    process.fill_disk()
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    answers = [post(process, f"{TABLES}/t", change), post(process, TABLES, {"name": "u", "schema": COLUMNS})]
    for answer in answers:
        # it has landed and cannot be shown: the client has to look, and never to send it again unseen
        assert answer.error == (500, "CommitStateUnknownException")
        assert "The disk does not let us write" in answer.json["error"]["message"]
    assert process.server.get(f"{TABLES}/u").error == (503, "SlowDownException")
    process.empty_disk()
    assert process.server.get(f"{TABLES}/t").json["metadata"]["properties"]["k"] == "v"
    assert process.server.get(f"{TABLES}/u").status == 200
    rows = read_rows(local_lake)
    assert post(process, f"{TABLES}/t", change).status == 200
    assert post(process, TABLES, {"name": "u", "schema": COLUMNS}).error == (409, "AlreadyExistsException")
    assert read_rows(local_lake)["ducklake_snapshot"] == rows["ducklake_snapshot"]
    assert not [path for path in list_files(local_lake) if Path(path).name.startswith(".part-")]
