"""Branches where clients of lakeFS name them, in front of the namespaces, and tables like `t@dev`."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError

from duckicelake.rest.branch_names import BaseRef, find_base, locate
from duckicelake.rest.layers.addresses import split_base_path
from tests.lake.branches.repository import make_branch, read_rows
from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.spark import Spark

NEW_TABLE = {"name": "made", "schema": {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}}
PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
DENIED = (403, "NotAuthorizedException")


def open_lakefs(server: Server, lake: FreshLake, path: str = "/iceberg/api", **more: str) -> RestCatalog:
    """PyIceberg as lakeFS documents it: a base path, the prefix `lakefs`, and no warehouse."""
    store = lake.store
    keys = {"s3.endpoint": store.endpoint, "s3.region": store.region}
    keys |= {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
    return RestCatalog("my_catalog", **{"prefix": "lakefs", "uri": f"{server.uri}{path}", **keys, **more})


def post(server: Server, path: str, body: Any) -> Answer:
    """Send a body."""
    return server.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())


def make_rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": pa.array(ids, pa.int64())})


def read_ids(lake: FreshLake, table: str) -> list[object]:
    """The ids that plain DuckDB reads."""
    return [row[0] for row in read_rows(lake, table)]


@pytest.mark.parametrize(
    ("levels", "place"),
    [
        (("dev", "ns", "x"), ("lake", "dev", ("ns", "x"), ("dev",))),
        (("lake", "dev", "ns"), ("lake", "dev", ("ns",), ("lake", "dev"))),
        (("lake", "dev"), ("lake", "dev", (), ("lake", "dev"))),
        (("lake",), ("lake", "", (), ("lake",))),
        ((), ("lake", "", (), ())),
    ],
    ids=str,
)
def test_levels_name_a_branch(levels: tuple[str, ...], place: tuple[object, ...]) -> None:
    """With one lake its name may be left out."""
    found = locate(["lake"], BaseRef(), levels)
    assert (found.lake, found.ref, found.levels, found.branch_levels) == place
    assert locate(["lake", "other"], BaseRef("lake"), ("dev", "ns")).warehouse == "lake@dev"
    assert locate(["lake", "other"], BaseRef("lake", "main"), ("dev", "ns")).levels == ("dev", "ns")
    with pytest.raises(Exception, match="has to be a lake: lake, other"):
        locate(["lake", "other"], BaseRef(), ("dev", "ns"))


def test_base_paths_are_read() -> None:
    """Names may have dots, and what is no base path is left alone."""
    assert split_base_path("/iceberg/api/v1/config") == ("", "/v1/config")
    assert split_base_path("/iceberg/relative_to/lake.dev/api/v1/lakefs/namespaces") == ("lake.dev", "/v1/lakefs/namespaces")
    for other in (
        "/iceberg/api",
        "/iceberg/api/management/v1/warehouses",
        "/iceberg/relative_to//api/v1/config",
        "/iceberg/relative_to/%zz/api/v1/x",
    ):
        assert split_base_path(other)[0] is None
    assert find_base(["a", "a.b"], "a.b.c") == BaseRef("a.b", "c")
    assert find_base(["a", "a.b"], "a.c") == BaseRef("a", "c")
    assert find_base(["a"], "ab") is None


@pytest.mark.whole
def test_pyiceberg_works_as_lakefs_documents_it(lake: FreshLake) -> None:
    """Namespaces `lake.dev.ns`, and below `relative_to` plain ones: made, written, listed and dropped on the branch; main is unchanged."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(3)")
    dev = make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        catalog = open_lakefs(server, lake)
        assert catalog.list_namespaces(("lake", "dev")) == [("lake", "dev", "main")]
        catalog.create_namespace("lake.dev.accounting", {"k": "v"})
        catalog.create_namespace("lake.dev.accounting.tax")
        assert catalog.list_namespaces("lake.dev.accounting") == [("lake", "dev", "accounting", "tax")]
        assert catalog.load_namespace_properties("lake.dev.accounting")["k"] == "v"
        made = catalog.create_table("lake.dev.accounting.tax.paid", make_rows(1).schema)
        made.append(make_rows(1, 2))
        assert catalog.list_tables("lake.dev.accounting.tax") == [("lake", "dev", "accounting", "tax", "paid")]
        assert made.location().startswith(dev.iceberg_path) and "/dev/" not in made.location()
        assert read_ids(dev, '"accounting␟tax".paid') == [1, 2]
        table = catalog.load_table("lake.dev.main.t")
        table.append(make_rows(10))
        table.delete("id = 0")
        catalog.rename_table("lake.dev.main.t", "lake.dev.accounting.u")
        assert read_ids(dev, "accounting.u") == [1, 2, 10]
        assert catalog.load_table("lake.main.main.t").scan().to_arrow()["id"].to_pylist() == [0, 1, 2]
        relative = open_lakefs(server, lake, "/iceberg/relative_to/lake.dev/api")
        assert sorted(relative.list_namespaces()) == [("accounting",), ("main",)]
        relative.load_table("accounting.u").append(make_rows(11))
        assert read_ids(dev, "accounting.u") == [1, 2, 10, 11]
        relative.drop_table("accounting.u")
        assert catalog.list_tables("lake.dev.accounting") == []
        for missing in ("lake.dev.main.none", "lake.none.main.t", "lake.dev.none.t"):
            with pytest.raises(NoSuchTableError):
                catalog.load_table(missing)
        with pytest.raises(NoSuchNamespaceError):
            catalog.list_tables("lake.none.main")
        with pytest.raises(NamespaceAlreadyExistsError):
            catalog.create_namespace("lake.dev")
        assert catalog.namespace_exists("lake.dev") and catalog.namespace_exists("lake") and not catalog.namespace_exists("lake.none")
        catalog.close()
        relative.close()
    assert read_ids(lake, "t") == [0, 1, 2]


