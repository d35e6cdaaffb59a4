"""Main put back and forward over REST: a new lake snapshot holds the rows, and clients see the id they asked for."""

from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, read_rows, set_ref, write_file
from tests.rest.writing.refs.maintenance import expire_everything, ids_at
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after, whole_after


@pytest.fixture(params=long_after(1, [2, 3]))
def client(server: Server, lake: FreshLake, request: pytest.FixtureRequest) -> Client:
    """A client of a lake with the empty table main.t, in both format versions."""
    client = open_client(server, lake)
    assert client.create(properties={"format-version": str(request.param)}).status == 200
    return client


@pytest.fixture
def catalog(server: Server, lake: FreshLake) -> RestCatalog:
    """PyIceberg on the same server."""
    return Served(lake, server).pyiceberg().catalog


HISTORY = (
    "INSERT INTO t SELECT range, 'a' FROM range(0, 50)",
    "INSERT INTO t VALUES (900, 'inlined'), (901, 'inlined'), (902, 'inlined')",
    "DELETE FROM t WHERE id BETWEEN 10 AND 29",
    "DELETE FROM t WHERE id IN (5, 901)",
    "INSERT INTO t SELECT range, 'b' FROM range(100, 150)",
    "UPDATE t SET name = 'c' WHERE id IN (3, 900)",
    "DELETE FROM t WHERE id BETWEEN 100 AND 130",
    "TRUNCATE t",
    "INSERT INTO t SELECT range, 'd' FROM range(200, 220)",
)


def write_history(session: DuckDBPyConnection) -> dict[int, list[Any]]:
    """Have DuckDB change the table, and return its rows at each lake snapshot."""
    rows: dict[int, list[Any]] = {}
    for statement in HISTORY:
        session.execute(statement)
        rows[find_head(session)] = read_table(session)
    return rows


