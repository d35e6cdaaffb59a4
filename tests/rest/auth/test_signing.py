"""Signatures: who gets which, and that one opens what it was given for and nothing else, on the real store."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.ground import BUCKET, PLACES, lay_out, list_keys, make_tables
from tests.rest.auth.escapes.signed import REFUSED, SigningClient, sign_as, to_path
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.test_permissions import TABLE as NEW_TABLE
from tests.rest.auth.vended import is_refused, open_root, open_vended, split
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack

TABLE = "namespaces/a/tables/t1"
ASKS_SIGNING = {"X_Iceberg_Access_Delegation": "remote-signing"}


@dataclass(frozen=True, slots=True)
class Field:
    """Clients of the table a.t1, an object of it, its location, and objects of others by what is tried."""

    guarded: Guarded
    reader: SigningClient
    writer: SigningClient
    own: str
    own_folder: str
    location: str
    others: dict[str, str]

    @property
    def root(self) -> Any:
        """A client of the store that may do everything."""
        return open_root(self.guarded)


@pytest.fixture(scope="module")
def field(stack: SharedStack) -> Generator[Field]:
    """A lake with tables beside, above and below in name, and objects of nobody around them; no keys are vended."""
    with make_lake(stack) as lake, guard(lake) as guarded:
        yield open_field(guarded)


def open_field(guarded: Guarded) -> Field:
    """Make the tables, and place the objects."""
    make_tables(guarded)
    location = split(guarded.get("reader", TABLE).json["metadata"]["location"])[1]
    laid = lay_out(guarded, location, "T1")
    reader, writer = (sign_as(guarded, who, TABLE) for who in ("reader", "writer"))
    return Field(guarded, reader, writer, laid.own, laid.own_folder, location, laid.others)


@pytest.mark.whole
def test_own_objects_are_open(field: Field) -> None:
    """The positive control: reading and listing for who reads; writing, copying, multipart and deleting at the location for who writes."""
    for client in (field.reader, field.writer):
        status, body = client.send("GET", to_path(field.own))
        assert (status, body[:4]) == (200, b"PAR1")
        assert client.send("HEAD", to_path(field.own))[0] == 200
        listed = f"/lake?list-type=2&prefix={quote(field.own_folder + '/', safe='')}"
        assert field.own.encode() in client.send("GET", listed)[1]
    key = f"{field.location}/data/new.parquet"
    assert field.writer.send("PUT", to_path(key), b"x" * 10)[0] == 200
    source = {"x-amz-copy-source": to_path(field.own)}
    assert field.writer.send("PUT", to_path(f"{key}.copy"), headers=source)[0] == 200
    assert field.writer.send("GET", to_path(f"{key}.copy"))[1][:4] == b"PAR1"
    started = field.writer.send("POST", f"{to_path(key)}.parts?uploads")[1].decode()
    upload = started.partition("<UploadId>")[2].partition("<")[0]
    assert field.writer.send("PUT", f"{to_path(key)}.parts?partNumber=1&uploadId={upload}", b"y" * 10)[0] == 200
    assert field.writer.send("GET", f"{to_path(key)}.parts?uploadId={upload}")[0] == 200
    assert field.writer.send("DELETE", f"{to_path(key)}.parts?uploadId={upload}")[0] == 204
    for written in (key, f"{key}.copy"):
        assert field.writer.send("DELETE", to_path(written))[0] == 204
    assert not [found for found in list_keys(field.root, f"{field.location}/") if "new.parquet" in found]


@pytest.mark.parametrize("name", ["a b", "ü", "x=1/y=2", "a+b", "a%20b", "a%b", "~a@b:c", "a&b=c", "a'b(c)*", "a#b?c"])
def test_own_names_may_be_odd(field: Field, name: str) -> None:
    """Names of partitions become parts of keys; each is one object, under the name it was given."""
    key = f"{field.location}/data/odd/{name}/f.parquet"
    assert field.writer.send("PUT", to_path(key), name.encode())[0] == 200
    assert field.root.get_object(Bucket=BUCKET, Key=key)["Body"].read() == name.encode()
    assert field.reader.send("GET", to_path(key)) == (200, name.encode())
    assert field.writer.send("DELETE", to_path(key))[0] == 204


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_nothing_of_others_is_read_or_changed(field: Field, who: str, place: str) -> None:
    """Each way of reading, listing, writing, copying and deleting, for each kind of place: nothing is signed."""
    client, key = (field.reader if who == "reader" else field.writer), field.others[place]
    path, own, folder = to_path(key), to_path(f"{field.location}/data/stolen"), key.rpartition("/")[0]
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert client.ask(method, path).status == 403
    assert client.ask("GET", f"/lake?list-type=2&prefix={quote(folder + '/', safe='')}").status == 403
    assert client.ask("GET", f"/lake?prefix={quote(key, safe='')}").status == 403
    for source in (path, path[1:], quote(path, safe=""), quote(path), f"/lake/{field.own}/../{key}"):
        assert client.ask("PUT", own, {"x-amz-copy-source": source}).status == 403
    assert client.ask("PUT", path, {"x-amz-copy-source": to_path(field.own)}).status == 403
    assert client.ask("POST", f"{path}?uploads").status == 403
    assert client.ask("PUT", f"{path}?partNumber=1&uploadId=x").status == 403


STEPS = [
    "..",
    "%2e%2e",
    ".%2E",
    "%252e%252e",
    "%25252e%25252e",
    ".",
    "%2F..",
    "..%2F",
    "%252F..",
    "..%5C",
    "%5C..",
    "\\..",
    "%00",
    "",
    "%0A..",
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("base", ["own_folder", "location"])
def test_steps_lead_nowhere(field: Field, base: str, step: str) -> None:
    """However often a step is escaped: it is refused, in a key, a prefix and a source to copy from."""
    start = getattr(field, base)
    for tail in (field.others["sibling"].rpartition("/data/a/")[2], "x"):
        path = f"/lake/{start}/{step}/{tail}"
        for method in ("GET", "PUT", "DELETE"):
            assert field.writer.ask(method, path).status in REFUSED
        assert field.writer.ask("GET", f"/lake?prefix={quote(f'{start}/{step}/{tail}', safe='%')}").status in REFUSED
        own = to_path(f"{field.location}/data/stolen")
        assert field.writer.ask("PUT", own, {"x-amz-copy-source": path}).status in REFUSED


@pytest.mark.parametrize("prefix", [None, "", "/", "t1", "{own}", "{own}0", "{parent}/", "{parent}/t", "*", "{own}/../", "{own}//"])
def test_lists_by_other_prefixes_are_refused(field: Field, prefix: str | None) -> None:
    """Nor without a prefix, nor with one that is the beginning of the own, nor with two of them."""
    own = quote(field.own_folder + "/", safe="")
    told = "" if prefix is None else quote(prefix.format(own=field.own_folder, parent=field.own_folder.rpartition("/")[0]), safe="")
    asked = "/lake?list-type=2" if prefix is None else f"/lake?list-type=2&prefix={told}"
    assert field.reader.ask("GET", asked).status == 403
    assert field.reader.ask("GET", f"/lake?prefix={own}&prefix={told}").status == 403
    assert field.reader.ask("GET", f"/lake?list-type=2&prefix={own}").status == 200


RESOURCES = [
    *("acl", "tagging", "policy", "versionId=1", "torrent", "retention", "legal-hold", "restore", "select&select-type=2", "attributes"),
    *("versions", "uploads&prefix=x", "delete", "location", "cors", "lifecycle", "website", "append", "X-Amz-Signature=0", "foo=bar"),
]


@pytest.mark.parametrize("resource", RESOURCES)
def test_other_resources_are_not_signed(field: Field, resource: str) -> None:
    """Neither of the own objects nor of the bucket: only what stands on the list."""
    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        assert field.writer.ask(method, f"{to_path(field.location)}/x?{resource}").status == 403
        assert field.writer.ask(method, f"/lake?{resource}").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-acl": "public-read"},
        {"x-amz-grant-read": "uri=x"},
        {"x-amz-tagging": "a=b"},
        {"X-Amz-Website-Redirect-Location": "/x"},
        {"x-amz-object-lock-mode": "GOVERNANCE"},
        {"x-amz-bypass-governance-retention": "true"},
        {"x-amz-server-side-encryption-aws-kms-key-id": "x"},
        {"x-amz-security-token": "x"},
        {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
        {"x-amz-copy-source": "/lake/x?versionId=1"},
        {"X-Forwarded-Prefix": "/lake"},
        {"x-forwarded-host": "elsewhere"},
        {"x-amz-meta-a": "b\r\nx-amz-acl: public-read"},
        {"x-amz-date": "20200101T000000Z"},
        {"x-amz-date": "29990101T000000Z"},
        {"x-amz-date": "now"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_other_headers_are_not_signed(field: Field, headers: dict[str, str]) -> None:
    """ACLs, tags, locks, others' keys, another time than now."""
    assert field.writer.ask("PUT", f"{to_path(field.location)}/x", headers).status in REFUSED


