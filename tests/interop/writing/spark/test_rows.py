"""Spark with Iceberg's own runtime writes over REST, DuckDB reads the same lake after every statement."""

from collections.abc import Callable

import pytest
from pyiceberg.expressions import IsNull

from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

MERGE_ON_READ = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read'"
MERGE = (
    "MERGE INTO {t} t USING (SELECT 14 AS id, 'merged' AS name UNION ALL SELECT 99, 'new') s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
)

Run = Callable[[str], None]


@pytest.fixture
def run(served: Served, spark: Spark) -> Run:
    """What runs a statement on ns.t, `{t}` in it, and compares the rows with DuckDB's afterwards; `{c}` is the catalog."""
    reader, lake = served.spark(spark), served.lake.duckdb()

    def run_one(statement: str) -> None:
        spark.arrow(statement.format(t=f"{reader.catalog}.ns.t", c=reader.catalog))
        tables = lake.execute("SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'ns' AND table_name = 't'").fetchone()
        if tables == (1,):
            mine = [tuple(row.values()) for row in reader.read(("ns", "t")).to_pylist()]
            assert sorted(mine, key=str) == sorted(lake.execute("FROM lake.ns.t").fetchall(), key=str), statement

    run_one("CREATE NAMESPACE {c}.ns")
    return run_one


@pytest.mark.parametrize(
    ("format_version", "mode"),
    [
        pytest.param(2, f", {MERGE_ON_READ}", id="position deletes", marks=pytest.mark.long),
        pytest.param(3, f", {MERGE_ON_READ}", id="deletion vectors"),
        pytest.param(3, "", id="copy-on-write", marks=pytest.mark.long),
    ],
)
def test_rows_are_written(run: Run, served: Served, format_version: int, mode: str) -> None:
    """Inserts, deletes, updates and merges in both ways that Spark has, partitioned and sorted, compacted and overwritten."""
    run(f"CREATE TABLE {{t}} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '{format_version}'{mode})")
    for statement in [
        "INSERT INTO {t} SELECT id, concat('n', id) FROM range(30)",
        "DELETE FROM {t} WHERE id = 12",
        "UPDATE {t} SET name = 'changed' WHERE id IN (13, 14)",
        MERGE,
        "ALTER TABLE {t} ADD COLUMN extra int",
        "ALTER TABLE {t} RENAME COLUMN name TO title",
        "ALTER TABLE {t} ALTER COLUMN extra TYPE bigint",
        "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)",
        "INSERT INTO {t} VALUES (501, 'e', 5), (502, 'f', 6)",
        "DELETE FROM {t} WHERE id = 501",
        "ALTER TABLE {t} WRITE ORDERED BY id",
        "CALL {c}.system.rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))",
        "CALL {c}.system.rewrite_manifests('ns.t')",
        "INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id > 20",
        "DELETE FROM {t} WHERE id >= 0",
        "INSERT INTO {t} SELECT id, 'last', id FROM range(20)",
        "DELETE FROM {t} WHERE id IN (3, 13)",
    ]:
        run(statement)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_tables_are_made_from_queries_and_replaced(run: Run, served: Served, format_version: int) -> None:
    """CREATE, CREATE OR REPLACE and REPLACE TABLE, with a query and without, up to version 3; then renamed and dropped."""
    for statement in [
        f"CREATE TABLE {{t}} USING iceberg TBLPROPERTIES ('format-version' = '{format_version}') AS SELECT id, 'x' AS q FROM range(5)",
        "CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT id AS other, array(id) AS m FROM range(3)",
        "REPLACE TABLE {t} USING iceberg PARTITIONED BY (q) AS SELECT id, 'y' AS q FROM range(7)",
        "REPLACE TABLE {t} (id bigint) USING iceberg",
        "INSERT INTO {t} VALUES (1), (2)",
        "CREATE OR REPLACE TABLE {t} (id bigint, word string) USING iceberg PARTITIONED BY (word)",
        "INSERT INTO {t} VALUES (3, 'c')",
    ]:
        run(statement)
        assert served.server.get("namespaces/ns/tables/t").json["metadata"]["format-version"] == format_version
    run(
        "REPLACE TABLE {t} USING iceberg PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ('format-version' = '3')"
        " AS SELECT id, concat('w', id % 3) AS word FROM range(30)"
    )
    assert served.server.get("namespaces/ns/tables/t").json["metadata"]["format-version"] == 3
    run("ALTER TABLE {t} RENAME TO ns.u")
    check_going_on(served, ("ns", "u"))
    run("DROP TABLE {c}.ns.u")
    run("DROP NAMESPACE {c}.ns")


@pytest.mark.long
def test_rows_are_found_by_a_field_of_a_struct_that_is_null(served: Served, spark: Spark) -> None:
    """Spark does not count the NULLs of floating-point fields there, and passed over such files itself."""
    reader, lake = served.spark(spark), served.lake.duckdb()
    lake.execute("CREATE TABLE t (id BIGINT, s STRUCT(f DOUBLE))")
    table = reader.sql_name(("main", "t"))
    spark.arrow(f"INSERT INTO {table} SELECT id, IF(id % 2 = 0, NULL, named_struct('f', double(id))) FROM range(20)")
    assert spark.arrow(f"SELECT count(*) AS n FROM {table} WHERE s.f IS NULL")["n"].to_pylist() == [10]
    assert served.pyiceberg().catalog.load_table(("main", "t")).scan(row_filter=IsNull("s.f")).to_arrow().num_rows == 10
    assert lake.execute("SELECT count(*) FROM t WHERE s.f IS NULL").fetchone() == (10,)
    check_going_on(served, ("main", "t"))
