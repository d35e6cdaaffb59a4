"""A full disk, of the store or of Postgres: 503 with the reason, nothing half-written, and fine again when there is room."""

from collections.abc import Generator

import pytest

from tests.rest.faults.gateway import Gateway, gate_to
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

PATH = "namespaces/main/tables/t"
FULL_TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'could not extend file "base/5/1259": No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON iceberg_metadata_log EXECUTE FUNCTION refuse()
"""


@pytest.fixture(autouse=True)
def table(lake: FreshLake) -> None:
    """A table of ten rows, one of them inlined."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
        conn.execute("INSERT INTO t VALUES (1000)")


@pytest.fixture
def gateway(lake: FreshLake) -> Generator[Gateway]:
    """The gate between the server and S3."""
    with gate_to(lake.store.endpoint) as gate:
        yield gate


@pytest.mark.whole
@pytest.mark.parametrize("room_for", long_after(1, [0, 1, 3, 5]), ids=lambda count: f"after {count} objects")
def test_a_full_store_is_said_so_until_there_is_room(lake: FreshLake, gateway: Gateway, room_for: int) -> None:
    """Nothing is answered that is not whole in the store; what was ready before stays ready."""
    with serve(make_settings(lake, s3_endpoint=f"http://127.0.0.1:{gateway.server_port}")) as server:
        gateway.full_after = room_for
        answer = server.get(PATH)
        assert answer.error == (503, "SlowDownException")
        assert "XMinioStorageFull" in answer.json["error"]["message"] or "507" in answer.json["error"]["message"]
        assert server.get("namespaces/main/tables").status == 200
        gateway.full_after = None
        good = server.get(PATH)
        assert (good.status, good.json["metadata-location"].endswith("/v1.metadata.json")) == (200, True)
        gateway.is_full = True
        assert server.get(PATH).body == good.body
        with lake.duckdb() as conn:
            conn.execute("INSERT INTO t VALUES (1001)")
        assert server.get(PATH).error == (503, "SlowDownException")
        gateway.is_full = False
        assert server.get(PATH).json["metadata-location"].endswith("/v2.metadata.json")


def test_a_full_postgres_is_said_so_until_there_is_room(lake: FreshLake) -> None:
    """No number is given out by halves."""
    rows = lake.psycopg()
    rows.execute(FULL_TRIGGER.encode())
    with serve(make_settings(lake)) as server:
        answer = server.get(PATH)
        assert answer.error == (503, "SlowDownException")
        assert "disk of the lake's Postgres is full" in answer.json["error"]["message"]
        assert rows.execute("SELECT count(*) FROM iceberg_table").fetchone() == (0,)
        assert rows.execute("SELECT count(*) FROM iceberg_schema").fetchone() == (0,)
        rows.execute("DROP TRIGGER refuse ON iceberg_metadata_log")
        assert server.get(PATH).json["metadata-location"].endswith("/v1.metadata.json")
