"""`export` to another REST catalog, killed (-9) and run again: each table is there once, whole, and nothing else once the grace is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.dying import Moment, draw
from tests.pipeline.holding import check_cleared, check_holding
from tests.pipeline.transfer.ferry import Ferry, describe, write_properties
from tests.pipeline.transfer.killed.killing import LASTING, LONG_KILLS, ROWS, SEED, STEPS, Blow, kill
from tests.rest.serving import WAREHOUSE, make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.fixture
def other(stack: SharedStack, ferry: Ferry) -> Iterator[Served]:
    """Another lake, on S3, behind a server of its own."""
    with make_lake(stack) as lake, serve(make_settings(lake)) as server:
        yield Served(lake, server)


def check_export(ferry: Ferry, other: Served, blow: Blow) -> None:
    """Kill, look, run again, and look at both lakes."""
    ferry.ask_duckdb("CREATE SCHEMA ns")
    for name in "ab":
        ferry.ask_duckdb(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")
    store = other.lake.store
    keys = {"s3.endpoint": store.endpoint or "", "client.region": store.region, "s3.access-key-id": store.access_key_id}
    keys |= {"s3.secret-access-key": store.secret_access_key, "warehouse": WAREHOUSE}
    given = write_properties(blow.home, keys)
    kill(ferry, "export", blow, place=other.server.uri, properties=str(given["properties"]))
    assert all(count_rows(other, name) == (ROWS, ROWS) for name in list_tables(other))
    report = ferry.bring("export", other.server.uri, grace=0, **given)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    assert list_tables(other) == ["a", "b"]
    assert [count_rows(other, name) for name in "ab"] == [(ROWS, ROWS)] * 2
    check_cleared(other)
    check_holding(ferry.served)


def list_tables(served: Served) -> list[str]:
    """The other lake's tables in the namespace; none where there is no such namespace."""
    answer = served.server.get("namespaces/ns/tables")
    return sorted(item["name"] for item in answer.json["identifiers"]) if answer.status == 200 else []


def count_rows(served: Served, name: str) -> tuple[int, int] | None:
    """A table's rows, and how many of them differ, as DuckDB counts them."""
    return served.lake.duckdb().execute(f"SELECT count(*), count(DISTINCT id) FROM ns.{name}").fetchone()


@pytest.mark.long
def test_a_killed_export_is_run_again(ferry: Ferry, other: Served, tmp_path: Path) -> None:
    """When the second table is written, and nobody knows it yet."""
    check_export(ferry, other, Blow(tmp_path, Moment(STEPS.index("publish ns.b"))))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_an_export_may_be_killed_anywhere(ferry: Ferry, other: Served, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    check_export(ferry, other, Blow(tmp_path, draw(number, SEED, LASTING)))
