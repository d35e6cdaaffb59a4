"""What a table's values or types refuse, as clients see it, and how it comes back."""

import re

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from duckdb import Error as DuckDBError
from pyiceberg.exceptions import RESTError

from tests.support.readers import DuckDBIcebergReader, Ident, PyIcebergReader, Served

FLUSH = "CALL ducklake_flush_inlined_data('lake')"
REFUSAL = re.compile(r"Replace it with DuckDB, going on only as long as nothing fails: (.+;)")


def refused(reader: PyIcebergReader, ident: Ident) -> str:
    """What PyIceberg tells of a table that is refused."""
    with pytest.raises(RESTError, match="UnsupportedOperationException") as error:
        reader.catalog.load_table(ident)
    return str(error.value)


def replace_column(conn: DuckDBPyConnection, told: str) -> None:
    """Do as a refusal says."""
    found = REFUSAL.search(told)
    assert found is not None, told
    conn.execute(found[1])


def read_values(reader: PyIcebergReader | DuckDBIcebergReader, ident: Ident, snapshot_id: int | None = None) -> list[object]:
    """The column `v`, in order."""
    return sorted(reader.read(ident, snapshot_id).column("v").to_pylist(), key=repr)


def snapshot_ids(reader: PyIcebergReader, ident: Ident) -> list[int]:
    """The table's snapshots, oldest first."""
    return [snapshot.snapshot_id for snapshot in reader.catalog.load_table(ident).snapshots()]


@pytest.mark.parametrize(("sql_type", "value"), [("INTERVAL", "INTERVAL 1 MONTH"), ("UBIGINT", "7")])
def test_a_refused_table_is_named_with_its_remedy_and_hides_no_other(served: Served, sql_type: str, value: str) -> None:
    """406 with column, type and SQL in every client; lists go on; the SQL brings the table back, inlined rows of the past too."""
    conn = served.lake.duckdb()
    conn.execute(f"CREATE TABLE odd (i INTEGER, v {sql_type}); CREATE TABLE plain AS SELECT 1 AS v")
    conn.execute(f"INSERT INTO odd VALUES (1, {value}); INSERT INTO odd VALUES (2, NULL)")
    pyiceberg, duckdb_iceberg = served.pyiceberg(), served.duckdb_iceberg()
    told = refused(pyiceberg, ("main", "odd"))
    assert "Column 'v' has the DuckLake type" in told
    with pytest.raises(DuckDBError, match="406 with message.*Column 'v' has the DuckLake type"):
        duckdb_iceberg.read(("main", "odd"))
    assert pyiceberg.catalog.list_tables("main") == [("main", "odd"), ("main", "plain")]
    assert read_values(duckdb_iceberg, ("main", "plain")) == read_values(pyiceberg, ("main", "plain")) == [1]
    replace_column(conn, told)
    for reader in (pyiceberg, duckdb_iceberg):
        assert len(read_values(reader, ("main", "odd"))) == 2
        first, *_ = snapshot_ids(pyiceberg, ("main", "odd"))
        assert reader.read(("main", "odd"), first).to_pylist() == [{"i": 1}]


