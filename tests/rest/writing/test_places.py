"""Locations over REST: where tables and their files may be, may go, and what is left behind."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tests.rest.auth.test_permissions import VIEW
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, assert_main, data_file, open_client, read_rows
from tests.support.lakes import FreshLake


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, whose server opens ICEBERG_PATH alone."""
    client = open_client(server, lake)
    assert client.create().status == 200
    return client


@pytest.fixture
def opened(lake: FreshLake) -> Iterator[Client]:
    """A client whose server opens the folder `other/` of the lake's bucket too."""
    with serve(make_settings(lake, allowed_locations=(other_folder(lake),))) as server:
        yield open_client(server, lake)


def other_folder(lake: FreshLake) -> str:
    """A folder beside DATA_PATH and ICEBERG_PATH."""
    return lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/other"


def move(location: str) -> list[Any]:
    """The update that gives a table another location."""
    return [{"action": "set-location", "location": location}]


def metadata_files(client: Client, location: str) -> list[str]:
    """The metadata files at a location, by name."""
    found = (uri for uri, _ in client.objects.list_under(f"{location}/metadata"))
    return sorted(uri.rpartition("/")[2] for uri in found if uri.endswith(".metadata.json"))


def test_tables_and_files_may_lie_in_allowed_locations(opened: Client, lake: FreshLake) -> None:
    """A table where it was asked for, and its data files anywhere below an allowed folder."""
    asked = f"{other_folder(lake)}/a/b"
    made = opened.create(location=f"{asked}/")
    assert made.json["metadata"]["location"] == asked
    assert made.json["metadata-location"] == f"{asked}/metadata/v1.metadata.json"
    elsewhere = data_file(made.json["metadata"] | {"location": f"{other_folder(lake)}/shared"}, "x")
    done = opened.commit(opened.append(made.json["metadata"], 9_000_000_001, [elsewhere]), [assert_main(None)])
    assert done.status == 200
    row = lake.psycopg().execute("SELECT path FROM ducklake_data_file").fetchone()
    assert row == (elsewhere.file_path,)


def test_allowed_locations_open_nothing_else(opened: Client, lake: FreshLake) -> None:
    """Not DATA_PATH, not another table's location, not the folder itself, and no way out of it."""
    other = other_folder(lake)
    base = opened.create(location=f"{other}/t").json["metadata"]
    opened.create("u", location=f"{other}/u")
    rows = read_rows(lake)
    for location in (other, f"{other}/u/x", f"{other}/../x", f"{other}/a//b", f"{other}2/x", f"{lake.data_path}x", "s3://elsewhere/x"):
        assert opened.create("v", location=location).error == (400, "BadRequestException"), location
    for folder in (f"{other}/u", f"{other}/../x", lake.data_path, "s3://elsewhere"):
        stray = data_file(base | {"location": folder}, "x")
        assert opened.commit(opened.append(base, 9_000_000_001, [stray])).error == (400, "BadRequestException"), folder
    assert read_rows(lake) == rows


def test_no_location_holds_data_path(lake: FreshLake) -> None:
    """Neither DATA_PATH itself nor a folder above it: what is removed with a table would be everybody's."""
    with serve(make_settings(lake, allowed_locations=("*",))) as server:
        client = open_client(server, lake)
        for location in (lake.data_path, lake.data_path.rstrip("/").rpartition("/")[0]):
            assert client.create(location=location).error == (400, "BadRequestException"), location


@pytest.mark.parametrize("scheme", ["s3a://", "s3n://"])
def test_a_place_is_one_whatever_scheme_names_it(lake: FreshLake, scheme: str) -> None:
    """DATA_PATH, another table's location and what lies below it are refused under every name that S3 has."""
    with serve(make_settings(lake, allowed_locations=("*",))) as server:
        client = open_client(server, lake)
        base = client.create("one", location=f"{lake.iceberg_path}one").json["metadata"]
        rows = read_rows(lake)
        for location in (f"{lake.data_path}x", f"{lake.iceberg_path}one", f"{lake.iceberg_path}one/below"):
            other = location.replace("s3://", scheme)
            assert client.create("two", location=other).error == (400, "BadRequestException"), other
        stray = data_file(base | {"location": lake.data_path.replace("s3://", scheme)}, "x")
        assert client.commit(client.append(base, 9_000_000_001, [stray]), name="one").error == (400, "BadRequestException")
        assert read_rows(lake) == rows


