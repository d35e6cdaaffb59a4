"""Branches and tags over REST: notes that outlive what DuckLake expires, and that DuckDB never sees."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ManageSnapshots

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_ref, creation, data_file, open_client, read_rows, set_ref, write_file
from tests.rest.writing.refs.maintenance import expire_everything, ids_at
from tests.support.lakes import FreshLake
from tests.support.readers import Served


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, whose rows DuckDB wrote in three snapshots."""
    client = open_client(server, lake)
    assert client.create().status == 200
    session = lake.duckdb()
    for start in (0, 100, 200):
        session.execute(f"INSERT INTO t SELECT range, 'x' FROM range({start}, {start + 50})")
    return client


@pytest.fixture
def catalog(server: Server, lake: FreshLake) -> RestCatalog:
    """PyIceberg on the same server."""
    return Served(lake, server).pyiceberg().catalog


def test_a_tag_is_shown_moved_and_removed(client: Client, lake: FreshLake) -> None:
    """With its retention, at every load and by every server; DuckDB gets no lake snapshot of it."""
    before = client.load()
    first, second, third = [snapshot["snapshot-id"] for snapshot in before["snapshots"]]
    head = read_head(lake)
    done = client.commit([set_ref("v1", first, "tag", **{"max-ref-age-ms": 5})], [assert_ref("v1", None)])
    assert done.json["metadata"]["refs"] == {
        "main": {"snapshot-id": third, "type": "branch"},
        "v1": {"snapshot-id": first, "type": "tag", "max-ref-age-ms": 5},
    }
    assert client.commit([set_ref("v1", second, "tag")], [assert_ref("v1", first)]).status == 200
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load()["refs"]["v1"] == {"snapshot-id": second, "type": "tag"}
    assert client.commit([{"action": "remove-snapshot-ref", "ref-name": "v1"}], [assert_ref("v1", second)]).status == 200
    assert client.load()["refs"] == before["refs"]
    assert client.load()["snapshots"] == before["snapshots"]
    assert read_head(lake) == head


def test_a_ref_that_is_not_as_expected_is_refused(client: Client, lake: FreshLake) -> None:
    """By 409 with Java's text, or by 400 when it can never be, and nothing changes."""
    first = client.load()["snapshots"][0]["snapshot-id"]
    client.commit([set_ref("v1", first, "tag")])
    rows = read_rows(lake)
    late = client.commit([set_ref("v1", first, "tag")], [assert_ref("v1", None)])
    assert (late.error, late.json["error"]["message"]) == (
        (409, "CommitFailedException"),
        "Requirement failed: tag v1 was created concurrently",
    )
    assert client.commit([set_ref("v2", first, "tag")], [assert_ref("v2", first)]).error[0] == 409
    for update in (set_ref("v2", 12345, "tag"), set_ref("main", first, "tag")):
        assert client.commit([update]).error == (400, "BadRequestException"), update
    assert read_rows(lake) == rows


def test_main_may_retain(client: Client, lake: FreshLake) -> None:
    """What main retains is noted and shown, and stays when DuckDB writes."""
    head = client.load()["current-snapshot-id"]
    kept = {"max-snapshot-age-ms": 7, "min-snapshots-to-keep": 3, "max-ref-age-ms": 9}
    assert client.commit([set_ref("main", head, "branch", **kept)], [assert_ref("main", head)]).status == 200
    lake.duckdb().execute("INSERT INTO t VALUES (7, 'y')")
    assert client.load()["refs"]["main"] == {"snapshot-id": read_head(lake), "type": "branch", **kept}


def test_a_tag_leaves_other_tables_alone(client: Client) -> None:
    """Only the table that got it is loaded again: others keep their ready answers."""
    client.create("u")
    client.load("u")
    client.load("u")
    hits = client.server.count("duckicelake_table_cache_total", outcome="hit")
    client.commit([set_ref("v1", client.load()["current-snapshot-id"], "tag")])
    hits = client.server.count("duckicelake_table_cache_total", outcome="hit")
    client.load("u")
    assert client.server.count("duckicelake_table_cache_total", outcome="hit") == hits + 1


