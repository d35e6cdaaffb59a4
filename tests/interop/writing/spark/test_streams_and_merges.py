"""Streams of Spark across merges of DuckDB that are above the limit of what is restored: nothing is lost, nothing comes twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duckicelake.lake.install import write_restored_max
from duckicelake.lake.rows import RESTORED_MAX_BYTES
from tests.interop.writing.spark.story import Story
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

CLEAN_UP = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"
LARGEST = """
SELECT max(file_size_bytes) FROM ducklake_data_file WHERE partial_max IS NOT NULL
"""


@pytest.fixture
def served(lake: FreshLake) -> Iterator[Served]:
    """A server that does not look after its objects meanwhile."""
    with serve(make_settings(lake, object_check_s=0)) as server:
        yield Served(lake, server)


class Flow:
    """A stream of Spark from ns.t to ns.out, one batch for each snapshot, that ends when it has all there is."""

    def __init__(self, served: Served, spark: Spark, folder: Path, row_count: int) -> None:
        self.story, self.folder, self.row_count = Story(served, spark, "", "'format-version' = '2'"), folder, row_count
        self.story.run("CREATE TABLE {c}.ns.out (id bigint, name string) USING iceberg")
        self.appended = 0

    def append(self) -> None:
        """Have Spark append rows to ns.t that do not compress."""
        first = self.appended * self.row_count
        random = f"SELECT id, sha2(cast(rand() AS string), 256) FROM range({first}, {first + self.row_count})"
        self.story.run(f"INSERT INTO {{t}} {random}")
        self.appended += 1

    def run(self) -> None:
        """Stream what is new."""
        options = {"streaming-max-files-per-micro-batch": "1"}
        rows = self.story.spark.session.readStream.format("iceberg").options(**options).load(f"{self.story.catalog}.ns.t")
        writing = rows.writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
        writing.option("checkpointLocation", str(self.folder)).toTable(f"{self.story.catalog}.ns.out").awaitTermination()

    def forget_last_commit(self) -> None:
        """Have the stream not know that its last batch was committed, as after a crash between the commit and its note of it."""
        last = max((self.folder / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        for file in (last, last.with_name(f".{last.name}.crc")):
            file.unlink()

    def merge(self, name: str) -> None:
        """Have DuckDB merge the files of a table."""
        self.story.duck.execute(f"CALL ducklake_merge_adjacent_files('lake', '{name}', schema => 'ns')")

    def check(self) -> None:
        """Each row is in ns.out once."""
        ((rows, ids, last),) = self.story.run("SELECT count(*), count(DISTINCT id), max(id) FROM {c}.ns.out")
        assert (rows, ids, last) == (self.appended * self.row_count,) * 2 + (self.appended * self.row_count - 1,)


@pytest.mark.long
@pytest.mark.parametrize(
    ("row_count", "restored_max_bytes"),
    [pytest.param(10, 0, id="lowered"), pytest.param(120_000, RESTORED_MAX_BYTES, id="16 MiB", marks=pytest.mark.long)],
)
def test_a_stream_crosses_merges_of_its_source_and_its_target(
    served: Served, spark: Spark, tmp_path: Path, row_count: int, restored_max_bytes: int
) -> None:
    """The writer repeats a batch whose snapshot is an overwrite now, and finds it; then the reader is behind a merge of its source."""
    write_restored_max(served.lake.psycopg(), served.lake.metadata_schema, restored_max_bytes)
    flow = Flow(served, spark, tmp_path, row_count)
    for _ in range(4):
        flow.append()
    flow.run()
    flow.merge("out")
    flow.story.duck.execute(CLEAN_UP)
    row = served.lake.psycopg().execute(LARGEST).fetchone()
    assert row is not None
    assert row[0] > restored_max_bytes
    flow.forget_last_commit()
    flow.run()
    flow.check()
    for _ in range(3):
        flow.append()
    flow.merge("t")
    flow.append()
    flow.run()
    flow.check()


@pytest.mark.long
def test_a_stream_that_is_behind_a_clean_up_is_refused(served: Served, spark: Spark, tmp_path: Path) -> None:
    """When DuckLake has deleted the files, snapshots above the limit are overwrites, which Spark's reader does not pass over in silence."""
    write_restored_max(served.lake.psycopg(), served.lake.metadata_schema, 0)
    flow = Flow(served, spark, tmp_path, 10)
    flow.append()
    flow.run()
    flow.append()
    flow.append()
    flow.merge("t")
    flow.story.duck.execute(CLEAN_UP)
    with pytest.raises(Exception, match="overwrite"):
        flow.run()