def test_large_unsigned_numbers_are_shown_until_they_lie_in_a_file(served: Served) -> None:
    """Files derived from inlined rows have them signed and wide; a file of DuckDB's would be misread, so it is refused."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v UINTEGER, s UINTEGER[])")
    conn.execute("INSERT INTO t VALUES (4294967295, [2147483648])")
    pyiceberg = served.pyiceberg()
    for reader in (pyiceberg, served.duckdb_iceberg()):
        assert reader.read(ident).to_pylist() == [{"v": 4294967295, "s": [2147483648]}]
    conn.execute(FLUSH)
    for column in ("v", "s.element"):
        told = refused(pyiceberg, ident)
        assert f"Column '{column}' (uint32) holds numbers above 2147483647" in told
        replace_column(conn, told)
    assert pyiceberg.read(ident).to_pylist() == [{"v": 4294967295, "s": [2147483648]}]


def test_unsigned_numbers_of_which_a_file_has_none_are_no_reason(served: Served) -> None:
    """DuckDB writes no statistics of a field whose structs are all NULL within their lists."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (i INTEGER, s STRUCT(v UINTEGER)[])")
    conn.execute("INSERT INTO t SELECT range, [NULL] FROM range(20)")
    unknown = "SELECT count(*) FROM ducklake_file_column_stats WHERE value_count IS NULL"
    assert served.lake.psycopg().execute(unknown).fetchall() == [(1,)]
    assert served.pyiceberg().read(ident).column("s").to_pylist() == [[None]] * 20
    # DuckDB counts no value of such a field if a row group has none, whatever the others have.
    conn.execute("INSERT INTO t SELECT range, CASE WHEN range > 124000 THEN [{'v': 4294967295}] ELSE [NULL] END FROM range(125000)")
    assert "Column 's.element.v' (uint32) holds numbers above 2147483647" in refused(served.pyiceberg(), ident)


@pytest.mark.whole
def test_a_clients_append_to_an_unsigned_column_stays_readable(served: Served) -> None:
    """The commit that widens the column brings a file of signed 64 bits; neither it nor DuckDB's merge of it counts as unsigned."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v UINTEGER); INSERT INTO t SELECT range FROM range(20)")
    pyiceberg = served.pyiceberg()
    for value in (4294967295, 2147483648):
        pyiceberg.catalog.load_table(ident).append(pa.table({"v": pa.array([value], pa.int64())}))
    expected = [*range(20), 2147483648, 4294967295]
    for _ in range(2):
        assert sorted(row for (row,) in conn.execute("FROM t").fetchall()) == expected
        for reader in (served.pyiceberg(), served.duckdb_iceberg()):
            assert sorted(reader.read(ident).column("v").to_pylist()) == expected
        conn.execute("CALL ducklake_merge_adjacent_files('lake')")


def test_large_unsigned_numbers_are_refused_in_a_file_of_the_transaction_that_widens_their_column(served: Served) -> None:
    """DuckDB wrote that file before it changed the type: its 32 bits are unsigned."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v UINTEGER)")
    conn.execute("BEGIN; INSERT INTO t SELECT 4294967295 FROM range(20); ALTER TABLE t ALTER v TYPE BIGINT; COMMIT")
    assert "Column 'v'" in refused(served.pyiceberg(), ident)


def test_an_inexact_hugeint_is_refused_until_duckdb_rounds_it_itself(served: Served) -> None:
    """Inlined it is exact, in a file a double: Iceberg clients never show a number that DuckDB does not show."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v HUGEINT)")
    conn.execute("INSERT INTO t VALUES (9007199254740993)")
    pyiceberg = served.pyiceberg()
    assert "Column 'v' (int128) holds the number 9007199254740993" in refused(pyiceberg, ident)
    conn.execute(FLUSH)
    assert read_values(pyiceberg, ident) == [2.0**53]
    assert conn.execute("SELECT v FROM t").fetchall() == [(2**53,)]
    conn.execute("INSERT INTO t VALUES (9007199254740995)")
    replace_column(conn, refused(pyiceberg, ident))
    assert [str(value) for value in read_values(pyiceberg, ident)] == ["9007199254740992", "9007199254740995"]


def test_a_time_with_an_offset_is_refused_until_duckdb_drops_the_offset_itself(served: Served) -> None:
    """In DuckDB's files timetz is a time in UTC."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v TIMETZ)")
    conn.execute("INSERT INTO t VALUES ('01:00:00+05:30')")
    pyiceberg = served.pyiceberg()
    assert "Column 'v' (timetz) holds the time 01:00:00+05:30" in refused(pyiceberg, ident)
    conn.execute(FLUSH)
    assert conn.execute("SELECT v::VARCHAR FROM t").fetchall() == [("19:30:00+00",)]
    assert [str(value) for value in read_values(pyiceberg, ident)] == ["19:30:00"]


