"""A database that goes away while Spark is in the midst of its rows: nothing is taken, and everything once when it is back."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import psycopg
import pytest

from duckicelake.errors import CatalogError
from duckicelake.pipeline.ingest.options import Status
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.ingest.test_jdbc import NEW, Shop
from tests.rest.proxy import wire_to
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
ROWS, MIDST = 25_000, 15_000
"""More rows than are fetched at once (10,000), and that at which the reader waits."""
FIND_READERS = """
SELECT array_agg(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory' HAVING count(*) > 0
"""
PARTS = {"partitionColumn": "id", "lowerBound": "0", "upperBound": str(ROWS), "numPartitions": "2"}


def fill(shop: Shop) -> dict[str, str]:
    """Orders that are read through a view, in which one row waits for a lock; what Spark is told to read."""
    shop.conn.execute(f"INSERT INTO shop.orders SELECT i, now(), 1.25, 'n' FROM generate_series(1, {ROWS}) i".encode())
    shop.conn.execute(
        "CREATE FUNCTION shop.wait(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" IF id = {MIDST} THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN true; END $$".encode()
    )
    shop.conn.execute("CREATE VIEW shop.slow AS SELECT * FROM shop.orders WHERE shop.wait(id)")
    return shop.login | {"dbtable": "shop.slow"}


@contextmanager
def holding_up(shop: Shop, end: Callable[[list[int]], None]) -> Generator[None]:
    """Inside, a reader waits in the midst of the rows, and is ended then."""
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            with psycopg.connect(shop.conn.info.dsn, password=shop.login["password"], autocommit=True) as conn:
                (found,) = wait_for(lambda: conn.execute(FIND_READERS).fetchone(), "a reader in the midst of the rows", 120)
                end(found)
        except BaseException as error:  # noqa: BLE001  the test shows it
            failed.append(error)

    shop.conn.execute("SELECT pg_advisory_lock(7)")
    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
        shop.conn.execute("SELECT pg_advisory_unlock(7)")
    assert failed == []


def check_refused(mill: Mill, shop: Shop, how: dict[str, Any], end: Callable[[list[int]], None]) -> str:
    """The run fails and says why; the message. There is no table, no branch, and no secret is told."""
    with holding_up(shop, end), pytest.raises(CatalogError) as failed:
        mill.run(**how)
    message = failed.value.message
    assert message.endswith("Nothing was taken."), message
    assert not any(word in message for word in ("Suppressed", "\tat ", shop.login["password"])), message
    assert [mill.served.server.get(f"namespaces/raw/tables/{name}").status for name in ("trips", "trips__ingested")] == [404, 404]
    return message


@pytest.mark.parametrize("parts", [pytest.param({}, id="whole"), pytest.param(PARTS, id="parts", marks=pytest.mark.long)])
def test_a_reader_that_is_ended_in_the_midst_of_its_rows(mill: Mill, parts: dict[str, str]) -> None:
    """By Postgres, whose words are told; the next run has every row once, and knows from which one on others are new."""
    shop = Shop(mill)
    how = shop.options(reading=fill(shop) | parts, **NEW)

    def end(readers: list[int]) -> None:
        assert len(readers) == 1
        shop.conn.execute("SELECT pg_terminate_backend(%s)", [readers[0]])

    assert "terminating connection due to administrator command" in check_refused(mill, shop, how, end)
    done = mill.run(**how)
    assert (done.status, done.rows_in, done.rows_out) == (Status.done, ROWS, ROWS)
    assert mill.ask("SELECT count(*), count(DISTINCT id), max(id) FROM raw.trips") == [(ROWS, ROWS, ROWS)]
    assert mill.rows("trips__ingested", "rows, watermark") == [(ROWS, str(ROWS))]
    assert mill.run(**how).status is Status.nothing_new
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


@pytest.mark.long
def test_a_database_that_goes_in_the_midst_of_its_rows(mill: Mill) -> None:
    """Nobody answers there any more, nor in the next run; rows that are in the table stay, and are not taken again."""
    shop = Shop(mill)
    shop.add(1, 2)
    reading = shop.reading
    assert mill.run(**shop.options(**NEW)).rows_out == 2
    shop.conn.execute("TRUNCATE shop.orders")
    reading = fill(shop)
    parts = shop.conn.info
    with wire_to(parts.host, parts.port) as wire:
        source = shop.uri.replace(f"{parts.host}:{parts.port}", f"127.0.0.1:{wire.port}")
        how = {"source": source, "reading": reading, **NEW}
        with holding_up(shop, lambda _: wire.cut()), pytest.raises(CatalogError) as failed:
            mill.run(**how)
        with pytest.raises(CatalogError) as again:
            mill.run(**how)
        for message in (failed.value.message, again.value.message):
            assert message.endswith("Nothing was taken."), message
            assert shop.login["password"] not in message
        assert mill.rows(columns="id") == [(1,), (2,)]
        wire.mend()
        assert mill.run(**how).rows_out == ROWS
    assert mill.ask("SELECT count(*) FROM raw.trips") == [(ROWS + 2,)]
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]
