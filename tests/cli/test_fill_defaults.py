"""`duckicelake fill-defaults`: readers that know no defaults find them in every file."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import BadRequest, NoSuchTable
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.support.keys import open_s3
from tests.support.lakes import FreshLake

STATEMENTS = (
    "CALL lake.set_option('data_inlining_row_limit', 0)",
    "CREATE TABLE t AS SELECT i AS id FROM range(50) r(i)",
    "DELETE FROM t WHERE id < 5",
    "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 42",
    'ALTER TABLE t RENAME d TO "the d"',
    "INSERT INTO t VALUES (100, 7), (101, NULL)",
    "ALTER TABLE t ADD COLUMN e VARCHAR DEFAULT 'x'",
    "INSERT INTO t VALUES (102, 8, NULL)",
)
ROWS = "SELECT rowid, * FROM t ORDER BY id"
WITH_INLINED = (
    "CREATE TABLE t AS SELECT i AS id FROM range(50) r(i)",
    "INSERT INTO t SELECT i FROM range(60, 65) r(i)",
    "CALL ducklake_flush_inlined_data('lake')",
    "INSERT INTO t VALUES (90)",
    "DELETE FROM t WHERE id < 3",
    "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 42",
    "INSERT INTO t VALUES (99, 1)",
)


def read_files(lake: FreshLake) -> list[dict[str, Any]]:
    """Return the rows of all live files as a reader that knows neither defaults nor deletes finds them."""
    listed = lake.duckdb().execute("SELECT data_file, delete_file FROM ducklake_list_files('lake', 't')").fetchall()
    assert all(delete_file is None for _, delete_file in listed)
    s3, found = open_s3(lake.store), list[dict[str, Any]]()
    for path, _ in listed:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        found += pq.read_table(pa.BufferReader(body)).to_pylist()
    return found


@pytest.mark.whole
def test_defaults_stand_in_every_file(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are younger than the columns stay, rows keep their ids and values, and nothing is left to do."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    with closing(lake.duckdb()) as session:
        for statement in STATEMENTS:
            session.execute(statement)
        expected = session.execute(ROWS).fetchall()
        newest = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()[-1]
    assert ask(settings, "fill-defaults", "main.t", *home) == "main.t: wrote the d, e into new files in place of 2, 47 rows\n"
    with closing(lake.duckdb()) as session:
        assert session.execute(ROWS).fetchall() == expected
        assert newest in session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    found = {row["id"]: (row["the d"], row["e"]) for row in read_files(lake)}
    assert found == {i: (42, "x") for i in range(5, 50)} | {100: (7, "x"), 101: (None, "x"), 102: (8, None)}
    assert ask(settings, "fill-defaults", "main.t", *home) == "every file of main.t has its columns' defaults\n"
    with pytest.raises(NoSuchTable):
        ask(settings, "fill-defaults", "main.u", *home)


def test_files_end_where_duckdb_inlines_deletes(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB keeps a few deleted rows in Postgres: the files that held them would stay, with all of their rows deleted."""
    monkeypatch.chdir(tmp_path)
    settings, home = settings_for(lake), ("--home", str(tmp_path / "home"))
    with closing(lake.duckdb()) as session:
        for statement in WITH_INLINED:
            session.execute(statement)
        expected = session.execute(ROWS).fetchall()
        session.execute("CALL lake.set_option('data_inlining_row_limit', 10, schema => 'main', table_name => 't')")
    with pytest.raises(BadRequest, match="data_inlining_row_limit is set to 10"):
        ask(settings, "fill-defaults", "main.t", *home)
    with closing(lake.duckdb()) as session:
        session.execute("CALL lake.set_option('data_inlining_row_limit', 0, schema => 'main', table_name => 't')")
        before = session.execute("SELECT rowid, * FROM t AT (VERSION => 2) ORDER BY id").fetchall()
    assert ask(settings, "fill-defaults", "main.t", *home) == "main.t: wrote d into new files in place of 2, 53 rows\n"
    with closing(lake.duckdb()) as session:
        assert session.execute(ROWS).fetchall() == expected
        assert session.execute("SELECT rowid, * FROM t AT (VERSION => 2) ORDER BY id").fetchall() == before
    found = sorted((row["id"], row["d"]) for row in read_files(lake))
    assert found == [(i, 42) for i in (*range(3, 50), *range(60, 65), 90)] + [(99, 1)]
    assert ask(settings, "fill-defaults", "main.t", *home) == "every file of main.t has its columns' defaults\n"
