"""Very many files and very many rows, for the jobs that follow `ingest`: memory stays what the job was given."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection

from tests.catalog.test_many_files import make_copies
from tests.cli.test_commands import settings_for
from tests.pipeline.limits.test_sizes import FILES, LARGE_BYTES, SELECT, check_bounded
from tests.pipeline.limits.watched import watch
from tests.support.readers import Served

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
ROWS = 25_000_000
MANY = 200_000
PER_MANIFEST = 4000
PUBLISH_MAX = 600 << 20
"""Of Java, through which plans and what is told of manifests go, and no rows of files."""
TRANSFER_MAX = 1800 << 20
"""Of Java, which reads and writes at once: buffers of both beside its heap, and still less than the rows take."""


def settings_of(served: Served) -> dict[str, str]:
    """The settings of a lake on the disk."""
    given = settings_for(served.lake, port=str(served.server.port))
    return {name: text for name, text in given.items() if "_S3_" not in name} | {"DUCKICELAKE_STORE": "none"}


def test_ten_thousand_files_are_put_together(served_locally: Served, tmp_path: Path) -> None:
    """By `maintain`: few are left, with every row."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), files / f"f{number:05}.parquet")
    duck = served_locally.lake.duckdb()
    duck.execute("CREATE TABLE t (id BIGINT)")
    duck.execute(f"CALL ducklake_add_data_files('lake', 't', '{files}/*.parquet')")
    check_bounded(watch(tmp_path, "maintain", "main.t", "--report", "r.json", settings=settings_of(served_locally)))
    [step] = json.loads((tmp_path / "r.json").read_text())["steps"]
    assert (step["kind"], step["verdict"], step["removed"]) == ("compact", "done", FILES)
    assert duck.execute("SELECT count(*), count(DISTINCT id), sum(id) FROM t").fetchone() == (FILES, FILES, sum(range(FILES)))
    assert len(duck.execute("FROM ducklake_list_files('lake', 't')").fetchall()) < FILES // 100


def test_a_table_of_two_gigabytes(served_locally: Served, tmp_path: Path) -> None:
    """Exported, imported again and measured, verified and merged into: every row comes, and is compared on the way."""
    duck, settings = served_locally.lake.duckdb(), settings_of(served_locally)
    duck.execute("SET threads = 1; SET memory_limit = '1GB'; CALL lake.set_option('parquet_compression', 'uncompressed')")
    duck.execute(f"CREATE TABLE large AS {SELECT.format(rows=ROWS)}")
    sizes = duck.execute("SELECT sum(data_file_size_bytes) FROM ducklake_list_files('lake', 'large')").fetchone()
    assert sizes is not None
    assert sizes[0] >= LARGE_BYTES
    check_bounded(watch(tmp_path, "profile", "main.large", "--report", "r.json", settings=settings))
    [table] = json.loads((tmp_path / "r.json").read_text())["tables"]
    assert (table["total"]["rows"], table["columns"][0]["distinct"]) == (ROWS, pytest.approx(ROWS, rel=0.05))
    for call in (("export", "there", "main.large"), ("import", "there", "--mode", "copy", "--into", "back")):
        check_bounded(watch(tmp_path, *call, "--report", "r.json", settings=settings), TRANSFER_MAX)
        [moved] = json.loads((tmp_path / "r.json").read_text())["moved"]
        assert (moved["verdict"], moved["rows"]) == ("done", ROWS)
    found = duck.execute('SELECT count(*), sum(id), count_if(one != md5(id::VARCHAR)) FROM lake."back␟main".large').fetchone()
    assert found == (ROWS, ROWS * (ROWS - 1) // 2, 0)
    check_merged(duck, tmp_path, settings)
    check_bounded(watch(tmp_path, "verify", "main.large", "--report", "r.json", settings=settings))
    [finding] = json.loads((tmp_path / "r.json").read_text())["findings"]
    assert (finding["verdict"], finding["iceberg_rows"]) == ("same", ROWS + 1)


def check_merged(duck: DuckDBPyConnection, folder: Path, settings: Mapping[str, str]) -> None:
    """A row of the first file, one of the last and a new one come by key: two are updated, one is added, and no other one is changed."""
    (folder / "late.csv").write_text(f"id,one\n0,first\n{ROWS - 1},last\n{ROWS},new\n")
    call = ("ingest", "late.csv", "main.large", "--mode", "upsert", "--key", "id")
    check_bounded(watch(folder, *call, settings=settings))
    changed = duck.execute("SELECT id, one, two IS NULL FROM large WHERE one != md5(id::VARCHAR) ORDER BY 1").fetchall()
    assert changed == [(0, "first", False), (ROWS - 1, "last", False), (ROWS, "new", True)]
    assert duck.execute("SELECT count(*), count(DISTINCT id) FROM large").fetchone() == (ROWS + 1, ROWS + 1)


def test_a_table_of_two_hundred_thousand_files(served: Served, tmp_path: Path) -> None:
    """Its manifests are made by `publish`, from rows of Postgres."""
    make_copies(served.lake, MANY - 1)
    done = watch(tmp_path, "publish", "main.t", "--report", "r.json", settings=settings_for(served.lake, port=str(served.server.port)))
    check_bounded(done, PUBLISH_MAX)
    [table] = json.loads((tmp_path / "r.json").read_text())["tables"]
    assert (table["verdict"], table["files"], table["manifests"]) == ("done", MANY, MANY // PER_MANIFEST)
