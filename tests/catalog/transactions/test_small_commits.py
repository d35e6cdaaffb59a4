"""Commits of properties alone, told by what they ask of Postgres."""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from duckicelake.catalog.commits import commit, write
from duckicelake.catalog.commits.commit import commit_prepared
from duckicelake.catalog.commits.requests import to_request
from duckicelake.catalog.tables import Ident, with_client_ids
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitFailed, CommitGaveUp, LakeBusy
from duckicelake.iceberg.requests.bodies import parse_commit_table
from duckicelake.lake import connect
from duckicelake.lake.connect import LakeConnection
from duckicelake.lake.notes import lock_numbering
from duckicelake.lake.writing import transaction
from duckicelake.translate.unreadable_columns import HIDE, PROPERTY
from tests.catalog.conftest import Opener
from tests.catalog.reading import load
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import count_waiting, wait_for

JOURNEYS = 4
"""BEGIN with the lock, all that is asked under it, all that is written, COMMIT."""


def set_property(warehouse: Warehouse, value: str) -> None:
    """Commit one property."""
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": value}}]}
    commit_prepared(warehouse, to_request(Ident(("main",), "t"), parse_commit_table(body)))


@pytest.fixture
def loaded(lake: FreshLake, warehouse: Warehouse) -> Warehouse:
    """A warehouse that knows table `t`, which has had a commit."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    load(warehouse)
    set_property(warehouse, "first")
    return warehouse


def test_a_commit_makes_four_journeys(loaded: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every journey is a wait under the lake's lock, and a good part of what a small commit costs."""
    journeys: list[str] = []
    wait: Callable[..., Any] = LakeConnection.wait

    def count(conn: LakeConnection, *args: Any, **kwargs: Any) -> Any:
        journeys.append("")
        return wait(conn, *args, **kwargs)

    monkeypatch.setattr(LakeConnection, "wait", count)
    set_property(loaded, "second")
    assert len(journeys) == JOURNEYS


