"""Commits over REST: what they promise when they are repeated, late, contradictory or in each other's way."""

from threading import Thread
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pytest

from duckicelake.catalog.commits import commit
from duckicelake.errors import LakeMoved
from duckicelake.lake.writing import transaction
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, creation, data_file, open_client, read_rows
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t."""
    client = open_client(server, lake)
    assert client.create().status == 200
    return client


def snapshot_ids(metadata: Any) -> list[int]:
    """The snapshots of a table, as they are listed."""
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]


def test_a_snapshot_gets_the_id_of_its_lake_snapshot(client: Client, lake: FreshLake) -> None:
    """The summary is the author's, with our counts; a change that makes no snapshot leaves the history as it is."""
    base = client.load()
    done = client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]), [assert_main(None)])
    head = read_head(lake)
    metadata = done.json["metadata"]
    assert metadata["current-snapshot-id"] == head == metadata["refs"]["main"]["snapshot-id"]
    [real] = metadata["snapshots"]
    assert real["snapshot-id"] == head
    assert real["summary"].items() >= {"operation": "append", "mine": "yes", "ducklake.snapshot-id": str(head)}.items()
    assert (real["summary"]["added-data-files"], real["summary"]["total-records"]) == ("1", "2")
    assert real["sequence-number"] == 1
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).status == 200
    assert snapshot_ids(client.load()) == [head]
    assert client.load()["properties"]["ducklake.snapshot-id"] == str(head)


def test_a_rewrite_of_manifests_says_what_became_of_them(client: Client) -> None:
    """The server merges manifests by size itself; a client's own arrangement is not kept, and the summary does not claim that it is."""
    for number in range(3):
        base = client.load()
        client.commit(
            client.append(base, 9_000_000_001 + number, [data_file(base, f"f{number}")]), [assert_main(base.get("current-snapshot-id"))]
        )
    base = client.load()
    head = base["snapshots"][-1]
    told = {"manifests-created": "1", "manifests-kept": "0", "manifests-replaced": "3", "entries-processed": "3"}
    made = client.rewrite(base, 9_000_000_009, head, 0)
    made["summary"] |= told
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 9_000_000_009}
    assert client.commit([{"action": "add-snapshot", "snapshot": made}, ref]).status == 200
    metadata = client.load()
    summary = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])["summary"]
    assert summary["operation"] == "replace"
    assert {key: summary[key] for key in told} == {**dict.fromkeys(told, "0"), "manifests-kept": "3"}


def test_a_commit_that_landed_is_answered_again(client: Client, lake: FreshLake) -> None:
    """Whatever it requires by now, at once or after others: 200, and nothing is doubled."""
    base = client.load()
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    first = client.commit(updates, [assert_main(None)])
    rows = read_rows(lake)
    again = client.commit(updates, [assert_main(None)])
    assert (again.status, again.json) == (200, first.json)
    assert read_rows(lake) == rows
    later = client.load()
    client.commit(client.append(later, 9_000_000_002, [data_file(later, "b")]), [assert_main(later["current-snapshot-id"])])
    assert client.commit(updates, [assert_main(None)]).status == 200
    assert client.load()["snapshots"][-1]["summary"]["mine"] == "yes"
    assert count_files(lake) == 2


def test_another_server_knows_the_replay(client: Client, lake: FreshLake) -> None:
    """What landed through one server is answered by a new one."""
    base = client.load()
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    assert client.commit(updates, [assert_main(None)]).status == 200
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).commit(updates, [assert_main(None)]).json == client.commit(updates).json
    assert count_files(lake) == 1


def test_a_clients_own_ids_are_understood_later(client: Client) -> None:
    """A requirement and a parent may name a snapshot by the id its author chose."""
    base = client.load()
    java = {"X-Client-Version": "Apache Iceberg 1.11.0 (commit 0)"}
    first = client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]), headers=java)
    mine = first.json["metadata"] | {"current-snapshot-id": 9_000_000_001}
    done = client.commit(client.append(mine, 9_000_000_002, [data_file(base, "b")]), [assert_main(9_000_000_001)])
    assert done.status == 200
    assert done.json["metadata"]["snapshots"][-1]["parent-snapshot-id"] == snapshot_ids(client.load())[0]


def test_a_late_commit_is_refused_and_changes_nothing(client: Client, lake: FreshLake) -> None:
    """DuckDB was first: 409 with Java's text, whether it inserted or changed columns."""
    base = client.load()
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    lake.duckdb().execute("INSERT INTO t VALUES (1, 'a')")
    client.load()
    rows = read_rows(lake)
    refused = client.commit(updates, [assert_main(None)])
    assert refused.error == (409, "CommitFailedException")
    assert refused.json["error"]["message"] == "Requirement failed: branch main was created concurrently"
    assert read_rows(lake) == rows