@pytest.mark.parametrize(
    "changed",
    [
        {"region": "eu-west-1"},
        {"uri": "http://127.0.0.1:9/lake/x"},
        {"uri": "https://lake.s3.amazonaws.com/x"},
        {"uri": "http://{host}@127.0.0.1:9/lake/x"},
        {"uri": "http://lake.{host}/x"},
        {"uri": "//{host}/lake/x"},
        {"uri": "x"},
        {"uri": "http://[/lake/x"},
        {"uri": "http://{host}/lake/%zz"},
        {"uri": "http://{host}/lake/%ff"},
        {"uri": "http://{host}/lake/x#y"},
        {"method": "PATCH"},
        {"method": "get"},
        {"provider": "gcs"},
        {"headers": {"range": "bytes=0-1"}},
        {"headers": {"range": [1]}},
        {"headers": {"x-amz-date": ["a"], "X-Amz-Date": ["b"]}},
        {"uri": 7},
    ],
    ids=str,
)
def test_malformed_and_foreign_requests_are_refused(field: Field, changed: dict[str, object]) -> None:
    """Another store's, another region's, or no request at all; in Iceberg's shape."""
    endpoint = field.reader.endpoint
    host = endpoint.removeprefix("http://")
    whole = {"method": "GET", "uri": endpoint + to_path(field.own), "region": "us-east-1", "headers": {}}
    assert field.reader.ask_for(whole).status == 200
    told = {name: value.replace("{host}", host) if isinstance(value, str) else value for name, value in changed.items()}
    assert field.reader.ask_for(whole | told).error[0] in REFUSED


