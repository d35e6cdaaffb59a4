"""Plans that do not fit one answer: each part is found once, by any server, and stays what it was."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from duckicelake.catalog.scanning.scans import PlannedScan, ScanLimits, check_plan, fetch_plan, fetch_tasks, plan_scan
from duckicelake.catalog.scanning.sources import ScanCache
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchPlanId, NoSuchPlanTask, NoSuchTable
from duckicelake.iceberg.scan_tasks import ScanRequest, parse_scan_request
from tests.catalog.conftest import Opener
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

T = Ident(("main",), "t")
SMALL = ScanLimits(tasks=7, entries=11, spans=3)
HISTORY = (
    "CREATE TABLE t (id INTEGER, k INTEGER)",
    "INSERT INTO t SELECT i, i % 3 FROM range(60) r(i)",
    "ALTER TABLE t SET PARTITIONED BY (k)",
    "INSERT INTO t SELECT i, i % 40 FROM range(100, 2100) r(i)",
    "DELETE FROM t WHERE id % 100 = 1",
    "INSERT INTO t SELECT i, i % 25 FROM range(3000, 4000) r(i)",
    "DELETE FROM t WHERE k = 13",
)


@pytest.fixture
def table(lake: FreshLake) -> FreshLake:
    """A table of some 60 files of two specs, some with deletes."""
    conn = lake.duckdb()
    for statement in HISTORY:
        conn.execute(statement)
    return lake


def walk(warehouse: Warehouse, first: PlannedScan, limits: ScanLimits = SMALL) -> Iterator[PlannedScan]:
    """Every part of a plan."""
    yield first
    waiting = list(first.plan_tasks)
    while waiting:
        part = fetch_tasks(warehouse, T, waiting.pop(), limits)
        waiting += part.plan_tasks
        yield part


def list_tasks(parts: Iterator[PlannedScan]) -> dict[str, list[str]]:
    """Data files by path, each with its deletes; none is planned twice."""
    found: dict[str, list[str]] = {}
    for part in parts:
        deletes = [json.loads(item)["file-path"] for item in part.deletes]
        used: set[int] = set()
        for task in map(json.loads, part.tasks):
            places = cast("list[int]", task.get("delete-file-references", []))
            assert task["data-file"]["file-path"] not in found
            found[task["data-file"]["file-path"]] = [deletes[place] for place in places]
            used.update(places)
        assert used == set(range(len(deletes)))
    return found


def is_(kind: str, value: int) -> ScanRequest:
    """A scan of the rows whose `k` is like that."""
    return parse_scan_request({"filter": {"type": kind, "term": "k", "value": value}})


@pytest.mark.parametrize(
    "request_", long_after(1, [ScanRequest(), is_("lt", 20), is_("eq", 5), is_("not-eq", 5)]), ids=["all", "half", "few", "most"]
)
def test_all_parts_are_the_whole_and_none_is_larger_than_it_may_be(
    table: FreshLake, warehouse: Warehouse, open_server: Opener, request_: ScanRequest
) -> None:
    """Whoever is asked for them: a server that has never seen the plan too."""
    whole = plan_scan(warehouse, T, request_)
    assert not whole.plan_tasks
    first = plan_scan(warehouse, T, request_, SMALL)
    parts = list(walk(open_server(table), first))
    assert list_tasks(iter(parts)) == list_tasks(iter([whole]))
    assert all(len(part.tasks) <= SMALL.tasks and len(part.plan_tasks) <= SMALL.spans for part in parts)
    assert len(parts) > 1
    assert first.plan_id == whole.plan_id == fetch_plan(warehouse, T, first.plan_id, SMALL).plan_id


@pytest.mark.whole
def test_a_plan_stays_what_it_was(table: FreshLake, warehouse: Warehouse) -> None:
    """Commits, new names, a flush and a merge between its parts change none of them."""
    request = is_("gt", 2)
    expected = list_tasks(iter([plan_scan(warehouse, T, request)]))
    first = plan_scan(warehouse, T, request, SMALL)
    conn = table.duckdb()
    conn.execute("DELETE FROM t WHERE id < 2000; INSERT INTO t VALUES (-1, 30)")
    conn.execute("ALTER TABLE t RENAME COLUMN k TO key")
    assert list_tasks(walk(warehouse, first)) == expected
    conn.execute("CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')")
    conn.execute("ALTER TABLE t RENAME TO u; CREATE TABLE t AS SELECT 1 AS k")
    for token in first.plan_tasks:
        with pytest.raises(NoSuchPlanTask):
            fetch_tasks(warehouse, T, token)
    renamed = Ident(("main",), "u")
    found = list_tasks(iter([first, *(fetch_tasks(warehouse, renamed, token) for token in first.plan_tasks)]))
    assert found.keys() == expected.keys()


def test_what_is_gone_is_not_there(table: FreshLake, warehouse: Warehouse) -> None:
    """Plans of a table that was dropped and made again by its name are of another one."""
    first = plan_scan(warehouse, T, ScanRequest(), SMALL)
    conn = table.duckdb()
    conn.execute("DROP TABLE t")
    with pytest.raises(NoSuchTable):
        fetch_tasks(warehouse, T, first.plan_tasks[0])
    conn.execute("CREATE TABLE t (id INTEGER, k INTEGER)")
    with pytest.raises(NoSuchPlanTask):
        fetch_tasks(warehouse, T, first.plan_tasks[0])
    for act in (fetch_plan, check_plan):
        with pytest.raises(NoSuchPlanId):
            act(warehouse, T, first.plan_id)
    nothing = plan_scan(warehouse, T, ScanRequest())
    assert fetch_plan(warehouse, T, nothing.plan_id).tasks == []
    conn.execute("DROP TABLE t; CREATE TABLE t (id INTEGER, k INTEGER)")
    for act in (fetch_plan, check_plan):
        with pytest.raises(NoSuchPlanId):
            act(warehouse, T, nothing.plan_id)


def test_what_was_read_is_not_read_again(table: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests and their lists never change: the second plan asks the store for nothing."""
    first = plan_scan(warehouse, T, ScanRequest())

    def refuse(*_: Any) -> Any:
        raise AssertionError("the store was asked")

    for name in ("read", "read_small"):
        monkeypatch.setattr(type(warehouse.objects), name, refuse)
    again = plan_scan(warehouse, T, is_("eq", 5))
    assert 0 < len(again.tasks) < len(first.tasks)
    assert plan_scan(warehouse, T, ScanRequest()).tasks == first.tasks
    assert 0 < warehouse.scans.size_bytes < warehouse.scans.most_bytes


def test_memory_is_bounded(table: FreshLake, warehouse: Warehouse) -> None:
    """What was used longest ago is forgotten, and what is too large never kept; the plan is the same."""
    expected = plan_scan(warehouse, T, ScanRequest()).tasks
    # three fourths of what it would take
    small = replace(warehouse, scans=ScanCache(warehouse.scans.size_bytes * 3 // 4))
    for number in range(5):
        assert plan_scan(small, T, is_("gt-eq", number)).tasks != []
        assert 0 < small.scans.size_bytes <= small.scans.most_bytes
    assert len(small.scans) < len(warehouse.scans)
    assert plan_scan(small, T, ScanRequest()).tasks == expected
