"""`warehouse=lake@dev`: a branch behind the REST catalog, with PyIceberg and DuckDB on both sides."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from duckdb import CatalogException
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable

from duckicelake.commands.check import list_branch_names, remove_orphans
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from tests.lake.branches.repository import fill, maintain, make_branch, read_rows
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake

IDENT = ("ns", "t")


def open_catalog(server: Server, lake: FreshLake, warehouse: str) -> RestCatalog:
    """PyIceberg on a warehouse."""
    store = lake.store
    keys = {"s3.endpoint": store.endpoint, "s3.region": store.region}
    keys |= {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
    opened = load_catalog(warehouse, **{"type": "rest", "uri": server.uri, "warehouse": warehouse, **keys})
    assert isinstance(opened, RestCatalog)
    return opened


def make_rows(first: int, count: int) -> pa.Table:
    """Rows with ids from a number on."""
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "v": ["x"] * count})


def read_ids(catalog: RestCatalog, ident: tuple[str, str] = IDENT) -> list[int]:
    """The ids that PyIceberg reads, in order."""
    return sorted(catalog.load_table(ident).scan().to_arrow()["id"].to_pylist())


def list_ids(lake: FreshLake, table: str = "ns.t") -> list[int]:
    """The ids that a new session of DuckDB reads, in order."""
    return sorted(int(str(row[0])) for row in read_rows(lake, table))


@pytest.mark.whole
def test_clients_of_both_sides_read_and_write_their_own(lake: FreshLake) -> None:
    """Commits of PyIceberg and DuckDB on both sides, and maintenance of both: each side reads its own rows in every client."""
    fill(lake.duckdb())
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 200))
        before, duckdb_ids = main.load_table(IDENT).metadata, read_ids(main, ("main", "t"))
        dev = make_branch(lake, "dev")
        branch = open_catalog(server, lake, "lake@dev")
        copied = branch.load_table(IDENT).metadata
        assert (copied.table_uuid, copied.current_snapshot_id) == (before.table_uuid, before.current_snapshot_id)
        assert [each.snapshot_id for each in copied.snapshots] == [each.snapshot_id for each in before.snapshots]
        assert copied.location.startswith(dev.iceberg_path) and before.location.startswith(lake.iceberg_path)
        assert read_ids(branch, ("main", "t")) == duckdb_ids
        branch.load_table(IDENT).append(make_rows(1000, 50))
        branch.load_table(IDENT).delete("id < 10")
        main.load_table(IDENT).append(make_rows(2000, 25))
        main.load_table(IDENT).delete("id >= 2020")
        with closing(dev.duckdb()) as session:
            session.execute("INSERT INTO ns.t SELECT i, 'd' FROM range(3000, 3030) r(i)")
            session.execute("INSERT INTO ns.t VALUES (4000, 'inlined')")
            session.execute("DELETE FROM ns.t WHERE id BETWEEN 100 AND 109")
        mine = [*range(10, 100), *range(110, 200), *range(1000, 1050), *range(3000, 3030), 4000]
        theirs = [*range(200), *range(2000, 2020)]
        for _ in range(2):
            assert (read_ids(branch), list_ids(dev)) == (mine, mine)
            assert (read_ids(main), list_ids(lake)) == (theirs, theirs)
            for catalog, ids in ((main, theirs), (branch, mine)):
                by_path = StaticTable.from_metadata(catalog.load_table(IDENT).metadata_location, properties=catalog.properties)
                assert sorted(by_path.scan().to_arrow()["id"].to_pylist()) == ids
            maintain(lake)
            maintain(dev)
        branch.create_table(("ns", "only"), make_rows(0, 1).schema).append(make_rows(0, 5))
        assert list_ids(dev, "ns.only") == list(range(5))
        with pytest.raises(NoSuchTableError):
            main.load_table(("ns", "only"))


def count_purges(lake: FreshLake) -> int:
    """How many purges are yet to be finished."""
    row = lake.psycopg().execute("SELECT count(*) FROM iceberg_purge").fetchone()
    assert row is not None
    return row[0]


def test_a_table_is_not_unregistered_on_a_branch(lake: FreshLake) -> None:
    """The merge would bring the drop alone, and the lake would remove the files that another catalog reads."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        refused = server.ask("POST", "/v1/lake@dev/namespaces/main/tables/t/unregister")
        assert refused.error == (400, "BadRequestException")
        assert "merge the branch" in refused.json["error"]["message"]
        assert server.ask("POST", "/v1/lake/namespaces/main/tables/t/unregister").status == 200