def test_a_signature_is_for_one_request(field: Field) -> None:
    """With a header added, for another object, method or query, or through a prefix that SeaweedFS would believe, it is worth nothing."""
    secret, own = field.others["sibling"], f"{field.location}/data/mine"
    taken = field.writer.ask("PUT", to_path(own))
    assert field.writer.send_signed(taken, "PUT", headers={"x-amz-copy-source": to_path(secret)})[0] == 403
    assert field.writer.send_signed(taken, "PUT", b"x", headers={"x-amz-acl": "public-read"})[0] == 403
    assert field.writer.send_signed(taken, "DELETE")[0] == 403
    assert field.writer.send_signed(taken, "PUT", b"<Tagging/>", target=f"{to_path(own)}?tagging")[0] == 403
    assert field.writer.send_signed(taken, "PUT", b"x", target=to_path(secret))[0] == 403
    assert field.writer.send_signed(taken, "PUT", b"x")[0] == 200
    below = field.reader.ask("GET", to_path(f"{field.location}/data{to_path(secret)}"))
    believed = {"x-forwarded-prefix": f"/lake/{field.location}/data"}
    assert field.reader.send_signed(below, "GET", headers=believed, target=to_path(secret))[0] == 403
    added = {**{name: value[0] for name, value in below.json["headers"].items()}, "X-Forwarded-Prefix": believed["x-forwarded-prefix"]}
    assert field.reader.send_signed(below, "GET", headers=added, target=to_path(secret))[0] == 403


