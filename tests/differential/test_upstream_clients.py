"""What PyIceberg 0.12, Spark 4.1 and DuckDB's iceberg extension 1.5.5 get wrong by themselves, which is why the generator keeps off it."""

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, NotNull
from pyiceberg.io.pyarrow import schema_to_pyarrow

from tests.differential.upstream import T, published, run
from tests.support.readers import Served
from tests.support.spark import Spark, SparkRefused
from tests.support.tiers import whole_after

pytestmark = pytest.mark.whole
"""They are of other projects: none comes or goes by a change here."""


def test_pyiceberg_reads_a_missing_list_of_structs_as_empty(served: Served) -> None:
    """NULL becomes [] in PyIceberg, in DuckDB's extension it stays NULL."""
    run(served, "CREATE TABLE t (xs STRUCT(a INTEGER)[])", "INSERT INTO t VALUES (NULL), ([{'a': 1}])")
    assert served.pyiceberg().read(T)["xs"].to_pylist() == [[], [{"a": 1}]]
    assert served.duckdb_iceberg().read(T)["xs"].to_pylist() == [None, [{"a": 1}]]


def test_pyarrow_builds_no_empty_list_of_uuids(served: Served) -> None:
    """PyIceberg cannot show an empty table with uuids inside a list; DuckDB's extension can."""
    run(served, "CREATE TABLE t (xs MAP(UUID, DATE)[])")
    with pytest.raises(pa.ArrowNotImplementedError):
        served.pyiceberg().catalog.load_table(T).scan().to_arrow()
    assert served.duckdb_iceberg().read(T).num_rows == 0
    run(served, "INSERT INTO t VALUES ([MAP {'00000000-0000-0000-0000-000000000001'::UUID: DATE '2024-02-29'}])")
    assert served.duckdb_iceberg().read(T).num_rows == 1


def test_pyiceberg_keeps_nan_where_it_deletes_what_is_not_null(served: Served) -> None:
    """It writes the file again with what the filter does not mean, and NaN too; the lake holds what it wrote."""
    conn = run(served, "CREATE TABLE t AS FROM (VALUES (1, 'nan'::DOUBLE), (2, 1.5), (3, NULL)) v(id, x)")
    served.pyiceberg().catalog.load_table(T).delete(NotNull("x"))
    assert conn.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (3,)]
    assert sorted(published(served, "id")) == [1, 3]


@pytest.mark.parametrize(
    "units", whole_after(1, [pytest.param(("year", "month"), id="month"), pytest.param(("year", "month", "day"), id="day")])
)
def test_duckdb_iceberg_misses_days_before_1970(served: Served, units: tuple[str, ...]) -> None:
    """Its conditions take a timestamp before 1970 for one of the month or day after; PyIceberg finds the row."""
    keys = ", ".join(f"{unit}(x)" for unit in units)
    times = "('1969-11-30 12:00:00'), ('1970-01-01 00:00:00')"
    files_only = "CALL lake.set_option('data_inlining_row_limit', 0)"
    run(served, files_only, "CREATE TABLE t (x TIMESTAMP)", f"ALTER TABLE t SET PARTITIONED BY ({keys})", f"INSERT INTO t VALUES {times}")
    extension = served.duckdb_iceberg().conn
    found = "SELECT count(*) FROM ice.main.t WHERE x = '1969-11-30 12:00:00'"
    assert extension.execute(found).fetchone() == (0,)
    assert served.pyiceberg().catalog.load_table(T).scan(row_filter=EqualTo("x", "1969-11-30T12:00:00")).to_arrow().num_rows == 1


def test_pyiceberg_cannot_write_to_partitions_of_uuids(served: Served) -> None:
    """PyArrow groups no rows by uuids; nothing is changed."""
    run(served, "CREATE TABLE t (id UUID)", "ALTER TABLE t SET PARTITIONED BY (id)")
    table = served.pyiceberg().catalog.load_table(T)
    rows = pa.Table.from_pylist([{"id": bytes(16)}], schema=schema_to_pyarrow(table.schema()))
    with pytest.raises(pa.ArrowNotImplementedError, match="uuid"):
        table.append(rows)
    assert served.pyiceberg().read(T).num_rows == 0