def test_everywhere_takes_names_without_a_folder(lake: FreshLake) -> None:
    """With `*` a client's words are kept as they are, and shown so."""
    with serve(make_settings(lake, allowed_locations=("*",))) as server:
        client = open_client(server, lake)
        base = client.create().json["metadata"]
        bare = replace(data_file(base, "x"), file_path="bare.parquet")
        assert client.commit(client.append(base, 9_000_000_001, [bare])).status == 200
        (path,) = lake.psycopg().execute("SELECT path FROM ducklake_data_file").fetchone() or ("",)
        assert path == "bare.parquet"
        assert client.load()["current-snapshot-id"] is not None


def test_a_moved_table_keeps_history_files_and_log(opened: Client, lake: FreshLake) -> None:
    """Its objects are published again where it is now; the log names the older files where they are, and both stay."""
    base = opened.create().json["metadata"]
    opened.commit(opened.append(base, 9_000_000_001, [data_file(base, "a")]))
    before = opened.load()
    target = f"{other_folder(lake)}/moved"
    after = opened.commit(move(target)).json["metadata"]
    assert after["location"] == target
    assert [item["snapshot-id"] for item in after["snapshots"]] == [before["current-snapshot-id"]]
    assert after["snapshots"][0]["manifest-list"].startswith(f"{target}/metadata/")
    assert [item["metadata-file"] for item in after["metadata-log"]] == [
        f"{before['location']}/metadata/v{n}.metadata.json" for n in (1, 2)
    ]
    assert metadata_files(opened, before["location"]) == ["v1.metadata.json", "v2.metadata.json"]
    assert metadata_files(opened, target) == ["v3.metadata.json"]
    assert lake.psycopg().execute("SELECT path FROM ducklake_data_file").fetchall() == [(data_file(base, "a").file_path,)]
    assert opened.create("u", location=before["location"]).error == (400, "BadRequestException")


def test_a_moved_table_takes_what_was_written_before(opened: Client, lake: FreshLake) -> None:
    """An append whose files were written at the old location lands, and another server shows the same metadata."""
    base = opened.create().json["metadata"]
    late = opened.append(base, 9_000_000_001, [data_file(base, "a")])
    assert opened.commit(move(f"{other_folder(lake)}/moved")).status == 200
    assert opened.commit(late, [assert_main(None)]).status == 200
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == opened.load()


def test_moving_and_appending_in_one_request(opened: Client, lake: FreshLake) -> None:
    """A replace transaction with a location: its manifests lie at the new one."""
    base = opened.create().json["metadata"]
    target = base | {"location": f"{other_folder(lake)}/moved"}
    done = opened.commit([*move(target["location"]), *opened.append(target, 9_000_000_001, [data_file(target, "a")])])
    assert done.status == 200
    assert done.json["metadata"]["location"] == target["location"]


def test_the_location_of_a_dropped_table_may_be_taken_over(client: Client, lake: FreshLake) -> None:
    """Metadata versions go on from the dropped table's, so nothing is written over; its name is free at once."""
    location = f"{lake.iceberg_path}chosen"
    first = client.create("u", location=location).json
    assert client.server.ask("DELETE", "namespaces/main/tables/u").status == 204
    second = client.create("u", location=location).json
    assert (first["metadata-location"], second["metadata-location"]) == tuple(f"{location}/metadata/v{n}.metadata.json" for n in (1, 2))
    assert second["metadata"]["metadata-log"] == []
    assert client.objects.read(f"{location}/metadata/version-hint.text") == b"2"
    assert client.create("v", location=f"{location}/below").error == (400, "BadRequestException")