def test_the_warehouse_of_a_lake_gives_the_prefix(lake: FreshLake) -> None:
    """`lakefs://lake`: the root lists branches, and the first level is one. Other addresses see nothing of it."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(3)")
    dev = make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        for base in ("", "/iceberg/api"):
            config = server.get(f"{base}/v1/config?warehouse=lakefs%3A%2F%2Flake").json
            assert config["overrides"]["prefix"] == "lakefs" and config["defaults"]
        assert server.get("/v1/config?warehouse=lakefs%3A%2F%2Fnone").error == (404, "NoSuchWarehouseException")
        assert server.get("/v1/config?warehouse=lakefs").error == (404, "NoSuchWarehouseException")
        assert server.get("/iceberg/relative_to/none.dev/api/v1/config").error == (404, "NoSuchWarehouseException")
        assert server.get("/v1/lakefs/namespaces").json["namespaces"] == [["main"], ["dev"]]
        assert server.get("/v1/lakefs/namespaces?parent=dev&pageToken=").json["namespaces"] == [["dev", "main"]]
        assert server.get("/v1/lakefs/namespaces?parent=none").error == (404, "NoSuchWarehouseException")
        assert server.get("/v1/lakefs/namespaces/dev").json == {"namespace": ["dev"], "properties": {}}
        assert server.ask("HEAD", "/v1/lakefs/namespaces/dev%1Fmain").status == 204
        assert server.ask("HEAD", "/v1/lakefs/namespaces/none").status == 404
        assert server.get("/v1/lakefs/namespaces/dev/tables").json["identifiers"] == []
        assert server.get("/v1/lakefs/namespaces/dev/tables/t").error == (404, "NoSuchTableException")
        assert server.ask("DELETE", "/v1/lakefs/namespaces/dev").error == (400, "BadRequestException")
        assert server.get("/v1/lake/namespaces").json["namespaces"] == [["main"]]
        ordinary, named = server.get("/v1/lake@dev/namespaces/main/tables/t"), server.get("/v1/lakefs/namespaces/dev%1Fmain/tables/t")
        assert (ordinary.json["metadata"], ordinary.headers["etag"]) == (named.json["metadata"], named.headers["etag"])
        again = server.get("/v1/lakefs/namespaces/dev%1Fmain/tables/t", {"If-None-Match": named.headers["etag"]})
        assert again.status == 304
        main = server.get("/v1/lakefs/namespaces/main%1Fmain/tables/t")
        assert main.headers["etag"] != named.headers["etag"]
        assert post(server, "/v1/lakefs/namespaces/dev%1Fmain/tables/t", PROPERTY).status == 200
        # A commit to the branch makes the branch's answer new, and leaves the lake's.
        assert server.get("/v1/lakefs/namespaces/dev%1Fmain/tables/t").json["metadata"]["properties"]["k"] == "v"
        assert server.get("/v1/lakefs/namespaces/main%1Fmain/tables/t", {"If-None-Match": main.headers["etag"]}).status == 304
        assert server.count("duckicelake_requests_total", operation="listNamespaces", status="200") == 3
    assert read_ids(dev, "t") == [0, 1, 2]


def name(*levels: str) -> dict[str, Any]:
    """A table as bodies name it."""
    return {"namespace": list(levels[:-1]), "name": levels[-1]}


def test_bodies_name_branches(lake: FreshLake) -> None:
    """Commits over several tables, renames and views: all on one branch, else nothing is done."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1::BIGINT AS id; CREATE TABLE u AS FROM t; CREATE SCHEMA s")
    dev = make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:

        def commit(*tables: tuple[str, ...]) -> Answer:
            changes = [{"identifier": name(*table), **PROPERTY} for table in tables]
            return post(server, "/v1/lakefs/transactions/commit", {"table-changes": changes})

        def get_properties(path: str) -> Any:
            return server.get(path).json["metadata"]["properties"].get("k")

        refused = commit(("dev", "main", "t"), ("main", "main", "u"))
        assert refused.error == (400, "BadRequestException") and "several branches" in refused.json["error"]["message"]
        assert get_properties("/v1/lake@dev/namespaces/main/tables/t") is None
        assert commit(("dev", "main", "t"), ("lake", "dev", "main", "u")).status == 204
        for table in ("t", "u"):
            assert get_properties(f"/v1/lake@dev/namespaces/main/tables/{table}") == "v"
            assert get_properties(f"/v1/lake/namespaces/main/tables/{table}") is None
        assert commit(("dev", "t")).error == (400, "BadRequestException")
        identified = {**PROPERTY, "identifier": name("dev", "main", "t")}
        assert post(server, "/v1/lakefs/namespaces/dev%1Fmain/tables/t", identified).status == 200
        assert post(server, "/v1/lakefs/namespaces/main%1Fmain/tables/t", identified).error == (400, "BadRequestException")
        rename = {"source": name("dev", "main", "u"), "destination": name("main", "main", "w")}
        assert post(server, "/v1/lakefs/tables/rename", rename).error == (400, "BadRequestException")
        assert post(server, "/v1/lakefs/tables/rename", rename | {"destination": name("dev", "s", "w")}).status == 204
        assert (read_ids(dev, "s.w"), read_ids(lake, "u")) == ([1], [1])
        version = {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {},
            "representations": [{"type": "sql", "sql": "SELECT id FROM t", "dialect": "duckdb"}],
            "default-namespace": ["dev", "main"],
        }
        view = {"name": "v", "schema": NEW_TABLE["schema"], "view-version": version, "properties": {}}
        made = post(server, "/v1/lakefs/namespaces/dev%1Fs/views", view)
        assert made.status == 200, made.body
        assert made.json["metadata"]["versions"][0]["default-namespace"] == ["dev", "main"]
        assert server.get("/v1/lake@dev/namespaces/s/views/v").json["metadata"]["versions"][0]["default-namespace"] == ["main"]
        assert server.get("/v1/lakefs/namespaces/dev%1Fs/views").json["identifiers"] == [name("dev", "s", "v")]
        elsewhere = view | {"name": "w", "view-version": version | {"default-namespace": ["main", "main"]}}
        assert post(server, "/v1/lakefs/namespaces/dev%1Fs/views", elsewhere).error == (400, "BadRequestException")
        for broken in ({}, {"table-changes": [{}]}, {"table-changes": [{"identifier": {"namespace": [1], "name": "t"}}]}):
            assert post(server, "/v1/lakefs/transactions/commit", broken).error == (400, "BadRequestException")


