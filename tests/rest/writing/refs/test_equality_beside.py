"""Equality deletes on branches and staged snapshots: as their author wrote them, and by position when main takes them over."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.iceberg.manifest import EQUALITY_DELETES, POSITION_DELETES, DataFile
from duckicelake.store.parquet import encode_position_deletes
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, read_rows, set_ref, write_file
from tests.rest.writing.refs.maintenance import EVERYTHING, expire_everything
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after, whole_after

Rows = list[tuple[int, str | None]]

BASE: Rows = [*((i, "even" if i % 2 == 0 else None) for i in range(20) if i not in (4, 5)), (900, "inlined"), (901, None)]
"""What DuckDB gave the table, in a file with deleted rows and inlined."""


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the lake."""
    return lake.duckdb()


@pytest.fixture
def client(server: Server, lake: FreshLake, session: DuckDBPyConnection) -> Client:
    """A client of a lake with the table main.t and a branch `dev` of it."""
    return fill(open_client(server, lake), session)


def fill(client: Client, session: DuckDBPyConnection, **more: Any) -> Client:
    """Make the table with the rows BASE, and the branch."""
    assert client.create(**more).status == 200
    session.execute("INSERT INTO t SELECT i, CASE WHEN i % 2 = 0 THEN 'even' END FROM range(20) r(i)")
    session.execute("INSERT INTO t VALUES (900, 'inlined'), (901, NULL)")
    session.execute("DELETE FROM t WHERE id IN (4, 5)")
    assert client.commit([set_ref("dev", client.load()["current-snapshot-id"], "branch")]).status == 200
    return client


def ids(*values: int, name: str | None = "new") -> dict[int, Any]:
    """The columns of a file of rows."""
    return {1: pa.array(values, pa.int64()), 2: pa.array([name] * len(values), pa.string())}


def write(client: Client, base: Any, columns: dict[int, Any], **more: Any) -> DataFile:
    """A file of rows."""
    return write_file(client, base, str(uuid4()), columns, **more)


def equal(client: Client, base: Any, columns: dict[int, Any], **more: Any) -> DataFile:
    """A file that deletes the rows that equal its own."""
    return write(client, base, columns, **{"content": EQUALITY_DELETES, "equality_ids": tuple(columns)} | more)


def at(client: Client, base: Any, data: DataFile, *positions: int) -> DataFile:
    """A file that deletes rows of a data file by position."""
    path, content = f"{base['location']}/data/{uuid4()}.parquet", encode_position_deletes(data.file_path, positions)
    client.objects.put_new(path, content)
    told = {"record_count": len(positions), "file_size_in_bytes": len(content), "file_format": "PARQUET", "partition": ()}
    return DataFile(content=POSITION_DELETES, file_path=path, **told)  # pyright: ignore


def head_of(base: Any, ref: str) -> Any:
    """The snapshot that a branch is at."""
    return next(found for found in base["snapshots"] if found["snapshot-id"] == base["refs"][ref]["snapshot-id"])


def grow(client: Client, files: Sequence[DataFile], deletes: Sequence[DataFile], ref: str = "dev") -> Answer:
    """Add a snapshot of these files to a branch."""
    base = client.load()
    number = uuid4().int >> 65
    added = client.add(base, number, files, deletes, parent=head_of(base, ref)) | {"sequence-number": base["last-sequence-number"] + 1}
    return client.commit([{"action": "add-snapshot", "snapshot": added}, set_ref(ref, number, "branch")])


def take_over(client: Client, ref: str = "dev") -> None:
    """Put main where a branch is."""
    base = client.load()
    target = base["refs"][ref]["snapshot-id"]
    done = client.commit([set_ref("main", target, "branch")], [assert_main(base["current-snapshot-id"])])
    assert done.status == 200, done.json
    assert done.json["metadata"]["current-snapshot-id"] == target


def in_order(rows: Sequence[tuple[Any, ...]]) -> Rows:
    """Rows sorted, those with NULL too."""
    return sorted(((row[0], row[1]) for row in rows), key=lambda row: (row[0], row[1] or ""))


def read(session: DuckDBPyConnection) -> Rows:
    """The table as DuckDB has it."""
    return in_order(session.execute("SELECT id, name FROM t").fetchall())


def read_iceberg(served: Served, ref: str = "main") -> Rows:
    """A branch as DuckDB's `iceberg` extension has it, which knows equality deletes."""
    snapshot_id = open_client(served.server, served.lake).load()["refs"][ref]["snapshot-id"]
    found = served.duckdb_iceberg().read(("main", "t"), snapshot_id)
    return in_order([(row["id"], row["name"]) for row in found.to_pylist()])


