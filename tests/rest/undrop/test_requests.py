"""What a request to undrop names, what its repetition answers, and what comes back of a namespace whose tables cannot all come back."""

import json
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from tests.lake.branches.repository import make_branch, read_rows
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer, Server
from tests.rest.undrop.test_undrop import MANAGEMENT, list_dropped, undrop
from tests.rest.writing.client import Client, open_client
from tests.support.lakes import FreshLake


def undrop_with(server: Server, key: str, **body: Any) -> Answer:
    """Ask for an undrop with an idempotency key."""
    return server.ask("POST", f"{MANAGEMENT}/undrop", {"Idempotency-Key": key}, json.dumps(body).encode())


def drop_with_obstacles(server: Server, client: Client, lake: FreshLake) -> None:
    """Drop a namespace with tables of which two cannot come back: the drop changed one, and one has lost its metadata file."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s")
        for name in ("changed", "lost", "whole", "other"):
            session.execute(f"CREATE TABLE s.{name} AS SELECT range AS i FROM range(20)")
        lost = server.get("namespaces/s/tables/lost").json["metadata-location"]
        session.execute("BEGIN")
        session.execute("DELETE FROM s.changed WHERE i = 3")
        session.execute("DROP SCHEMA s CASCADE")
        session.execute("COMMIT")
    client.objects.delete(lost)


def test_a_namespace_comes_back_without_what_cannot(server: Server, lake: FreshLake) -> None:
    """The answer names each table that stays dropped, with its obstacle; a repetition answers alike."""
    drop_with_obstacles(server, open_client(server, lake), lake)
    key = str(uuid4())
    back = undrop_with(server, key, namespace=["s"])
    assert back.status == 200, back.body
    assert sorted(back.json["tables"]) == ["other", "whole"]
    left = {item["name"]: item["obstacle"] for item in back.json["left-out"]}
    assert left.keys() == {"changed", "lost"}
    assert "also changed it" in left["changed"] and "metadata file" in left["lost"]
    assert len(read_rows(lake, "s.whole")) == len(read_rows(lake, "s.other")) == 20
    assert sorted(item["name"] for item in list_dropped(server)) == ["changed", "lost"]
    assert undrop_with(server, key, namespace=["s"]).json == back.json


def test_a_repetition_tells_no_name_that_its_caller_may_not_see(managed: Managed) -> None:
    """The table was renamed into a namespace that the caller has no right on; who manages the warehouse is answered by its name of now."""
    managed.add("keeper")
    managed.give("manage", "namespace:a", "keeper")
    managed.add("mover")
    managed.give("all", "warehouse", "mover")
    with closing(managed.guarded.lake.duckdb()) as session:
        session.execute("DROP TABLE a.t")
    asked = {**managed.token("keeper"), "Idempotency-Key": str(uuid4())}
    path, body = f"{MANAGEMENT}/undrop", json.dumps({"namespace": ["a"], "name": "t"}).encode()
    back = managed.guarded.server.ask("POST", path, asked, body)
    assert back.status == 200
    move = {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["b"], "name": "hidden"}}
    assert managed.ask("mover", "POST", "tables/rename", move).status == 204
    again = managed.guarded.server.ask("POST", path, asked, body)
    assert (again.status, again.json) == (200, back.json)


def test_a_lake_snapshot_singles_out_one_of_a_uuid(server: Server, lake: FreshLake) -> None:
    """A table that was registered again by an older file has the uuid of the first one, and both may be dropped."""
    client = open_client(server, lake)
    older = client.create(properties={"k": "old"}).json["metadata-location"]
    assert client.commit([{"action": "set-properties", "updates": {"k": "new"}}]).status == 200
    assert server.ask("DELETE", "namespaces/main/tables/t").status == 204
    assert client.post("namespaces/main/register", {"name": "t", "metadata-location": older}).status == 200
    assert server.ask("DELETE", "namespaces/main/tables/t").status == 204
    second, first = list_dropped(server)
    assert first["uuid"] == second["uuid"]
    choice = {"namespace": ["main"], "name": "t", "uuid": first["uuid"]}
    unknown = undrop(server, **choice, **{"lake-snapshot-id": 999})
    assert unknown.error == (404, "NoSuchTableException") and "999" in unknown.json["error"]["message"]
    assert undrop(server, **choice, **{"lake-snapshot-id": first["lake-snapshot-id"]}).status == 200
    assert client.load()["properties"]["k"] == "new"
    wrong = undrop(server, **choice, **{"lake-snapshot-id": "x"})
    assert wrong.error == (400, "BadRequestException")


def test_a_lake_snapshot_singles_out_a_namespace(server: Server, lake: FreshLake) -> None:
    """Another one of the name was dropped since."""
    with closing(lake.duckdb()) as session:
        for name in ("a", "b"):
            session.execute(f"CREATE SCHEMA s; CREATE TABLE s.{name} AS SELECT 1 AS i; DROP SCHEMA s CASCADE")
    first = [item for item in list_dropped(server) if item["type"] == "namespace"][-1]
    back = undrop(server, namespace=["s"], **{"lake-snapshot-id": first["lake-snapshot-id"]})
    assert (back.status, back.json["tables"]) == (200, ["a"])


def test_the_list_of_a_lake_with_branches_says_that_nothing_comes_back(server: Server, lake: FreshLake) -> None:
    """As the undrop would say."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 1 AS i; CREATE TABLE t AS SELECT 1 AS i")
        make_branch(lake, "dev")
        session.execute("DROP TABLE t; DROP SCHEMA s CASCADE")
    found = list_dropped(server)
    assert sorted(item["type"] for item in found) == ["namespace", "table", "table"]
    assert all("branches" in str(item["obstacle"]) for item in found)


def test_a_table_of_a_protected_namespace_is_not_moved_out_of_it(server: Server, lake: FreshLake) -> None:
    """Outside it could be dropped. Within the namespace it may have another name, and a protected table keeps its property anywhere."""
    client = open_client(server, lake)
    assert client.post("namespaces", {"namespace": ["n"], "properties": {"drop-protection": "true"}}).status == 200
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE n.t AS SELECT 1 AS i")
    client.create("p", properties={"drop-protection": "true"})
    refused = rename(server, ("n", "t"), ("main", "t"))
    assert refused.error == (403, "NotAuthorizedException")
    assert "drop-protection" in refused.json["error"]["message"]
    assert rename(server, ("n", "t"), ("n", "u")).status == 204
    assert rename(server, ("main", "p"), ("main", "q")).status == 204
    assert server.ask("DELETE", "namespaces/main/tables/q").error == (403, "NotAuthorizedException")


def rename(server: Server, source: tuple[str, str], target: tuple[str, str]) -> Answer:
    """Rename a table."""
    body = {key: {"namespace": [name[0]], "name": name[1]} for key, name in (("source", source), ("destination", target))}
    return server.ask("POST", "tables/rename", {}, json.dumps(body).encode())


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 2**63])
def test_an_odd_lake_snapshot_is_refused(standing: Server, value: Any) -> None:
    """Or names nothing."""
    answer = undrop(standing, namespace=["none"], name="t", **{"lake-snapshot-id": value})
    assert answer.error in ((400, "BadRequestException"), (404, "NoSuchTableException"))