def test_a_reader_changes_nothing_of_its_own_table(field: Field) -> None:
    """Reading is reading; and whoever writes does not read by that, nor copy what it may not read."""
    for place in (field.own, f"{field.location}/data/x", f"{field.location}/metadata/v1.metadata.json"):
        for method, query in (("PUT", ""), ("DELETE", ""), ("POST", "?uploads"), ("PUT", "?partNumber=1&uploadId=x")):
            assert field.reader.ask(method, to_path(place) + query).error == (403, "NotAuthorizedException")
    blind = sign_as(field.guarded, "blind", TABLE)
    assert blind.ask("PUT", to_path(f"{field.location}/data/x")).status == 200
    assert blind.ask("GET", to_path(field.own)).status == 403
    assert blind.ask("PUT", to_path(f"{field.location}/data/x"), {"x-amz-copy-source": to_path(field.own)}).status == 403


def test_a_writer_does_not_touch_duckdbs_files(field: Field) -> None:
    """They are DuckLake's to remove."""
    for key in (field.own, f"{field.own_folder}/new.parquet"):
        for method in ("PUT", "DELETE"):
            assert field.writer.ask(method, to_path(key)).status == 403


def test_a_signature_says_how_long_it_may_be_kept(field: Field) -> None:
    """Those that read may be used again; those that change are asked for each time."""
    assert field.writer.ask("GET", to_path(field.own)).headers["cache-control"] == "private"
    assert field.writer.ask("PUT", to_path(f"{field.location}/x")).headers["cache-control"] == "no-cache"


def test_the_clients_own_date_is_kept_when_it_is_now(field: Field) -> None:
    """Whoever sets it is not told another one, and the store takes it."""
    date = {"x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())}
    assert "x-amz-date" not in field.reader.ask("GET", to_path(field.own), date).json["headers"]
    assert field.reader.send("GET", to_path(field.own), headers=date)[0] == 200


def test_an_answer_says_where_to_have_requests_signed(field: Field) -> None:
    """For Java and PyIceberg, to those alone who take it; no key of the server's is in it, and tags differ."""
    plain, signing = field.guarded.get("reader", TABLE), field.guarded.get("reader", TABLE, **ASKS_SIGNING)
    config = signing.json["config"]
    assert config["s3.remote-signing-enabled"] == "true"
    assert config["s3.signer.endpoint"] == config["signer.endpoint"] == "v1/lake/namespaces/a/tables/t1/sign"
    assert config["s3.signer"] == "S3V4RestSigner"
    assert not [name for name in config if "key" in name or "token" in name]
    assert plain.json["config"] == {}
    # Iceberg 1.12 has a client for the table's files then, which knows by itself where requests are signed.
    assert plain.json["remote-signing-config"] == signing.json["remote-signing-config"] == {"properties": {"signer": "duckicelake"}}
    assert plain.headers["etag"] != signing.headers["etag"]
    for asked in ("vended-credentials", "none"):
        assert field.guarded.get("reader", TABLE, X_Iceberg_Access_Delegation=asked).body == plain.body
    both = field.guarded.get("reader", TABLE, X_Iceberg_Access_Delegation="vended-credentials, remote-signing")
    assert both.json["config"] == config
    hits = field.guarded.server.count("duckicelake_table_cache_total", outcome="hit")
    assert field.guarded.get("writer", TABLE, **ASKS_SIGNING).body == signing.body
    assert field.guarded.server.count("duckicelake_table_cache_total", outcome="hit") == hits + 1


def test_the_answer_to_a_commit_has_the_tag_of_the_next_load(lake: FreshLake) -> None:
    """A client that loads the table again gets 304, where requests are signed too."""
    with guard(lake) as guarded:
        update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        done = guarded.ask("writer", "POST", "namespaces/a/tables/t", update)
        assert done.status == 200
        assert guarded.get("writer", "namespaces/a/tables/t", If_None_Match=done.headers["etag"]).status == 304


def test_tables_that_share_a_folder_are_kept_apart_file_by_file(lake: FreshLake) -> None:
    """After a rename DuckDB puts another table into the same folder: each opens its own files, however many; none is listed."""
    with guard(lake) as guarded:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000)")
        guarded.get("reader", TABLE)
        before = list_keys(open_root(guarded), f"{lake.name}/data/a/t1/")
        client = sign_as(guarded, "reader", TABLE)
        assert client.send("GET", to_path(before[0]))[0] == 200
        conn.execute("ALTER TABLE a.t1 RENAME TO old; CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000)")
        [new] = set(list_keys(open_root(guarded), f"{lake.name}/data/a/t1/")) - set(before)
        renamed = sign_as(guarded, "reader", "namespaces/a/tables/old")
        assert (renamed.send("GET", to_path(before[0]))[0], renamed.send("GET", to_path(new))[0]) == (200, 403)
        assert (client.send("GET", to_path(before[0]))[0], client.send("GET", to_path(new))[0]) == (403, 200)
        assert client.ask("GET", f"/lake?prefix={lake.name}/data/a/t1/").status == 403
        assert client.ask("GET", to_path(f"{lake.name}/data/a/t1/none.parquet")).status == 403