def test_hostile_bodies_and_names_are_refused(lake: FreshLake) -> None:
    """By 400, and at once, as at ordinary addresses; also if there is no body at all."""
    make_branch(lake, "dev")
    half, nul = "\ud800", "a\0"
    rename = {"source": name("main", f"{nul}@dev"), "destination": name("main", "b@dev")}
    with serve(make_settings(lake, body_timeout_s=3)) as server:
        for path, body in (
            ("/v1/lakefs/namespaces/dev%1Fmain/tables/t/unregister", None),
            ("/v1/lake/namespaces/main/tables", None),
            ("/v1/lake/transactions/commit", {"table-changes": [{"identifier": name("main", f"{half}@dev"), **PROPERTY}]}),
            ("/v1/lake/transactions/commit", {"table-changes": [{"identifier": name(half, "t@dev"), **PROPERTY}]}),
            ("/v1/lakefs/transactions/commit", {"table-changes": [{"identifier": name(half, "a", "t"), **PROPERTY}]}),
            ("/v1/lakefs/namespaces", {"namespace": [half]}),
            ("/v1/lakefs/namespaces", {"namespace": []}),
            ("/v1/lake/tables/rename", rename),
            ("/v1/lake/namespaces/main/tables", NEW_TABLE | {"name": f"{half}@dev"}),
        ):
            answer = post(server, path, body) if body is not None else server.ask("POST", path, {"Content-Type": "application/json"}, b"")
            assert answer.error == (400, "BadRequestException"), path
        assert server.get("/v1/lake/namespaces/main/tables/x%00@dev").error == (400, "BadRequestException")


