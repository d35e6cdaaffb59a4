"""The fixtures that the tests of every package use."""

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.whole
def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    """What takes a server of its own is started once, however many processes share the tests."""
    marked = "import pytest\n@pytest.mark.xdist_group('one')\n@pytest.mark.parametrize('i', range(8))\ndef test_in(i, worker_id):\n"
    (tmp_path / "test_groups.py").write_text(marked + "    with open('workers', 'a') as file:\n        file.write(worker_id + '\\n')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-q"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert len(set((tmp_path / "workers").read_text().split())) == 1
