"""The audit of reads: who loaded, planned and got keys for what, written without a request that waits for Postgres."""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest
from psycopg import Connection

from duckicelake.catalog.audit_log import AuditLog
from duckicelake.catalog.records.reads import ReadAnswer, ReadContext, ReadCounter, ReadKey, encode_read, list_reads
from duckicelake.catalog.warehouse import open_warehouse
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.lake.connect import Lake, close_lake, open_lake
from duckicelake.store_settings import read_store_settings
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.vended import DELEGATION
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

READS, T = "/management/v1/lake/reads", "namespaces/a/tables/t"
Read = Mapping[str, Any]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reads as soon as the thread looks."""
    monkeypatch.setattr("duckicelake.catalog.audit_log.READS_EVERY_S", 0.0)
    monkeypatch.setattr("duckicelake.catalog.audit_log.PAUSE_S", 0.05)


@pytest.fixture
def audited(lake: FreshLake) -> Generator[Guarded]:
    """A guarded server that audits all reads and vends keys."""
    with guard(lake, sts_role_arn=ROLE_ARN, audit_reads=1.0) as running:
        yield running


@pytest.fixture
def opened(lake: FreshLake) -> Generator[Lake]:
    """The lake."""
    found = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    yield found
    close_lake(found)


def wait_for_reads(guarded: Guarded, count: int, query: str = "") -> Sequence[Read]:
    """Wait until so many reads are written, and return them in the order of their ids."""

    def find() -> list[Read]:
        return guarded.get("admin", f"{READS}?pageSize=1000{query}").json["reads"][::-1]

    wait_for(lambda: sum(read["count"] for read in find()) >= count, f"{count} reads")
    return find()


def test_reads_say_who_what_and_from_where(audited: Guarded) -> None:
    """Loads from Postgres, from the cache and without a body, views and plans; nothing of lists, changes, misses and denials."""
    answer = audited.get("reader", T)
    snapshot_id, etag = answer.json["metadata"]["current-snapshot-id"], answer.headers["etag"]
    assert audited.get("reader", T).status == 200
    assert audited.get("reader", T, If_None_Match=etag).status == 304
    assert audited.ask("reader", "POST", f"{T}/plan", {}).status == 200
    assert audited.get("writer", "namespaces/A/views/V").status == 200
    for principal, path in (("reader", "namespaces/a/tables"), ("stranger", T), ("blind", T), ("reader", "namespaces/a/tables/none")):
        audited.get(principal, path)
    audited.ask("reader", "HEAD", T)
    last = audited.get("owner", T)
    found = wait_for_reads(audited, 6)
    shown: dict[tuple[Any, ...], int] = {}
    for read in found:
        named = (read["principal"], read["operation"], read["object"], read["snapshot-id"], read["keys"], read["address"])
        shown[named] = shown.get(named, 0) + read["count"]
    here = "127.0.0.1"
    assert shown == {
        ("reader", "loadTable", "a.t", snapshot_id, None, here): 3,
        ("reader", "planTableScan", "a.t", snapshot_id, None, here): 1,
        ("writer", "loadView", "a.v", None, None, here): 1,
        ("owner", "loadTable", "a.t", snapshot_id, None, here): 1,
    }
    assert [read["request-id"] for read in found if read["principal"] == "owner"] == [last.headers["x-request-id"]]
    assert all(read["first-at"] <= read["last-at"] for read in found)


def test_reads_say_which_keys_were_given(audited: Guarded) -> None:
    """Those of a reader read, those of a writer write too; a cached load is no other than the first; newer keys and signatures count."""
    headers = {name.replace("-", "_"): value for name, value in DELEGATION.items()}
    for principal in ("reader", "reader", "writer"):
        assert "storage-credentials" in audited.get(principal, T, **headers).json
    assert audited.get("reader", f"{T}/credentials").status == 200
    assert audited.get("reader", T, X_Iceberg_Access_Delegation="remote-signing").json["config"]["s3.signer.endpoint"]
    store = audited.lake.store
    location = audited.get("reader", T).json["metadata-location"].removeprefix("s3://")
    body = {"region": store.region, "uri": f"{store.endpoint}/{location}", "method": "GET", "headers": {}}
    body["headers"] = {"host": [store.endpoint.partition("//")[2]]}
    for path in (f"{T}/sign", "/v1/aws/s3/sign"):
        assert audited.ask("reader", "POST", path, body).status == 200
    assert audited.get("reader", "ducklake-credentials").status == 200
    found = wait_for_reads(audited, 9)
    assert {(read["principal"], read["operation"], read["object"], read["keys"]) for read in found} == {
        ("reader", "loadTable", "a.t", "read"),
        ("writer", "loadTable", "a.t", "read,write"),
        ("reader", "loadCredentials", "a.t", "read"),
        ("reader", "loadTable", "a.t", "sign"),
        ("reader", "loadTable", "a.t", None),
        ("reader", "signRequest", "a.t", "sign"),
        ("reader", "signAnywhere", "a.t", "sign"),
        ("reader", "loadDucklakeCredentials", None, "read"),
    }


def test_reads_are_listed_by_object_and_principal(audited: Guarded) -> None:
    """In pages, over REST and by the command line; odd names and page tokens find nothing or are refused."""
    for principal in ("reader", "writer"):
        for name in ("t", "other"):
            assert audited.get(principal, f"namespaces/a/tables/{name}").status == 200
    wait_for_reads(audited, 4)
    named = wait_for_reads(audited, 2, "&object=A.OTHER")
    assert [read["principal"] for read in named] == ["reader", "writer"]
    assert [read["object"] for read in wait_for_reads(audited, 1, "&object=a.t&principal=writer")] == ["a.t"]
    for query in ("principal=x%00y", "object=a.%00", "object=", "object=route:x/a.t", "principal="):
        assert audited.get("admin", f"{READS}?{query}").json == {"reads": [], "next-page-token": None}
    pages, token = list[Read](), ""
    while token is not None:
        page = audited.get("admin", f"{READS}?pageSize=3&pageToken={token}").json
        assert len(page["reads"]) <= 3
        pages, token = pages + page["reads"], page["next-page-token"]
    assert len(pages) == 4
    for bad in ("pageToken=x", "pageToken=LTE%3D", "pageSize=0", "pageSize=1001", "object=" + "x" * 5000):
        assert audited.get("admin", f"{READS}?{bad}").status == 400
    lines = ask(settings_for(audited.lake), "reads", "list", "--object", "a.other", "--most", "1").splitlines()
    assert [json.loads(line) for line in lines] == [named[-1]]


def test_reads_without_accounts_have_an_address_and_no_principal(lake: FreshLake) -> None:
    """Also those of a branch, in the lake's record."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS i")
    with serve(make_settings(lake, audit_reads=1.0)) as server:
        server.ask("POST", "/management/v1/repositories/lake/branches", {"Content-Type": "application/json"}, b'{"name": "dev"}')
        for prefix, branch in (("lake", None), ("lake@dev", "dev")):
            assert server.get(f"/v1/{prefix}/namespaces/main/tables/t").status == 200
            wait_for(lambda branch=branch: branch in [read["branch"] for read in server.get(READS).json["reads"]], "a read")
            read = server.get(READS).json["reads"][0]
            assert (read["principal"], read["address"], read["object"], read["count"]) == (None, "127.0.0.1", "main.t", 1)