def test_a_base_path_with_a_branch_serves_that_branch_alone(lake: FreshLake) -> None:
    """A client that names another warehouse or prefix below it would work on that one unawares."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        base = "/iceberg/relative_to/lake.dev/api/v1"
        for query, prefix in (("", "lakefs"), ("?warehouse=lakefs", "lakefs"), ("?warehouse=lake%40dev", "lake%40dev")):
            assert server.get(f"{base}/config{query}").json["overrides"]["prefix"] == prefix, query
        for other in ("config?warehouse=lake", "config?warehouse=lake%40other", "config?warehouse=lakefs%3A%2F%2Flake"):
            assert server.get(f"{base}/{other}").error == (400, "BadRequestException"), other
        for prefix in ("lake", "lake@other", "lakefs%3A%2F%2Flake"):
            assert server.get(f"{base}/{prefix}/namespaces/main/tables/t").error == (400, "BadRequestException"), prefix
        assert server.get(f"{base}/lake@dev/namespaces/main/tables/t").status == 200


@pytest.mark.whole
def test_names_with_a_number_behind_them_stay_names(lake: FreshLake) -> None:
    """Unless the lake has a snapshot of that id; nothing is made in a snapshot. Ids are written without zeros in front."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    with serve(make_settings(lake)) as server:
        tables = "/v1/lake/namespaces/main/tables"
        assert server.get(f"{tables}/events@2024").error == (404, "NoSuchTableException")
        for each in ("events@2024", "events@1"):
            assert post(server, tables, NEW_TABLE | {"name": each}).status == 200, each
            assert server.get(f"{tables}/{each}").status == 200, each
        rename = {"source": name("main", "events@2024"), "destination": name("main", "again@1")}
        assert post(server, "/v1/lake/tables/rename", rename).status == 204
        assert server.get(f"{tables}/t@1").status == 200
        for zeros in ("01", "001"):
            assert server.get(f"/v1/lake@{zeros}/namespaces").error == (404, "NoSuchWarehouseException")
            assert server.get(f"{tables}/t@{zeros}").error == (404, "NoSuchTableException")


def test_rights_are_those_of_the_branch(lake: FreshLake) -> None:
    """The token comes from below the base path; refusals and records are those of the ordinary address."""
    with guard(lake, audit_reads=1.0) as guarded:
        managed, server = Managed(guarded), guarded.server
        managed.add("ann")
        managed.give("read", "namespace:a", "ann")
        managed.give("write", "branch:dev", "ann")
        dev = make_branch(lake, "dev")
        assert server.get("/iceberg/api/v1/lakefs/namespaces/dev%1Fa/tables/t").status == 401
        assert server.get("/iceberg/api/v1/config").status == 401
        catalog = open_lakefs(
            server, lake, credential=f"ann:{managed.secrets['ann']}", **{"oauth2-server-uri": f"{server.uri}/iceberg/api/v1/oauth/tokens"}
        )
        assert catalog.list_namespaces(("lake", "dev")) == [("lake", "dev", "a")]
        assert catalog.load_table("lake.dev.a.t").name() == ("lake", "dev", "a", "t")
        path = "/v1/lakefs/namespaces/{}%1F{}/tables/t"
        assert managed.ask("ann", "POST", path.format("dev", "a"), PROPERTY).status == 200
        assert managed.ask("ann", "POST", path.format("main", "a"), PROPERTY).error == DENIED
        assert managed.ask("ann", "GET", path.format("dev", "b")).error == (404, "NoSuchTableException")
        assert managed.ask("ann", "POST", "/v1/lake/namespaces/a/tables/t@dev", PROPERTY).status == 200
        assert managed.ask("ann", "POST", "/v1/lake@dev/namespaces/a/tables/t@main", PROPERTY).error == DENIED
        changed = {"table-changes": [{"identifier": name("main", "a", "t"), **PROPERTY}]}
        assert managed.ask("ann", "POST", "/v1/lakefs/transactions/commit", changed).error == DENIED
        select = "SELECT DISTINCT principal, operation, objects FROM iceberg_audit WHERE operation = 'updateTable' AND outcome = 'done'"
        assert dev.psycopg().execute(select).fetchall() == [("ann", "updateTable", ["a.t"])]
        assert lake.psycopg().execute(select).fetchall() == []
        catalog.close()
    reads = "SELECT DISTINCT principal, operation, branch, object FROM iceberg_read"
    assert lake.psycopg().execute(reads).fetchall() == [("ann", "loadTable", "dev", "a.t")]


