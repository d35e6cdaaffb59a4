"""Files against what is said of them: all is well after any history, and each kind of falsehood is found."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from duckicelake.pipeline.verify.report import Verdict
from tests.interop.rich_lake import TRIPS, VISITS
from tests.pipeline.verify.checker import Checker

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

VECTORS = (
    "CREATE TABLE {c}.main.vectors (i bigint, s string) PARTITIONED BY (bucket(4, i), truncate(2, s)) "
    "TBLPROPERTIES ('format-version' = 3, 'write.delete.mode' = 'merge-on-read')"
)
LINES = "CREATE TABLE t AS SELECT i AS id, 'n' || i AS name FROM range(60) r(i)"


def open_store(checker: Checker) -> S3FileSystem:
    """The store of the lake's files."""
    store = checker.served.lake.store
    host = store.endpoint.removeprefix("http://")
    return S3FileSystem(
        access_key=store.access_key_id, secret_key=store.secret_access_key, endpoint_override=host, scheme="http", region=store.region
    )


def find_data_file(checker: Checker) -> str:
    """Where the only file of `t` is."""
    ((uri,),) = checker.duck.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    return uri.removeprefix("s3://")


def test_every_file_is_what_is_said_of_it(checker: Checker) -> None:
    """Data files of both sides, files derived from inlined rows, position deletes, deletion vectors, partitions; now and ever."""
    checker.run(*TRIPS, *VISITS)
    checker.ask_spark(VECTORS)
    checker.ask_spark("INSERT INTO {c}.main.vectors SELECT id, if(id % 5 = 0, NULL, concat('s', id)) FROM range(90)")
    checker.ask_spark("DELETE FROM {c}.main.vectors WHERE i % 10 = 3")
    checker.run("DELETE FROM vectors WHERE i = 8", "DELETE FROM vectors WHERE i % 2 = 0")
    reports = checker.verify(files=True), checker.verify("main.vectors", files=True, every_snapshot=True)
    assert [line for report in reports for found in report.findings if found.verdict is not Verdict.same for line in found.describe()] == []
    counts = {found.table: found.files for found in reports[0].findings}
    assert counts.keys() == {"main.trips", "main.visits", "main.vectors"}
    assert min(counts.values()) > 4


def lose(checker: Checker) -> None:
    """The object is gone."""
    open_store(checker).delete_file(find_data_file(checker))


def replace_object(checker: Checker) -> None:
    """Other rows lie under its name."""
    rows = pa.table({"id": pa.array([5], pa.int64()), "name": ["n"]})
    pq.write_table(rows, find_data_file(checker), filesystem=open_store(checker))


def tear(checker: Checker) -> None:
    """Its end is missing."""
    with open_store(checker).open_output_stream(find_data_file(checker)) as sink:
        sink.write(b"PAR1 and no more")


def count_wrongly(checker: Checker) -> None:
    """DuckLake has one row more than the file."""
    checker.corrupt("UPDATE ducklake_data_file SET record_count = record_count + 1")


def bound_wrongly(checker: Checker) -> None:
    """The greatest id is said to be less than it is."""
    checker.corrupt("UPDATE ducklake_file_column_stats SET max_value = '41' WHERE column_id = 1")


def count_nulls_wrongly(checker: Checker) -> None:
    """Names are said to be missing."""
    checker.corrupt("UPDATE ducklake_file_column_stats SET null_count = 3, value_count = 57 WHERE column_id = 2")


def mark_beyond(checker: Checker) -> None:
    """A deletion vector of 60 rows marks rows of a file that is said to have 20."""
    checker.run("DELETE FROM t WHERE id % 2 = 1")
    checker.corrupt("UPDATE ducklake_data_file SET record_count = 20")


@pytest.mark.parametrize(
    ("falsify", "said"),
    [
        pytest.param(lose, "is missing", id="missing"),
        pytest.param(replace_object, "bytes, the manifest says", marks=pytest.mark.long, id="replaced"),
        pytest.param(tear, "cannot be read", id="torn"),
        pytest.param(count_wrongly, "has 60 rows, the manifest says 61", marks=pytest.mark.long, id="rows"),
        pytest.param(bound_wrongly, "column id has values from 0 to 59, the manifest says from 0 to 41", id="bound"),
        pytest.param(count_nulls_wrongly, "column name has 0 nulls, the manifest says 3", marks=pytest.mark.long, id="nulls"),
        pytest.param(mark_beyond, "marks row 59 of", id="positions"),
    ],
)
def test_a_falsehood_is_found(checker: Checker, falsify: Callable[[Checker], None], said: str) -> None:
    """Before anything was published where DuckLake's rows are false: manifests follow them."""
    checker.run(LINES)
    falsify(checker)
    (found,) = checker.verify("main.t", files=True).findings
    assert found.verdict is Verdict.differs, found
    assert said in "\n".join(found.problems)


def test_a_wrong_partition_is_found(checker: Checker) -> None:
    """A file that is said to be of another day than its rows."""
    checker.run(
        "CREATE TABLE t (id BIGINT, day DATE)",
        "ALTER TABLE t SET PARTITIONED BY (day)",
        "INSERT INTO t SELECT i, DATE '2026-01-01' FROM range(60) r(i)",
    )
    checker.corrupt("UPDATE ducklake_file_partition_value SET partition_value = '2026-01-02'")
    (found,) = checker.verify("main.t", files=True).findings
    assert ["is in the partition day=20455, its rows belong to 20454" in problem for problem in found.problems] == [True], found