@pytest.mark.parametrize(
    "change",
    whole_after(
        1,
        [
            pytest.param(("rename_column", "x", "y"), id="renamed"),
            pytest.param(("delete_column", "x"), id="dropped"),
            pytest.param(("move_first", "z"), id="moved"),
        ],
    ),
)
def test_pyiceberg_upserts_nothing_after_a_change_of_columns(served: Served, change: tuple[str, ...]) -> None:
    """It reads by the schema of the current snapshot, until there is one with the new columns."""
    conn = run(served, "CREATE TABLE t AS SELECT 1 AS id, 'a' AS x, 'a' AS z")
    table = served.pyiceberg().catalog.load_table(T)
    with table.update_schema(allow_incompatible_changes=True) as update:
        getattr(update, change[0])(*change[1:])
    rows = pa.Table.from_pylist([{"id": 1, "y": "a", "x": "a", "z": "b"}], schema=schema_to_pyarrow(table.refresh().schema()))
    with pytest.raises(ValueError, match="names are not matching"):
        table.upsert(rows, join_cols=["id"])
    conn.execute("INSERT INTO t (id, z) VALUES (2, 'c')")
    assert table.refresh().upsert(rows, join_cols=["id"]).rows_updated == 1
    assert sorted(published(served, "z")) == ["b", "c"]


def test_an_alter_of_duckdb_iceberg_takes_all_comments_of_columns(served: Served) -> None:
    """It sends a schema without any; defaults stay."""
    create = ("CREATE TABLE t (id INTEGER, x INTEGER)", "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 7")
    conn = run(served, *create, "COMMENT ON COLUMN t.id IS 'hello'")
    served.duckdb_iceberg().conn.execute("ALTER TABLE ice.main.t DROP COLUMN x")
    assert conn.execute("SELECT comment FROM duckdb_columns() WHERE table_name = 't' AND column_name = 'id'").fetchone() == (None,)
    assert published(served, "d") == [7]


@pytest.mark.parametrize(
    ("prepare", "statement", "error", "message"),
    whole_after(
        1,
        [
            pytest.param("SET SORTED BY (id)", "INSERT INTO {} VALUES (3, NULL)", duckdb.NotImplementedException, "sorted", id="sorted"),
            pytest.param("SET PARTITIONED BY (id)", "UPDATE {} SET id = 3", duckdb.Error, "partition info", id="partitioned"),
            pytest.param("ADD COLUMN y INTEGER", "INSERT INTO {} VALUES (3, NULL, 1)", duckdb.ConstraintException, "key", id="maps"),
        ],
    ),
)
def test_duckdb_iceberg_cannot_write(served: Served, prepare: str, statement: str, error: type[duckdb.Error], message: str) -> None:
    """Rows into sorted tables, changes of rows that are older than a partitioning, NULL lists of maps."""
    create = "CREATE TABLE t (id INTEGER, m MAP(INTEGER, INTEGER)[])"
    run(served, create, "INSERT INTO t SELECT i, [MAP {1: 1}] FROM range(20) r(i)", f"ALTER TABLE t {prepare}")
    with pytest.raises(error, match=message):
        served.duckdb_iceberg().conn.execute(statement.format("ice.main.t"))
    assert len(published(served, "id")) == 20


def test_duckdb_takes_main_for_its_own_default(served: Served) -> None:
    """Attached without DEFAULT_SCHEMA, DuckDB does not find the namespace `main`."""
    run(served, "CREATE TABLE t (id INTEGER)")
    conn = served.lake.bare_duckdb()
    conn.execute(
        f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT '{served.server.uri}', AUTHORIZATION_TYPE none, ACCESS_DELEGATION_MODE none)"
    )
    with pytest.raises(duckdb.CatalogException):
        conn.execute("FROM ice.main.t")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("value", ["TIME '01:02:03'", "255::UTINYINT", "65535::USMALLINT"])
