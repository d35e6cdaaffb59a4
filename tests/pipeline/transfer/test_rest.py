"""REST catalogs: another lake behind another server, as source and as target."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.transfer.ferry import Ferry, check_signed, describe, write_properties
from tests.rest.serving import WAREHOUSE, make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.fixture
def other(stack: SharedStack, ferry: Ferry) -> Iterator[Served]:
    """Another lake, on S3, with a table, an emptied table and a view."""
    with make_lake(stack) as lake, serve(make_settings(lake)) as server:
        fill(lake)
        yield Served(lake, server)


def fill(lake: FreshLake) -> None:
    """Rows in files and inlined ones, of types of every kind; some are deleted again."""
    duck = lake.duckdb()
    duck.execute("CREATE SCHEMA shop")
    columns = "i AS id, i / 3 AS part, [i, NULL] AS list, {'a': DATE '2026-01-01' + i::INT} AS s"
    duck.execute(f"CREATE TABLE shop.t AS SELECT {columns} FROM range(200) r(i)")
    duck.execute("INSERT INTO shop.t VALUES (1000, NULL, NULL, NULL)")
    duck.execute("DELETE FROM shop.t WHERE id % 2 = 1")
    duck.execute("CREATE TABLE shop.none (x VARCHAR)")
    duck.execute("CREATE VIEW shop.v AS SELECT id FROM lake.shop.t")
    duck.close()


def make_given(served: Served, folder: Path) -> dict[str, Any]:
    """How the other catalog and its store are reached."""
    store = served.lake.store
    keys = {"s3.endpoint": store.endpoint, "client.region": store.region, "s3.access-key-id": store.access_key_id}
    keys |= {"s3.secret-access-key": store.secret_access_key, "warehouse": WAREHOUSE}
    return write_properties(folder, keys)


def test_a_rest_catalog_is_imported_and_exported(ferry: Ferry, other: Served, tmp_path: Path) -> None:
    """Tables and views come in; what is there goes out again under another namespace; both are told as there already then."""
    given = make_given(other, tmp_path)
    report = ferry.bring("import", other.server.uri, mode="copy", **given)
    assert describe(report) == [("shop.none", "done", 0), ("shop.t", "done", 101), ("shop.v", "done", None)], report.describe()
    assert ferry.ask_duckdb("SELECT count(*), sum(id), max(part) FROM lake.shop.t") == [(101, 10900, 66.0)]
    out = ferry.bring("export", other.server.uri, "shop.t", into="back", **given)
    assert describe(out) == [("back.shop.t", "done", 101)], out.describe()
    check_signed(report, ferry.load_here("shop", "t"))
    check_signed(out, other.server.get("namespaces/back%1Fshop/tables/t").json["metadata"])
    assert other.lake.duckdb().execute('SELECT count(*) FROM lake."back␟shop".t').fetchall() == [(101,)]
    again = ferry.bring("import", other.server.uri, "shop.t", "shop.v", mode="copy", **given)
    assert describe(again) == [("shop.t", "already-there", 101), ("shop.v", "already-there", None)]
    assert describe(ferry.bring("export", other.server.uri, "shop.t", into="back", **given)) == [("back.shop.t", "already-there", 101)]


@pytest.mark.long
def test_a_source_that_went_on_is_no_longer_the_same(ferry: Ferry, other: Served, tmp_path: Path) -> None:
    """A copy is of one state; a later one is refused, with what to do."""
    given = make_given(other, tmp_path)
    assert ferry.bring("import", other.server.uri, "shop.none", mode="copy", **given).status == 0
    other.lake.duckdb().execute("INSERT INTO shop.none VALUES ('late')")
    report = ferry.bring("import", other.server.uri, "shop.none", mode="copy", **given)
    assert (report.status, "an older state of this one" in report.moved[0].message) == (1, True)
    assert ferry.ask_duckdb("FROM lake.shop.none") == []
