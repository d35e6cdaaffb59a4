"""Loading a table: shapes, tags, compression, and never a stale answer."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

PATH = "namespaces/main/tables/t"


@pytest.fixture
def table(lake: FreshLake) -> str:
    """A table of ten rows."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    return PATH


@pytest.fixture
def wide_table(lake: FreshLake) -> str:
    """A table whose metadata is long."""
    columns = ", ".join(f"a_column_with_a_long_name_{number} INTEGER" for number in range(1500))
    lake.duckdb().execute(f"CREATE TABLE t ({columns})")
    return PATH


def read_head(lake: FreshLake) -> int:
    """The newest lake snapshot."""
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def current_snapshot(answer: Answer) -> int:
    """The current snapshot of a loaded table."""
    assert answer.status == 200
    return answer.json["metadata"]["current-snapshot-id"]


def test_a_load_has_location_metadata_and_config(server: Server, table: str) -> None:
    """The three parts of a LoadTableResult."""
    body = server.get(table).json
    assert set(body) == {"metadata-location", "metadata", "config"}
    assert body["metadata-location"].endswith(".metadata.json")
    assert body["metadata"]["table-uuid"]


def test_the_second_load_is_the_first_one_again(server: Server, table: str) -> None:
    """The same bytes under the same tag, the second time from the cache."""
    first, second = server.get(table), server.get(table)
    assert (first.body, first.headers["etag"]) == (second.body, second.headers["etag"])
    assert server.count("duckicelake_table_cache_total", outcome="hit") == 1
    assert server.count("duckicelake_table_cache_total", outcome="miss") == 1
    assert server.count("duckicelake_table_cache_entries") == 1
    assert server.count("duckicelake_table_cache_bytes") >= len(first.body)


def test_a_cached_answer_has_the_headers_of_a_fresh_one(server: Server, table: str) -> None:
    """Only the request's id and the date differ."""
    first, second = ({**server.get(table).headers, "x-request-id": "", "date": ""} for _ in range(2))
    assert first == second


@pytest.mark.parametrize("warm", whole_after(1, [False, True]), ids=["fresh", "cached"])
def test_an_unchanged_table_is_not_sent_again(server: Server, table: str, warm: bool) -> None:
    """304 without a body for the tag itself, its strong form, a list and `*`; 200 for any other."""
    tag = server.get(table).headers["etag"]
    path = table if warm else f"{table}?unknown=1"
    for sent in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        answer = server.get(path, {"If-None-Match": sent})
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in answer.headers
    assert server.get(path, {"If-None-Match": '"other"'}).status == 200


def test_a_changed_table_has_another_tag(server: Server, lake: FreshLake, table: str) -> None:
    """The old tag is answered 200 with the new state after DuckDB's commit."""
    before = server.get(table)
    lake.duckdb().execute("INSERT INTO t VALUES (10)")
    after = server.get(table, {"If-None-Match": before.headers["etag"]})
    assert after.headers["etag"] != before.headers["etag"]
    assert current_snapshot(after) == read_head(lake)


def test_a_commit_keeps_the_cached_load_ready(server: Server, lake: FreshLake, table: str) -> None:
    """The load after it is sent from the cache, and is the one that another server sends."""
    hits = "duckicelake_table_cache_total"
    before = server.get(table)
    for number in range(3):
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": str(number)}}]}
        committed = server.ask("POST", table, {"content-type": "application/json"}, json.dumps(body).encode())
        assert committed.status == 200
        after = server.get(table)
        assert after.headers["etag"] == committed.headers["etag"] != before.headers["etag"]
        assert after.json["metadata"] == committed.json["metadata"]
        with serve(make_settings(lake)) as other:
            assert other.get(table).body == after.body
    assert server.count(hits, outcome="hit") == 3
    assert server.count(hits, outcome="stale") == 0
    lake.duckdb().execute("INSERT INTO t VALUES (10)")
    assert current_snapshot(server.get(table)) == read_head(lake)


def test_each_shape_is_kept_apart(server: Server, lake: FreshLake, table: str) -> None:
    """`snapshots=refs` shows fewer snapshots under another tag, cached or not; no parameter means all."""
    conn = lake.duckdb()
    for number in range(3):
        conn.execute(f"INSERT INTO t SELECT range FROM range({100 + number})")
    for _ in range(2):
        everything, refs = server.get(f"{table}?snapshots=all"), server.get(f"{table}?snapshots=refs")
        assert len(everything.json["metadata"]["snapshots"]) == 4
        assert len(refs.json["metadata"]["snapshots"]) == 1
        assert everything.headers["etag"] != refs.headers["etag"]
        assert everything.json["metadata-location"] == refs.json["metadata-location"]
        assert server.get(table).body == everything.body


