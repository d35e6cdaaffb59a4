"""Spark lets the catalog plan its scans, and reads what DuckDB sees."""

import pytest

from tests.interop.rich_lake import RichLake
from tests.support.readers import SparkReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

QUERIES = [
    pytest.param("SELECT * FROM {}.main.trips", id="position deletes"),
    pytest.param("SELECT * FROM {}.main.measures", id="deletion vectors"),
    pytest.param("SELECT * FROM {}.main.empty", id="no rows"),
    pytest.param("SELECT * FROM {}.main.trips WHERE id IN (7, 1004, 2001)", id="list of values"),
    pytest.param("SELECT fare, note FROM {}.main.trips WHERE city = 'Łódź'", id="text"),
    pytest.param("SELECT id, seen FROM {}.main.trips WHERE seen < TIMESTAMP '1970-01-01 00:00:00+00:00'", id="instant"),
    pytest.param("SELECT id FROM {}.main.trips WHERE fare > 1800.25 AND day < DATE '2026-02-01'", id="decimal and date"),
    pytest.param("SELECT spot.x FROM {}.main.trips WHERE spot.y < -1200", id="inside a struct"),
    pytest.param("SELECT id FROM {}.main.trips WHERE city LIKE 'city 3%' AND NOT city LIKE 'city 4%'", id="beginning of a text"),
    pytest.param("SELECT * FROM {}.main.visits WHERE country = 'de'", id="identity partition"),
    pytest.param("SELECT * FROM {}.main.visits WHERE day >= DATE '2026-03-01' AND day < DATE '2026-04-01'", id="month partition"),
    pytest.param("SELECT * FROM {}.main.visits WHERE country IS NULL OR country = 'se'", id="outside of partitions"),
    pytest.param("SELECT * FROM {}.main.visits WHERE country <> 'de'", id="not equal"),
    pytest.param("SELECT country, count(*) AS n FROM {}.main.visits GROUP BY country", id="aggregate"),
    pytest.param("SELECT count(*) AS n FROM {}.main.measures", id="count"),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_duckdbs_answer(rich: RichLake, planned_spark: SparkReader, query: str) -> None:
    """Files, inlined rows, deletes; no rows are lost by what is pruned, and none come back."""
    server, in_duckdb = rich.served.server, query.format("lake").replace("TIMESTAMP '", "TIMESTAMPTZ '")
    asked = server.count("duckicelake_requests_total", operation="planTableScan", status="200")
    rich.check_same(rich.ask(in_duckdb), planned_spark.spark.arrow(query.format(planned_spark.catalog)))
    assert server.count("duckicelake_requests_total", operation="planTableScan", status="200") > asked