def test_a_tag_keeps_its_rows_when_everything_expires(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """Files, inlined rows and deletes alike: expired, merged, cleaned up and swept for orphans, the tag reads as before."""
    session = lake.duckdb()
    session.execute("INSERT INTO t VALUES (900, 'inlined')")
    session.execute("DELETE FROM t WHERE id BETWEEN 10 AND 29")
    session.execute("DELETE FROM t WHERE id = 120")
    client.commit([set_ref("v1", client.load()["current-snapshot-id"], "tag")])
    table = catalog.load_table("main.t")
    expected = ids_at(table, "v1")
    assert len(expected) == 130
    session.execute("DELETE FROM t WHERE id > 110")
    session.execute("INSERT INTO t SELECT range, 'z' FROM range(5000, 5040)")
    session.execute("TRUNCATE t")
    session.execute("INSERT INTO t VALUES (1, 'left')")
    for _ in range(2):
        expire_everything(session)
        table = catalog.load_table("main.t")
        assert ids_at(table, "v1") == expected
        assert ids_at(table) == [1]
    assert session.execute("SELECT id FROM t").fetchall() == [(1,)]
    with serve(make_settings(lake)) as other:
        assert ids_at(Served(lake, other).pyiceberg().catalog.load_table("main.t"), "v1") == expected


def test_a_dropped_table_keeps_nothing(client: Client, lake: FreshLake) -> None:
    """With the table go its refs, and the files that were kept for them."""
    session = lake.duckdb()
    client.commit([set_ref("v1", client.load()["current-snapshot-id"], "tag")])
    session.execute("TRUNCATE t")
    expire_everything(session)
    assert len(session.execute(f"FROM glob('{lake.data_path}main/**')").fetchall()) == 3
    session.execute("DROP TABLE t")
    expire_everything(session)
    assert session.execute(f"FROM glob('{lake.data_path}main/**')").fetchall() == []


def test_removed_snapshots_are_hidden_from_this_table_only(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """The chain of parents stays whole and true, and DuckDB travels to them as before. A tag that is not known of keeps its own."""
    session = lake.duckdb()
    session.execute("DELETE FROM t WHERE id < 20")
    session.execute("INSERT INTO t VALUES (7, 'y')")
    ids = [snapshot["snapshot-id"] for snapshot in client.load()["snapshots"]]
    client.commit([set_ref("v1", ids[1], "tag")])
    removal = {"action": "remove-snapshots", "snapshot-ids": [ids[1], ids[3], 4711]}
    assert client.commit([removal]).error == (409, "CommitFailedException")
    assert client.commit([removal], [assert_ref("v1", ids[1])]).status == 200
    assert list(client.load()["refs"]) == ["main"]
    client.commit([set_ref("v2", ids[2], "tag")])
    done = client.commit([{"action": "remove-snapshot-ref", "ref-name": "v2"}, removal])
    metadata = done.json["metadata"]
    left = [ids[0], ids[2], ids[4]]
    assert [(item["snapshot-id"], item.get("parent-snapshot-id")) for item in metadata["snapshots"]] == list(
        zip(left, [None, *left], strict=False)
    )
    assert list(metadata["refs"]) == ["main"]
    assert client.load()["snapshot-log"] == metadata["snapshot-log"]
    table = catalog.load_table("main.t")
    for snapshot_id in ids:
        found = sorted(row[0] for row in session.execute(f"SELECT id FROM t AT (VERSION => {snapshot_id})").fetchall())
        if snapshot_id in left:
            assert sorted(table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist()) == found
    rows = read_rows(lake)
    assert client.commit([{"action": "remove-snapshots", "snapshot-ids": [ids[4]]}]).error == (400, "BadRequestException")
    assert client.commit([{"action": "remove-snapshots", "snapshot-ids": [ids[1]]}]).status == 200
    assert read_rows(lake) == rows


def test_removing_a_snapshots_other_id_is_no_change(client: Client, lake: FreshLake) -> None:
    """Engines that expire see the newest snapshot twice; the id of its author may go, the snapshot stays."""
    base = client.load()
    client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]))
    rows = read_rows(lake)
    assert client.commit([{"action": "remove-snapshots", "snapshot-ids": [9_000_000_001]}]).status == 200
    assert read_rows(lake) == rows