@pytest.mark.parametrize("query", whole_after(1, ["", "?unknown=1"]), ids=["cached", "fresh"])
def test_a_long_answer_is_compressed_for_those_who_take_it(server: Server, wide_table: str, query: str) -> None:
    """The same body, plain or gzipped, under one tag."""
    plain = server.get(wide_table + query)
    zipped = server.get(wide_table + query, {"Accept-Encoding": "gzip, deflate"})
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert len(zipped.body) < len(plain.body) / 4
    assert gzip.decompress(zipped.body) == plain.body
    assert zipped.headers["etag"] == plain.headers["etag"]
    assert len(json.loads(plain.body)["metadata"]["schemas"][-1]["fields"]) == 1500


def test_two_servers_show_every_commit_at_once(lake: FreshLake, table: str) -> None:
    """When DuckDB's COMMIT has returned, the next load shows it, through whichever server."""
    conn = lake.duckdb()
    with serve(make_settings(lake)) as alice, serve(make_settings(lake)) as bob:
        for number in range(10):
            conn.execute(f"INSERT INTO t VALUES ({number})")
            head = read_head(lake)
            answers = [server.get(table) for server in (alice, bob, alice)]
            assert [current_snapshot(answer) for answer in answers] == [head, head, head]
            assert len({answer.body for answer in answers}) == 1


@pytest.mark.whole
def test_readers_never_see_less_than_was_committed(server: Server, lake: FreshLake, table: str) -> None:
    """Eight readers while DuckDB commits: what was acknowledged before a request is in its answer."""
    conn = lake.duckdb()
    committed = [read_head(lake)]

    def read_often() -> list[tuple[int, int]]:
        return [(committed[-1], current_snapshot(server.get(table))) for _ in range(40)]

    with ThreadPoolExecutor(8) as readers:
        reading = [readers.submit(read_often) for _ in range(8)]
        for number in range(20):
            conn.execute(f"INSERT INTO t VALUES ({number})")
            committed.append(read_head(lake))
        seen = [pair for one in reading for pair in one.result()]
    assert [pair for pair in seen if pair[1] < pair[0]] == []


def test_a_change_of_another_table_leaves_the_answer_ready(server: Server, lake: FreshLake, table: str) -> None:
    """Only what concerns the table makes it stale."""
    lake.duckdb().execute("CREATE TABLE other (i INTEGER)")
    for _ in range(2):
        server.get(table)
    lake.duckdb().execute("INSERT INTO other SELECT range FROM range(100)")
    server.get(table)
    assert server.count("duckicelake_table_cache_total", outcome="hit") == 2


def test_a_renamed_or_dropped_table_is_gone_at_once(server: Server, lake: FreshLake, table: str) -> None:
    """Its ready answer is not sent any more, and a new table of the name is another table."""
    uuid = server.get(table).json["metadata"]["table-uuid"]
    conn = lake.duckdb()
    conn.execute("ALTER TABLE t RENAME TO u")
    assert server.get(table).error == (404, "NoSuchTableException")
    assert server.ask("HEAD", table).status == 404
    assert server.get("namespaces/main/tables/u").json["metadata"]["table-uuid"] == uuid
    conn.execute("DROP TABLE u")
    assert server.get("namespaces/main/tables/u").error == (404, "NoSuchTableException")
    conn.execute("CREATE TABLE t (i INTEGER)")
    assert server.get(table).json["metadata"]["table-uuid"] != uuid


def test_requests_that_wait_share_one_check(server: Server, table: str) -> None:
    """Many requests at once ask Postgres fewer times than there are requests."""
    server.get(table)
    before = server.count("duckicelake_watch_checks_total", warehouse="lake")
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda _: server.get(table).status, range(640)))
    assert answers == [200] * 640
    assert 0 < server.count("duckicelake_watch_checks_total", warehouse="lake") - before < 640


def test_many_first_loads_are_made_once(server: Server, table: str) -> None:
    """Requests for a table that is being loaded wait for that load, then look again."""
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda _: server.get(table), range(16)))
    assert len({answer.body for answer in answers}) == 1
    loaded = server.count("duckicelake_table_cache_total", outcome="miss")
    assert server.count("duckicelake_table_cache_total", outcome="hit") > 0
    assert loaded <= 16


def test_a_cache_of_nothing_still_serves(lake: FreshLake, table: str) -> None:
    """DUCKICELAKE_CACHE_MAX_BYTES=0 switches the cache off and nothing else."""
    with serve(make_settings(lake, cache_max_bytes=0)) as server:
        first, second = server.get(table), server.get(table)
        assert first.body == second.body
        assert server.count("duckicelake_table_cache_total", outcome="hit") == 0