def test_a_create_transaction_is_made_once(client: Client, lake: FreshLake) -> None:
    """A staged table is nothing yet but a place; its commit may be repeated, and a second table of that name is refused."""
    rows = read_rows(lake)
    staged = client.create("u", **{"stage-create": True}).json
    assert "metadata-location" not in staged
    noted = read_rows(lake)
    assert [staged["metadata"]["location"] in row for row in noted["iceberg_staged"]] == [True]
    assert noted == rows | {"iceberg_staged": noted["iceberg_staged"]}
    metadata = staged["metadata"]
    updates = creation(metadata)
    create = [{"type": "assert-create"}]
    done = client.commit(updates, create, "u")
    assert done.status == 200
    assert done.json["metadata"]["table-uuid"] == metadata["table-uuid"]
    assert client.commit(updates, create, "u").json == done.json
    other = [{"action": "assign-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}, *updates[1:-1]]
    refused = client.commit(other, create, "u")
    assert refused.error == (409, "CommitFailedException")
    assert refused.json["error"]["message"] == "Requirement failed: table already exists"


def test_no_new_table_gets_the_uuid_of_another(client: Client, lake: FreshLake) -> None:
    """Live or dropped, or made by the same transaction: what is granted goes by it."""
    create = [{"type": "assert-create"}]
    live, dropped = client.load(), client.create("gone").json["metadata"]
    assert client.server.ask("DELETE", "namespaces/main/tables/gone").status == 204
    rows = read_rows(lake)
    for taken in (live, dropped):
        assert client.commit(creation(taken)[:-1], create, "u").error == (409, "AlreadyExistsException")
    fresh = creation({**live, "table-uuid": str(uuid4())})[:-1]
    both = [change(name, fresh, create) for name in ("u", "v")]
    assert client.post("transactions/commit", {"table-changes": both}).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    assert client.commit(fresh, create, "u").status == 200
    assert client.commit(fresh, create, "u").status == 200


def test_a_transaction_over_tables_is_all_or_nothing(client: Client, lake: FreshLake) -> None:
    """One requirement that does not hold refuses every table's change."""
    client.create("u")
    rows = read_rows(lake)
    good = change("t", [{"action": "set-properties", "updates": {"k": "v"}}])
    bad = change("u", [{"action": "set-properties", "updates": {"k": "v"}}], [assert_main(7)])
    assert client.post("transactions/commit", {"table-changes": [good, bad]}).error == (409, "CommitFailedException")
    assert read_rows(lake) == rows
    assert client.post("transactions/commit", {"table-changes": [good, change("u", good["updates"])]}).status == 204
    assert (client.load("t")["properties"]["k"], client.load("u")["properties"]["k"]) == ("v", "v")


def test_a_transaction_over_no_table_is_nothing_to_do(client: Client, lake: FreshLake) -> None:
    """It is no mistake, and changes nothing."""
    rows = read_rows(lake)
    assert client.post("transactions/commit", {"table-changes": []}).status == 204
    assert read_rows(lake) == rows


def change(name: str, updates: list[Any], requirements: list[Any] | None = None) -> dict[str, Any]:
    """One table's part of a transaction."""
    return {"identifier": {"namespace": ["main"], "name": name}, "requirements": requirements or [], "updates": updates}


REFUSED = [
    pytest.param([{"action": "set-location", "location": "s3://elsewhere/x"}], id="a location elsewhere"),
    pytest.param([{"action": "set-statistics", "statistics": {"snapshot-id": 1, "statistics-path": "p", "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1, "blob-metadata": []}}], id="statistics of an unknown snapshot"),
    pytest.param([{"action": "upgrade-format-version", "format-version": 1}], id="downgrade"),
    pytest.param([{"action": "upgrade-format-version", "format-version": 4}], id="version of the future"),
    pytest.param([{"action": "set-current-schema", "schema-id": 7}], id="unknown schema"),
    pytest.param([{"action": "walk-the-dog"}], id="unknown action"),
    pytest.param([{"action": "assign-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}], id="another uuid"),
    pytest.param([{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5}], id="unknown snapshot"),
    pytest.param([{"action": "set-properties", "updates": {"k": "\0"}}], id="NUL"),
]  # fmt: skip


@pytest.mark.parametrize("updates", REFUSED)
def test_what_cannot_be_is_refused_whole(client: Client, lake: FreshLake, updates: list[Any]) -> None:
    """By 400; a change in the same request that could be made is not made either."""
    client.load()
    rows = read_rows(lake)
    good = {"action": "set-properties", "updates": {"good": "yes"}}
    assert client.commit([good, *updates]).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def add_column(name: str, kind: Any, **more: Any) -> list[Any]:
    """Updates that add a column of that name and type to COLUMNS."""
    fields = [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "name", "required": False, "type": "string"},
        {"id": 3, "name": name, "required": False, "type": kind, **more},
    ]
    schema = {"type": "struct", "schema-id": 1, "fields": fields}
    return [{"action": "add-schema", "schema": schema, "last-column-id": 5}, {"action": "set-current-schema", "schema-id": -1}]


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param(add_column("ID", "int"), id="a name that DuckDB takes for another"),
        pytest.param(add_column("row_id", "int"), id="a name that DuckLake reserves"),
        pytest.param(add_column("_ducklake_internal_x", "int"), id="a prefix that DuckLake reserves"),
        pytest.param(add_column("f", "fixed[0]"), id="a type without room"),
        pytest.param(add_column("v", "variant"), id="a type of version 3"),
        pytest.param(add_column("d", "int", **{"initial-default": 5}), id="a default of version 3"),
    ],
)
def test_columns_that_ducklake_cannot_hold_are_refused(client: Client, lake: FreshLake, updates: list[Any]) -> None:
    """Nothing changes, and DuckDB still attaches the lake."""
    client.load()
    rows = read_rows(lake)
    assert client.commit(updates).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    assert lake.duckdb().execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_column_never_changes_its_kind(client: Client, lake: FreshLake) -> None:
    """A promotion is taken, anything else refused: DuckDB could not read the older files."""
    fields = [{"id": 1, "name": "id", "required": False, "type": "string"}, {"id": 2, "name": "name", "required": False, "type": "string"}]
    schema = {"type": "struct", "schema-id": 1, "fields": fields}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    assert client.commit(updates).error == (400, "BadRequestException")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"file_format": "ORC"}, id="ORC"),
        pytest.param({"file_size_in_bytes": 0}, id="no bytes"),
    ],
)
def test_files_that_ducklake_cannot_hold_are_refused(client: Client, lake: FreshLake, more: dict[str, Any]) -> None:
    """By 400, and nothing changes."""
    base = client.load()
    rows = read_rows(lake)
    refused = client.commit(client.append(base, 9_000_000_001, [data_file(base, "a", **more)]))
    assert refused.error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_a_snapshot_is_not_added_and_removed(client: Client, lake: FreshLake) -> None:
    """In one commit: nobody knows which of the two is meant."""
    metadata = client.load()
    updates = client.append(metadata, 9_000_000_001, [data_file(metadata, "a")])
    rows = read_rows(lake)
    removal = {"action": "remove-snapshots", "snapshot-ids": [9_000_000_001]}
    assert client.commit([*updates, removal], [assert_main(None)]).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_files_of_others_are_refused(client: Client, lake: FreshLake) -> None:
    """A data file, a manifest list and a location lie where the table is, and nowhere else."""
    client.create("u")
    base, other = client.load(), client.load("u")
    rows = read_rows(lake)
    assert client.commit(client.append(base, 9_000_000_001, [data_file(other, "a")])).error[0] == 400
    assert client.commit(client.append(other, 9_000_000_001, [data_file(base, "a")])).error[0] == 400
    for location in (other["location"], f"{other['location']}/below", lake.iceberg_path, lake.data_path + "x", "s3://other/x"):
        assert client.create("v", location=location).error == (400, "BadRequestException"), location
    assert read_rows(lake) == rows
    assert client.create("v", location=f"{lake.iceberg_path}chosen/").json["metadata"]["location"] == f"{lake.iceberg_path}chosen"


def test_a_missing_or_broken_manifest_is_refused(client: Client, lake: FreshLake) -> None:
    """By 400 that names it, and nothing changes."""
    base = client.load()
    rows = read_rows(lake)
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    snapshot = updates[0]["snapshot"]
    broken = f"{base['location']}/metadata/broken.avro"
    client.objects.put_new(broken, b"Obj\x01 and no more")
    for path in (broken, f"{base['location']}/metadata/missing.avro"):
        refused = client.commit([{"action": "add-snapshot", "snapshot": snapshot | {"manifest-list": path}}, updates[1]])
        assert refused.error == (400, "BadRequestException")
        assert path in refused.json["error"]["message"]
    assert read_rows(lake) == rows


def test_bounds_never_hide_rows_from_duckdb(client: Client, lake: FreshLake) -> None:
    """Bounds wider than the values, or of nonsense, are no answer to MIN and MAX, also after DuckDB's maintenance."""
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100, 200)")
    (path,) = lake.psycopg().execute("SELECT path FROM ducklake_data_file").fetchone() or ("",)
    base = client.load()
    target = f"{base['location']}/data/copy.parquet"
    content = client.objects.read(f"{lake.data_path}main/{read_folder(lake)}{path}")
    client.objects.put_new(target, content)
    wide = {1: (-1000).to_bytes(8, "little", signed=True)}, {1: (1000).to_bytes(8, "little", signed=True)}
    file = data_file(base, "copy", record_count=100, file_size_in_bytes=len(content), lower_bounds=wide[0], upper_bounds=wide[1])
    replacement = client.append(base | {"current-snapshot-id": None}, 9_000_000_001, [file])
    assert client.commit([{"action": "remove-snapshot-ref", "ref-name": "main"}, *replacement]).status == 200
    assert session.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (100, 100, 199)
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(50, 80)")
    session.execute("DELETE FROM t WHERE id < 60")
    session.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert session.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (120, 60, 199)


def read_folder(lake: FreshLake) -> str:
    """The folder of table main.t below its schema's."""
    row = lake.psycopg().execute("SELECT path FROM ducklake_table WHERE table_name = 't'").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("DELETE FROM t WHERE id >= 0", id="delete"),
        pytest.param("UPDATE t SET name = 'z'", id="update"),
        pytest.param("ALTER TABLE t ADD COLUMN other INTEGER", id="alter"),
    ],
)
def test_duckdb_finds_out_that_the_table_is_dropped(client: Client, lake: FreshLake, statement: str) -> None:
    """A transaction of DuckDB that is open while we drop the table is refused there; of other commits see the tests of conflicts."""
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("BEGIN")
    session.execute(statement)
    assert client.server.ask("DELETE", "namespaces/main/tables/t").status == 204
    with pytest.raises(duckdb.TransactionException):
        session.execute("COMMIT")


