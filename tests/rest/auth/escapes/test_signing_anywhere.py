"""The older path of signatures, which names no table: the place of an object says whose it is, and the table's own rules what is signed."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.rest.auth.escapes.ground import PLACES, list_keys
from tests.rest.auth.escapes.signed import REFUSED, SigningClient, sign_as, to_path
from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.test_permissions import TABLE as NEW_TABLE
from tests.rest.auth.test_signing import STEPS, Field, open_field
from tests.rest.auth.vended import open_root, split
from tests.rest.serving import WAREHOUSE
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack

ANYWHERE = "/v1/aws/s3"
READABLE = frozenset({"sibling", "metadata-of-another"})
"""Of another table that the reader may read as well."""


@pytest.fixture(scope="module")
def field(stack: SharedStack) -> Generator[Field]:
    """Clients of a.t1 that ask at the older path, and objects of others; no keys are vended."""
    with make_lake(stack) as lake, guard(lake) as guarded:
        found = open_field(guarded)
        yield replace(found, reader=sign_as(guarded, "reader", ANYWHERE), writer=sign_as(guarded, "writer", ANYWHERE))


@pytest.mark.whole
def test_what_lies_with_one_table_is_signed_for_as_there(field: Field) -> None:
    """Objects and lists for who reads, also of DuckDB's folder; writing and copying at the location for who writes."""
    for client in (field.reader, field.writer):
        status, body = client.send("GET", to_path(field.own))
        assert (status, body[:4]) == (200, b"PAR1")
        listed = f"/lake?list-type=2&prefix={quote(field.own_folder + '/', safe='')}"
        assert field.own.encode() in client.send("GET", listed)[1]
    key = f"{field.location}/data/new.parquet"
    assert field.reader.ask("PUT", to_path(key)).error == (403, "NotAuthorizedException")
    assert field.writer.send("PUT", to_path(key), b"x" * 10)[0] == 200
    assert field.writer.send("PUT", to_path(f"{key}.copy"), headers={"x-amz-copy-source": to_path(field.own)})[0] == 200
    for written in (key, f"{key}.copy"):
        assert field.writer.send("DELETE", to_path(written))[0] == 204
    assert field.writer.ask("PUT", to_path(field.own)).status == 403


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_others_is_signed_for(field: Field, place: str) -> None:
    """What is nobody's, and what is another's, are refused in the same words to who has no right there; a copy goes across no tables."""
    key, told = field.others[place], set[bytes]()
    clients = {"stranger": sign_as(field.guarded, "stranger", ANYWHERE), "reader": field.reader, "writer": field.writer}
    for who, client in clients.items():
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            answer = client.ask(method, to_path(key))
            if who == "stranger" or place not in READABLE:
                assert answer.status == 403
                told.add(answer.body)
            elif method in ("GET", "HEAD"):
                assert answer.status == 200
    assert len(told) == 1
    own = to_path(f"{field.location}/data/stolen")
    assert field.writer.ask("PUT", own, {"x-amz-copy-source": to_path(key)}).status == 403
    assert sign_as(field.guarded, "stranger", ANYWHERE).ask("GET", to_path(field.own)).body in told


@pytest.mark.parametrize("step", STEPS)
def test_steps_lead_nowhere(field: Field, step: str) -> None:
    """However often one is escaped."""
    tail = field.others["other-namespace"].rpartition("/data/")[2]
    for path in (f"/lake/{field.own_folder}/{step}/{step}/{tail}", f"/lake/{field.location}/{step}/x"):
        for method in ("GET", "PUT", "DELETE"):
            assert field.writer.ask(method, path).status in REFUSED


@pytest.mark.parametrize(
    "changed",
    [{"uri": "http://127.0.0.1:9/lake/x"}, {"region": "eu-west-1"}, {"uri": "x"}, {"method": "PATCH"}, {"headers": {"x-amz-acl": ["x"]}}],
    ids=str,
)
def test_other_stores_and_other_requests_are_refused(field: Field, changed: Mapping[str, object]) -> None:
    """And so is one without a token."""
    whole = {"method": "GET", "uri": field.reader.endpoint + to_path(field.own), "region": "us-east-1", "headers": {}}
    assert field.reader.ask_for(whole).status == 200
    assert field.reader.ask_for(whole | changed).error[0] in REFUSED
    assert replace(field.reader, token="x").ask_for(whole).status == 401


