"""Very many files and very large ones: every row comes, and memory stays what the job was given."""

import csv
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_commands import settings_for
from tests.pipeline.limits.watched import Watched, watch
from tests.support.readers import Served

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
FILES = 10_000
LARGE_BYTES = 2_000_000_000
ROWS = {"parquet": 25_000_000, "csv": 17_600_000}
BAD = 3
PYTHON_MAX, JAVA_MAX = 800 << 20, 1600 << 20
"""Of the driver; Java has a heap of 1 GiB, and its code, threads and buffers beside it: no room for all of a large file."""
SELECT = """SELECT i AS id, md5(i::VARCHAR) AS one, md5((i + 1)::VARCHAR) AS two, sha256((i % 1000)::VARCHAR)[:40] AS three
FROM range({rows}) r(i)"""


def check_bounded(done: Watched, java_max: int = JAVA_MAX) -> None:
    """The command did what it was asked, in its memory."""
    assert done.status == 0, done.err
    print(done.describe())  # noqa: T201  figures for the record
    assert done.python_bytes < PYTHON_MAX, done.describe()
    assert done.java_bytes < java_max, done.describe()


def test_ten_thousand_small_files(served: Served, tmp_path: Path) -> None:
    """Each is in the ledger once, a second run takes nothing, and one more file is found among them."""
    files, settings = tmp_path / "files", settings_for(served.lake, port=str(served.server.port))
    files.mkdir()
    for number in range(FILES):
        with (files / f"f{number:05}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("id", "name"), ("bad" if number < BAD else number, f"n{number}")])
    ingest = ("ingest", "files", "raw.trips", "--schema", "id BIGINT, name STRING", "--report", "r.json")
    check_bounded(watch(tmp_path, *ingest, settings=settings))
    told = json.loads((tmp_path / "r.json").read_text())
    assert (told["files"], told["rows_in"], told["rows_out"], told["rows_quarantined"]) == (FILES, FILES, FILES - BAD, BAD)
    duck = served.lake.duckdb()
    assert duck.execute("SELECT count(DISTINCT id), sum(id) FROM raw.trips").fetchone() == (FILES - BAD, sum(range(BAD, FILES)))
    (packed,) = duck.execute("SELECT file_count FROM ducklake_table_info('lake') WHERE table_name = 'trips'").fetchall()
    print(packed[0], "files of the table")  # noqa: T201
    assert packed[0] < FILES // 20
    ledger = duck.execute("SELECT count(*), count(DISTINCT uri), sum(rows), sum(quarantined) FROM raw.trips__ingested").fetchone()
    assert ledger == (FILES, FILES, FILES, BAD)
    (files / "g.csv").write_text("id,name\n-1,late\n")
    check_bounded(watch(tmp_path, *ingest, settings=settings))
    assert json.loads((tmp_path / "r.json").read_text())["files"] == 1


def test_files_of_a_table_with_ten_thousand(served_locally: Served, tmp_path: Path) -> None:
    """`verify --files` opens each of them, `verify` compares their rows, and one that is gone is named."""
    lake = served_locally.lake
    files, given = tmp_path / "files", settings_for(lake, port=str(served_locally.server.port))
    settings = {name: text for name, text in given.items() if "_S3_" not in name} | {"DUCKICELAKE_STORE": "none"}
    files.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), files / f"f{number:05}.parquet")
    duck = lake.duckdb()
    duck.execute("CREATE TABLE t (id BIGINT)")
    duck.execute(f"CALL ducklake_add_data_files('lake', 't', '{files}/*.parquet')")
    check_bounded(watch(tmp_path, "verify", "main.t", "--files", "--report", "r.json", settings=settings))
    check_bounded(watch(tmp_path, "verify", "main.t", "--report", "r.json", settings=settings))
    (files / f"f{FILES // 2:05}.parquet").unlink()
    done = watch(tmp_path, "verify", "main.t", "--files", settings=settings)
    assert (done.status, f"f{FILES // 2:05}.parquet" in done.out) == (1, True), done.out


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_one_file_of_two_gigabytes(served: Served, tmp_path: Path, form: str) -> None:
    """All of its rows come, and none twice."""
    path, rows = tmp_path / f"large.{form}", ROWS[form]
    how = "FORMAT parquet, COMPRESSION uncompressed" if form == "parquet" else "FORMAT csv, HEADER"
    with duckdb.connect() as conn:
        conn.execute("SET threads = 1; SET memory_limit = '1GB'")
        conn.execute(f"COPY ({SELECT.format(rows=rows)}) TO '{path}' ({how})")
    assert path.stat().st_size >= LARGE_BYTES
    given = ("--schema", "id BIGINT, one STRING, two STRING, three STRING") if form == "csv" else ()
    settings = settings_for(served.lake, port=str(served.server.port))
    check_bounded(watch(tmp_path, "ingest", path.name, "raw.large", *given, settings=settings))
    path.unlink()
    found = served.lake.duckdb().execute("SELECT count(*), count(DISTINCT id), sum(id), count_if(one != md5(id::VARCHAR)) FROM raw.large")
    assert found.fetchone() == (rows, rows, rows * (rows - 1) // 2, 0)
