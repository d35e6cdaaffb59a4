"""Places that clients choose: none is another table's, another lake's or the server's own, whoever asks and by whatever words."""

import io
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.manifest_list import ManifestListHeader, encode_manifest_list
from tests.rest.auth.escapes.signed import sign_as, to_path
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.test_permissions import SCHEMA, VIEW
from tests.rest.auth.vended import DELEGATION, is_refused, load_with_keys, open_root, split
from tests.rest.serving import Answer
from tests.rest.writing.client import Client, data_file, open_client, read_rows
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_after

MINE = "namespaces/a/tables/mine"
PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
ID = 9_000_000_001


@dataclass(frozen=True, slots=True)
class Ground:
    """The table a.mine of `writer`, and places that are not its own, by what is there; each holds an object `secret`."""

    guarded: Guarded
    client: Client
    tokens: Mapping[str, str]
    mine: Mapping[str, Any]
    places: Mapping[str, str]

    def ask(self, who: str, path: str, body: Any) -> Answer:
        """Send JSON, and ask for keys with what comes back."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}", **DELEGATION}
        return self.guarded.server.ask("POST", path, headers, json.dumps(body).encode())

    def commit(self, who: str, *updates: Any, requirements: Any = (), path: str = MINE) -> Answer:
        """Commit to the table."""
        return self.ask(who, path, {"requirements": list(requirements), "updates": list(updates)})

    def put(self, uri: str, content: bytes) -> str:
        """Place an object as root, also where something is."""
        bucket, key = split(uri)
        open_root(self.guarded).upload_fileobj(io.BytesIO(content), bucket, key)
        return uri

    def read_rows(self) -> dict[str, list[Any]]:
        """All rows but the record, which has a line for who is denied something, and places that were given out for tables to be."""
        return {name: rows for name, rows in read_rows(self.guarded.lake).items() if name not in ("iceberg_audit", "iceberg_staged")}


@pytest.fixture(scope="module")
def ground(stack: SharedStack) -> Generator[Ground]:
    """A guarded server, and another lake beside its own."""
    with make_lake(stack) as lake, make_lake(stack) as other, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        mine = guarded.ask("writer", "POST", "namespaces/a/tables", {"name": "mine", "schema": SCHEMA}).json["metadata"]
        longer = {"name": "longer", "schema": SCHEMA, "location": mine["location"] + "0"}
        assert guarded.ask("admin", "POST", "namespaces/a/tables", longer).status == 200
        theirs = guarded.get("admin", "namespaces/b/tables/t").json["metadata"]["location"]
        view = guarded.ask("admin", "POST", "namespaces/b/views", VIEW | {"name": "seen"}).json["metadata"]["location"]
        places = {
            "another table's": theirs,
            "below another table's": f"{theirs}/data",
            "another table's by another scheme": theirs.replace("s3://", "s3a://"),
            "around through the own": f"{mine['location']}/../{theirs.rpartition('/')[2]}",
            "a longer name": mine["location"] + "0",
            "a view's": view,
            "DuckDB's folder of another": f"{lake.data_path}b/t",
            "DATA_PATH": lake.data_path.rstrip("/"),
            "ICEBERG_PATH": lake.iceberg_path.rstrip("/"),
            "above both": lake.iceberg_path.rstrip("/").rpartition("/")[0],
            "another lake's": f"{other.iceberg_path}a/t",
            "another lake's data": f"{other.data_path}a/t",
            "the bucket": "s3://lake",
            "another bucket": "s3://elsewhere/x",
            "the server's disk": "file:///etc",
            "the server's disk, bare": "/etc",
            "over HTTP": "http://127.0.0.1:9/x",
        }
        found = Ground(guarded, open_client(guarded.server, lake), {who: guarded.token(who) for who in ("writer", "admin")}, mine, places)
        for place in places.values():
            copy_to(found, f"{place}/secret", b"secret")
        yield found


def set_properties(told: Mapping[str, str]) -> dict[str, Any]:
    """The update that sets properties."""
    return {"action": "set-properties", "updates": dict(told)}


def make_by_commit(ground: Ground, who: str, location: str | None, told: Mapping[str, str]) -> Answer:
    """Stage a table, and make it elsewhere than was said, or with these properties."""
    staged = ground.ask(who, "namespaces/a/tables", {"name": "staged", "schema": SCHEMA, "stage-create": True}).json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location or staged["location"]},
        set_properties(told),
    ]
    return ground.commit(who, *updates, requirements=[{"type": "assert-create"}], path="namespaces/a/tables/staged")


def add_snapshot(ground: Ground, who: str, place: str, what: str) -> Answer:
    """Append with a manifest list, a manifest or a data file in that place; the first two are there, where there is a store."""
    file = data_file(ground.mine, str(uuid4()))
    if what == "file":
        file = replace(file, file_path=f"{place}/data/x.parquet")
    added = ground.client.add(ground.mine, ID, [file])
    content = ground.client.objects.read(added["manifest-list"])
    if what == "list":
        added["manifest-list"] = copy_to(ground, f"{place}/metadata/{uuid4()}.avro", content)
    if what == "manifest":
        [manifest] = decode_manifest_list(content)
        moved = copy_to(ground, f"{place}/metadata/{uuid4()}-m0.avro", ground.client.objects.read(manifest.manifest_path))
        uri = f"{ground.mine['location']}/metadata/{uuid4()}.avro"
        added["manifest-list"] = ground.put(
            uri, encode_manifest_list(ManifestListHeader(ID, None, 1, 2), [replace(manifest, manifest_path=moved)])
        )
    return ground.commit(who, {"action": "add-snapshot", "snapshot": added})


def copy_to(ground: Ground, uri: str, content: bytes) -> str:
    """Place an object where the store can have one."""
    return ground.put(uri, content) if uri.startswith("s3://lake/") and ".." not in uri else uri


def set_statistics(ground: Ground, who: str, place: str, kind: str) -> Answer:
    """Name a file of statistics there."""
    file: dict[str, Any] = {"snapshot-id": ID, "statistics-path": f"{place}/x.stats", "file-size-in-bytes": 100}
    if kind == "statistics":
        file |= {"file-footer-size-in-bytes": 10, "blob-metadata": []}
    added = ground.client.add(ground.mine, ID, [data_file(ground.mine, str(uuid4()))])
    update = {"action": f"set-{kind}", "snapshot-id": ID, kind: file}
    return ground.commit(who, {"action": "add-snapshot", "snapshot": added}, update)


def register(ground: Ground, who: str, place: str, part: str) -> Answer:
    """Register a metadata file that lies there, or says that its table lies there, or its manifest list, or that clients write there."""
    home = f"{ground.guarded.lake.iceberg_path}come-{uuid4()}"
    at = place if part == "file" else home
    snapshot = {"snapshot-id": 7, "timestamp-ms": 1, "manifest-list": f"{place}/metadata/secret", "summary": {"operation": "append"}}
    metadata: dict[str, Any] = {
        "format-version": 1,
        "table-uuid": str(uuid4()),
        "location": place if part in ("file", "location") else home,
        "last-updated-ms": 1,
        "last-column-id": 1,
        "schema": SCHEMA,
        "partition-spec": [],
        "properties": {part: place} if part in PATHS else {},
        **({"snapshots": [snapshot], "current-snapshot-id": 7} if part == "list" else {}),
    }
    uri = copy_to(ground, f"{at}/metadata/v1.metadata.json", json.dumps(metadata).encode())
    return ground.ask(who, "namespaces/a/register", {"name": "come", "metadata-location": uri})


def make_view(ground: Ground, who: str, **more: Any) -> Answer:
    """Make a view."""
    return ground.ask(who, "namespaces/a/views", VIEW | {"name": "looked at"} | more)


Way = Callable[[Ground, str, str], Answer]


def create(**more: Any) -> Callable[[Ground, str, dict[str, Any]], Answer]:
    """Make a table, or stage it."""
    return lambda ground, who, told: ground.ask(who, "namespaces/a/tables", {"name": "new", "schema": SCHEMA, **more, **told})


def list_ways() -> dict[str, Way]:
    """Every way of naming a place, by what it is called."""
    made, staged = create(), create(**{"stage-create": True})
    found: dict[str, Way] = {
        "create": lambda ground, who, place: made(ground, who, {"location": place}),
        "stage-create": lambda ground, who, place: staged(ground, who, {"location": place}),
        "make what was staged": lambda ground, who, place: make_by_commit(ground, who, place, {}),
        "set-location": lambda ground, who, place: ground.commit(who, {"action": "set-location", "location": place}),
        "create a view": lambda ground, who, place: make_view(ground, who, location=place),
        "create a view, write.metadata.path": lambda ground, who, place: make_view(ground, who, properties={"write.metadata.path": place}),
    }
    for part in ("file", "location", "list"):
        found[f"register, {part}"] = lambda ground, who, place, part=part: register(ground, who, place, part)
    for what in ("list", "manifest", "file"):
        found[f"add-snapshot, {what}"] = lambda ground, who, place, what=what: add_snapshot(ground, who, place, what)
    for kind in ("statistics", "partition-statistics"):
        found[f"set-{kind}"] = lambda ground, who, place, kind=kind: set_statistics(ground, who, place, kind)
    return found


def list_ways_to_set(name: str) -> dict[str, Way]:
    """Every way of giving a table a property."""
    made, staged = create(), create(**{"stage-create": True})
    return {
        "create": lambda ground, who, place: made(ground, who, {"properties": {name: place}}),
        "stage-create": lambda ground, who, place: staged(ground, who, {"properties": {name: place}}),
        "make what was staged": lambda ground, who, place: make_by_commit(ground, who, None, {name: place}),
        "set-properties": lambda ground, who, place: ground.commit(who, set_properties({name: place})),
        "register": lambda ground, who, place: register(ground, who, place, name),
    }


WAYS = list_ways() | {f"{way}, {PATHS[0]}": named for way, named in list_ways_to_set(PATHS[0]).items()}
WRITERS = frozenset({"another table's", "a longer name", "another lake's"})


@pytest.mark.parametrize("way", long_after(1, WAYS))
def test_no_client_chooses_a_place_of_others(ground: Ground, way: str) -> None:
    """400, or 403 for who may choose none, and for who has all rights too; no keys come with it, and nothing is changed or told."""
    rows = ground.read_rows()
    for said, place in ground.places.items():
        if way.startswith("create a view") and said == "a view's":
            continue  # views may share a place: their files are named by their content
        for who in ("admin", "writer") if said in WRITERS else ("admin",):
            check_refused(WAYS[way](ground, who, place), who, said)
    assert ground.read_rows() == rows


@pytest.mark.parametrize("name", PATHS[1:])
def test_every_property_of_places_is_looked_at(ground: Ground, name: str) -> None:
    """By whatever name it is called, and however it is set."""
    rows = ground.read_rows()
    for said, way in list_ways_to_set(name).items():
        check_refused(way(ground, "admin", ground.places["another table's"]), "admin", said)
    assert ground.read_rows() == rows


def check_refused(answer: Answer, who: str, said: str) -> None:
    """It is refused for its place, and told neither keys nor what is there."""
    assert answer.status in ((400,) if who == "admin" else (400, 403)), (said, who, answer.body)
    assert b"s3.session-token" not in answer.body
    assert b"root:" not in answer.body
    assert "storage-credentials" not in answer.json


@pytest.mark.parametrize("name", PATHS)
def test_places_of_the_own_are_taken_and_keys_stay_as_they_are(ground: Ground, name: str) -> None:
    """So that what is refused is refused for its place; keys and signatures go by where the table is, not by what a property says."""
    before = load_with_keys(ground.guarded, "writer", MINE)
    own = f"{ground.mine['location']}/{name}/"
    assert ground.commit("writer", set_properties({name: own})).status == 200
    after = load_with_keys(ground.guarded, "writer", MINE)
    assert after.metadata["properties"][name] == own
    assert after.prefixes == before.prefixes
    assert after.prefixes[0] == ground.mine["location"] + "/"
    location = f"{ground.guarded.lake.iceberg_path}chosen/{name}"
    table = {"name": f"own {name}", "location": location, "properties": {name: f"{location}/x"}, "schema": SCHEMA}
    made = ground.ask("admin", "namespaces/a/tables", table)
    assert made.status == 200, made.body
    prefixes = [each["prefix"] for each in made.json["storage-credentials"]]
    assert f"{location}/" in prefixes
    assert not any(place.startswith(prefix) for place in ground.places.values() for prefix in prefixes)


def test_a_property_that_is_there_already_opens_nothing(ground: Ground) -> None:
    """DuckDB users may write anything into a tag: neither keys nor signatures nor a purge go by it."""
    lake, theirs = ground.guarded.lake, ground.places["another table's"]
    answer = ground.guarded.ask("writer", "POST", "namespaces/a/tables", {"name": "led", "schema": SCHEMA})
    location, path = answer.json["metadata"]["location"], "namespaces/a/tables/led"
    for name in PATHS:
        lake.psycopg().execute(
            "INSERT INTO ducklake_tag SELECT table_id, begin_snapshot, NULL, %s, %s FROM ducklake_table WHERE table_name = 'led'",
            [name, theirs],
        )
    lake.duckdb().execute("COMMENT ON TABLE a.led IS 'led astray'")
    vended = load_with_keys(ground.guarded, "writer", path)
    assert {vended.metadata["properties"][name] for name in PATHS} == {theirs}
    assert vended.prefixes[0] == f"{location}/"
    assert not any(theirs.startswith(prefix) or prefix.startswith(theirs) for prefix in vended.prefixes)
    bucket, key = split(f"{theirs}/secret")
    for call in (vended.s3.get_object, vended.s3.delete_object):
        assert is_refused(call, Bucket=bucket, Key=key)
    assert is_refused(vended.s3.put_object, Bucket=bucket, Key=f"{key}.new", Body=b"x")
    signing = sign_as(ground.guarded, "writer", path)
    assert [signing.send(method, to_path(key))[0] for method in ("GET", "PUT", "DELETE")] == [403] * 3
    assert ground.commit("writer", set_properties({"k": "v"}), path=path).status == 200, "what was there is in no commit's way"
    assert ground.guarded.ask("owner", "DELETE", f"{path}?purgeRequested=true").status == 204
    assert open_root(ground.guarded).get_object(Bucket=bucket, Key=key)["Body"].read() == b"secret"


def test_what_is_there_is_not_told(ground: Ground) -> None:
    """Whether an object is there or not, a manifest list elsewhere is refused in the same words: nobody has looked."""
    theirs, told = ground.places["another table's"], set[str]()
    for name in ("secret", "none"):
        snapshot = ground.client.add(ground.mine, ID, [data_file(ground.mine, str(uuid4()))])
        snapshot["manifest-list"] = f"{theirs}/{name}"
        answer = ground.commit("writer", {"action": "add-snapshot", "snapshot": snapshot})
        told.add(answer.json["error"]["message"].replace(f"/{name}'", ""))
        assert answer.status == 400
    assert len(told) == 1


def test_what_comes_by_register_has_keys_for_itself(ground: Ground) -> None:
    """A table that is made known again is open where it is, and nowhere else; who may not choose places registers nothing."""
    made = ground.guarded.ask("writer", "POST", "namespaces/a/tables", {"name": "gone", "schema": SCHEMA}).json
    assert ground.guarded.ask("writer", "DELETE", "namespaces/a/tables/gone").status == 204
    body = {"name": "back", "metadata-location": made["metadata-location"]}
    assert ground.ask("writer", "namespaces/a/register", body).status == 403
    back = ground.ask("admin", "namespaces/a/register", body)
    assert back.status == 200, back.body
    location = made["metadata"]["location"]
    prefixes = {each["prefix"] for each in back.json["storage-credentials"]}
    assert f"{location}/" in prefixes
    assert all(prefix.startswith((f"{location}/", f"{ground.guarded.lake.data_path}a/gone")) for prefix in prefixes)
    assert not any(place.startswith(prefix) for place in ground.places.values() for prefix in prefixes)