def test_a_late_create_hears_what_java_waits_for(client: Client, lake: FreshLake) -> None:
    """409 about the table that is there, before a word about manifests written for one that is not."""
    staged = client.create("u", **{"stage-create": True}).json["metadata"]
    updates = client.append(staged, 9_000_000_001, [data_file(staged, "a")])
    client.create("u")
    rows = read_rows(lake)
    refused = client.commit(updates, [{"type": "assert-create"}], "u")
    assert refused.error == (409, "CommitFailedException")
    assert refused.json["error"]["message"] == "Requirement failed: table already exists"
    assert read_rows(lake) == rows


@pytest.mark.parametrize("most", [1, 2])
def test_the_log_is_as_long_as_the_property_says(client: Client, most: int) -> None:
    """`write.metadata.previous-versions-max` bounds the earlier files that the metadata names."""
    for value in range(4):
        client.commit([{"action": "set-properties", "updates": {"write.metadata.previous-versions-max": str(most), "k": str(value)}}])
    names = [item["metadata-file"].rpartition("/")[2] for item in client.load()["metadata-log"]]
    assert names == [f"v{n}.metadata.json" for n in range(5 - most, 5)]


def test_a_location_in_a_bucket_that_is_not_there_is_refused_before_anything_is_made(lake: FreshLake) -> None:
    """Whether a table or a view is made there, at once or by a commit, or moved there."""
    place = "s3://no-such-bucket/x"
    with serve(make_settings(lake, allowed_locations=("*",))) as server:
        client = open_client(server, lake)
        base = client.create().json["metadata"]
        view = {**VIEW, "name": "v"}
        assert client.post("namespaces/main/views", view).status == 200
        rows = read_rows(lake)
        by_commit = [
            {"action": "assign-uuid", "uuid": str(uuid4())},
            {"action": "add-schema", "schema": COLUMNS},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            *move(place),
        ]
        answers = {
            "create": client.create("u", location=place),
            "stage": client.create("u", location=place, **{"stage-create": True}),
            "commit": client.commit(by_commit, [{"type": "assert-create"}], "u"),
            "move": client.commit(move(place), [assert_main(None)]),
            "view": client.post("namespaces/main/views", {**VIEW, "name": "w", "location": place}),
            "move a view": client.post("namespaces/main/views/v", {"requirements": [], "updates": move(place)}),
        }
        assert {name: answer.error for name, answer in answers.items()} == dict.fromkeys(answers, (400, "BadRequestException"))
        assert all("no-such-bucket" in answer.json["error"]["message"] for answer in answers.values())
        assert read_rows(lake) == rows
        assert client.load()["location"] == base["location"]


def place_namespace(client: Client, name: str, location: str) -> Answer:
    """Create a namespace with a location."""
    return client.post("namespaces", {"namespace": [name], "properties": {"location": location}})


def create_in(client: Client, namespace: str, name: str, **more: Any) -> Answer:
    """Create a table in a namespace."""
    return client.post(f"namespaces/{namespace}/tables", {"name": name, "schema": COLUMNS, **more})


def test_new_tables_lie_in_the_location_of_their_namespace(opened: Client, lake: FreshLake) -> None:
    """Created at once, by a staged commit, and views; what DuckDB creates, and nested namespaces, stay under ICEBERG_PATH."""
    place = f"{other_folder(lake)}/sales"
    assert place_namespace(opened, "sales", f"{place}/").json["properties"] == {"location": f"{place}/"}
    made = create_in(opened, "sales", "t").json["metadata"]
    assert made["location"] == f"{place}/t-{made['table-uuid']}"
    staged = create_in(opened, "sales", "staged", **{"stage-create": True}).json["metadata"]
    assert staged["location"].startswith(f"{place}/staged-")
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "set-location", "location": staged["location"]},
        {"action": "add-schema", "schema": COLUMNS},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    done = opened.post("namespaces/sales/tables/staged", {"requirements": [{"type": "assert-create"}], "updates": updates})
    assert done.json["metadata"]["location"] == staged["location"]
    view = opened.post("namespaces/sales/views", {**VIEW, "name": "v"}).json["metadata"]
    assert view["location"] == f"{place}/v-{view['view-uuid']}"
    lake.duckdb().execute("CREATE TABLE sales.d AS SELECT 1::BIGINT AS id")
    assert opened.server.get("namespaces/sales/tables/d").json["metadata"]["location"].startswith(lake.iceberg_path)
    assert opened.post("namespaces", {"namespace": ["sales", "eu"], "properties": {}}).status == 200
    assert create_in(opened, "sales%1Feu", "t").json["metadata"]["location"].startswith(lake.iceberg_path)


