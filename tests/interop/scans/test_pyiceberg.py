"""PyIceberg lets the catalog plan its scans, and reads what DuckDB sees."""

import pytest

from tests.interop.rich_lake import TABLES, RichLake
from tests.support.readers import Ident, PyIcebergReader
from tests.support.tiers import whole_after

TRIPS, VISITS, MEASURES = (("main", name) for name in ("trips", "visits", "measures"))


@pytest.mark.parametrize("ident", whole_after(2, map(pytest.param, TABLES)), ids=".".join)
def test_a_scan_gives_the_rows_duckdb_sees(rich: RichLake, planned: PyIcebergReader, ident: Ident) -> None:
    """Files, inlined rows, deletes, defaults, odd names; an empty table."""
    asked = rich.served.server.count("duckicelake_requests_total", operation="planTableScan", status="200")
    rich.check_same(rich.truth.read(ident), planned.read(ident))
    assert rich.served.server.count("duckicelake_requests_total", operation="planTableScan", status="200") > asked


@pytest.mark.parametrize("ident", whole_after(1, map(pytest.param, (TRIPS, VISITS, MEASURES))), ids=".".join)
def test_every_snapshot_is_readable(rich: RichLake, planned: PyIcebergReader, ident: Ident) -> None:
    """A snapshot shows what DuckDB shows at the lake snapshot of the same id."""
    for snapshot in planned.catalog.load_table(ident).snapshots():
        rich.check_same(rich.truth.read(ident, snapshot.snapshot_id), planned.read(ident, snapshot.snapshot_id))


@pytest.mark.parametrize(
    ("ident", "condition"),
    [
        pytest.param(TRIPS, "id < 90", id="bounds"),
        pytest.param(TRIPS, "id = -1", id="out of all bounds"),
        pytest.param(TRIPS, "fare > 2000.50", id="decimal"),
        pytest.param(TRIPS, "city = 'Łódź'", id="text"),
        pytest.param(TRIPS, "city IS NULL", id="null"),
        pytest.param(TRIPS, "note = 'new'", id="column that older files lack"),
        pytest.param(TRIPS, "day >= '2200-01-01'", id="date"),
        pytest.param(TRIPS, "seen < '1970-01-01T00:00:00+00:00'", id="instant"),
        pytest.param(TRIPS, "id IN (7, 1004, 2001)", id="list of values"),
        pytest.param(TRIPS, "NOT (id < 3000 OR note IS NULL)", id="not"),
        pytest.param(VISITS, "country = 'de'", id="identity partition"),
        pytest.param(VISITS, "day >= '2026-03-01' AND day < '2026-04-01'", id="month partition"),
        pytest.param(VISITS, "country = 'pl' AND day = '2026-02-15'", id="both partitions"),
        pytest.param(VISITS, "country IS NULL", id="null partition"),
        pytest.param(VISITS, "country = 'se'", id="rows from before it was partitioned"),
        pytest.param(VISITS, "country <> 'de'", id="not equal"),
        pytest.param(VISITS, "day > '2027-01-01'", id="out of all partitions"),
    ],
)
def test_no_more_files_are_planned_than_the_client_would_and_no_rows_lost(
    rich: RichLake, planned: PyIcebergReader, pyiceberg: PyIcebergReader, ident: Ident, condition: str
) -> None:
    """By bounds and by partitions of several specs."""
    here, there = (reader.catalog.load_table(ident).scan(row_filter=condition) for reader in (planned, pyiceberg))
    assert {task.file.file_path for task in here.plan_files()} <= {task.file.file_path for task in there.plan_files()}
    rich.check_answer(f"FROM lake.{'.'.join(ident)} WHERE {condition}", here.to_arrow())


@pytest.mark.parametrize("condition", ["country = 'de'", "country IS NOT NULL", "amount >= 0", "id < 120"])
def test_rows_are_counted(rich: RichLake, planned: PyIcebergReader, condition: str) -> None:
    """From the residuals and counts of the plan alone where these are enough."""
    found = planned.catalog.load_table(VISITS).scan(row_filter=condition).count()
    assert [{"n": found}] == rich.ask(f"SELECT count(*) AS n FROM lake.visits WHERE {condition}").to_pylist()
