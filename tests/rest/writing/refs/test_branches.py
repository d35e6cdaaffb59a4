"""Snapshots beside main: writes to branches and staged ones, which DuckDB never sees until main takes them over."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, assert_ref, data_file, open_client, read_rows, set_ref
from tests.rest.writing.refs.maintenance import expire_everything, ids_at
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, which DuckDB gave some rows."""
    client = open_client(server, lake)
    fill(client, lake.duckdb())
    return client


def fill(client: Client, session: DuckDBPyConnection) -> None:
    """Make the table, and have DuckDB give it the rows BASE."""
    assert client.create().status == 200
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(0, 50)")
    session.execute("INSERT INTO t VALUES (900, 'inlined'), (901, 'inlined')")
    session.execute("DELETE FROM t WHERE id BETWEEN 20 AND 44")


BASE = [*range(20), *range(45, 50), 900, 901]


@pytest.fixture
def catalog(server: Server, lake: FreshLake) -> RestCatalog:
    """PyIceberg on the same server."""
    return Served(lake, server).pyiceberg().catalog


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return lake.duckdb()


def rows_of(table: Table, *ids: int) -> pa.Table:
    """Rows of the table with these ids."""
    return pa.table({"id": list(ids), "name": [f"n{i}" for i in ids]}, schema=table.schema().as_arrow())


def read_ids(session: DuckDBPyConnection) -> list[int]:
    """The column `id` as DuckDB reads it, sorted."""
    return sorted(row[0] for row in session.execute("SELECT id FROM t").fetchall())


def branch_off(catalog: RestCatalog, name: str = "dev") -> Table:
    """The table with a branch at main's head."""
    table = catalog.load_table("main.t")
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_branch(head, name).commit()
    return table.refresh()


def test_a_branch_and_main_go_their_own_ways(client: Client, catalog: RestCatalog, session: DuckDBPyConnection, lake: FreshLake) -> None:
    """Appends, deletes and overwrites of the branch are its own; DuckDB's are main's; ids and numbers are the lake's."""
    table = branch_off(catalog)
    table.append(rows_of(table, 7001, 7002), branch="dev")
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(100, 120)")
    table.refresh().delete(EqualTo("id", 900), branch="dev")
    session.execute("DELETE FROM t WHERE id = 901")
    table.refresh().overwrite(rows_of(table, 7003), EqualTo("id", 7001), branch="dev")
    main = sorted([*(i for i in BASE if i != 901), *range(100, 120)])
    dev = sorted([*(i for i in BASE if i != 900), 7002, 7003])
    for server in (client.server, None):
        with serve(make_settings(lake)) as other:
            found = Served(lake, server or other).pyiceberg().catalog.load_table("main.t")
            assert ids_at(found) == read_ids(session) == main
            assert ids_at(found, "dev") == dev
    metadata = client.load()
    shown = [item for item in metadata["snapshots"] if "ducklake.alias-of" not in item["summary"]]
    assert [item["sequence-number"] for item in shown] == sorted({item["sequence-number"] for item in shown})
    assert all(item["summary"]["ducklake.snapshot-id"] == str(item["snapshot-id"]) for item in shown)
    head = session.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    assert head == (metadata["refs"]["dev"]["snapshot-id"],)
    assert metadata["last-sequence-number"] == shown[-1]["sequence-number"]