def test_without_its_location_a_namespace_has_new_tables_under_iceberg_path(opened: Client, lake: FreshLake) -> None:
    """The property is removed: tables stay where they are, and the next one lies under ICEBERG_PATH."""
    place_namespace(opened, "sales", f"{other_folder(lake)}/sales")
    before = create_in(opened, "sales", "t").json["metadata"]["location"]
    assert opened.post("namespaces/sales/properties", {"removals": ["location"]}).json["removed"] == ["location"]
    assert create_in(opened, "sales", "u").json["metadata"]["location"].startswith(f"{lake.iceberg_path}sales/u-")
    assert opened.server.get("namespaces/sales/tables/t").json["metadata"]["location"] == before


def test_a_namespace_lies_where_its_tables_may(opened: Client, lake: FreshLake) -> None:
    """A location outside of ICEBERG_PATH and allowed_locations, under DATA_PATH or in a table's is refused; nothing is made."""
    table = opened.create(location=f"{other_folder(lake)}/t").json["metadata"]["location"]
    rows = read_rows(lake)
    outside = lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/elsewhere"
    for location in (outside, f"{lake.data_path}x", f"{table}/below", "s3://not-there-at-all/x", f"{other_folder(lake)}/a?b", "", "x"):
        assert place_namespace(opened, "sales", location).error == (400, "BadRequestException"), location
        told = opened.post("namespaces/main/properties", {"updates": {"location": location}})
        assert told.error == (400, "BadRequestException"), location
        assert repr(location) in told.json["error"]["message"]
    assert read_rows(lake) == rows
    assert opened.server.get("namespaces/sales").status == 404


def test_a_location_that_is_not_allowed_any_more_takes_no_new_tables(opened: Client, lake: FreshLake) -> None:
    """The setting is gone, or a table was made around it: creates say so; the tables that are there are served on."""
    place = f"{other_folder(lake)}/sales"
    place_namespace(opened, "sales", place)
    made = create_in(opened, "sales", "t").json["metadata"]["location"]
    with serve(make_settings(lake)) as server:
        client = open_client(server, lake)
        assert server.get("namespaces/sales/tables/t").json["metadata"]["location"] == made
        for more in ({}, {"stage-create": True}):
            refused = create_in(client, "sales", "u", **more)
            assert refused.error == (400, "BadRequestException")
            assert f"The namespace's location '{place}' does not lie under" in refused.json["error"]["message"]
        assert client.post("namespaces/sales/views", {**VIEW, "name": "v"}).error == (400, "BadRequestException")
        body = {"requirements": [{"type": "assert-create"}], "updates": [{"action": "add-schema", "schema": COLUMNS}]}
        assert client.post("namespaces/sales/tables/u", body).error == (400, "BadRequestException")
        # A client that names another place needs none of the namespace.
        told = {"action": "set-location", "location": f"{lake.iceberg_path}sales/committed"}
        whole = {**body, "updates": [*body["updates"], told]}
        done = client.post("namespaces/sales/tables/committed", whole)
        assert done.json["metadata"]["location"] == told["location"]
        assert create_in(client, "sales", "named", location=f"{lake.iceberg_path}sales/named").status == 200