def test_spark_cannot_read_some_types(served: Served, spark: Spark, value: str) -> None:
    """Spark has no time of day, and Iceberg's Spark reader refuses Parquet's unsigned integers, as DuckDB writes them."""
    run(served, f"CREATE TABLE t AS SELECT {value} AS x FROM range(20)")
    with pytest.raises(SparkRefused):
        served.spark(spark).read(T)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_cannot_read_widened_numbers_by_vectors(served: Served, spark: Spark) -> None:
    """Iceberg's vectorised reader breaks over an int that became a long; the table's properties keep Spark off it."""
    run(served, "CREATE TABLE t AS SELECT i::INTEGER AS id FROM range(20) r(i)", "ALTER TABLE t ALTER COLUMN id TYPE BIGINT")
    reader = served.spark(spark)
    assert sorted(reader.read(T)["id"].to_pylist()) == list(range(20))
    frames = spark.session.read.option("vectorization-enabled", "true")
    with pytest.raises(SparkRefused, match="ClassCastException"):
        spark.collect(frames.table, f"{reader.catalog}.main.t")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    ("column_type", "stored"),
    [
        ("BIGINT", "(i % 2)::INTEGER"),
        ("TIMESTAMP", "(TIMESTAMP '2000-02-29' + INTERVAL (i % 2) DAY)::TIMESTAMP_MS"),
    ],
)
def test_spark_is_kept_off_vectors_by_added_files(served: Served, spark: Spark, column_type: str, stored: str) -> None:
    """A file that was added may hold fewer bits or milliseconds: its footer tells, and the table's properties keep Spark off vectors."""
    path = served.lake.data_path.replace("/data/", "/outside/") + "narrow.parquet"
    conn = run(served, f"CREATE TABLE t (x {column_type})", f"COPY (SELECT {stored} AS x FROM range(40) r(i)) TO '{path}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    reader = served.spark(spark)
    truth = sorted(served.duckdb_iceberg().read(T)["x"].to_pylist())
    assert sorted(reader.read(T)["x"].to_pylist()) == truth
    assert sorted(served.pyiceberg().read(T)["x"].to_pylist()) == truth


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_reads_milliseconds_wrongly_by_vectors(served: Served, spark: Spark) -> None:
    """Iceberg's vectorised reader takes milliseconds of a dictionary for microseconds; the table's properties keep Spark off it."""
    made = "SELECT i AS id, (TIMESTAMP '2000-02-29' + INTERVAL (i % 2) DAY)::TIMESTAMP_MS AS x FROM range(40) r(i)"
    run(served, "CREATE TABLE t (id INTEGER, x TIMESTAMP_MS)", f"INSERT INTO t {made}")
    reader = served.spark(spark)
    assert sorted(set(reader.read(T)["x"].cast(pa.int64()).to_pylist())) == [951_782_400_000_000, 951_868_800_000_000]
    frames = spark.session.read.option("vectorization-enabled", "true")
    wrong = spark.collect(frames.table, f"{reader.catalog}.main.t")["x"].cast(pa.int64()).to_pylist()
    assert sorted(set(wrong)) == [951_782_400_000, 951_868_800_000]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_cannot_read_decimals_with_a_default_by_vectors(served: Served, spark: Spark) -> None:
    """Iceberg's vectorised reader takes the default for one of the type that is stored; the table's properties keep Spark off it."""
    added = "ALTER TABLE t ADD COLUMN x DECIMAL(30, 3) DEFAULT 1.5"
    run(served, "CREATE TABLE t AS SELECT i AS id FROM range(20) r(i)", added, "INSERT INTO t (id) SELECT i FROM range(20, 40) r(i)")
    reader = served.spark(spark)
    assert [str(value) for value in reader.read(T)["x"].to_pylist()] == ["1.500"] * 40
    frames = spark.session.read.option("vectorization-enabled", "true")
    with pytest.raises(SparkRefused, match="Cannot cast default value"):
        spark.collect(frames.table, f"{reader.catalog}.main.t")