def test_reads_are_not_audited_by_default(fresh: Guarded) -> None:
    """A denial, which is written, is the proof that the record was written."""
    assert fresh.get("reader", T).status == 200
    fresh.get("stranger", T)
    conn = fresh.lake.psycopg()
    wait_for(lambda: conn.execute("SELECT count(*) FROM iceberg_audit").fetchone() == (1,), "the denial")
    assert conn.execute("SELECT count(*) FROM iceberg_read").fetchone() == (0,)


KEY: ReadKey = ("GET", b"/v1/lake/namespaces/a/tables/t", "alice", "127.0.0.1", ReadAnswer(7, "read"))


def count(counter: ReadCounter, times: int, key: ReadKey = KEY) -> None:
    """Count equal reads, as the server does."""
    for _ in range(times):
        if counter.is_chosen() and not counter.count_again(key):
            counter.count_first(key, ReadContext("r", "loadTable", "a.t"))


def named(principal: str) -> ReadKey:
    """A read of that principal."""
    return (*KEY[:2], principal, *KEY[3:])


def test_equal_reads_are_one_row() -> None:
    """Of one principal, address, path and answer; what is taken is not taken again."""
    counter = ReadCounter(1.0)
    count(counter, 1000)
    for place, changed in ((2, None), (3, "::1"), (4, ReadAnswer(8, "read")), (4, ReadAnswer(7)), (0, "POST")):
        count(counter, 2, (*KEY[:place], changed, *KEY[place + 1 :]))  # pyright: ignore[reportArgumentType]
    assert sorted(read.read_count for read in counter.take()) == [2, 2, 2, 2, 2, 1000]
    assert counter.take() == []