def write_upserts(client: Client) -> Rows:
    """Change the branch `dev` by snapshots with deletes of both kinds, and return its rows."""
    base = client.load()
    fresh = write(client, base, ids(3, 900, 7001, 7002))
    assert grow(client, [fresh], [equal(client, base, {1: pa.array([3, 900, 4711])})]).status == 200
    nulls = equal(client, base, {2: pa.array([None], pa.string())})
    assert grow(client, [write(client, base, ids(7003, 3, name=None))], [nulls, at(client, base, fresh, 2)]).status == 200
    pairs = equal(client, base, {1: pa.array([2, 7002]), 2: pa.array(["even", "other"])})
    assert grow(client, [], [pairs]).status == 200
    kept = [row for row in BASE if row[1] is not None and row[0] not in (2, 3, 900)]
    return in_order([*kept, (3, "new"), (900, "new"), (7002, "new"), (7003, None), (3, None)])


@pytest.mark.whole
def test_a_branch_has_the_same_rows_for_everybody_and_as_main(
    client: Client, session: DuckDBPyConnection, server: Server, lake: FreshLake
) -> None:
    """Deletes count for older rows alone, also inlined ones; main is as the branch was, and both sides go on from there."""
    served, rows = Served(lake, server), write_upserts(client)
    assert read_iceberg(served, "dev") == rows
    assert read(session) == read_iceberg(served) == BASE
    take_over(client)
    assert read(session) == read_iceberg(served) == rows
    assert grow(client, [write(client, client.load(), ids(8000))], [], "main").status == 200
    rows = in_order([*rows, (8000, "new")])
    assert read(session) == read_iceberg(served) == rows
    session.execute("DELETE FROM t WHERE id IN (7002, 8, 901)")
    rows = [row for row in rows if row[0] not in (7002, 8, 901)]
    read_by_position = in_order([(row["id"], row["name"]) for row in served.pyiceberg().read(("main", "t")).to_pylist()])
    assert read(session) == read_by_position == rows
    expire_everything(session)
    assert read(session) == read_iceberg(served) == rows


@pytest.mark.whole
def test_main_goes_to_such_a_branch_and_back_whatever_duckdb_removes(
    client: Client, session: DuckDBPyConnection, server: Server, lake: FreshLake
) -> None:
    """Main truncated and swept; its files of then are read for the branch's deletes; what was before comes back, too."""
    served, rows = Served(lake, server), write_upserts(client)
    assert client.commit([set_ref("old", client.load()["current-snapshot-id"], "tag")]).status == 200
    session.execute("TRUNCATE t")
    session.execute("INSERT INTO t VALUES (1, 'left')")
    expire_everything(session)
    assert read_iceberg(served, "dev") == rows
    for ref, expected in (("dev", rows), ("old", BASE), ("dev", rows)):
        take_over(client, ref)
        assert read(session) == read_iceberg(served) == expected
        expire_everything(session)
        assert read(session) == expected


def test_clients_delete_from_main_where_equality_deletes_are(
    client: Client, session: DuckDBPyConnection, server: Server, lake: FreshLake
) -> None:
    """Rows deleted by position, next to others of their file that are deleted by equality; and no row comes back with a list left out."""
    served, base = Served(lake, server), client.load()
    fresh = write(client, base, ids(1, 2, 3, 4))
    assert grow(client, [fresh], []).status == 200
    assert grow(client, [], [equal(client, base, {1: pa.array([2])})]).status == 200
    take_over(client)
    assert grow(client, [], [at(client, base, fresh, 2), equal(client, base, {1: pa.array([0, 1])})], "main").status == 200
    rows = in_order([*((i, name) for i, name in BASE if i not in (0, 1, 2)), (4, "new")])
    assert read(session) == read_iceberg(served) == rows


