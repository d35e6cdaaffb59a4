"""Every published type in PyIceberg and DuckDB's iceberg extension, against DuckDB's own view of the lake."""

from uuid import UUID

import pyarrow as pa
import pytest

from tests.interop.rich_lake import RichLake
from tests.interop.types.tables import EXTREMES, FLAT, SHOWN, TypeTable, list_tables, name_of
from tests.support.readers import DuckDBIcebergReader, PyIcebergReader
from tests.support.tiers import long_after, whole_after

UUIDS_AS_BYTES = pa.schema([("i", pa.int32()), ("v", pa.binary(16))])


@pytest.mark.whole
@pytest.mark.parametrize("table", long_after(1, list_tables()), ids=name_of)
def test_duckdb_iceberg_shows_ducklakes_values(typed: RichLake, typed_duckdb: DuckDBIcebergReader, table: TypeTable) -> None:
    """Extremes and NULLs, bare and inside lists, maps and structs, in files and inlined."""
    typed.check_same(table.expect(typed), typed_duckdb.read(table.ident))


@pytest.mark.whole
@pytest.mark.parametrize("table", list_tables("UUID", "GEOMETRY"), ids=name_of)
def test_pyiceberg_shows_ducklakes_values(typed: RichLake, typed_pyiceberg: PyIcebergReader, table: TypeTable) -> None:
    """The same rows."""
    typed.check_same(table.expect(typed), typed_pyiceberg.read(table.ident))


@pytest.mark.parametrize("table", whole_after(1, [TypeTable("UUID", "inlined"), TypeTable("UUID", "flushed")]), ids=name_of)
def test_pyiceberg_shows_uuids(typed: RichLake, typed_pyiceberg: PyIcebergReader, table: TypeTable) -> None:
    """Not inside lists and maps: PyArrow cannot build such arrays of uuids."""
    rows = typed_pyiceberg.catalog.load_table(table.ident).scan(selected_fields=FLAT).to_arrow().cast(UUIDS_AS_BYTES).to_pylist()
    found = [(row["i"], row["v"] and str(UUID(bytes=row["v"]))) for row in rows]
    assert sorted(found) == typed.truth.conn.execute(f"SELECT i, v::VARCHAR FROM lake.{table.sql_name} ORDER BY i").fetchall()


def test_pyiceberg_shows_what_stands_beside_a_geometry(typed: RichLake, typed_pyiceberg: PyIcebergReader) -> None:
    """PyIceberg 0.12 reads no geometry from DuckDB's files, and says so; other columns are there."""
    table = TypeTable("GEOMETRY", "flushed")
    published = typed_pyiceberg.catalog.load_table(table.ident)
    typed.check_same(table.expect(typed, ("i",)), published.scan(selected_fields=("i",)).to_arrow())
    with pytest.raises(Exception, match="geometry"):
        published.scan().to_arrow()


@pytest.mark.parametrize("sql_type", ["TIMETZ", "HUGEINT", "TIMESTAMP_NS", "UINTEGER"])
@pytest.mark.parametrize("condition", ["v is null", "v is not null", "s.a is null"])
def test_no_count_hides_a_row(typed: RichLake, typed_pyiceberg: PyIcebergReader, sql_type: str, condition: str) -> None:
    """NULLs and values are found, whatever DuckLake counted."""
    table = TypeTable(sql_type, "flushed")
    found = typed_pyiceberg.catalog.load_table(table.ident).scan(condition).to_arrow().select(["i"])
    typed.check_answer(f"SELECT i FROM lake.{table.sql_name} WHERE {condition}", found)


@pytest.mark.parametrize("sql_type", ["TIMESTAMP_NS", "UINTEGER", "TIMETZ", "HUGEINT"])
def test_no_bound_hides_a_value(typed: RichLake, typed_duckdb: DuckDBIcebergReader, sql_type: str) -> None:
    """Each extreme is found by itself."""
    table, shown = TypeTable(sql_type, "flushed"), SHOWN.get(sql_type, sql_type)
    for value in EXTREMES[sql_type]:
        in_lake = f"SELECT i FROM lake.{table.sql_name} WHERE v = CAST({value} AS {sql_type})"
        published = f"SELECT i FROM ice.{table.sql_name} WHERE v = CAST(CAST({value} AS {sql_type}) AS {shown})"
        typed.check_answer(in_lake, typed_duckdb.conn.execute(published).to_arrow_table())
