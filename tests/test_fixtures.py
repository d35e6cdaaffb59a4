"""The fixtures that every room's tests stand on."""

from pathlib import Path

from tests.support.lakes import FreshLake


def test_a_fresh_lake_is_empty_and_its_files_lie_on_s3(lake: FreshLake) -> None:
    """DuckDB writes under the lake's own prefix and Postgres sees the file."""
    conn = lake.duckdb()
    assert conn.sql("SHOW TABLES").fetchall() == []
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    paths = [path for (path,) in conn.execute(f"SELECT file FROM glob('{lake.data_path}**')").fetchall()]
    assert len(paths) == 1
    found = lake.psycopg().execute("SELECT record_count FROM ducklake_data_file").fetchall()
    assert found == [(100,)]


def test_two_lakes_know_nothing_of_each_other(lake: FreshLake, other_lake: FreshLake) -> None:
    """A table made in one lake is not in the other."""
    lake.duckdb().execute("CREATE TABLE mine AS SELECT 1 AS i")
    assert other_lake.duckdb().sql("SHOW TABLES").fetchall() == []


def test_a_local_lake_writes_below_its_folder(local_lake: FreshLake, tmp_path: Path) -> None:
    """The files of a local lake lie in the test's folder."""
    local_lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    assert len(list((tmp_path / "data").rglob("*.parquet"))) == 1