def test_a_table_is_named_with_its_branch(lake: FreshLake) -> None:
    """`t@dev` where no table has that name; all operations, and several tables if all are on one branch."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1::BIGINT AS id; CREATE TABLE u AS FROM t; CREATE SCHEMA s")
    dev = make_branch(lake, "dev")
    tables = "/v1/lake/namespaces/main/tables"
    with serve(make_settings(lake)) as server:
        catalog = RestCatalog(
            "lake",
            uri=server.uri,
            warehouse="lake",
            **{"s3.endpoint": lake.store.endpoint, "s3.access-key-id": lake.store.access_key_id, "s3.region": lake.store.region},
            **{"s3.secret-access-key": lake.store.secret_access_key},
        )
        catalog.load_table(("main", "t@dev")).append(make_rows(2))
        assert (read_ids(dev, "t"), read_ids(lake, "t")) == ([1, 2], [1])
        assert sorted(catalog.load_table(("main", "t@dev")).scan().to_arrow()["id"].to_pylist()) == [1, 2]
        assert server.get(f"{tables}/t%40dev").headers["etag"] == server.get("/v1/lake@dev/namespaces/main/tables/t").headers["etag"]
        assert server.get("/v1/lake@dev/namespaces/main/tables/t@main").headers["etag"] == server.get(f"{tables}/t").headers["etag"]
        for none in ("t@none", "none@dev", "@dev", "t@"):
            assert server.get(f"{tables}/{none}").error == (404, "NoSuchTableException")
        changes = [{"identifier": name("main", each), **PROPERTY} for each in ("t@dev", "u@dev")]
        assert post(server, "/v1/lake/transactions/commit", {"table-changes": changes}).status == 204
        assert server.get("/v1/lake@dev/namespaces/main/tables/u").json["metadata"]["properties"]["k"] == "v"
        changes[1]["identifier"] = name("main", "u")
        assert post(server, "/v1/lake/transactions/commit", {"table-changes": changes}).error == (400, "BadRequestException")
        rename = {"source": name("main", "u@dev"), "destination": name("s", "w")}
        assert post(server, "/v1/lake/tables/rename", rename).error == (400, "BadRequestException")
        assert post(server, "/v1/lake/tables/rename", rename | {"destination": name("s", "w@dev")}).status == 204
        assert (read_ids(dev, "s.w"), read_ids(lake, "u")) == ([1], [1])
        assert post(server, tables, NEW_TABLE | {"name": "made@dev"}).status == 200
        assert read_ids(dev, "made") == []
        # A table of that very name comes first.
        lake.duckdb().execute('CREATE TABLE "t@dev" AS SELECT 7 AS id')
        assert catalog.load_table(("main", "t@dev")).scan().to_arrow()["id"].to_pylist() == [7]
        assert server.ask("DELETE", f"{tables}/made@dev").status == 204
        catalog.close()
    with pytest.raises(Exception, match="made"):
        read_ids(dev, "made")


def test_duckdb_attaches_a_branch_as_lakefs_documents_it(lake: FreshLake) -> None:
    """By the endpoint `relative_to`; DuckDB has namespaces of one level. `t@dev` names the table on the branch."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(3)")
    dev = make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        session = lake.bare_duckdb()
        session.execute(
            f"ATTACH 'lakefs' AS ice (TYPE iceberg, AUTHORIZATION_TYPE none, ACCESS_DELEGATION_MODE none, DEFAULT_SCHEMA 'main', "
            f"ENDPOINT '{server.uri}/iceberg/relative_to/lake.dev/api')"
        )
        session.execute("INSERT INTO ice.main.t VALUES (5)")
        assert len(session.execute("FROM ice.main.t").fetchall()) == 4
        assert (read_ids(dev, "t"), read_ids(lake, "t")) == ([0, 1, 2, 5], [0, 1, 2])
        # The lake's warehouse has the branch's tables by their names with the branch.
        session.execute(
            f"ATTACH 'lake' AS whole (TYPE iceberg, AUTHORIZATION_TYPE none, ACCESS_DELEGATION_MODE none, DEFAULT_SCHEMA 'main', "
            f"ENDPOINT '{server.uri}')"
        )
        session.execute('INSERT INTO whole.main."t@dev" VALUES (6)')
        session.execute('DELETE FROM whole.main."t@dev" WHERE id = 0')
        query = 'SELECT a.id FROM whole.main."t@dev" a JOIN whole.main.t b ON a.id = b.id ORDER BY 1'
        assert session.execute(query).fetchall() == [(1,), (2,)]
        assert (read_ids(dev, "t"), read_ids(lake, "t")) == ([1, 2, 5, 6], [0, 1, 2])


