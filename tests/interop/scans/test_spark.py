"""Spark lets the catalog plan its scans, and reads what DuckDB sees."""

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.interop.keys.accounts import add_spark
from tests.interop.rich_lake import RichLake
from tests.rest.auth.principals import guard
from tests.rest.serving import Server
from tests.support.lakes import FreshLake
from tests.support.readers import SparkReader
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

QUERIES = [
    pytest.param("SELECT * FROM {}.main.trips", id="position deletes"),
    pytest.param("SELECT * FROM {}.main.measures", id="deletion vectors"),
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
WRITTEN = (
    "CREATE TABLE {c}.a.made (i INT, s STRING, d DATE) PARTITIONED BY (s, days(d)) TBLPROPERTIES ('format-version' = '{v}', "
    "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read')",
    "INSERT INTO {c}.a.made SELECT CAST(id AS INT), concat('s', id % 3), date_add(DATE '2026-01-01', CAST(id % 2 AS INT)) FROM range(60)",
    "INSERT INTO {c}.a.made VALUES (-1, NULL, NULL)",
    "DELETE FROM {c}.a.made WHERE i % 7 = 3",
    "UPDATE {c}.a.made SET i = 1000 WHERE i = 5",
    "ALTER TABLE {c}.a.made ADD PARTITION FIELD bucket(4, i)",
    "INSERT INTO {c}.a.made SELECT CAST(id AS INT), 's1', DATE '2026-01-02' FROM range(100, 120)",
    "DELETE FROM {c}.a.made WHERE s = 's2' AND d = DATE '2026-01-01'",
    "MERGE INTO {c}.a.made t USING (SELECT 104 AS i) s ON t.i = s.i WHEN MATCHED THEN DELETE",
)
READ = (
    "SELECT * FROM {}.a.made WHERE s = 's1' AND i < 110",
    "SELECT * FROM {}.a.made WHERE d = DATE '2026-01-02' AND i IN (101, 104, 105, 1000)",
    "SELECT * FROM {}.a.made WHERE s IS NULL",
    "SELECT * FROM {}.a.made WHERE s <> 's0'",
    "SELECT s, count(*) AS n FROM {}.a.made GROUP BY s",
)


def count_plans(server: Server) -> float:
    """How many scans the server has planned."""
    return server.count("duckicelake_requests_total", operation="planTableScan", status="200")


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_duckdbs_answer(rich: RichLake, planned_spark: SparkReader, query: str) -> None:
    """Files, inlined rows, deletes; no rows are lost by what is pruned, and none come back."""
    planned = count_plans(rich.served.server)
    in_duckdb = query.format("lake").replace("TIMESTAMP '", "TIMESTAMPTZ '")
    rich.check_same(rich.ask(in_duckdb), planned_spark.spark.arrow(query.format(planned_spark.catalog)))
    assert count_plans(rich.served.server) > planned


@pytest.mark.long
@pytest.mark.parametrize("name", ["trips", "visits", "measures"])
def test_every_snapshot_is_readable(rich: RichLake, planned_spark: SparkReader, name: str) -> None:
    """A snapshot shows what DuckDB shows at the lake snapshot of the same id."""
    snapshots = planned_spark.spark.arrow(f"SELECT snapshot_id FROM {planned_spark.catalog}.main.{name}.snapshots").to_pylist()
    for row in snapshots:
        rich.check_same(rich.truth.read(("main", name), row["snapshot_id"]), planned_spark.read(("main", name), row["snapshot_id"]))


def test_scans_are_planned_with_keys_for_them(lake: FreshLake, spark: Spark) -> None:
    """Spark has an id and a secret and nothing else: keys come with the plan. Files, inlined rows, deletes, an earlier snapshot."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.rows AS SELECT range AS i, 'x' || range AS s FROM range(5000)")
        conn.execute("INSERT INTO a.rows VALUES (-1, 'inlined'); DELETE FROM a.rows WHERE i < 10 AND i >= 0")
        name = add_spark(spark, guarded, "reader")
        spark.session.conf.set(f"spark.sql.catalog.{name}.scan-planning-mode", "server")
        planned = count_plans(guarded.server)
        for where in ("", " WHERE i < 20", " WHERE s = 'inlined'", " WHERE i > 100000"):
            found = spark.arrow(f"SELECT count(*) AS n, sum(i) AS s FROM {name}.a.rows{where}").to_pylist()
            expected = conn.execute(f"SELECT count(*), sum(i) FROM a.rows{where}").fetchone()
            assert [tuple(row.values()) for row in found] == [expected]
        first = guarded.get("reader", "namespaces/a/tables/rows").json["metadata"]["snapshots"][0]["snapshot-id"]
        assert spark.arrow(f"SELECT count(*) AS n FROM {name}.a.rows VERSION AS OF {first}").to_pylist() == [{"n": 5000}]
        assert count_plans(guarded.server) > planned


@pytest.mark.long
@pytest.mark.parametrize("version", [2, 3])
def test_what_spark_writes_is_planned(lake: FreshLake, spark: Spark, version: int) -> None:
    """Deletes, updates and merges find their rows by plans of the catalog, in tables of several specs."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        name, conn = add_spark(spark, guarded, "writer"), lake.duckdb()
        spark.session.conf.set(f"spark.sql.catalog.{name}.scan-planning-mode", "server")
        for statement in WRITTEN:
            spark.session.sql(statement.format(c=name, v=version))
            expected = conn.execute("SELECT i, s, d FROM lake.a.made ORDER BY ALL").fetchall()
            found = spark.arrow(f"SELECT i, s, d FROM {name}.a.made").to_pylist()
            assert sorted(map(repr, map(tuple, (row.values() for row in found)))) == sorted(map(repr, expected)), statement
        for query in READ:
            expected = conn.execute(query.format("lake") + " ORDER BY ALL").fetchall()
            found = [tuple(row.values()) for row in spark.arrow(query.format(name)).to_pylist()]
            assert sorted(map(repr, found)) == sorted(map(repr, expected)), query
        assert count_plans(guarded.server) > len(WRITTEN)