@pytest.mark.whole
def test_main_goes_back_anywhere_and_forth(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """DuckDB and Iceberg see the rows of every snapshot that main is put on, under its id, with each next change on top."""
    session = lake.duckdb()
    rows = write_history(session)
    ids = list(rows)
    for target in (ids[0], ids[3], ids[-1], ids[2], ids[6], ids[1], ids[5]):
        before = client.load()
        done = client.commit([set_ref("main", target, "branch")], [assert_main(before["current-snapshot-id"])])
        metadata = done.json["metadata"]
        assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"] == target
        assert [item["snapshot-id"] for item in metadata["snapshots"]] == [item["snapshot-id"] for item in before["snapshots"]]
        assert metadata["snapshot-log"][-1]["snapshot-id"] == target
        head = find_head(session)
        assert metadata["properties"]["ducklake.snapshot-id"] == str(head)
        assert read_table(session) == rows[target]
        assert read_iceberg(catalog.load_table("main.t")) == rows[target]
        session.execute("INSERT INTO t VALUES (7000, 'small')")
        rows[find_head(session)] = read_table(session)
        newest = client.load()["snapshots"][-1]
        assert (newest["snapshot-id"], newest["parent-snapshot-id"]) == (find_head(session), target)
    check_history(catalog, session, rows)
    with serve(make_settings(lake)) as other:
        check_history(Served(lake, other).pyiceberg().catalog, session, rows)
        assert open_client(other, lake).load() == client.load()


@pytest.mark.whole
def test_both_sides_go_on_after_it(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Deletes of returned rows, by DuckDB and by clients, hit what was meant, and maintenance changes no row."""
    session = lake.duckdb()
    rows = write_history(session)
    target = list(rows)[1]
    client.commit([set_ref("main", target, "branch")])
    session.execute("DELETE FROM t WHERE id IN (900, 1, 2)")
    session.execute("UPDATE t SET name = 'again' WHERE id IN (902, 30)")
    if client.load()["format-version"] == 2:
        table = catalog.load_table("main.t")
        table.delete(EqualTo("id", 31))
        session.execute("INSERT INTO t VALUES (31, 'a')")
    expected = [row for row in rows[target] if row[0] not in (900, 1, 2)]
    expected = sorted((i, "again" if i in (902, 30) else name) for i, name in expected)
    assert read_table(session) == expected
    assert read_iceberg(catalog.load_table("main.t")) == expected
    session.execute("CALL ducklake_flush_inlined_data('lake')")
    session.execute("CALL ducklake_merge_adjacent_files('lake')")
    for snapshot_id, known in rows.items():
        assert read_table(session, snapshot_id) == known, snapshot_id
    check_history(catalog, session, rows)
    session.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert read_table(session) == expected
    assert read_iceberg(catalog.load_table("main.t")) == expected


FLUSHED = (
    "INSERT INTO t VALUES (1, 'a')",
    "INSERT INTO t VALUES (2, 'b')",
    "CALL ducklake_flush_inlined_data('lake')",
    "INSERT INTO t VALUES (3, 'inlined')",
    "TRUNCATE t",
    "INSERT INTO t SELECT range, 'd' FROM range(200, 220)",
)


@pytest.mark.whole
def test_files_that_come_back_stay_out_of_the_past(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Rows of flushed and of derived files carry lake snapshots of their own: merged with others they are not there again."""
    session = lake.duckdb()
    rows: dict[int, list[Any]] = {}
    for statement in FLUSHED:
        session.execute(statement)
        rows[find_head(session)] = read_table(session)
    target = list(rows)[3]
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    for start in (300, 400):
        session.execute(f"INSERT INTO t SELECT range, 'e' FROM range({start}, {start + 20})")
        rows[find_head(session)] = read_table(session)
    session.execute("CALL ducklake_merge_adjacent_files('lake')")
    check_history(catalog, session, {key: known for key, known in rows.items() if key != list(rows)[2]})


@pytest.mark.whole
@pytest.mark.parametrize("flushes", whole_after(1, [pytest.param(True, id="flushed"), pytest.param(False, id="inlined")]))
def test_going_back_outlives_everything_else(client: Client, catalog: RestCatalog, lake: FreshLake, flushes: bool) -> None:
    """Rolled back, everything expired and cleaned up: every reader reads, and main goes on."""
    session = lake.duckdb()
    rows = write_history(session)
    if flushes:
        session.execute("CALL ducklake_flush_inlined_data('lake')")
        session.execute("CALL ducklake_merge_adjacent_files('lake')")
    target = list(rows)[5]
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    table = catalog.load_table("main.t")
    assert read_table(session) == read_iceberg(table) == rows[target]
    assert table.metadata.current_snapshot_id == target
    expire_everything(session)
    assert read_table(session) == read_iceberg(catalog.load_table("main.t")) == rows[target]
    session.execute("INSERT INTO t VALUES (7000, 'small')")
    table = catalog.load_table("main.t")
    assert read_table(session) == read_iceberg(table) == sorted([*rows[target], (7000, "small")])
    assert table.metadata.current_snapshot_id == find_head(session)


@pytest.mark.whole
def test_main_goes_back_to_a_tag_that_has_expired(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """DuckLake knows nothing of those rows any more: it gets them back from the files that were kept."""
    session = lake.duckdb()
    rows = write_history(session)
    target = list(rows)[5]
    client.commit([set_ref("v1", target, "tag")])
    expire_everything(session)
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    assert read_table(session) == read_iceberg(catalog.load_table("main.t")) == rows[target]
    client.commit([{"action": "remove-snapshot-ref", "ref-name": "v1"}])
    expire_everything(session)
    assert read_table(session) == read_iceberg(catalog.load_table("main.t")) == rows[target]


def test_a_late_move_is_refused(client: Client, lake: FreshLake) -> None:
    """DuckDB was first: 409, and nothing changes."""
    session = lake.duckdb()
    first, second = list(write_history(session))[-2:]
    session.execute("INSERT INTO t VALUES (1, 'late')")
    client.load()
    rows = read_rows(lake)
    refused = client.commit([set_ref("main", first, "branch")], [assert_main(second)])
    assert refused.error == (409, "CommitFailedException")
    assert read_rows(lake) == rows


def test_pyiceberg_rolls_back(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Its own call; to where main is already is no change."""
    session = lake.duckdb()
    rows = write_history(session)
    target = list(rows)[2]
    table = catalog.load_table("main.t")
    table.manage_snapshots().set_current_snapshot(snapshot_id=target).commit()
    assert ids_at(table.refresh()) == [row[0] for row in rows[target]]
    known = read_rows(lake)
    table.manage_snapshots().set_current_snapshot(snapshot_id=target).commit()
    assert read_rows(lake) == known
    assert client.load()["current-snapshot-id"] == target


def check_history(catalog: RestCatalog, session: DuckDBPyConnection, rows: dict[int, list[Any]]) -> None:
    """Compare every snapshot that clients see with the rows it had, and DuckDB's."""
    table = catalog.load_table("main.t")
    shown = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    assert rows.keys() <= set(shown)
    for snapshot_id, known in rows.items():
        assert read_iceberg(table, snapshot_id) == known, snapshot_id
        assert read_table(session, snapshot_id) == known, snapshot_id


def read_iceberg(table: Table, snapshot_id: int | None = None) -> list[Any]:
    """The rows of a table at a snapshot, as PyIceberg reads them."""
    return sorted((row["id"], row["name"]) for row in table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist())


def read_table(session: DuckDBPyConnection, snapshot_id: int | None = None) -> list[Any]:
    """The rows of table t at a lake snapshot, as DuckDB reads them."""
    travel = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
    return sorted(session.execute(f"SELECT id, name FROM t{travel}").fetchall())


def find_head(session: DuckDBPyConnection) -> int:
    """The newest lake snapshot."""
    found: Any = session.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    return found[0]


def test_a_commit_after_a_move_has_a_listed_parent_under_both_of_its_ids(client: Client, lake: FreshLake) -> None:
    """The parent is the snapshot that main was put on, because the move itself is in no list of snapshots."""
    session = lake.duckdb()
    for number in range(3):
        session.execute(f"INSERT INTO t SELECT range, 'a' FROM range({100 * number}, {100 * number + 50})")
    target = min(snapshot["snapshot-id"] for snapshot in client.load()["snapshots"])
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    metadata = client.load()
    file = write_file(client, metadata, "more", {1: pa.array([1], pa.int64()), 2: pa.array(["b"])})
    done = client.commit(client.append(metadata, 90, [file]), headers={"X-Client-Version": "Apache Iceberg 1.11.0 (commit 0)"})
    assert done.status == 200, done.body
    for shown, ids in ((done.json["metadata"], {90}), (client.load(), set[int]())):
        parents = {snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in shown["snapshots"]}
        assert {parents[snapshot_id] for snapshot_id in (shown["current-snapshot-id"], *ids)} == {target}
        assert (90 in parents) == bool(ids)
        assert set(parents.values()) <= {None, *parents}
