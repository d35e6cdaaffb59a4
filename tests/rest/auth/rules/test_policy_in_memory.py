"""Decisions are made in memory: the rows behind them are read when they changed, and not before."""

import asyncio

import pytest

from duckicelake.access.policy import LakePolicy
from duckicelake.catalog.access_rules import GrantText, add_principal, change_grants, read_policy
from duckicelake.catalog.warehouse import close_warehouse, open_warehouse
from duckicelake.errors import ServiceUnavailable
from duckicelake.lake.rows import Position
from duckicelake.lake.watch import Watch
from duckicelake.rest.context import PolicyCache
from duckicelake.store.s3 import StoreSettings
from tests.support.lakes import FreshLake

DATA = ("INSERT INTO t VALUES (1)", "DELETE FROM t WHERE i = 1", "INSERT INTO t SELECT range FROM range(100)")
NAMES = ("ALTER TABLE t RENAME TO u", "CREATE VIEW v AS SELECT 1 AS i", "CREATE SCHEMA s", "DROP TABLE u")


def test_rows_are_read_when_rules_or_names_change(lake: FreshLake) -> None:
    """Once for many who ask; not for what changes rows alone."""
    duck = lake.duckdb()
    duck.execute("CREATE TABLE t (i INTEGER)")
    keys = lake.store
    store = StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)
    warehouse = open_warehouse("lake", lake.dsn, lake.metadata_schema, store)
    reads: list[Position] = []

    def read() -> tuple[LakePolicy, Position]:
        found = read_policy(warehouse)
        reads.append(found[1])
        return found

    async def story() -> None:
        watch = Watch(lake.dsn, lake.metadata_schema)
        rules = PolicyCache(watch, read)
        await asyncio.gather(*(rules.get() for _ in range(20)))
        assert len(reads) == 1
        for statement in DATA:
            duck.execute(statement)
            await rules.get()
        assert len(reads) == 1
        for number, statement in enumerate(NAMES):
            duck.execute(statement)
            await rules.get()
            assert len(reads) == 2 + number, statement
        add_principal(warehouse.lake, "alice")
        assert set((await rules.get()).accounts) == {"alice"}
        change_grants(warehouse.lake, GrantText(["read"], "namespace:main", "alice"), gives=True)
        assert (await rules.get()).get_rights("alice").grants.shows(("main",))
        before = len(reads)
        change_grants(warehouse.lake, GrantText(["read"], "namespace:main", "alice"), gives=True)
        await rules.get()
        assert len(reads) == before
        await watch.close()
        with pytest.raises(ServiceUnavailable):
            await rules.get()

    asyncio.run(story())
    close_warehouse(warehouse)