def test_a_staged_snapshot_is_published_by_position(client: Client, session: DuckDBPyConnection) -> None:
    """In version 3 with a vector beside it, and under partitions, whose deletes count there alone."""
    session.execute("DROP TABLE t")
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}]}
    assert client.create(**{"partition-spec": spec}, properties={"format-version": "3"}).status == 200
    base = client.load()
    files = [write(client, base, ids(1, 2, 3, name=name), partition=(name,)) for name in ("x", "y")]
    assert client.commit(client.append(base, 9_000_000_001, files), [assert_main(None)]).status == 200
    session.execute("DELETE FROM t WHERE id = 3 AND name = 'x'")
    base = client.load()
    staged = client.append(base, 9_000_000_002, [], [equal(client, base, {1: pa.array([1])}, partition=("x",))])
    assert client.commit(staged[:1]).status == 200
    assert read(session) == in_order([(1, "x"), (1, "y"), (2, "x"), (2, "y"), (3, "y")])
    assert client.commit([set_ref("main", 9_000_000_002, "branch")]).status == 200
    # DuckDB's `iceberg` extension takes such deletes for every partition's
    assert read(session) == in_order([(1, "y"), (2, "x"), (2, "y"), (3, "y")])


def test_files_written_anew_with_their_old_number_lose_what_came_meanwhile(
    client: Client, session: DuckDBPyConnection, server: Server, lake: FreshLake
) -> None:
    """Spark compacts so: what was deleted while it worked is deleted in the new files."""
    base = client.load()
    assert grow(client, [write(client, base, ids(7001, 7002))], []).status == 200
    number = head_of(client.load(), "dev")["sequence-number"]
    assert grow(client, [], [equal(client, base, {1: pa.array([7001])})]).status == 200
    numbered = replace(client, numbers={0: number})
    assert grow(numbered, [write(client, base, ids(7001, 7003))], []).status == 200
    rows = in_order([*BASE, (7002, "new"), (7003, "new")])
    assert read_iceberg(Served(lake, server), "dev") == rows
    take_over(client)
    assert read(session) == rows


@pytest.mark.parametrize("is_moved", long_after(1, [False, True]))
@pytest.mark.parametrize("ref", long_after(1, ["main", "dev"]))
def test_files_with_the_number_of_an_earlier_snapshot_of_their_request(
    client: Client, session: DuckDBPyConnection, ref: str, is_moved: bool
) -> None:
    """That snapshot's equality deletes do not count for them; on a branch, whose files keep what their client wrote, it is refused."""
    rows = write_upserts(client) if is_moved else BASE
    if is_moved:
        take_over(client)
    base = client.load()
    for number in range(3):
        session.execute(f"CREATE TABLE other{number} (i INTEGER)")
    deletes = [equal(client, base, {1: pa.array([9])})]
    first = client.add(base, 9_000_000_001, [write(client, base, ids(9))], deletes, parent=head_of(base, ref))
    numbered = replace(client, numbers={0: first["sequence-number"]})
    second = numbered.add(base, 9_000_000_002, [write(client, base, ids(9, 7001))], [equal(client, base, {1: pa.array([6])})], parent=first)
    adding = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    done = client.commit([*adding, set_ref(ref, 9_000_000_002, "branch")])
    if ref == "main":
        assert done.status == 200, done.json
        assert read(session) == in_order([*(row for row in rows if row[0] not in (6, 9)), (9, "new"), (9, "new"), (7001, "new")])
    else:
        assert done.status == 400, done.json
        assert "commit one after the other" in done.json["error"]["message"]
        assert client.load() == base


@pytest.mark.parametrize("content", whole_after(1, [pytest.param(0, id="data"), pytest.param(1, id="deletes")]))
def test_manifests_written_anew_within_a_request_keep_what_they_delete(
    client: Client, session: DuckDBPyConnection, server: Server, lake: FreshLake, content: int
) -> None:
    """The lake numbers the request's snapshots otherwise than their client did, by as much as others have committed."""
    base = client.load()
    for number in range(3):
        session.execute(f"CREATE TABLE other{number} (i INTEGER)")
    fresh = write(client, base, ids(7001, 7002, 7003, 3))
    deletes = [at(client, base, fresh, 0), equal(client, base, {1: pa.array([3])})]
    first = client.add(base, 9_000_000_001, [fresh], deletes, parent=head_of(base, "dev"))
    second = client.rewrite(base, 9_000_000_002, first, content)
    third = client.add(base, 9_000_000_003, [], [equal(client, base, {1: pa.array([7002])})], parent=second)
    adding = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second, third)]
    done = client.commit([*adding, set_ref("dev", 9_000_000_003, "branch")])
    assert done.status == 200, done.json
    rows = in_order([*(row for row in BASE if row[0] != 3), (3, "new"), (7003, "new")])
    found = Served(lake, server)
    assert read_iceberg(found, "dev") == rows
    take_over(client)
    assert read(session) == rows