@pytest.mark.whole
def test_a_branch_survives_whatever_duckdb_removes(
    client: Client, catalog: RestCatalog, session: DuckDBPyConnection, lake: FreshLake
) -> None:
    """Main truncated, everything expired, cleaned up and swept: the branch reads, is written to, and becomes main."""
    table = branch_off(catalog)
    table.append(rows_of(table, 7001), branch="dev")
    staged = stage(client, 7002)
    session.execute("TRUNCATE t")
    session.execute("INSERT INTO t VALUES (1, 'left')")
    expire_everything(session)
    session.execute("CALL lake.set_option('expire_older_than', '0 seconds')")
    session.execute("CALL lake.set_option('delete_older_than', '0 seconds')")
    session.execute("CHECKPOINT lake")
    with serve(make_settings(lake)) as other:
        assert ids_at(Served(lake, other).pyiceberg().catalog.load_table("main.t"), "dev") == sorted([*BASE, 7001])
    table.refresh().append(rows_of(table, 7005), branch="dev")
    expected = sorted([*BASE, 7001, 7005])
    expire_everything(session)
    table.refresh()
    assert ids_at(table, "dev") == expected
    assert sorted(table.scan(snapshot_id=staged).to_arrow()["id"].to_pylist()) == sorted([*BASE, 7002])
    dev = table.refs()["dev"].snapshot_id
    assert client.commit([set_ref("main", dev, "branch")]).status == 200
    expire_everything(session)
    assert ids_at(table.refresh()) == read_ids(session) == expected
    session.execute("DELETE FROM t WHERE id >= 7000")
    assert ids_at(table.refresh()) == read_ids(session) == BASE
    expire_everything(session)
    assert ids_at(table.refresh(), "dev") == expected


@pytest.mark.whole
def test_files_of_clients_are_kept_too(client: Client, catalog: RestCatalog, session: DuckDBPyConnection) -> None:
    """A tag keeps what a client appended when DuckLake merges it with its own, and when it is deleted."""
    table = catalog.load_table("main.t")
    table.append(rows_of(table, 7001, 7002))
    session.execute("INSERT INTO t VALUES (5000, 'y')")
    head = client.load()["current-snapshot-id"]
    client.commit([set_ref("v1", head, "tag")])
    expire_everything(session)
    session.execute("TRUNCATE t")
    session.execute("INSERT INTO t VALUES (1, 'left')")
    expire_everything(session)
    assert ids_at(table.refresh(), "v1") == sorted([*BASE, 5000, 7001, 7002])
    assert ids_at(table) == read_ids(session) == [1]


@pytest.mark.whole
def test_local_files_are_kept_under_either_name(stack: SharedStack, tmp_path: Path) -> None:
    """DuckLake calls a file by its path, a client by its URI, and main went back and forth between both."""
    with make_lake(stack, str(tmp_path)) as lake, serve(make_settings(lake)) as server:
        client, session = open_client(server, lake), lake.duckdb()
        fill(client, session)
        catalog = Served(lake, server).pyiceberg().catalog
        table = branch_off(catalog)
        table.append(rows_of(table, 7001), branch="dev")
        table.refresh().append(rows_of(table, 8000))
        client.commit([set_ref("v1", client.load()["current-snapshot-id"], "tag")])
        session.execute("TRUNCATE t")
        expire_everything(session)
        for name, row in (("dev", 7001), ("v1", 8000), ("dev", 7001)):
            assert client.commit([set_ref("main", client.load()["refs"][name]["snapshot-id"], "branch")]).status == 200
            expire_everything(session)
            assert ids_at(table.refresh()) == read_ids(session) == sorted([*BASE, row])
        session.execute("TRUNCATE t")
        expire_everything(session)
        assert ids_at(table.refresh(), "dev") == sorted([*BASE, 7001])
        assert ids_at(table, "v1") == sorted([*BASE, 8000])


def test_main_is_put_forward_to_a_branch(client: Client, catalog: RestCatalog, session: DuckDBPyConnection) -> None:
    """DuckDB gets the branch's rows in a new lake snapshot; clients see main on the branch's snapshot; both go on."""
    table = branch_off(catalog)
    table.append(rows_of(table, 7001, 7002), branch="dev")
    table.refresh().delete(EqualTo("id", 3), branch="dev")
    metadata = client.load()
    dev = metadata["refs"]["dev"]["snapshot-id"]
    done = client.commit([set_ref("main", dev, "branch")], [assert_main(metadata["current-snapshot-id"])])
    assert done.json["metadata"]["current-snapshot-id"] == dev
    expected = sorted([*(i for i in BASE if i != 3), 7001, 7002])
    assert ids_at(table.refresh()) == read_ids(session) == expected
    table.append(rows_of(table, 7003))
    session.execute("DELETE FROM t WHERE id IN (7001, 900)")
    expected = sorted([*(i for i in expected if i not in (7001, 900)), 7003])
    assert ids_at(table.refresh()) == read_ids(session) == expected