def test_grants_of_the_lake_count_and_end(lake: FreshLake) -> None:
    """A right on one table opens that one; a revoke and a removed principal are in force at once."""
    with guard(lake) as guarded:
        field, managed = open_field(guarded), Managed(guarded)
        managed.add("one")
        managed.give("read", "table:a.t1", "one")
        client = SigningClient(guarded, "one", ANYWHERE, managed.token("one")["Authorization"].removeprefix("Bearer "))
        assert client.send("GET", to_path(field.own))[1][:4] == b"PAR1"
        assert client.ask("GET", to_path(field.others["sibling"])).status == 403
        assert client.ask("PUT", to_path(f"{field.location}/x")).status == 403
        managed.take("read", "table:a.t1", "one")
        assert client.ask("GET", to_path(field.own)).status == 403
        assert managed.manage("DELETE", "principals/one").status == 204
        assert client.ask("GET", to_path(field.own)).status == 401


def test_a_folder_of_two_tables_says_nothing(lake: FreshLake) -> None:
    """There the table must be named."""
    with guard(lake) as guarded:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000); ALTER TABLE a.t1 RENAME TO old")
        [own] = list_keys(open_root(guarded), f"{lake.name}/data/a/t1/")
        assert sign_as(guarded, "reader", ANYWHERE).send("GET", to_path(own))[0] == 200
        conn.execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000)")
        for key in list_keys(open_root(guarded), f"{lake.name}/data/a/t1/"):
            assert sign_as(guarded, "reader", ANYWHERE).ask("GET", to_path(key)).status == 403
        assert sign_as(guarded, "reader", "namespaces/a/tables/old").send("GET", to_path(own))[0] == 200


def test_a_staged_table_is_known_by_its_location(lake: FreshLake) -> None:
    """Who may make it writes there; who may not, and in other places, is refused."""
    with guard(lake) as guarded:
        staged = guarded.ask("writer", "POST", "namespaces/a/tables", {**NEW_TABLE, "name": "made", "stage-create": True}).json
        path = to_path(split(staged["metadata"]["location"])[1])
        assert sign_as(guarded, "writer", ANYWHERE).send("PUT", f"{path}/data/x", b"x")[0] == 200
        for who in ("reader", "stranger"):
            assert sign_as(guarded, who, ANYWHERE).ask("PUT", f"{path}/data/x").status in (403, 404)
        for refused in (path, f"{path}0/x", path.replace("/a/made-", "/b/made-") + "/x"):
            assert sign_as(guarded, "writer", ANYWHERE).ask("PUT", refused).status in (403, 404)


def test_each_lake_signs_for_its_own(lake: FreshLake, other_lake: FreshLake) -> None:
    """A principal of one of two, which may do all in that, gets nothing of the other's; though that has the name in the path."""
    other_lake.duckdb().execute("CREATE SCHEMA a; CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000)")
    sections = {
        name: {"postgres_dsn": each.dsn, "metadata_schema": each.metadata_schema} for name, each in (("aws", other_lake), (WAREHOUSE, lake))
    }
    with guard(lake, lakes=sections, postgres_dsn=None) as guarded:
        lake.duckdb().execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000)")
        managed = Managed(guarded)
        managed.add("one")
        managed.give("manage,read,write,create,drop", "warehouse", "one")
        client = SigningClient(guarded, "one", ANYWHERE, managed.token("one")["Authorization"].removeprefix("Bearer "))
        own, theirs = (to_path(list_keys(open_root(guarded), f"{each.name}/data/a/t1/")[0]) for each in (lake, other_lake))
        assert client.send("GET", own)[1][:4] == b"PAR1"
        assert client.ask("GET", theirs).status == 403
        both = sign_as(guarded, "admin", ANYWHERE)
        assert [both.ask("GET", path).status for path in (own, theirs)] == [200, 200]