@pytest.mark.whole
def test_a_drop_with_its_files_leaves_what_the_other_side_reads(lake: FreshLake) -> None:
    """Purges on either side and `check --repair` remove no object while there are branches; the purge is finished afterwards."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        for name in ("t", "u"):
            main.create_table(("ns", name), make_rows(0, 1).schema).append(make_rows(0, 200))
        dev = make_branch(lake, "dev")
        child = make_branch(lake, BranchRequest("child", "dev"))
        branch = open_catalog(server, lake, "lake@dev")
        main.purge_table(IDENT)
        branch.purge_table(("ns", "u"))
        [settings] = make_settings(lake, data_path=lake.data_path, iceberg_path=lake.iceberg_path).lakes()
        assert list_branch_names(settings) == ["dev", "child"]
        maintain(lake)
        maintain(dev)
        assert read_ids(branch) == list_ids(child) == list(range(200))
        assert read_ids(main, ("ns", "u")) == list_ids(child, "ns.u") == list(range(200))
        with pytest.raises(CatalogException):
            read_rows(lake, "ns.t")
        assert count_purges(lake) == count_purges(dev) == 1
        assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
        assert read_ids(open_catalog(server, lake, "lake@child")) == list(range(200))
        assert delete_branch(lake.psycopg(), lake.metadata_schema, "child")
        remove_orphans(settings, datetime.now(UTC) + timedelta(days=1))
        assert count_purges(lake) == 0


def test_a_deleted_branch_is_not_served_and_a_new_one_is(lake: FreshLake) -> None:
    """A name means the branch that has it when the request arrives; unknown ones are no warehouse."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    with serve(make_settings(lake)) as server:
        path = "/v1/lake%40dev/namespaces/main/tables/t"
        assert server.get("/v1/config?warehouse=lake%40dev").error == (404, "NoSuchWarehouseException")
        make_branch(lake, "dev")
        config = server.get("/v1/config?warehouse=lake%40dev").json
        assert config["overrides"]["prefix"] == "lake%40dev"
        first = server.get(path).json["metadata"]
        assert server.get("/v1/lake@dev/namespaces/main/tables/t").status == 200
        assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
        assert server.get(path).error == (404, "NoSuchWarehouseException")
        lake.duckdb().execute("INSERT INTO t SELECT range FROM range(30)")
        make_branch(lake, "dev")
        second = server.get(path).json["metadata"]
        assert second["location"] != first["location"]
        assert len(second["snapshots"]) == len(first["snapshots"]) + 1
        assert server.get("/readyz").status == 200


@pytest.mark.whole
def test_objects_that_only_a_branch_names_stay(lake: FreshLake) -> None:
    """Files of the lake's location that its own rows name no more are a branch's: nothing is removed as unreferenced."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        dev = make_branch(lake, "dev")
        main.load_table(IDENT).overwrite(make_rows(500, 10))
        maintain(lake)
        [settings] = make_settings(lake, data_path=lake.data_path, iceberg_path=lake.iceberg_path).lakes()
        assert remove_orphans(settings, datetime.now(UTC) + timedelta(days=1)) == []
        assert list_ids(dev) == list(range(100))
        branch = open_catalog(server, lake, "lake@dev")
        assert read_ids(branch) == list(range(100))
        # `maintain` works on a branch, too. What the branch names no more may be named by another member.
        branch.load_table(IDENT).append(make_rows(1000, 10))
        maintain(dev)
        [settings] = make_settings(dev, data_path=dev.data_path, iceberg_path=dev.iceberg_path).lakes()
        assert remove_orphans(settings, datetime.now(UTC) + timedelta(days=1)) == []
        assert read_ids(main) == list(range(500, 510))


@pytest.mark.long
def test_branches_have_no_connections_of_their_own(lake: FreshLake) -> None:
    """However many a server serves: they share those of their lake, also for commits, and each sees its own tables."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    names = [f"dev-{number}" for number in range(6)]
    for name in names:
        make_branch(lake, name).duckdb().execute(f"CREATE TABLE mine AS SELECT '{name}' AS v")
    conn = lake.psycopg()

    def count() -> int:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        ).fetchone()
        assert row is not None
        return row[0]

    with serve(make_settings(lake)) as server:
        body = b'{"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}'
        assert server.ask("POST", "/v1/lake/namespaces/main/tables/t", {"Content-Type": "application/json"}, body).status == 200
        assert server.get("/v1/lake/namespaces/main/tables/t").status == 200
        before = count()
        for _ in range(2):
            for name in names:
                place = f"/v1/lake@{name}/namespaces/main/tables"
                assert [each["name"] for each in server.get(place).json["identifiers"]] == ["mine", "t"]
                assert server.ask("POST", f"{place}/mine", {"Content-Type": "application/json"}, body).status == 200
                assert server.get(f"{place}/mine").json["metadata"]["properties"]["k"] == "v"
        assert count() - before <= 2
        # A change that DuckDB makes on one branch is seen on that branch alone.
        etags = {name: server.get(f"/v1/lake@{name}/namespaces/main/tables/t").headers["etag"] for name in names[:2]}
        schema = f"{lake.metadata_schema}@{names[0]}"
        with closing(replace(lake, metadata_schema=schema).duckdb()) as session:
            session.execute("INSERT INTO t VALUES (100)")
        now = {name: server.get(f"/v1/lake@{name}/namespaces/main/tables/t").headers["etag"] for name in names[:2]}
        assert now[names[0]] != etags[names[0]] and now[names[1]] == etags[names[1]]


def test_the_next_branch_finds_its_relations_prepared(lake: FreshLake) -> None:
    """The server makes them after a branch was made, lists them nowhere, and removes them when it stops."""
    conn, path = lake.psycopg(), "/management/v1/repositories/lake/branches"
    find_schema = "SELECT oid FROM pg_namespace WHERE nspname = %s"
    prepared: list[tuple[object, ...] | None] = []
    with serve(make_settings(lake)) as server:
        for name in ("dev", "next"):
            assert server.ask("POST", path, body=json.dumps({"name": name}).encode()).status == 200
            while conn.execute("SELECT count(*) FROM iceberg_spare").fetchone() != (1,):
                pass
            prepared.append(conn.execute(find_schema, ("lake@+",)).fetchone())
        assert conn.execute(find_schema, ("lake@next",)).fetchone() == prepared[0] != prepared[1]
        assert [branch["name"] for branch in server.get(path).json["branches"]] == ["dev", "next"]
    assert conn.execute("SELECT count(*) FROM iceberg_spare").fetchone() == (0,)
    assert conn.execute(find_schema, ("lake@+",)).fetchone() is None
