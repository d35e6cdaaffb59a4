"""Our tables and triggers beside DuckLake's."""

from pathlib import Path

import duckdb
import psycopg
import pytest

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.lake.install import check_beside, install
from tests.lake.bare import list_relations, make_bare_lake
from tests.support.lakes import FreshLake

ASKED = (
    "SELECT * REPLACE (snapshot_time::VARCHAR AS snapshot_time) FROM lake.snapshots()",
    "FROM ducklake_table_info('lake')",
    "FROM lake.options()",
    "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE database_name = 'lake'",
    "SELECT table_name, comment FROM duckdb_tables() WHERE database_name = 'lake'",
    "FROM t ORDER BY ALL",
    "FROM t AT (VERSION => 3) ORDER BY ALL",
    "FROM s.u",
)


def see(conn: duckdb.DuckDBPyConnection) -> list[list[tuple[object, ...]]]:
    """Everything a DuckDB user sees of the lake."""
    return [conn.execute(query).fetchall() for query in ASKED]


def read_rows(conn: psycopg.Connection, relations: list[str]) -> dict[str, list[str]]:
    """Every row of DuckLake's own tables, as text."""
    tables = [name for name in relations if name.startswith("ducklake_") and not name.endswith("_pkey")]
    return {name: [row for (row,) in conn.execute(f"SELECT x::text FROM {name} x ORDER BY 1")] for name in tables}  # pyright: ignore


def test_duckdb_sees_no_difference(lake: FreshLake, tmp_path: Path) -> None:
    """Rows, tables, options, snapshots and DuckLake's own tables stay as they are, for open sessions and new ones."""
    bare = make_bare_lake(lake, tmp_path)
    session = bare.duckdb()
    for statement in (
        "CREATE TABLE t (i INTEGER, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO t SELECT range, 'x' FROM range(100)",
        "DELETE FROM t WHERE i BETWEEN 10 AND 60",
        "CREATE SCHEMA s",
        "CREATE TABLE s.u AS SELECT 1 AS k",
        "COMMENT ON TABLE t IS 'c'",
        "CALL lake.set_option('target_file_size', '10MB')",
    ):
        session.execute(statement)
    conn, relations = bare.psycopg(), list_relations(bare)
    before, rows = see(session), read_rows(conn, relations)
    install(conn, bare.metadata_schema, bare.iceberg_path)
    assert (see(session), read_rows(conn, relations)) == (before, rows)
    assert see(bare.duckdb()) == before
    assert {name.split("_")[0] for name in set(list_relations(bare)) - set(relations)} == {"iceberg", "trigger iceberg"}


def test_a_second_time_changes_nothing(lake: FreshLake) -> None:
    """`init` may run at every start; the ICEBERG_PATH first given stays."""
    before, conn = list_relations(lake), lake.psycopg()
    install(conn, lake.metadata_schema, "s3://elsewhere/iceberg")
    assert list_relations(lake) == before
    assert conn.execute("SELECT key, value FROM iceberg_setting").fetchall() == [("iceberg_path", lake.iceberg_path)]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        pytest.param("UPDATE ducklake_metadata SET value = '0.3' WHERE key = 'version'", "'0.3'", id="older version"),
        pytest.param("UPDATE ducklake_metadata SET value = '1.1-dev1' WHERE key = 'version'", "'1.1-dev1'", id="newer version"),
        pytest.param("UPDATE ducklake_metadata SET value = 'true' WHERE key = 'encrypted'", "ENCRYPTED", id="encrypted"),
    ],
)
def test_a_lake_we_cannot_serve_is_left_alone(lake: FreshLake, statement: str, word: str) -> None:
    """The refusal says what is wrong, and nothing of ours stays behind."""
    conn = lake.psycopg()
    conn.execute("DROP TABLE iceberg_change, iceberg_setting")
    conn.execute(statement)  # pyright: ignore
    before = list_relations(lake)
    with pytest.raises(Unsupported, match=word):
        install(conn, lake.metadata_schema, lake.iceberg_path)
    assert list_relations(lake) == before