def test_an_open_insert_of_duckdb_lands_after_ours(client: Client, lake: FreshLake) -> None:
    """It retries by itself: row ids, counts and rows of both are there."""
    session = lake.duckdb()
    session.execute("BEGIN")
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    base = client.load()
    assert client.commit(client.append(base, 9_000_000_001, [data_file(base, "a", record_count=5)])).status == 200
    session.execute("COMMIT")
    found = lake.psycopg().execute("SELECT record_count, row_id_start FROM ducklake_data_file ORDER BY data_file_id").fetchall()
    assert found == [(5, 0), (100, 5)]
    assert client.load()["current-snapshot-id"] == read_head(lake)


def test_a_busy_lake_refuses_in_time(client: Client, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another holds the lock: a commit is answered 409, other writes 503 with Retry-After, and nothing was done."""
    monkeypatch.setattr(transaction, "BEGIN_LOCKED", transaction.BEGIN_LOCKED.replace(b"10s", b"300ms"))
    monkeypatch.setattr(commit, "COMMIT_S", 0.5)
    client.load()
    rows = read_rows(lake)
    with psycopg.connect(lake.dsn, options=f"-c search_path={lake.metadata_schema}") as holder:
        holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        answers: list[Answer] = []
        asks = (
            lambda: client.commit([{"action": "set-properties", "updates": {"k": "v"}}]),
            lambda: client.server.ask("DELETE", "namespaces/main/tables/t"),
        )
        threads = [Thread(target=lambda ask=ask: answers.append(ask())) for ask in asks]
        for thread in threads:
            thread.start()
        assert client.load()["location"], "reads go on"
        for thread in threads:
            thread.join(60)
        holder.rollback()
    assert sorted(answer.status for answer in answers) == [409, 503]
    assert [answer.headers.get("retry-after") for answer in answers if answer.status == 503] == ["1"]
    assert read_rows(lake) == rows


def test_a_commit_that_maintenance_outruns_is_refused(client: Client, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 409: nothing was done, and clients take any 5xx for an unknown outcome."""

    def outrun(*_: object, **__: object) -> None:
        raise LakeMoved("Rows of the table went while they were read.")

    rows = read_rows(lake)
    monkeypatch.setattr(commit, "prepare_from_cache", lambda *_: None)
    monkeypatch.setattr(commit, "prepare_request", outrun)
    refused = client.commit([{"action": "set-properties", "updates": {"k": "v"}}])
    assert refused.error == (409, "CommitFailedException")
    assert "Rows of the table went" in refused.body.decode()
    assert read_rows(lake) == rows


def test_a_waiting_commit_goes_on_when_the_lock_is_free(client: Client, lake: FreshLake) -> None:
    """It sees what was committed meanwhile."""
    session = lake.psycopg(autocommit=False)
    session.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
    answers: list[Answer] = []
    thread = Thread(target=lambda: answers.append(client.commit([{"action": "set-properties", "updates": {"k": "v"}}])))
    thread.start()
    look = lake.psycopg()
    wait_for(lambda: count_waiting(look, "ducklake_snapshot") == 1, "the commit to wait for the lock")
    session.rollback()
    thread.join(60)
    assert [answer.status for answer in answers] == [200]


def read_head(lake: FreshLake) -> int:
    """The newest lake snapshot."""
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def count_files(lake: FreshLake) -> int:
    """How many data files there are."""
    row = lake.psycopg().execute("SELECT count(*) FROM ducklake_data_file").fetchone()
    assert row is not None
    return row[0]