def test_a_write_to_a_branch_is_known_again(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Sent twice it is there once, under the lake's id, and in answers to Iceberg's Java library under its author's, too."""
    branch_off(catalog)
    base = client.load()
    head = base["refs"]["dev"]["snapshot-id"]
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    updates[1] = set_ref("dev", 9_000_000_001, "branch")
    first = client.commit(updates, [assert_ref("dev", head)])
    assert first.status == 200
    rows = read_rows(lake)
    assert client.commit(updates, [assert_ref("dev", head)]).json == first.json
    java = client.commit(updates, [assert_ref("dev", head)], headers={"X-Client-Version": "Apache Iceberg 1.11.0 (commit 0)"}).json
    assert read_rows(lake) == rows
    metadata = first.json["metadata"]
    made = metadata["refs"]["dev"]["snapshot-id"]
    *history, alias = java["metadata"]["snapshots"]
    assert history == metadata["snapshots"]
    assert (alias["snapshot-id"], alias["summary"]["ducklake.alias-of"]) == (9_000_000_001, str(made))
    assert client.read_entries(alias) == client.read_entries(history[-1])
    assert metadata["current-snapshot-id"] == base["current-snapshot-id"]
    late = client.commit(client.append(base, 9_000_000_002, [])[:1] + [set_ref("dev", 9_000_000_002, "branch")], [assert_ref("dev", head)])
    assert late.error == (409, "CommitFailedException")


def test_a_staged_snapshot_is_published(client: Client, catalog: RestCatalog, session: DuckDBPyConnection) -> None:
    """No ref shows it; picked, by moving main there or by a snapshot of its own with the same files, its rows are main's."""
    before = client.load()
    staged = stage(client, 7001, **{"wap.id": "w1"})
    assert client.load()["refs"] == before["refs"]
    assert read_ids(session) == BASE
    table = catalog.load_table("main.t")
    snapshot = table.snapshot_by_id(staged)
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties["wap.id"] == "w1"
    assert [found["snapshot-id"] for found in client.load()["snapshots"] if "wap.id" in found["summary"]] == [staged]
    assert client.commit([set_ref("main", staged, "branch")]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == sorted([*BASE, 7001])
    second = stage(client, 7002)
    session.execute("INSERT INTO t VALUES (5000, 'between')")
    metadata = client.load()
    picked = client.append(metadata, 9_100_000_001, added_files(table.refresh(), second))
    picked[0]["snapshot"]["summary"]["source-snapshot-id"] = str(second)
    assert client.commit(picked, [assert_main(metadata["current-snapshot-id"])]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == sorted([*BASE, 7001, 7002, 5000])


def test_removed_branches_leave_nothing_behind(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Their snapshots stay until they are removed; then no note is left, and history is as it was."""
    before = client.load()
    table = branch_off(catalog)
    table.append(rows_of(table, 7001), branch="dev")
    made = table.refresh().refs()["dev"].snapshot_id
    table.manage_snapshots().remove_branch("dev").commit()
    assert made in [item["snapshot-id"] for item in client.load()["snapshots"]]
    assert client.commit([{"action": "remove-snapshots", "snapshot-ids": [made]}]).status == 200
    assert client.load()["snapshots"] == before["snapshots"]
    session = lake.psycopg()
    for name in ("iceberg_ref", "iceberg_kept", "iceberg_kept_file"):
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name  # pyright: ignore


def test_duckdb_in_the_middle_of_an_insert_lands_after_a_branch(client: Client, catalog: RestCatalog, session: DuckDBPyConnection) -> None:
    """A write to a branch is no conflict for anything DuckDB does to main."""
    table = branch_off(catalog)
    for statement in (
        "INSERT INTO t SELECT range, 'y' FROM range(100, 120)",
        "DELETE FROM t WHERE id = 7",
        "UPDATE t SET name = 'z' WHERE id = 8",
    ):
        session.execute("BEGIN")
        session.execute(statement)
        table.refresh().append(rows_of(table, 7001), branch="dev")
        session.execute("COMMIT")
    assert ids_at(table.refresh()) == read_ids(session) == sorted([*(i for i in BASE if i != 7), *range(100, 120)])


def test_refused_writes_beside_main_change_nothing(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Unknown parents, files elsewhere, and main left somewhere else."""
    branch_off(catalog)
    base = client.load()
    rows = read_rows(lake)
    append = client.append(base, 9_000_000_001, [data_file(base, "a")])
    alien = client.append(base, 9_000_000_001, [data_file({"location": "s3://elsewhere"}, "a")])
    parentless = [{"action": "add-snapshot", "snapshot": append[0]["snapshot"] | {"parent-snapshot-id": 4711}}]
    back = base["snapshots"][0]["snapshot-id"]
    for updates in (alien[:1], parentless, [*append, set_ref("main", back, "branch")]):
        assert client.commit(updates).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def stage(client: Client, row: int, **summary: str) -> int:
    """Stage a snapshot on top of main with one row in a real file, and return its id."""
    metadata = client.load()
    file = put_rows(client, metadata, row)
    updates = client.append(metadata, 9_200_000_000 + row, [file])
    updates[0]["snapshot"]["summary"] |= summary
    done = client.commit(updates[:1])
    assert done.status == 200, done.body
    return max(item["snapshot-id"] for item in done.json["metadata"]["snapshots"] if "ducklake.alias-of" not in item["summary"])


def put_rows(client: Client, metadata: Any, *ids: int) -> Any:
    """Write a data file with these rows where the table is."""
    sink = pa.BufferOutputStream()
    fields = [pa.field(name, kind, metadata={"PARQUET:field_id": str(i)}) for i, (name, kind) in enumerate(COLUMNS, 1)]
    pq.write_table(pa.table({"id": list(ids), "name": ["s"] * len(ids)}, schema=pa.schema(fields)), sink)
    content = sink.getvalue().to_pybytes()
    file = data_file(metadata, f"rows-{ids[0]}", record_count=len(ids), file_size_in_bytes=len(content))
    client.objects.put_new(file.file_path, content)
    return file


COLUMNS = (("id", pa.int64()), ("name", pa.string()))


def added_files(table: Table, snapshot_id: int) -> list[Any]:
    """The data files that a snapshot added, as somebody who picks it finds them."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    own = [manifest for manifest in snapshot.manifests(table.io) if manifest.added_snapshot_id == snapshot_id]
    found = [entry for manifest in own for entry in manifest.fetch_manifest_entry(table.io)]
    assert {entry.snapshot_id for entry in found} == {snapshot_id}
    location = {"location": table.location()}
    names = [entry.data_file.file_path.rpartition("/")[2].removesuffix(".parquet") for entry in found]
    counts = [(entry.data_file.record_count, entry.data_file.file_size_in_bytes) for entry in found]
    return [
        data_file(location, name, record_count=count, file_size_in_bytes=size) for name, (count, size) in zip(names, counts, strict=True)
    ]


def test_deletes_of_a_branch_lie_in_its_location(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Under DATA_PATH, where DuckLake removes what it does not know, they are refused; for main they are read at once."""
    branch_off(catalog)
    base = client.load()
    path = f"{lake.data_path}main/t/late-deletes.parquet"
    deletes = [replace(data_file(base, "d", content=1, record_count=1), file_path=path)]
    updates = client.append(base, 9_000_000_001, [], deletes)
    updates[1] = set_ref("dev", 9_000_000_001, "branch")
    rows = read_rows(lake)
    assert client.commit(updates).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