def test_whoever_comes_to_commit_meanwhile_is_let_pass(loaded: Warehouse, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB took its number before it came to wait: the commit that holds the lock would make it fail, and begins again."""
    planned: Callable[..., Any] = write.predict_state
    came: list[Future[int]] = []
    [(head,)] = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchall()

    def insert_next() -> int:
        made = lake.psycopg().execute(
            "INSERT INTO ducklake_snapshot SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id"
            " FROM ducklake_snapshot WHERE snapshot_id = %s RETURNING snapshot_id", [head]
        ).fetchone()  # fmt: skip
        assert made is not None
        return made[0]

    def is_waiting() -> bool:
        return count_waiting(lake.psycopg(), "ducklake_snapshot") > 0

    def let_come(*args: Any) -> Any:
        if not came:
            came.append(threads.submit(insert_next))
            wait_for(is_waiting, "a session that waits for the lock")
        return planned(*args)

    monkeypatch.setattr(write, "predict_state", let_come)
    with ThreadPoolExecutor(1) as threads:
        set_property(loaded, "second")
        assert came[0].result() == head + 1
    [(last,)] = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchall()
    assert last == head + 2


def add_column(warehouse: Warehouse) -> None:
    """Commit one more column, which changes what is noted of the table."""
    fields = [{"id": i, "name": name, "required": False, "type": "int"} for i, name in enumerate(("id", "more"), 1)]
    added = {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields}}
    body = {"requirements": [], "updates": [added, {"action": "set-current-schema", "schema-id": -1}]}
    commit_prepared(warehouse, to_request(Ident(("main",), "t"), parse_commit_table(body)))


def move(warehouse: Warehouse) -> None:
    """Commit another location."""
    body = {"requirements": [], "updates": [{"action": "set-location", "location": f"{load(warehouse).location}-moved"}]}
    commit_prepared(warehouse, to_request(Ident(("main",), "t"), parse_commit_table(body)))


@pytest.mark.parametrize(
    "change",
    whole_after(
        1,
        [
            pytest.param(partial(set_property, value="second"), id="property"),
            pytest.param(add_column, id="column"),
            pytest.param(move, id="location"),
        ],
    ),
)
def test_nobody_waits_under_the_lakes_lock_for_whoever_numbers_the_table(
    loaded: Warehouse, lake: FreshLake, change: Callable[[Warehouse], None]
) -> None:
    """Another server may take long to write what it numbers: the commit lands, and is shown when that is done."""
    numbering, watcher = lake.psycopg(), lake.psycopg()
    select_head = "SELECT max(snapshot_id) FROM ducklake_snapshot"
    before, first = watcher.execute(select_head).fetchone(), load(loaded)
    with ThreadPoolExecutor(1) as threads:
        with numbering.transaction():
            lock_numbering(numbering, first.table_id)
            done = threads.submit(change, loaded)
            wait_for(lambda: watcher.execute(select_head).fetchone() != before, "the commit", timeout_seconds=5.0)
            assert not done.done()
        done.result()
    assert load(loaded).metadata != first.metadata


@pytest.mark.parametrize("is_numbered", whole_after(1, [pytest.param(True, id="numbered"), pytest.param(False, id="never numbered")]))
def test_whoever_waits_too_long_to_number_a_table_may_come_again(loaded: Warehouse, lake: FreshLake, is_numbered: bool) -> None:
    """A read is no conflict: it is told that the catalog is busy. Nor is a table without versions numbered by two at a time."""
    table_id = load(loaded).table_id
    first, second = lake.psycopg(), lake.psycopg()
    if not is_numbered:
        first.execute("DELETE FROM iceberg_metadata_log")
    second.execute("SET lock_timeout = '50ms'")
    with first.transaction():
        lock_numbering(first, table_id)
        with pytest.raises(LakeBusy), second.transaction():
            lock_numbering(second, table_id)
    with second.transaction():
        lock_numbering(second, table_id)


def test_a_commit_that_waits_too_long_for_a_number_has_failed(loaded: Warehouse, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was done, and clients take any 5xx for a commit that may have landed."""
    table_id, numbering = load(loaded).table_id, lake.psycopg()
    lake.duckdb().execute("INSERT INTO t VALUES (2)")
    monkeypatch.setattr(connect, "BEGIN_WRITING", connect.BEGIN_WRITING.replace(b"10s", b"50ms"))
    with numbering.transaction():
        lock_numbering(numbering, table_id)
        with pytest.raises(CommitFailed):
            set_property(loaded, "second")
    assert json.loads(load(loaded).metadata)["properties"]["k"] == "first"


def test_a_commit_that_hides_columns_and_waits_too_long_has_failed(
    warehouse: Warehouse, lake: FreshLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told that the server is busy either."""
    lake.duckdb().execute("CREATE TABLE t (i INTEGER, d INTERVAL)")
    monkeypatch.setattr(transaction, "BEGIN_LOCKED", transaction.BEGIN_LOCKED.replace(b"10s", b"50ms"))
    asked = parse_commit_table({"requirements": [], "updates": [{"action": "set-properties", "updates": {PROPERTY: HIDE}}]})
    holder = lake.psycopg()
    with holder.transaction():
        holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(CommitGaveUp):
            commit_prepared(warehouse, to_request(Ident(("main",), "t"), asked))


def test_a_commit_that_landed_elsewhere_is_told_so_however_late(
    loaded: Warehouse, lake: FreshLake, open_server: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this server remembers knows nothing of it: a client that is told 409 removes the files of a commit that is there."""
    ident = Ident(("main",), "t")
    before = json.loads(load(loaded).metadata)
    snapshot = {
        "snapshot-id": 4711,
        "sequence-number": before["last-sequence-number"] + 1,
        "timestamp-ms": before["last-updated-ms"] + 1,
        "summary": {"operation": "append"},
        "schema-id": before["current-schema-id"],
        "parent-snapshot-id": before["current-snapshot-id"],
        "manifest-list": find_snapshot(before)["manifest-list"],
    }
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 4711},
    ]
    asked = parse_commit_table({"requirements": [], "updates": updates})
    assert commit.prepare_from_cache(loaded, to_request(ident, asked), None) is not None
    first = commit_prepared(open_server(lake), to_request(ident, asked))
    monkeypatch.setattr(commit, "COMMIT_S", 0.0)
    again = commit_prepared(loaded, to_request(ident, asked))
    assert again.metadata == first.metadata
    told = json.loads(with_client_ids(loaded.objects, again, {4711}).metadata)
    assert [found["snapshot-id"] for found in told["snapshots"]][len(before["snapshots"]) :] == [told["current-snapshot-id"], 4711]


