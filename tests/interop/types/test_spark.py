"""Every published type in Spark with Iceberg's own runtime: DuckDB's values, or a clear refusal."""

import re
from pathlib import Path

import pytest

from duckicelake.commands.check import list_findings
from duckicelake.embedded.home import open_home
from tests.interop.rich_lake import RichLake
from tests.interop.types.tables import EXTREMES, TypeTable, list_tables, name_of
from tests.rest.serving import make_settings
from tests.support.readers import Served, SparkReader
from tests.support.spark import Spark, SparkRefused
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SQL = re.compile(r": (ALTER TABLE .*;)$")
OFTEN = ("bigint", "varchar", "uuid", "timestamptz", "decimal_38_10")
REFUSED = {
    "TIME": "does not support time",
    "TIMETZ": "does not support time",
    "TIMESTAMP_NS": "unsupported type to Spark: timestamp_ns",
    "UTINYINT": "UINT_8",
    "USMALLINT": "UINT_16",
    "UINTEGER": "UINT32|UINT_32",
}


READ = [pytest.param(table, id=name_of(table)) for table in list_tables("GEOMETRY", *REFUSED) if table.schema == "inlined"]


@pytest.mark.parametrize("table", long_but(READ, *(f"inlined.t_{name}" for name in OFTEN)))
def test_spark_shows_ducklakes_values(typed: RichLake, typed_spark: SparkReader, table: TypeTable) -> None:
    """Extremes and NULLs, bare and inside lists, maps and structs, in a file of DuckDB's and in one derived from inlined rows."""
    typed.check_same(table.expect(typed, UUID="VARCHAR"), typed_spark.read(table.ident))


@pytest.mark.parametrize("sql_type", long_but(REFUSED, "TIME"))
def test_spark_says_what_it_cannot_read(typed_spark: SparkReader, sql_type: str) -> None:
    """It never shows another value."""
    name = typed_spark.sql_name(TypeTable(sql_type, "flushed").ident)
    with pytest.raises(SparkRefused, match=REFUSED[sql_type]):
        typed_spark.spark.arrow(f"SELECT i, v FROM {name}")


@pytest.mark.parametrize("schema", ["inlined", "flushed"])
def test_spark_reads_geometry(typed: RichLake, typed_spark: SparkReader, schema: str, iceberg: str | None) -> None:
    """From Iceberg 1.12 on, where the setting allows it. As WKB, because PySpark 4.1 makes no Arrow array of geometries with NULLs."""
    typed_spark.spark.session.conf.set("spark.sql.geospatial.enabled", "true")
    table = TypeTable("GEOMETRY", schema)
    asked = f"SELECT i, hex(ST_AsBinary(v)) AS v FROM {typed_spark.sql_name(table.ident)} ORDER BY i"
    if iceberg is not None:
        with pytest.raises(SparkRefused, match="unsupported type to Spark: geometry"):
            typed_spark.spark.arrow(asked)
        return
    expected = typed.ask(f"SELECT i, hex(ST_AsWKB(v)) AS v FROM lake.{table.sql_name} ORDER BY i")
    assert typed_spark.spark.arrow(asked).to_pylist() == expected.to_pylist()


@pytest.mark.long
def test_spark_reads_what_was_changed_as_check_says(served: Served, spark: Spark, tmp_path: Path) -> None:
    """Each type and name that Spark refuses is warned of, and the SQL of the warnings, run as printed, lets Spark read the table."""
    conn, reader, table = served.lake.duckdb(), served.spark(spark), ("main", "odd")
    columns = ", ".join(f'CAST({EXTREMES[sql_type][1]} AS {sql_type}) AS "c_{sql_type}"' for sql_type in REFUSED)
    conn.execute(f"CREATE TABLE odd AS SELECT range::INTEGER AS i, {columns}, range::INTEGER AS _file FROM range(20)")
    with pytest.raises(SparkRefused):
        reader.read(table)
    (settings,) = make_settings(served.lake).lakes()
    while sql := [found[1] for finding in list_findings(settings, open_home(tmp_path / "home")) if (found := SQL.search(finding.remedy))]:
        conn.execute(sql[0])
    rows = sorted(reader.read(table).to_pylist(), key=lambda row: row["i"])
    assert [(row["i"], row["file"]) for row in rows] == [(i, i) for i in range(20)]
    assert (rows[0]["c_UTINYINT"], rows[0]["c_USMALLINT"], rows[0]["c_UINTEGER"]) == (255, 65535, 2147483647)
    assert (rows[0]["c_TIME"], str(rows[0]["c_TIMESTAMP_NS"])) == ("23:59:59.999999", "2262-04-11 00:00:00.123456")
