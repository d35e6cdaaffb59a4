"""A Postgres or a store that keeps the line open and says nothing, and locks that nobody gives back."""

from collections.abc import Generator
from functools import partial
from urllib.parse import urlsplit

import pytest

from duckicelake.lake import connect, watch
from duckicelake.store import s3
from tests.lake.wire import Wire, wire_to
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

PATH = "namespaces/main/tables/t"
PATIENCE_S = 40


@pytest.fixture(autouse=True)
def table(lake: FreshLake) -> None:
    """A table of some rows."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")


@pytest.fixture
def store(lake: FreshLake) -> Generator[Wire]:
    """The wire between the server and S3."""
    parts = urlsplit(lake.store.endpoint)
    wire = Wire((str(parts.hostname), int(parts.port or 80)))
    yield wire
    wire.close()


def fine(server: Server, path: str) -> Answer | None:
    """The answer, when it is a good one."""
    answer = server.get(path)
    assert answer.status in (200, 503)
    return answer if answer.status == 200 else None


@pytest.mark.whole
def test_a_frozen_postgres_makes_nobody_wait_for_ever(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of request is answered 503 in bounded time, /readyz is red, and all is well when it goes on."""
    monkeypatch.setattr(connect, "CONNECTION_WAIT_S", 2.0)
    monkeypatch.setattr(connect, "SILENCE_MAX_S", 2.0)
    monkeypatch.setattr(watch, "CHECK_TIMEOUT_S", 2.0)
    with wire_to(lake.dsn) as (wire, dsn), serve(make_settings(lake, postgres_dsn=dsn, postgres_timeout_s=1)) as server:
        assert server.get("namespaces").status == 200
        wire.freeze()
        for path in (PATH, "namespaces"):
            answer = server.get(path)
            assert answer.error == (503, "SlowDownException")
            assert "Postgres does not answer" in answer.json["error"]["message"]
        assert server.get("/readyz").status == 503
        assert server.get("/healthz").status == 200
        wire.thaw()
        wait_for(partial(fine, server, PATH), "Postgres to go on", PATIENCE_S)
        wait_for(partial(fine, server, "/readyz"), "the server to be ready", PATIENCE_S)


def test_a_lock_that_is_not_given_back_ends_a_load(lake: FreshLake) -> None:
    """503 after `postgres_timeout_s`; other tables' metadata is locked too, so the lock's holder is to be found."""
    holder = lake.psycopg(autocommit=False)
    with serve(make_settings(lake, postgres_timeout_s=0.5)) as server:
        holder.execute("LOCK TABLE ducklake_data_file IN ACCESS EXCLUSIVE MODE")
        answer = server.get(PATH)
        assert answer.error == (503, "SlowDownException")
        assert "postgres_timeout_s" in answer.json["error"]["message"]
        holder.rollback()
        assert server.get(PATH).status == 200


@pytest.mark.whole
def test_a_frozen_store_makes_nobody_wait_for_ever(lake: FreshLake, store: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first load is answered 503 in bounded time, and is fine when the store goes on."""
    monkeypatch.setattr(s3, "ANSWER_SECONDS", 2)
    with serve(make_settings(lake, s3_endpoint=f"http://127.0.0.1:{store.port}")) as server:
        store.freeze()
        answer = server.get(PATH)
        assert answer.error == (503, "SlowDownException")
        assert "object store" in answer.json["error"]["message"]
        assert server.get("/readyz").status == 503
        store.thaw()
        wait_for(partial(fine, server, PATH), "the store to go on", PATIENCE_S)