def find_snapshot(metadata: Any) -> Any:
    """The current snapshot of a table."""
    return next(item for item in metadata["snapshots"] if item["snapshot-id"] == metadata["current-snapshot-id"])


@pytest.mark.parametrize(
    ("seconds", "tries"),
    whole_after(1, [pytest.param(0.0, 1, id="no time left"), pytest.param(600.0, commit.COMMIT_TRIES, id="time enough")]),
)
def test_a_table_that_never_stands_still_ends_in_time(
    loaded: Warehouse, lake: FreshLake, monkeypatch: pytest.MonkeyPatch, seconds: float, tries: int
) -> None:
    """DuckDB inserts whenever the commit has read the table: it is begun again, but not for ever, and nothing is done."""
    conn, reads = lake.duckdb(), list[Any]()
    read: Callable[..., Any] = commit.prepare_request

    def read_late(*args: Any, **more: Any) -> Any:
        reads.append(read(*args, **more))
        conn.execute("INSERT INTO t VALUES (2)")
        return reads[-1]

    monkeypatch.setattr(commit, "prepare_request", read_late)
    monkeypatch.setattr(commit, "prepare_from_cache", lambda *_: None)
    monkeypatch.setattr(commit, "COMMIT_S", seconds)
    with pytest.raises(CommitFailed, match="again and again"):
        set_property(loaded, "never")
    assert len(reads) == tries
    assert json.loads(load(loaded).metadata)["properties"]["k"] == "first"


@pytest.mark.parametrize(
    ("seconds", "ways"), [pytest.param(0.0, [False], id="no time left"), pytest.param(600.0, [True], id="time enough")]
)
def test_nobody_is_let_pass_when_the_time_is_over(
    loaded: Warehouse, monkeypatch: pytest.MonkeyPatch, seconds: float, ways: list[bool]
) -> None:
    """Each time may take as long as the lock does."""
    asked, commit_once = list[bool](), vars(commit)["_commit_once"]

    def commit_once_more(*args: Any, yields: bool) -> Any:
        asked.append(yields)
        return commit_once(*args, yields=yields)

    monkeypatch.setattr(commit, "_commit_once", commit_once_more)
    monkeypatch.setattr(commit, "COMMIT_S", seconds)
    set_property(loaded, "told")
    assert asked == ways


def test_a_large_commit_leaves_the_cache_of_its_table_to_loads_while_its_rows_are_written(
    loaded: Warehouse, lake: FreshLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of many files take seconds, and whoever waits for the cache waits in a thread."""
    write_steps: Callable[..., Any] = write.write_steps
    [(table_id, _)] = loaded.caches.items()
    is_locked: list[bool] = []

    def note(*parts: Any) -> Any:
        is_locked.append(loaded.caches.of(table_id).lock.locked())
        return write_steps(*parts)

    monkeypatch.setattr(write, "write_steps", note)
    properties = {f"k{number}": "v" for number in range(write.MOST_ROWS + 1)}
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}
    shown = commit_prepared(loaded, to_request(Ident(("main",), "t"), parse_commit_table(body)))
    assert is_locked == [False]
    assert json.loads(shown.metadata)["properties"].keys() >= properties.keys()
    assert load(loaded).metadata == shown.metadata
