"""Files that `ducklake_add_data_files` took in: read by name, since they carry no field ids."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.catalog.warehouse import TableCaches, Warehouse
from duckicelake.errors import Unsupported
from tests.catalog.reading import load, open_static
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

NESTED = "SELECT i::INT AS id, [i::INT] AS l, {'a': i::INT, 'b': 'x'} AS st, MAP {'k': i::INT} AS m FROM range(30) r(i)"
TABLE = "CREATE TABLE t (id INTEGER, l INTEGER[], st STRUCT(a INTEGER, b VARCHAR), m MAP(VARCHAR, INTEGER))"


def outside(lake: FreshLake, name: str) -> str:
    """Return a place for a file that DuckLake does not own yet."""
    return lake.data_path.replace("/data/", "/outside/") + name


def rows(value: pa.Table) -> list[str]:
    """Return the rows in one order, whoever read them."""
    return sorted(repr(row) for row in value.to_pylist())


def test_added_files_are_read_by_name(lake: FreshLake, warehouse: Warehouse) -> None:
    """Other spellings, missing columns, nested columns: the rows are DuckDB's, beside rows DuckDB wrote."""
    conn = lake.duckdb()
    conn.execute(TABLE)
    conn.execute(f"COPY ({NESTED}) TO '{outside(lake, 'a.parquet')}'")
    conn.execute(f"COPY (SELECT i::INT AS ID FROM range(40, 60) r(i)) TO '{outside(lake, 'b.parquet')}'")
    conn.execute(f"INSERT INTO t {NESTED}")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'a.parquet')}')")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'b.parquet')}', allow_missing => true)")
    conn.execute("ALTER TABLE t RENAME COLUMN id TO key")
    conn.execute("DELETE FROM t WHERE key IN (3, 45)")
    loaded = load(warehouse)
    table = open_static(lake, loaded)
    assert rows(table.scan().to_arrow()) == rows(conn.execute("SELECT * FROM t").to_arrow_table())
    names = json.loads(json.loads(loaded.metadata)["properties"]["schema.name-mapping.default"])
    assert names[0] == {"field-id": 1, "names": ["ID", "id"]}