def test_several_lakes_have_a_prefix_each(lake: FreshLake, other_lake: FreshLake) -> None:
    """The first level is the lake below `lakefs`; `lakefs://lake` has its own prefix."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    other_lake.duckdb().execute("CREATE TABLE u AS SELECT 1 AS id")
    make_branch(lake, "dev")
    shared = {"metadata_schema": lake.metadata_schema}
    lakes = {"lake": {"postgres_dsn": lake.dsn, **shared}, "other": {"postgres_dsn": other_lake.dsn, **shared}}
    with serve(make_settings(lake, postgres_dsn=None, lakes=lakes)) as server:
        prefix = server.get("/v1/config?warehouse=lakefs%3A%2F%2Flake").json["overrides"]["prefix"]
        assert prefix == "lakefs%3A%2F%2Flake"
        assert server.get(f"/v1/{prefix}/namespaces").json["namespaces"] == [["main"], ["dev"]]
        assert server.get(f"/v1/{prefix}/namespaces/dev%1Fmain/tables").json["identifiers"] == [name("dev", "main", "t")]
        assert server.get("/v1/lakefs/namespaces").json["namespaces"] == [["lake"], ["other"]]
        assert server.get("/v1/lakefs/namespaces?parent=other").json["namespaces"] == [["other", "main"]]
        assert server.get("/v1/lakefs/namespaces/other%1Fmain%1Fmain/tables/u").status == 200
        assert server.get("/v1/lakefs/namespaces/main%1Fmain/tables/u").error == (404, "NoSuchNamespaceException")
        assert server.get("/iceberg/api/v1/config").error == (400, "BadRequestException")
        assert server.get("/iceberg/relative_to/other.main/api/v1/lakefs/namespaces/main/tables/u").status == 200


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_works_as_lakefs_documents_it(lake: FreshLake, spark: Spark) -> None:
    """`USE` changes the branch, and one query reads two of them."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(3)")
    dev = make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        place = "spark.sql.catalog.lakefs"
        store = {"s3.endpoint": lake.store.endpoint, "client.region": lake.store.region, "s3.path-style-access": "true"}
        store |= {"s3.access-key-id": lake.store.access_key_id, "s3.secret-access-key": lake.store.secret_access_key}
        told = {"type": "rest", "uri": f"{server.uri}/iceberg/api", "prefix": "lakefs", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
        spark.session.conf.set(place, "org.apache.iceberg.spark.SparkCatalog")
        for key, text in (told | store).items():
            spark.session.conf.set(f"{place}.{key}", str(text))
        found = spark.arrow("SHOW NAMESPACES IN lakefs").to_pylist()
        assert [row["namespace"] for row in found] == ["dev", "main"] or [row["namespace"] for row in found] == ["main", "dev"]
        spark.arrow("USE lakefs.dev.main")
        try:
            spark.arrow("INSERT INTO t VALUES (10)")
            spark.arrow("DELETE FROM t WHERE id = 0")
            spark.arrow("CREATE TABLE lakefs.lake.dev.main.made AS SELECT * FROM lakefs.main.main.t")
            both = spark.arrow("SELECT count(*) AS n FROM t a JOIN lakefs.lake.main.main.t b ON a.id = b.id")
            assert both["n"].to_pylist() == [2]
        finally:
            spark.arrow("USE spark_catalog.default")
    assert (read_ids(dev, "t"), read_ids(dev, "made"), read_ids(lake, "t")) == ([1, 2, 10], [0, 1, 2], [0, 1, 2])
