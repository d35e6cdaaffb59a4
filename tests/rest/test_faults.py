"""Postgres or the object store out of reach: refused with the reason, and fine again without a restart."""

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.config import Settings
from duckicelake.lake import connect, watch
from duckicelake.rest.routes import server as server_routes
from duckicelake.rest.routes.server import find_reason
from tests.rest.proxy import Wire, wire_to
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake

PATH = "namespaces/main/tables/t"
READS = [PATH, f"{PATH}?snapshots=refs", "namespaces", "namespaces/main", "namespaces/main/tables"]
PATIENCE_S = 30.0


@pytest.fixture
def postgres(lake: FreshLake) -> Generator[Wire]:
    """The wire between the server and Postgres."""
    parts = conninfo_to_dict(lake.dsn)
    with wire_to(str(parts["host"]), int(parts["port"] or 5432)) as wire:
        yield wire


@pytest.fixture
def store(lake: FreshLake) -> Generator[Wire]:
    """The wire between the server and S3."""
    parts = urlsplit(lake.store.endpoint)
    with wire_to(str(parts.hostname), int(parts.port or 80)) as wire:
        yield wire


@pytest.fixture
def settings(lake: FreshLake, postgres: Wire, store: Wire) -> Settings:
    """A server's settings that lead over both wires."""
    dsn = make_conninfo(lake.dsn, host="127.0.0.1", port=postgres.port)
    return make_settings(lake, postgres_dsn=dsn, s3_endpoint=f"http://127.0.0.1:{store.port}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for Postgres as long as a busy machine needs, and no longer: each test waits to the end."""
    monkeypatch.setattr(connect, "CONNECTION_WAIT_S", 2.0)
    monkeypatch.setattr(watch, "CHECK_TIMEOUT_S", 2.0)


@pytest.fixture(autouse=True)
def table(lake: FreshLake) -> None:
    """A table of ten rows."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")


def wait_for(ask: Callable[[], Answer], status: int) -> Answer:
    """Ask until the answer has that status; everything before must be 503."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask()).status != status:
        assert answer.status == 503
        assert time.monotonic() < deadline
    return answer


def read_reason(server: Server) -> str:
    """Why /readyz is red."""
    answer = server.get("/readyz")
    assert answer.status == 503
    assert answer.json["ready"] is False
    assert answer.json["warehouses"]["lake"]["ready"] is False
    return answer.json["warehouses"]["lake"]["reason"]


def check_no_secret(lake: FreshLake, text: str) -> None:
    """Neither a key nor a password is in what clients see."""
    password = conninfo_to_dict(lake.dsn).get("password")
    for secret in (lake.store.secret_access_key, lake.store.access_key_id, password):
        assert not secret or str(secret) not in text


def test_a_server_with_everything_in_reach_is_ready(settings: Settings) -> None:
    """200, and each warehouse by name."""
    with serve(settings) as server:
        assert server.get("/healthz").status == 200
        answer = server.get("/readyz")
        assert (answer.status, answer.json) == (200, {"ready": True, "warehouses": {"lake": {"ready": True, "reason": None}}})


def test_without_postgres_reads_are_refused_and_then_fine_again(settings: Settings, postgres: Wire, lake: FreshLake) -> None:
    """503 with Retry-After while it is away, cached or not; alive all the time; the same answers afterwards."""
    with serve(settings) as server, ThreadPoolExecutor(len(READS)) as clients:
        before = list(clients.map(server.get, READS))
        assert [answer.status for answer in before] == [200] * len(READS)
        postgres.cut()
        for answer in clients.map(server.get, READS):
            assert answer.error == (503, "SlowDownException")
            assert answer.headers["retry-after"] == "1"
            assert "Postgres" in answer.json["error"]["message"]
            check_no_secret(lake, answer.body.decode())
        assert server.get("/healthz").status == 200
        postgres.mend()
        assert [wait_for(partial(server.get, path), 200).body for path in READS] == [answer.body for answer in before]


@pytest.mark.whole
def test_readyz_names_postgres(settings: Settings, postgres: Wire, lake: FreshLake) -> None:
    """Red with the reason while it is away, green afterwards."""
    with serve(settings) as server:
        postgres.cut()
        reason = read_reason(server)
        assert "Postgres" in reason
        check_no_secret(lake, reason)
        postgres.mend()
        assert wait_for(lambda: server.get("/readyz"), 200).json["ready"] is True


def test_strangers_who_ask_for_readyz_share_one_look(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once; who asks later gets what is there now, and who asks within a second what was seen last."""
    looks: list[float] = []
    monkeypatch.setattr(server_routes, "find_reason", lambda lake: looks.append(time.monotonic()) or find_reason(lake))
    with serve(settings) as server, ThreadPoolExecutor(20) as clients:
        began = time.monotonic()
        answers = list(clients.map(server.get, ["/readyz"] * 100))
        assert {answer.status for answer in answers} == {200}
        assert 1 <= len(looks) <= 1 + (time.monotonic() - began) / server_routes.CHECK_INTERVAL_S
        monkeypatch.setattr(server_routes, "CHECK_INTERVAL_S", 0.0)
        before = len(looks)
        assert [server.get("/readyz").status for _ in range(2)] == [200] * 2
        assert len(looks) == before + 2


def test_readyz_names_the_store(settings: Settings, store: Wire, lake: FreshLake) -> None:
    """Red with the reason while S3 is away, green afterwards."""
    with serve(settings) as server:
        store.cut()
        reason = read_reason(server)
        assert "store" in reason.lower() or "s3" in reason.lower()
        check_no_secret(lake, reason)
        store.mend()
        assert wait_for(lambda: server.get("/readyz"), 200).json["ready"] is True


def test_a_ready_answer_needs_no_store(settings: Settings, store: Wire) -> None:
    """A cached load makes no object-store call."""
    with serve(settings) as server:
        before = server.get(PATH)
        store.cut()
        assert server.get(PATH).body == before.body


def test_a_first_load_without_the_store_is_refused_and_then_fine(settings: Settings, store: Wire, lake: FreshLake) -> None:
    """Nothing is answered before its objects are there."""
    with serve(settings) as server:
        store.cut()
        answer = server.get(PATH)
        assert answer.error == (503, "SlowDownException")
        check_no_secret(lake, answer.body.decode())
        store.mend()
        assert wait_for(lambda: server.get(PATH), 200).json["metadata"]["current-snapshot-id"] > 0


@pytest.mark.whole
def test_a_server_starts_without_postgres_and_store(settings: Settings, postgres: Wire, store: Wire) -> None:
    """It is alive and red at first, and serves as soon as both are there, without a restart."""
    postgres.cut()
    store.cut()
    with serve(settings) as server:
        assert server.get("/healthz").status == 200
        assert "Postgres" in read_reason(server)
        assert server.get("/v1/config").status == 200
        assert server.get(PATH).error == (503, "SlowDownException")
        postgres.mend()
        store.mend()
        assert wait_for(lambda: server.get(PATH), 200).status == 200
        assert wait_for(lambda: server.get("/readyz"), 200).status == 200


def test_a_write_is_not_told_to_come_again(settings: Settings, postgres: Wire) -> None:
    """POST answered 503 has no Retry-After."""
    with serve(settings) as server:
        postgres.cut()
        answer = server.ask("POST", f"{PATH}/metrics", {"Content-Type": "application/json"}, b'{"report-type":"scan-report"}')
        assert answer.error == (503, "SlowDownException")
        assert "retry-after" not in answer.headers


@pytest.mark.whole
def test_head_without_postgres_has_no_body(settings: Settings, postgres: Wire) -> None:
    """503 and Retry-After, nothing to read, whether the table's load is ready or not."""
    with serve(settings) as server:
        server.get(PATH)
        postgres.cut()
        for path in (PATH, "namespaces/main"):
            answer = server.ask("HEAD", path)
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"", "1")


@pytest.mark.whole
def test_outages_are_counted(settings: Settings, postgres: Wire) -> None:
    """/metrics works without Postgres and counts what was refused."""
    with serve(settings) as server:
        postgres.cut()
        server.get("namespaces")
        assert server.count("duckicelake_unavailable_total", operation="listNamespaces") == 1