def test_an_option_of_one_table_is_not_the_lakes(lake: FreshLake) -> None:
    """Only settings without a scope count: DuckLake keeps those of tables and schemas in the same rows."""
    conn = lake.psycopg()
    conn.execute("INSERT INTO ducklake_metadata (key, value, scope, scope_id) VALUES ('encrypted', 'true', 'table', 1)")
    install(conn, lake.metadata_schema, lake.iceberg_path)


@pytest.mark.parametrize(
    ("data_path", "iceberg_path"),
    [
        pytest.param("s3://b/data/", "s3://b/data/", id="the same"),
        pytest.param("s3://b/data/", "s3://b/data", id="the same without a slash"),
        pytest.param("s3://b/data/", "s3://b/data/iceberg/", id="below"),
        pytest.param("s3://b/", "s3://b/iceberg/", id="below a whole bucket"),
        pytest.param("/lake/data/", "file:///lake/data/iceberg/", id="below, as a URI"),
        pytest.param("file:///lake/data/", "/lake/data/iceberg/", id="below a URI"),
        pytest.param("s3://b/lake/data/", "s3://b/lake/", id="above: a namespace may be called data"),
        pytest.param("s3://b/data/", "s3://b/", id="a whole bucket above"),
    ],
)
def test_the_two_paths_never_hold_one_another(data_path: str, iceberg_path: str) -> None:
    """DuckLake's orphan clean-up would delete our files, so neither path may lie under the other."""
    with pytest.raises(BadRequest, match="DATA_PATH"):
        check_beside(data_path, iceberg_path)


@pytest.mark.parametrize(
    ("data_path", "iceberg_path"),
    [
        pytest.param("s3://b/data/", "s3://b/iceberg/", id="beside"),
        pytest.param("s3://b/data/", "s3://b/data-iceberg/", id="a longer name"),
        pytest.param("s3://b/data/", "s3://c/", id="another bucket"),
        pytest.param("/lake/data/", "s3://lake/data/x/", id="another kind of store"),
    ],
)
def test_paths_side_by_side_are_fine(data_path: str, iceberg_path: str) -> None:
    """Names that only begin alike are different folders."""
    check_beside(data_path, iceberg_path)


def test_a_name_of_any_length_is_left_to_duckdb(lake: FreshLake, other_lake: FreshLake) -> None:
    """Postgres limits the size of index keys: a table DuckDB alone can create, it can create beside our indexes."""
    name = "".join(f"{n * n * 7919 % 1_000_003:x}" for n in range(1, 2500))
    for fresh in (other_lake, lake):
        fresh.psycopg().execute("DROP INDEX iceberg_ix_changes, iceberg_ix_table_live")
    install(lake.psycopg(), lake.metadata_schema, lake.iceberg_path)
    for fresh in (other_lake, lake):
        session = fresh.duckdb()
        session.execute(f'CREATE TABLE "{name}" (i INTEGER)')
        session.execute(f'INSERT INTO "{name}" VALUES (1)')
        assert session.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == [(name,)]


def test_a_lake_of_the_first_version_is_upgraded(lake: FreshLake) -> None:
    """Its notes stay, and what clients' writes need is added."""
    conn = lake.psycopg()
    expected = list_relations(lake)
    conn.execute("DROP TABLE iceberg_shape, iceberg_snapshot, iceberg_file")
    conn.execute("ALTER TABLE iceberg_table DROP COLUMN last_column_id, DROP COLUMN last_partition_id, DROP COLUMN is_native")
    conn.execute("INSERT INTO iceberg_table VALUES (1, 's3://b/t', 2, 0, 1, 1, 0, 'token', 5)")
    install(conn, lake.metadata_schema, lake.iceberg_path)
    assert list_relations(lake) == expected
    found = conn.execute("SELECT location, last_column_id, last_partition_id, is_native FROM iceberg_table").fetchall()
    assert found == [("s3://b/t", 0, 0, False)]
