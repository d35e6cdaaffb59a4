"""Views over REST: made, changed, renamed, registered, dropped, listed."""

import json
from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from tests.rest.serving import Server
from tests.rest.writing.views.requests import (
    COLUMNS,
    VIEWS,
    commit,
    count_snapshots,
    create,
    ident,
    load,
    open_store,
    post,
    texts,
    version,
)
from tests.support.lakes import FreshLake


def test_the_metadata_file_says_what_the_answer_says(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Each change has a file of its own, which no later one touches."""
    objects = open_store(lake)
    first = create(server, "v", {"spark": "SELECT 1"}).json
    second = commit(server, "v", {"action": "set-properties", "updates": {"k": "v"}}).json
    for answer in (first, second):
        assert json.loads(objects.read(answer["metadata-location"])) == answer["metadata"]
        assert answer["metadata-location"].startswith(f"{first['metadata']['location']}/metadata/")
    objects.delete(second["metadata-location"])
    assert server.get(f"{VIEWS}/v").json == second
    assert json.loads(objects.read(second["metadata-location"])) == second["metadata"]


def test_metadata_goes_where_the_property_says(server: Server, lake: FreshLake) -> None:
    """`write.metadata.path` moves the files, within the places this catalog keeps things in."""
    elsewhere = f"{lake.iceberg_path}elsewhere"
    made = create(server, "v", {"spark": "SELECT 1"}, properties={"write.metadata.path": elsewhere}).json
    assert made["metadata-location"].startswith(f"{elsewhere}/00001-")
    refused = commit(server, "v", {"action": "set-properties", "updates": {"write.metadata.path": lake.data_path}})
    assert refused.error == (400, "BadRequestException")
    assert create(server, "w", {"spark": "SELECT 1"}, location="s3://other/place").error == (400, "BadRequestException")
    assert server.get(f"{VIEWS}/v").json == made


def test_names_are_shared_with_tables_in_any_case(server: Server, duck: DuckDBPyConnection) -> None:
    """A view keeps a table from its name, and a table a view; what is refused changes nothing."""
    create(server, "v", {"spark": "SELECT 1"})
    table = {"name": "V", "schema": COLUMNS}
    taken = post(server, "namespaces/main/tables", table)
    assert taken.error == (409, "AlreadyExistsException")
    assert taken.json["error"]["message"] == "View with same name already exists: main.V"
    assert create(server, "V", {"spark": "SELECT 1"}).json["error"]["message"] == "View already exists: main.V"
    assert create(server, "T", {"spark": "SELECT 1"}).json["error"]["message"] == "Table with same name already exists: main.T"
    renamed = post(server, "tables/rename", {"source": ident("t"), "destination": ident("v")})
    assert renamed.json["error"]["message"] == "Cannot rename main.t to main.v. View already exists"
    assert server.get(VIEWS).json["identifiers"] == [ident("v")]
    assert duck.execute("SHOW TABLES").fetchall() == [("t",), ("v",)]


def test_renames_are_refused_by_name(server: Server, duck: DuckDBPyConnection) -> None:
    """Each with the words that Java's clients know; to another case of its own name a view may go."""
    create(server, "v", {"spark": "SELECT 1"})
    create(server, "w", {"spark": "SELECT 1"})

    def rename(source: Any, target: Any) -> tuple[int, str]:
        answer = post(server, "views/rename", {"source": source, "destination": target})
        return answer.status, "" if answer.status == 204 else answer.json["error"]["message"]

    assert rename(ident("v"), ident("W")) == (409, "Cannot rename main.v to main.W. View already exists")
    assert rename(ident("v"), ident("v")) == (409, "Cannot rename main.v to main.v. View already exists")
    assert rename(ident("v"), ident("t")) == (409, "Cannot rename main.v to main.t. Table already exists")
    assert rename(ident("u"), ident("x")) == (404, "View does not exist: main.u")
    assert rename(ident("v"), ident("x", "no")) == (404, "Namespace does not exist: no")
    assert rename(ident("v"), ident("V")) == (204, "")
    assert server.get(VIEWS).json["identifiers"] == [ident("V"), ident("w")]


def test_requirements_and_refusals_change_nothing(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Another uuid, an unknown version, an unknown action, two texts in one dialect."""
    made = create(server, "v", {"spark": "SELECT 1"}).json
    before = count_snapshots(lake)
    wrong = commit(server, "v", {"action": "set-properties", "updates": {"k": "v"}}, uuid="00000000-0000-0000-0000-000000000000")
    assert wrong.error == (409, "CommitFailedException")
    unknown = commit(server, "v", {"action": "set-current-view-version", "view-version-id": 7})
    assert unknown.error == (400, "BadRequestException")
    assert commit(server, "v", {"action": "add-snapshot"}).error == (400, "BadRequestException")
    twice = create(server, "w", {"spark": "SELECT 1", "SPARK": "SELECT 2"})
    assert twice.error == (400, "IllegalArgumentException")
    assert twice.json["error"]["message"] == "Invalid view version: Cannot add multiple queries for dialect spark"
    assert commit(server, "w", {"action": "set-properties", "updates": {}}).error == (404, "NoSuchViewException")
    assert post(server, "namespaces/no/views", {"name": "v"}).status == 400
    assert server.get("namespaces/no/views").error == (404, "NoSuchNamespaceException")
    assert server.get("namespaces/no/views/v").error == (404, "NoSuchViewException")
    assert server.get(f"{VIEWS}/v").json == made
    assert count_snapshots(lake) == before


@pytest.mark.parametrize("text", ["SELECT '\ud800'", "SELECT '\0'", "x" * 100_000], ids=["surrogate", "nul", "long"])
def test_odd_texts_are_kept_or_refused(server: Server, duck: DuckDBPyConnection, text: str) -> None:
    """Text is data: nothing of it runs or breaks, and what is kept is kept exactly."""
    made = create(server, "v", {"duckdb": text})
    assert made.status in (200, 400)
    if made.status == 200:
        assert texts(load(server, "v")) == {"duckdb": text}
    duck.execute("SHOW TABLES")


def test_a_namespace_with_views_is_not_empty(server: Server, duck: DuckDBPyConnection) -> None:
    """Dropping the view empties it; dropping it in DuckDB drops the view with it."""
    duck.execute("CREATE SCHEMA s")
    body = {"name": "v", "schema": COLUMNS, "view-version": version({"trino": "x"}), "properties": {}}
    post(server, "namespaces/s/views", body)
    assert server.ask("DELETE", "namespaces/s").error == (409, "NamespaceNotEmptyException")
    assert server.ask("DELETE", "namespaces/s/views/v").status == 204
    assert server.ask("DELETE", "namespaces/s/views/v").error == (404, "NoSuchViewException")
    assert server.ask("DELETE", "namespaces/s").status == 204
    duck.execute("CREATE SCHEMA s")
    post(server, "namespaces/s/views", body)
    duck.execute("DROP SCHEMA s CASCADE")
    assert server.get("namespaces/s/views").error == (404, "NoSuchNamespaceException")


def test_lists_have_pages(server: Server, duck: DuckDBPyConnection) -> None:
    """Tables and views are listed apart, each in order."""
    for name in ("c", "a", "b"):
        create(server, name, {"spark": "SELECT 1"})
    first = server.get(f"{VIEWS}?pageSize=2&pageToken=").json
    assert first["identifiers"] == [ident("a"), ident("b")]
    rest = server.get(f"{VIEWS}?pageSize=2&pageToken={first['next-page-token']}").json
    assert rest == {"identifiers": [ident("c")], "next-page-token": None}
    assert server.get("namespaces/main/tables").json["identifiers"] == [ident("t")]


def test_a_dropped_view_is_registered_again(server: Server, duck: DuckDBPyConnection) -> None:
    """Its metadata file is its metadata, and DuckDB reads it once more."""
    made = create(server, "v", {"duckdb": "FROM t"}).json
    server.ask("DELETE", f"{VIEWS}/v")
    asked = {"name": "again", "metadata-location": made["metadata-location"]}
    assert post(server, "namespaces/main/register-view", asked).json == made
    assert duck.execute("FROM again").fetchall() == [(1, "x")]
    assert post(server, "namespaces/main/register-view", asked).json["error"]["message"] == "View already exists: main.again"


def test_a_live_view_is_not_registered_again(server: Server, duck: DuckDBPyConnection) -> None:
    """Two views of one uuid could not be told apart; the dropped one comes back, by another name too."""
    made = create(server, "v", {"duckdb": "FROM t"}).json
    asked = {"name": "w", "metadata-location": made["metadata-location"]}
    refused = post(server, "namespaces/main/register-view", asked)
    assert refused.error == (409, "AlreadyExistsException")
    assert "main.v" in refused.json["error"]["message"]
    assert server.get(VIEWS).json["identifiers"] == [ident("v")]
    server.ask("DELETE", f"{VIEWS}/v")
    assert post(server, "namespaces/main/register-view", asked).status == 200


def test_only_metadata_in_our_places_is_registered(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """A file that is missing, elsewhere or something else."""

    def register(location: str) -> tuple[int, str]:
        return post(server, "namespaces/main/register-view", {"name": "v", "metadata-location": location}).error

    objects = open_store(lake)
    odd = f"{lake.iceberg_path}odd/1.metadata.json"
    objects.put_new(odd, b'{"format-version": 2}')
    zipped = f"{lake.iceberg_path}odd/1.gz.metadata.json"
    objects.put_new(zipped, b"no gzip")
    assert register(odd) == (400, "BadRequestException")
    assert register(zipped) == (400, "BadRequestException")
    assert register(f"{lake.iceberg_path}odd/2.metadata.json") == (404, "NotFoundException")
    assert register("file:///etc/passwd") == (400, "BadRequestException")
    assert register(f"{lake.data_path}x.metadata.json") == (400, "BadRequestException")
    assert server.get(VIEWS).json["identifiers"] == []
