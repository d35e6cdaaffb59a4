"""Stock clients make and read views over REST, DuckDB in the same lake."""

from collections.abc import Callable
from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchViewError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from duckicelake.pipeline.common.spark_session import add_catalog
from tests.rest.serving import WAREHOUSE
from tests.support.readers import Served
from tests.support.spark import Spark, SparkRefused

SCHEMA = Schema(NestedField(1, "key", LongType()), NestedField(2, "label", StringType()))
QUERIES = [
    "SELECT * FROM t",
    "SELECT id, name FROM ns.t WHERE name = 'n3' OR id > 7 AND NOT (id = 9)",
    "SELECT count(*) AS n, sum(id) AS s, min(name) AS low, count(DISTINCT name) AS d FROM lake.ns.t",
    "SELECT x.id, y.name FROM t x LEFT JOIN t y ON x.id = y.id + 1 WHERE y.name <=> NULL OR x.id IN (2, 3)",
    "SELECT CASE WHEN id < 3 THEN 'few' ELSE coalesce(name, 'none') END AS how, id * 2 + 1 AS more FROM t",
    "WITH q AS (SELECT id FROM t WHERE id BETWEEN 2 AND 4) SELECT id FROM q UNION ALL SELECT id FROM q",
    'SELECT name, "text" AS text FROM (SELECT DISTINCT name FROM t) u WHERE EXISTS (SELECT 1 FROM t WHERE t.name = u.name)',
    "SELECT name, max(score) AS best FROM t GROUP BY name HAVING count(*) > 0",
]
"""Spark's SQL that DuckDB reads, as the view's text; the rows must be the same."""


@pytest.fixture
def catalog(served: Served) -> RestCatalog:
    """PyIceberg in front of a lake with the table `main.t`."""
    served.lake.duckdb().execute("CREATE TABLE t AS SELECT 1::BIGINT AS id, 'x' AS name")
    return served.pyiceberg().catalog


def make_version(sql: str, dialect: str) -> ViewVersion:
    """A version with one text."""
    text = ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect=dialect))
    return ViewVersion(version_id=1, schema_id=1, timestamp_ms=1, summary={}, representations=[text], default_namespace=["main"])


def test_pyiceberg_makes_and_registers_views(served: Served, catalog: RestCatalog) -> None:
    """All its operations on views; DuckDB selects from what it made."""
    lake = served.lake.duckdb()
    made = catalog.create_view("main.v", SCHEMA, make_version("SELECT id, name FROM t", "duckdb"), properties={"k": "v"})
    assert lake.execute("SELECT key, label FROM v").fetchall() == [(1, "x")]
    assert catalog.list_views("main") == [("main", "v")]
    assert catalog.view_exists("main.v")
    loaded = catalog.load_view("main.v")
    assert loaded.metadata == made.metadata
    assert loaded.metadata.properties == {"k": "v"}
    location = served.server.get("namespaces/main/views/v").json["metadata-location"]
    lake.execute("ALTER VIEW v RENAME TO w")
    assert catalog.load_view("main.w").metadata == made.metadata
    catalog.drop_view("main.w")
    assert not catalog.view_exists("main.w")
    with pytest.raises(NoSuchViewError):
        catalog.load_view("main.w")
    assert catalog.register_view("main.again", location).metadata == made.metadata
    catalog.drop_view("main.again")
    assert lake.execute("SHOW TABLES").fetchall() == [("t",)]


def test_pyiceberg_loads_what_duckdb_made(served: Served, catalog: RestCatalog) -> None:
    """Text, dialect and columns."""
    served.lake.duckdb().execute("CREATE VIEW v AS SELECT id, name AS label, id + 1 AS more FROM t")
    metadata = catalog.load_view("main.v").metadata
    texts = [(text.root.dialect, text.root.sql) for text in metadata.versions[0].representations]
    assert texts == [
        ("duckdb", 'SELECT id, "name" AS "label", (id + 1) AS more FROM t'),
        ("spark", "SELECT id, `name` AS `label`, (id + 1) AS more FROM t"),
    ]
    assert [str(field.field_type) for field in metadata.schemas[0].fields] == ["long", "string", "string"]


@pytest.fixture
def run(served: Served, spark: Spark) -> Callable[[str], pa.Table]:
    """Spark with the catalog under the warehouse's name, and the table `ns.t`; a session of its own stays in `lake.ns`."""
    spark = replace(spark, session=spark.session.newSession())
    add_catalog(spark.session, WAREHOUSE, served.rest_catalog())
    served.lake.duckdb().execute("CREATE SCHEMA ns")
    served.lake.duckdb().execute("CREATE TABLE ns.t AS SELECT range AS id, 'n' || range AS name, range / 2 AS score FROM range(10)")
    served.lake.duckdb().execute("INSERT INTO ns.t VALUES (NULL, NULL, -1.5), (3, 'n3', NULL)")
    spark.arrow(f"USE {WAREHOUSE}.ns")
    return spark.arrow


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_makes_views_that_duckdb_reads(served: Served, spark: Spark, run: Callable[[str], pa.Table]) -> None:
    """The same rows in both; what DuckDB cannot read says so; what DuckDB makes, Spark reads."""
    lake = served.lake.duckdb()
    try:
        for number, query in enumerate(QUERIES):
            run(f"CREATE VIEW v{number} AS {query}")
            assert rows(run(f"SELECT * FROM v{number}")) == rows(lake.execute(f"FROM ns.v{number}").to_arrow_table()), query
        run("CREATE VIEW other (up COMMENT 'loud') AS SELECT upper(name) FROM t")
        assert run("SELECT * FROM other").num_rows == 12
        with pytest.raises(duckdb.InvalidInputException, match="its dialects: spark"):
            lake.execute("FROM ns.other")
        run("CREATE OR REPLACE VIEW other (up) AS SELECT name FROM t")
        assert lake.execute("SELECT count(up) FROM ns.other").fetchone() == (11,)
        lake.execute("ALTER TABLE ns.t ADD COLUMN late INTEGER")
        assert lake.execute("FROM ns.v0").to_arrow_table().column_names == ["id", "name", "score"] == run("SELECT * FROM v0").column_names
        lake.execute("CREATE VIEW ns.found AS SELECT id, name FROM ns.t WHERE id < 3")
        assert rows(run("SELECT * FROM found")) == [(0, "n0"), (1, "n1"), (2, "n2")]
        lake.execute("CREATE VIEW ns.odd AS SELECT log(id) AS l, name FROM ns.t WHERE id > 0")
        for query in ("SELECT * FROM odd", "SELECT count(*) FROM odd", "SELECT 1 WHERE EXISTS (SELECT 1 FROM odd)"):
            with pytest.raises(SparkRefused, match="the SQL of DuckDB"):
                run(query)
        lake.execute("DROP VIEW ns.odd")
        run("ALTER VIEW found SET TBLPROPERTIES ('k' = 'v')")
        run("ALTER VIEW found RENAME TO ns.moved")
        assert run("SHOW VIEWS").column("viewName").to_pylist() == ["moved", "other", *(f"v{n}" for n in range(len(QUERIES)))]
        run("DROP VIEW moved")
        assert lake.execute("SELECT count(*) FROM duckdb_views() WHERE view_name = 'moved'").fetchone() == (0,)
    finally:
        spark.arrow("USE spark_catalog.default")


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows in any order."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