def test_dropping_a_column_of_a_type_published_in_part_keeps_all_snapshots_readable(served: Served) -> None:
    """A server that published the column before and one that starts afterwards show the same: it is not there any more."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (i INTEGER, v HUGEINT)")
    conn.execute("INSERT INTO t VALUES (1, 5)")
    conn.execute("INSERT INTO t SELECT n, n FROM range(20) r(n)")
    pyiceberg = served.pyiceberg()
    assert len(read_values(pyiceberg, ident)) == 21
    conn.execute("ALTER TABLE t DROP COLUMN v")
    conn.execute("INSERT INTO t VALUES (2)")
    found = {snapshot_id: pyiceberg.read(ident, snapshot_id) for snapshot_id in snapshot_ids(pyiceberg, ident)}
    assert [(rows.num_rows, rows.column_names) for rows in found.values()] == [(1, ["i"]), (21, ["i"]), (22, ["i"])]


@pytest.mark.parametrize("sql_type", ["TIMESTAMP_NS", "HUGEINT", "UINTEGER"])
def test_partitions_of_such_types_lose_no_row(served: Served, sql_type: str) -> None:
    """Their values are exact, or the files claim nothing."""
    conn = served.lake.duckdb()
    made = "make_timestamp_ns(1500000000000000000 + n % 3)" if sql_type == "TIMESTAMP_NS" else f"(n % 3)::{sql_type}"
    conn.execute(f"CREATE TABLE t (i INTEGER, v {sql_type}); ALTER TABLE t SET PARTITIONED BY (v)")
    conn.execute(f"INSERT INTO t SELECT n, {made} FROM range(30) r(n)")
    reader = served.duckdb_iceberg()
    shown = {"HUGEINT": "DOUBLE", "UINTEGER": "BIGINT"}.get(sql_type, sql_type)
    for value in conn.execute("SELECT DISTINCT v::VARCHAR FROM t").fetchall():
        query = "SELECT i FROM {}.main.t WHERE v = CAST(? AS {}) ORDER BY i"
        found = reader.conn.execute(query.format("ice", shown), value).fetchall()
        assert found == conn.execute(query.format("lake", sql_type), value).fetchall()
        assert len(found) == 10
    assert served.pyiceberg().catalog.load_table(("main", "t")).spec().is_unpartitioned() == (sql_type != "UINTEGER")


def test_midnight_at_the_end_of_the_day_is_a_whole_day_of_microseconds(served: Served) -> None:
    """24:00:00 is the same number inlined and in a file."""
    conn, ident = served.lake.duckdb(), ("main", "t")
    conn.execute("CREATE TABLE t (v TIME)")
    conn.execute("INSERT INTO t VALUES ('24:00:00')")
    pyiceberg, duckdb_iceberg = served.pyiceberg(), served.duckdb_iceberg()
    for _ in ("inlined", "flushed"):
        assert pyiceberg.read(ident).column("v").combine_chunks().view("int64").to_pylist() == [86_400_000_000]
        assert duckdb_iceberg.conn.execute("SELECT v::VARCHAR FROM ice.main.t").fetchall() == [("24:00:00",)]
        conn.execute(FLUSH)


def test_numbers_above_all_numbers_are_found(served: Served) -> None:
    """NaN sorts above every number in DuckDB and Spark, so a file that holds one is pruned by no bound."""
    conn = served.lake.duckdb()
    conn.execute("CREATE TABLE reals (v DOUBLE)")
    conn.execute("INSERT INTO reals SELECT i FROM range(20) r(i) UNION ALL SELECT 'nan'::DOUBLE")
    conn.execute("INSERT INTO reals VALUES (1), ('nan'::DOUBLE)")
    reader = served.duckdb_iceberg()
    for condition, count in (("v > 100", 2), ("v = 'nan'::DOUBLE", 2), ("v < 5", 6)):
        found = reader.conn.execute(f"SELECT count(*) FROM ice.main.reals WHERE {condition}")
        assert found.fetchall() == [(count,)]
