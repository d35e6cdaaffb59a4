"""Commits of DuckDB that lose a race land later than the deletes in their files say."""

from duckicelake.catalog.warehouse import Warehouse
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, load
from tests.support.lakes import FreshLake


def test_deletes_dated_back_to_a_snapshot_already_read_are_seen(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """bob's delete takes the lake snapshot that alice's file already names, and is read before hers lands."""
    alice, bob = lake.duckdb(), lake.duckdb()
    alice.execute("CREATE TABLE t AS SELECT range AS id FROM range(200)")
    alice.execute("DELETE FROM t WHERE id < 15")
    load(warehouse)
    alice.execute("BEGIN")
    alice.execute("DELETE FROM t WHERE id BETWEEN 40 AND 60")
    bob.execute("DELETE FROM t WHERE id = 190")
    load(warehouse)
    alice.execute("COMMIT")
    seen = load(warehouse)
    assert load(open_server(lake)).metadata == seen.metadata
    check_every_snapshot(lake, alice, seen)