def test_nothing_is_signed_for_a_table_that_is_gone(lake: FreshLake) -> None:
    """As for one that never was; and on local folders there is nothing to sign."""
    with guard(lake) as guarded:
        client = sign_as(guarded, "reader", "namespaces/a/tables/t")
        location = split(guarded.get("reader", "namespaces/a/tables/t").json["metadata"]["location"])[1]
        assert client.ask("GET", to_path(f"{location}/metadata/v1.metadata.json")).status == 200
        lake.duckdb().execute("DROP TABLE a.t")
        assert client.ask("GET", to_path(f"{location}/metadata/v1.metadata.json")).error == (404, "NoSuchTableException")


def test_nothing_is_written_to_a_location_that_another_table_has_too(lake: FreshLake) -> None:
    """No DuckLake gives a table such a folder. Keys read alone then, and who takes signatures is told when he writes."""
    path = "namespaces/a/tables/t"
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        location = guarded.get("writer", path).json["metadata"]["location"]
        lake.duckdb().execute("CREATE TABLE a.late AS SELECT range AS i FROM range(100000)")
        with lake.psycopg() as conn:
            into = "UPDATE ducklake_table SET path = %s, path_is_relative = false WHERE table_name = 'late'"
            conn.execute(into, [f"{location}/data/"])
        told = guarded.get("writer", path, X_Iceberg_Access_Delegation="vended-credentials, remote-signing")
        s3 = open_vended(told.json["config"])
        assert is_refused(s3.put_object, Bucket="lake", Key=f"{split(location)[1]}/data/x", Body=b"x")
        assert guarded.get("writer", path, **ASKS_SIGNING).status == 200
        answer = sign_as(guarded, "writer", path).ask("PUT", to_path(f"{split(location)[1]}/data/x"))
        assert answer.error == (403, "NotAuthorizedException")
        assert "is not this table's alone" in answer.json["error"]["message"]


