"""Every published type in Spark with Iceberg's own runtime: DuckDB's values, or a clear refusal."""

import pytest

from tests.interop.rich_lake import RichLake
from tests.interop.types.tables import TypeTable, list_tables, name_of
from tests.support.readers import SparkReader
from tests.support.spark import SparkRefused

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

REFUSED = {
    "TIME": "does not support time",
    "TIMETZ": "does not support time",
    "TIMESTAMP_NS": "unsupported type to Spark: timestamp_ns",
    "GEOMETRY": "unsupported type to Spark: geometry",
    "UTINYINT": "UINT_8",
    "USMALLINT": "UINT_16",
    "UINTEGER": "UINT32|UINT_32",
}


@pytest.mark.parametrize("table", [table for table in list_tables(*REFUSED) if table.schema == "inlined"], ids=name_of)
def test_spark_shows_ducklakes_values(typed: RichLake, typed_spark: SparkReader, table: TypeTable) -> None:
    """Extremes and NULLs, bare and inside lists, maps and structs, in a file of DuckDB's and in one derived from inlined rows."""
    typed.check_same(table.expect(typed, UUID="VARCHAR"), typed_spark.read(table.ident))


@pytest.mark.parametrize("sql_type", REFUSED)
def test_spark_says_what_it_cannot_read(typed_spark: SparkReader, sql_type: str) -> None:
    """It never shows another value."""
    name = typed_spark.sql_name(TypeTable(sql_type, "flushed").ident)
    with pytest.raises(SparkRefused, match=REFUSED[sql_type]):
        typed_spark.spark.arrow(f"SELECT i, v FROM {name}")