def test_gc_enabled_is_shown_and_never_stored(client: Client, lake: FreshLake) -> None:
    """Engines must not remove what DuckLake still needs, unless somebody says otherwise."""
    assert client.load()["properties"]["gc.enabled"] == "false"
    client.commit([{"action": "set-properties", "updates": {"k": "v"}}])
    session = lake.psycopg()
    assert session.execute("SELECT key FROM ducklake_tag WHERE key = 'gc.enabled'").fetchall() == []
    client.commit([{"action": "set-properties", "updates": {"gc.enabled": "true"}}])
    assert client.load()["properties"]["gc.enabled"] == "true"
    client.commit([{"action": "remove-properties", "removals": ["gc.enabled"]}])
    assert client.load()["properties"]["gc.enabled"] == "false"


def test_pyiceberg_manages_refs(catalog: RestCatalog, client: Client) -> None:
    """Its own calls, in one commit and in several."""
    table: Table = catalog.load_table("main.t")
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    with table.manage_snapshots() as manage:
        manage.create_tag(ids[0], "first", max_ref_age_ms=100).create_branch(ids[1], "second", min_snapshots_to_keep=2)
    assert {name: ref.snapshot_id for name, ref in table.refresh().refs().items()} == {"main": ids[2], "first": ids[0], "second": ids[1]}
    table.manage_snapshots().remove_tag("first").remove_branch("second").commit()
    assert list(table.refresh().refs()) == ["main"]


def read_head(lake: FreshLake) -> int:
    """The newest lake snapshot."""
    found: Any = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    return found[0]


@pytest.mark.whole
def test_refs_name_a_snapshot_of_their_own_commit(client: Client, catalog: RestCatalog, lake: FreshLake) -> None:
    """In one lake snapshot with it; it stays, whatever DuckDB expires, and so it is when nobody had loaded the table before."""
    base = client.load()
    file = write_file(client, base, "a", {1: pa.array([700, 701]), 2: pa.array(["a", "b"])})
    updates = client.append(base, 9_000_000_001, [file])
    head = read_head(lake)
    done = client.commit([*updates, set_ref("v1", 9_000_000_001, "tag"), set_ref("side", 9_000_000_001, "branch")])
    assert done.status == 200, done.json
    assert read_head(lake) == head + 1
    assert {name: ref["snapshot-id"] for name, ref in done.json["metadata"]["refs"].items()} == dict.fromkeys(
        ("main", "v1", "side"), head + 1
    )
    expected = ids_at(catalog.load_table("main.t"))
    assert expected[-2:] == [700, 701]
    # as if the server had died before it loaded the table
    lake.psycopg().execute("UPDATE iceberg_kept SET json = ''")
    with serve(make_settings(lake)) as other:
        assert len(open_client(other, lake).load()["refs"]) == 3
    session = lake.duckdb()
    session.execute("TRUNCATE t")
    session.execute("INSERT INTO t VALUES (1, 'left')")
    for _ in range(2):
        expire_everything(session)
        table = catalog.load_table("main.t")
        assert (ids_at(table, "v1"), ids_at(table, "side"), ids_at(table)) == (expected, expected, [1])
    with serve(make_settings(lake)) as other:
        assert ids_at(Served(lake, other).pyiceberg().catalog.load_table("main.t"), "v1") == expected


def test_a_table_is_made_with_refs(client: Client, catalog: RestCatalog) -> None:
    """By a staged create that brings rows and a tag on them."""
    staged = client.create("u", **{"stage-create": True}).json["metadata"]
    file = write_file(client, staged, "a", {1: pa.array([7]), 2: pa.array(["a"])})
    updates = [*creation(staged), *client.append(staged, 9_000_000_001, [file]), set_ref("v1", 9_000_000_001, "tag")]
    done = client.commit(updates, [{"type": "assert-create"}], "u")
    assert done.status == 200, done.json
    refs = done.json["metadata"]["refs"]
    assert refs["v1"]["snapshot-id"] == refs["main"]["snapshot-id"]
    assert ids_at(catalog.load_table("main.u"), "v1") == [7]


def test_pyiceberg_tags_what_it_appends(client: Client, catalog: RestCatalog) -> None:
    """In one transaction of its own."""
    assert len(client.load()["snapshots"]) == 3
    table = catalog.load_table("main.t")
    with table.transaction() as change:
        change.append(pa.table({"id": pa.array([7], pa.int64()), "name": ["now"]}))
        fresh = change.table_metadata.current_snapshot_id
        assert fresh is not None
        ManageSnapshots(change).create_tag(fresh, "now").commit()
    assert ids_at(table.refresh(), "now").count(7) == 2