def test_a_file_that_iceberg_would_read_otherwise_is_refused(lake: FreshLake, warehouse: Warehouse) -> None:
    """Field ids in the file that mean other columns: DuckLake goes by name, Iceberg would go by id."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, other INTEGER)")
    ids = [pa.field(name, pa.int32(), metadata={"PARQUET:field_id": str(i)}) for name, i in (("other", 1), ("id", 2))]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([{"other": 1, "id": 3}, {"other": 2, "id": 4}], schema=pa.schema(ids)), sink)
    warehouse.objects.put_new(outside(lake, "swapped.parquet"), sink.getvalue().to_pybytes())
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'swapped.parquet')}')")
    with pytest.raises(Unsupported, match=r"swapped\.parquet.*'other'.*field 1.*as 2"):
        load(warehouse)
    conn.execute("CREATE TABLE copied AS SELECT * FROM t")
    assert rows(open_static(lake, load(warehouse, "copied")).scan().to_arrow()) == rows(conn.execute("FROM t").to_arrow_table())


def test_one_name_for_two_columns_is_refused(lake: FreshLake, warehouse: Warehouse) -> None:
    """After a rename the same name may mean another column; one mapping cannot say both."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    conn.execute(f"COPY (SELECT 1 AS a, 2 AS b FROM range(20)) TO '{outside(lake, 'x.parquet')}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'x.parquet')}')")
    load(warehouse)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        conn.execute(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
    conn.execute(f"COPY (SELECT 1 AS a, 2 AS b FROM range(20)) TO '{outside(lake, 'y.parquet')}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'y.parquet')}')")
    with pytest.raises(Unsupported, match="two columns"):
        load(warehouse)


def test_columns_of_the_path_are_partition_values(lake: FreshLake, warehouse: Warehouse) -> None:
    """A hive column that is in no file is read from the identity partition of its files, also if it has no NULL."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, part INTEGER NOT NULL)")
    conn.execute("ALTER TABLE t SET PARTITIONED BY (part)")
    for part in (1, 2):
        conn.execute(f"COPY (SELECT i::INT AS id FROM range(20) r(i)) TO '{outside(lake, f'part={part}')}.parquet'")
    folder = outside(lake, "hive")
    conn.execute(f"COPY (SELECT i::INT AS id, i % 2 AS part FROM range(40) r(i)) TO '{folder}' (FORMAT parquet, PARTITION_BY (part))")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{folder}/*/*.parquet', hive_partitioning => true)")
    table = open_static(lake, load(warehouse))
    assert rows(table.scan().to_arrow()) == rows(conn.execute("SELECT * FROM t").to_arrow_table())


@pytest.mark.parametrize(("kind", "value"), whole_after(1, [("DOUBLE", "inf"), ("FLOAT", "nan"), ("DOUBLE", "0.0"), ("DATE", "infinity")]))
def test_a_value_in_the_path_that_no_partition_can_say_is_named(lake: FreshLake, warehouse: Warehouse, kind: str, value: str) -> None:
    """The table is partitioned by the column: what is wrong is the value, and a copy has it in the file."""
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t (id INTEGER, k {kind}); ALTER TABLE t SET PARTITIONED BY (k)")
    conn.execute(f"COPY (SELECT i::INT AS id FROM range(20) r(i)) TO '{outside(lake, f'k={value}')}/a.parquet'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, '')}*/*.parquet', hive_partitioning => true)")
    with pytest.raises(Unsupported, match=rf"k={value}/a.parquet' has the column 'k' only in its path, and .* '{value}'"):
        load(warehouse)
    conn.execute("CREATE TABLE copied AS SELECT * FROM t")
    assert open_static(lake, load(warehouse, "copied")).scan().to_arrow().num_rows == 20
    conn.execute("CREATE TABLE plain (id INTEGER, k INTEGER)")
    conn.execute(f"COPY (SELECT i::INT AS id FROM range(20) r(i)) TO '{outside(lake, 'plain/k=7')}/a.parquet'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 'plain', '{outside(lake, 'plain/')}*/*.parquet', hive_partitioning => true)")
    with pytest.raises(Unsupported, match="the table is not partitioned by"):
        load(warehouse, "plain")


def test_an_added_file_shows_the_defaults_of_columns_it_lacks(lake: FreshLake, warehouse: Warehouse) -> None:
    """DuckLake takes a default that stood in CREATE TABLE for the value of files without the column; so do Iceberg's readers."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, label VARCHAR DEFAULT 'none', rank INTEGER)")
    conn.execute(f"COPY (SELECT i::INT AS id FROM range(20) r(i)) TO '{outside(lake, 'short.parquet')}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'short.parquet')}', allow_missing => true)")
    table = open_static(lake, load(warehouse))
    assert table.format_version == 3
    assert rows(table.scan().to_arrow()) == rows(conn.execute("SELECT * FROM t").to_arrow_table())
    assert rows(table.scan().to_arrow())[0] == repr({"id": 0, "label": "none", "rank": None})


def test_a_file_that_lacks_a_default_changes_the_schemas_of_the_past(lake: FreshLake, warehouse: Warehouse) -> None:
    """A default counts from the first file without its column, so older snapshots get a schema that says it."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, x INTEGER DEFAULT 7, seen TIMESTAMP_NS)")
    for name, columns in (("a", "i::INT AS id, 1 AS x"), ("b", "i::INT AS id"), ("c", "i::INT AS id, 2 AS x")):
        conn.execute(f"COPY (SELECT {columns} FROM range(20) r(i)) TO '{outside(lake, f'{name}.parquet')}'")
        conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, f'{name}.parquet')}', allow_missing => true)")
        metadata = json.loads(load(warehouse).metadata)
        known = {schema["schema-id"] for schema in metadata["schemas"]}
        assert {snapshot["schema-id"] for snapshot in metadata["snapshots"]} <= known
    assert sorted(set(open_static(lake, load(warehouse)).scan().to_arrow()["x"].to_pylist())) == [1, 2, 7]


def test_an_added_file_may_lack_a_column_of_large_numbers(lake: FreshLake, warehouse: Warehouse) -> None:
    """A uint32 column that came in the same transaction as a file without it holds no number that is too large."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER)")
    conn.execute(f"COPY (SELECT i::INT AS id FROM range(20) r(i)) TO '{outside(lake, 'short.parquet')}'")
    conn.execute("BEGIN")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{outside(lake, 'short.parquet')}')")
    conn.execute("ALTER TABLE t ADD COLUMN n UINTEGER")
    conn.execute("COMMIT")
    assert open_static(lake, load(warehouse)).scan().to_arrow()["n"].null_count == 20