def test_manifests_written_anew_within_a_request_keep_their_rows_ids(server: Server, lake: FreshLake, session: DuckDBPyConnection) -> None:
    """In version 3, whatever their order; files that follow on one another share a manifest. The client's numbers are others' by then."""
    client = fill(open_client(server, lake), session, properties={"format-version": "3"})
    base = client.load()
    first = client.add(base, 9_000_000_001, [write(client, base, ids(i, i + 1)) for i in (10, 20, 30, 40)], parent=head_of(base, "dev"))
    second = client.rewrite(base, 9_000_000_002, first, 0, staying=[3, 0, 2])
    session.execute("INSERT INTO t VALUES (902, 'meanwhile')")
    adding = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    done = client.commit([*adding, set_ref("dev", 9_000_000_002, "branch")])
    assert done.status == 200, done.json
    metadata = done.json["metadata"]
    made = {found["snapshot-id"]: found for found in metadata["snapshots"]}
    dev = made[metadata["refs"]["dev"]["snapshot-id"]]
    start = made[dev["parent-snapshot-id"]]["first-row-id"]
    assert start > base["next-row-id"]
    found = [entry for entry in client.read_entries(dev) if entry.snapshot_id == dev["parent-snapshot-id"]]
    assert sorted(entry.data_file.first_row_id or 0 for entry in found) == [start, start + 4, start + 6]
    assert len(client.list_manifests(dev, author=dev["parent-snapshot-id"])) == 2


COLUMNS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "ratio", "required": False, "type": "double"},
    {"id": 3, "name": "tags", "required": False, "type": {"type": "list", "element-id": 4, "element": "int", "element-required": False}},
]


@pytest.mark.parametrize(
    ("equality_ids", "more", "said"),
    long_after(
        1,
        [
            pytest.param([2], {}, "no equality", id="floating point"),
            pytest.param([4], {}, "outside lists", id="in a list"),
            pytest.param([99], {}, "no column of the table", id="unknown column"),
            pytest.param([3], {}, "no equality", id="a list"),
            pytest.param([1], {"file_format": "AVRO"}, "AVRO", id="Avro"),
            pytest.param([1], {"record_count": 2_000_000}, "2000000 rows", id="too many"),
            pytest.param([1], {"file_path": "s3://lake/elsewhere/x.parquet"}, "does not lie in", id="elsewhere"),
        ],
    ),
)
def test_deletes_that_cannot_be_taken_change_nothing(
    server: Server, lake: FreshLake, equality_ids: Sequence[int], more: dict[str, Any], said: str
) -> None:
    """By 400 that says why, when they come and not when main is to have them."""
    client = open_client(server, lake)
    assert client.create(schema={"type": "struct", "schema-id": 0, "fields": COLUMNS}).status == 200
    base = client.load()
    keys = replace(equal(client, base, {1: pa.array([1])}), equality_ids=tuple(equality_ids), **more)
    rows = read_rows(lake)
    refused = client.commit(client.append(base, 9_000_000_001, [], [keys])[:1])
    assert refused.error == (400, "BadRequestException")
    assert said in refused.json["error"]["message"]
    assert read_rows(lake) == rows


def test_a_merge_is_not_taken_for_a_removed_write_to_a_branch(client: Client, session: DuckDBPyConnection, lake: FreshLake) -> None:
    """Be it one that changed the table too: when DuckDB expires all others, main stays on the merge, whoever reads the lake again."""
    for start in (100, 200):
        session.execute(f"INSERT INTO t SELECT i, NULL FROM range({start}, {start + 40}) r(i)")
    session.execute("CALL ducklake_merge_adjacent_files('lake')")
    base, number = client.load(), uuid4().int >> 65
    added = client.add(base, number, [write(client, base, ids(7001))], parent=head_of(base, "dev"))
    told = {"action": "set-properties", "updates": {"k": "v"}}
    snapshot = {"action": "add-snapshot", "snapshot": added | {"sequence-number": base["last-sequence-number"] + 1}}
    done = client.commit([told, snapshot, set_ref("dev", number, "branch")])
    assert done.status == 200, done.json
    removed = {"action": "remove-snapshots", "snapshot-ids": [done.json["metadata"]["refs"]["dev"]["snapshot-id"]]}
    assert client.commit([{"action": "remove-snapshot-ref", "ref-name": "dev"}, removed]).status == 200
    for statement in EVERYTHING[4:6]:
        session.execute(statement)
    with serve(make_settings(lake)) as other:
        found = open_client(other, lake).load()
    assert found["current-snapshot-id"] == base["current-snapshot-id"]
    assert [one["snapshot-id"] for one in found["snapshots"]] == [base["current-snapshot-id"]]