def test_a_staged_table_is_written_where_it_was_given_a_place(lake: FreshLake) -> None:
    """By those who may make it, under its name; not in another's place, nor in one that a table had, nor by readers."""
    with guard(lake) as guarded:
        body = {**NEW_TABLE, "name": "made", "stage-create": True}
        staged = guarded.ask("writer", "POST", "namespaces/a/tables", body, **ASKS_SIGNING).json
        assert staged["config"]["s3.signer.endpoint"] == "v1/lake/namespaces/a/tables/made/sign"
        path = to_path(split(staged["metadata"]["location"])[1])
        writer, reader = (sign_as(guarded, who, "namespaces/a/tables/made") for who in ("writer", "reader"))
        assert writer.send("PUT", f"{path}/data/x", b"x")[0] == 200
        assert writer.send("GET", f"{path}/data/x") == (200, b"x")
        for refused in (path, f"{path}/", f"{path[:-1]}/x", f"{path}0/x", f"{path}/../x", to_path(f"{lake.name}/iceberg/a/x")):
            assert writer.ask("PUT", refused).status in {403, 404}
        for client in (
            reader,
            sign_as(guarded, "writer", "namespaces/a/tables/mad"),
            sign_as(guarded, "writer", "namespaces/a/tables/made2"),
        ):
            assert client.ask("PUT", f"{path}/data/x").status in {403, 404}
            assert client.ask("GET", f"{path}/data/x").status == 404
        assert sign_as(guarded, "stranger", "namespaces/a/tables/made").ask("PUT", f"{path}/data/x").status == 404
        own = split(guarded.get("writer", "namespaces/a/tables/t").json["metadata"]["location"])[1]
        lake.duckdb().execute("DROP TABLE a.t")
        gone = sign_as(guarded, "writer", "namespaces/a/tables/t")
        for method in ("GET", "PUT"):
            assert gone.ask(method, to_path(f"{own}/metadata/v1.metadata.json")).status in {403, 404}
        view = split(guarded.get("writer", "namespaces/a/views/v").json["metadata"]["location"])[1]
        assert sign_as(guarded, "writer", "namespaces/a/tables/v").ask("GET", to_path(f"{view}/metadata/x")).status == 409


def test_a_staged_table_in_the_location_of_its_namespace(lake: FreshLake) -> None:
    """Keys and signatures open its own location alone; signatures need a location that no other namespace has too."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        place = f"{lake.iceberg_path}placed"
        properties = "namespaces/a/properties"
        chosen = guarded.ask("owner", "POST", properties, {"updates": {"location": place}})
        assert chosen.error == (403, "NotAuthorizedException")
        assert guarded.ask("admin", "POST", properties, {"updates": {"location": place}}).status == 200
        body = {**NEW_TABLE, "name": "made", "stage-create": True}
        vended = guarded.ask("writer", "POST", "namespaces/a/tables", body, X_Iceberg_Access_Delegation="vended-credentials").json
        bucket, key = split(vended["metadata"]["location"])
        assert key.startswith(f"{split(place)[1]}/made-")
        s3 = open_vended(vended["config"])
        s3.put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
        assert is_refused(s3.put_object, Bucket=bucket, Key=f"{split(place)[1]}/x", Body=b"x")
        signed = sign_as(guarded, "writer", "namespaces/a/tables/made")
        assert signed.send("PUT", f"{to_path(key)}/data/y", b"y")[0] == 200
        assert sign_as(guarded, "writer", "namespaces/a/tables/mad").ask("PUT", f"{to_path(key)}/data/y").status in {403, 404}
        assert guarded.ask("admin", "POST", "namespaces/b/properties", {"updates": {"location": f"{place}/"}}).status == 200
        assert signed.ask("PUT", f"{to_path(key)}/data/y").status == 404


def test_a_folder_on_disk_is_not_signed_for(local_lake: FreshLake) -> None:
    """A load says nothing of signing."""
    with guard(local_lake) as guarded:
        found = guarded.get("reader", "namespaces/a/tables/t", **ASKS_SIGNING).json
        assert found["config"] == {}
        assert "remote-signing-config" not in found


@pytest.mark.long
@pytest.mark.xdist_group("minio")
def test_minio_gets_no_signed_requests(minio_stack: SharedStack) -> None:
    """A signed PUT would copy any object there; the answer says so, and loads go on."""
    with make_lake(minio_stack) as lake, guard(lake) as guarded:
        client = sign_as(guarded, "writer", "namespaces/a/tables/t")
        assert guarded.get("writer", client.table, **ASKS_SIGNING).status == 200
        location = split(guarded.get("writer", client.table).json["metadata"]["location"])[1]
        answer = client.ask("PUT", to_path(f"{location}/data/x"))
        assert answer.error == (501, "UnsupportedOperationException")
        assert "obeys headers that are not signed" in answer.json["error"]["message"]