def test_a_sample_has_its_share() -> None:
    """Of 10,000 reads with a share of one half between 4,500 and 5,500 are counted; chance misses that once in 10^22 runs."""
    counter = ReadCounter(0.5)
    count(counter, 10_000)
    [read] = counter.take()
    assert 4500 < read.read_count < 5500
    assert counter.dropped_count == 0


def test_too_many_different_reads_are_counted_as_missing() -> None:
    """The memory is bounded; those that are known are counted on."""
    counter = ReadCounter(1.0, max_kinds=2)
    for number in range(5):
        count(counter, 1, named(str(number)))
    count(counter, 1, named("0"))
    assert sorted(read.read_count for read in counter.take()) == [1, 2]
    assert counter.dropped_count == 3


def test_reads_that_postgres_refuses_are_counted_as_missing(opened: Lake, lake: FreshLake) -> None:
    """And those that come after are written, also while the server stops."""
    conn = lake.psycopg()
    conn.execute("ALTER TABLE iceberg_read RENAME TO iceberg_gone")
    log = AuditLog(opened, 90, ReadCounter(1.0))
    count(log.reads, 3)
    log.start()
    wait_for(lambda: log.reads.dropped_count == 3, "the reads to be refused")
    conn.execute("ALTER TABLE iceberg_gone RENAME TO iceberg_read")
    count(log.reads, 4, named("after"))
    log.stop()
    assert conn.execute("SELECT principal, read_count FROM iceberg_read").fetchall() == [("after", 4)]


def test_old_reads_go(opened: Lake, lake: FreshLake) -> None:
    """By their own number of days; lines of changes stay."""
    conn = lake.psycopg()
    write_old(conn)
    log = AuditLog(opened, 90, reads_days=1, first_s=0)
    log.start()
    wait_for(lambda: conn.execute("SELECT count(*) FROM iceberg_read").fetchone() == (1440,), "old reads to go")
    log.stop()
    assert conn.execute("SELECT count(*) FROM iceberg_audit").fetchone() == (1,)


def write_old(conn: Connection) -> None:
    """Write a read of each of 5,000 minutes, and an old change."""
    conn.execute(
        "INSERT INTO iceberg_read (first_at, last_at, read_count, request_id, operation)"
        " SELECT now(), now() - n * interval '1 minute', 1, 'r', 'loadTable' FROM generate_series(0, 5000) n"
    )
    conn.execute("INSERT INTO iceberg_audit (logged_at, request_id, operation, objects) VALUES (now() - interval '3 days', 'r', 'o', '{}')")


@pytest.mark.parametrize("name", ["a.\0t", f"a.{''.join(map(chr, range(0x4E00, 0x4E00 + 4000)))}"], ids=["NUL", "too long for an index"])
def test_names_that_postgres_cannot_store_lose_no_read(opened: Lake, lake: FreshLake, name: str) -> None:
    """A NUL is left out; a name may be longer than a key of an index."""
    counter = ReadCounter(1.0)
    counter.count_first(KEY, ReadContext("r", "loadTable", name))
    log = AuditLog(opened, 90, counter)
    log.start()
    log.stop()
    settings = make_settings(lake)
    warehouse = open_warehouse("lake", lake.dsn, lake.metadata_schema, read_store_settings(settings.lakes()[0]))
    stored = name.replace("\0", "")
    [read] = list_reads(warehouse, 10).reads
    close_lake(warehouse.lake)
    assert (encode_read(read)["object"], counter.dropped_count) == (stored, 0)