def test_a_file_that_was_added_twice_cannot_lose_rows(lake: FreshLake, warehouse: Warehouse) -> None:
    """Iceberg deletes by path, so both copies would lose them; without deletes, or one after the other, it is read."""
    conn = lake.duckdb()
    path = outside(lake, "twice.parquet")
    conn.execute("CREATE TABLE t (id INTEGER)")
    conn.execute(f"COPY (SELECT i::INT AS id FROM range(30) r(i)) TO '{path}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    conn.execute("DELETE FROM t")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    assert open_static(lake, load(warehouse)).scan().to_arrow().num_rows == 30
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    assert open_static(lake, load(warehouse)).scan().to_arrow().num_rows == 60
    conn.execute("DELETE FROM t WHERE id = 5 AND rowid < 40")
    for _ in range(2):
        with pytest.raises(Unsupported, match="twice.parquet' is in the table twice"):
            load(warehouse)


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("TIMESTAMP_S", "TIMESTAMP '2020-01-02 03:04:05.5'"),
        ("TIMESTAMP", "TIMESTAMP_NS '2020-01-02 03:04:05.000000001'"),
        ("BIGINT", "3000000000::UINTEGER"),
    ],
)
def test_a_file_of_another_type_is_refused(lake: FreshLake, warehouse: Warehouse, column_type: str, value: str) -> None:
    """Where DuckDB casts what the file holds, readers of Iceberg would show other values."""
    conn = lake.duckdb()
    path = outside(lake, "other.parquet")
    conn.execute(f"CREATE TABLE t (v {column_type})")
    conn.execute(f"COPY (SELECT {value} AS v) TO '{path}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    with pytest.raises(Unsupported, match="in the column 'v'"):
        load(warehouse)


@pytest.mark.parametrize(
    ("column_type", "stored", "is_vectorized"),
    whole_after(
        1,
        [
            ("BIGINT", "INTEGER", False),
            ("BIGINT", "UTINYINT", False),
            ("BIGINT", "BIGINT", True),
            ("INTEGER", "SMALLINT", True),
            ("TIMESTAMP", "TIMESTAMP_MS", False),
            ("TIMESTAMP", "TIMESTAMP", True),
        ],
    ),
)
def test_a_file_that_breaks_vectors_turns_them_off(
    lake: FreshLake, warehouse: Warehouse, column_type: str, stored: str, is_vectorized: bool
) -> None:
    """Spark's vectorised reader is turned off by what the file's footer says, also when a server starts again."""
    conn = lake.duckdb()
    path = outside(lake, "narrow.parquet")
    value = "TIMESTAMP '2020-01-02 03:04:05'" if "TIMESTAMP" in column_type else "7"
    conn.execute(f"CREATE TABLE t (s STRUCT(v {column_type}))")
    conn.execute(f"COPY (SELECT {{'v': {value}::{stored}}} AS s) TO '{path}'")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    first = load(warehouse)
    conn.execute(f"INSERT INTO t SELECT {{'v': {value}::{column_type}}}")
    later = load(warehouse)
    for loaded in (first, later, load(replace(warehouse, caches=TableCaches()))):
        assert ("read.parquet.vectorization.enabled" not in json.loads(loaded.metadata)["properties"]) is is_vectorized
