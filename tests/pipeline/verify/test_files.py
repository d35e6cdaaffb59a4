"""Files against what is said of them: all is well after any history, and each kind of falsehood is found."""

from collections.abc import Callable
from typing import NoReturn

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from duckicelake.pipeline.verify import job
from duckicelake.pipeline.verify.job import VerifyVerdict
from tests.interop.rich_lake import TRIPS, VISITS
from tests.interop.types.tables import EXTREMES
from tests.pipeline.verify.checker import Checker
from tests.support.tiers import long_after

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
    assert [
        line for report in reports for found in report.findings if found.verdict is not VerifyVerdict.same for line in found.describe()
    ] == []
    counts = {found.table: found.files for found in reports[0].findings}
    assert counts.keys() == {"main.trips", "main.visits", "main.vectors"}
    assert min(counts.values()) > 4


@pytest.mark.long
def test_a_table_without_files_has_none_that_is_wrong(checker: Checker) -> None:
    """One that never had rows, partitioned or not, and one that lost them all."""
    checker.run(
        "CREATE TABLE empty (id INTEGER)",
        "CREATE TABLE parted (id INTEGER, l STRUCT(x INTEGER)[])",
        "ALTER TABLE parted SET PARTITIONED BY (id)",
        "CREATE TABLE emptied AS SELECT i AS id FROM range(60) r(i)",
        "DELETE FROM emptied",
    )
    report = checker.verify(files=True)
    names = ("emptied", "empty", "parted")
    assert sorted(report.describe()) == ["3 same", *(f"main.{name} files now: 0, all as they are said to be" for name in names)]
    assert report.status == 0


@pytest.mark.parametrize(
    ("error", "said"),
    long_after(
        1,
        [
            pytest.param(duckdb.IOException("IO Error: gone\nat 7"), "DuckDB: IO Error: gone", id="duckdb"),
            pytest.param(pa.ArrowInvalid("no such type"), "no such type", id="arrow"),
        ],
    ),
)
def test_only_duckdbs_errors_are_told_as_its_own(checker: Checker, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    """Arrow's may come of anything that is done with columns."""

    def fail(*_: object) -> NoReturn:
        raise error

    checker.run("CREATE TABLE t (id INTEGER)")
    monkeypatch.setattr(job, "check_files", fail)
    assert checker.look("main.t", files=True).message == said


UNSAID = (
    "CREATE TABLE uuids AS SELECT uuid() AS id FROM range(60)",
    "CREATE TABLE nans AS SELECT 'nan'::DOUBLE AS x FROM range(60)",
    "CREATE TABLE lists AS SELECT [i] AS x FROM range(60) r(i)",
    "CREATE TABLE nothings AS SELECT NULL::INTEGER AS x FROM range(60)",
    'CREATE TABLE dots ("a.b" DATE, s STRUCT("x.y" BIGINT))',
    'ALTER TABLE dots SET PARTITIONED BY (year("a.b"))',
    "INSERT INTO dots SELECT DATE '2026-01-01' + (i * 7)::INT, {'x.y': i} FROM range(60) r(i)",
)


@pytest.mark.long
def test_files_that_manifests_say_little_of_are_looked_at(checker: Checker) -> None:
    """Counts and bounds may be missing altogether, of all columns; names may hold dots."""
    checker.run(*UNSAID)
    checker.ask_spark(
        "CREATE TABLE {c}.main.unmeasured TBLPROPERTIES ('write.metadata.metrics.default' = 'none') AS SELECT id FROM range(60)"
    )
    report = checker.verify(files=True)
    assert report.describe()[-1] == "6 same", report.describe()


@pytest.mark.long
def test_floats_within_null_structs_are_counted_as_icebergs_writers_do(checker: Checker) -> None:
    """Manifests of a client's branch come to main as they are, with the NULLs that they leave out."""
    checker.ask_spark("CREATE TABLE {c}.main.t (id bigint, s struct<x: double, n: bigint>)")
    checker.ask_spark("INSERT INTO {c}.main.t VALUES (1, NULL)")
    checker.ask_spark("ALTER TABLE {c}.main.t CREATE BRANCH next")
    rows = "SELECT id, if(id % 2 = 0, NULL, named_struct('x', if(id = 3, NULL, id / 2), 'n', id)) FROM range(60)"
    checker.ask_spark(f"INSERT INTO {{c}}.main.t.branch_next {rows}")
    checker.ask_spark("CALL {c}.system.fast_forward('main.t', 'main', 'next')")
    (found,) = checker.verify("main.t", files=True).findings
    assert found.verdict is VerifyVerdict.same, found


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("spoil", "is_named"), [pytest.param(lose, True, id="missing"), pytest.param(tear, False, id="torn", marks=pytest.mark.long)]
)
def test_rows_of_a_spoilt_file_point_to_it(checker: Checker, spoil: Callable[[Checker], None], is_named: bool) -> None:
    """Of a file that is missing Iceberg says which it is; of a damaged one nobody does, and the look at files finds it."""
    checker.run(LINES)
    path = f"s3://{find_data_file(checker)}"
    spoil(checker)
    found = checker.look("main.t")
    assert found.verdict is VerifyVerdict.unknown
    said, *_, pointer = found.message.splitlines()
    assert pointer == "`verify main.t --files` looks at each of its files"
    assert (said == f"{path} is missing") is is_named
    (problem, *_) = checker.look("main.t", files=True).problems
    assert problem.startswith(path)


@pytest.mark.parametrize(
    ("falsify", "said"),
    long_after(
        2,
        [
            pytest.param(lose, "is missing", id="missing"),
            pytest.param(replace_object, "bytes, the manifest says", marks=pytest.mark.long, id="replaced"),
            pytest.param(tear, "cannot be read", id="torn"),
            pytest.param(count_wrongly, "has 60 rows, the manifest says 61", marks=pytest.mark.long, id="rows"),
            pytest.param(bound_wrongly, "column id has values from 0 to 59, the manifest says from 0 to 41", id="bound"),
            pytest.param(count_nulls_wrongly, "column name has 0 nulls, the manifest says 3", marks=pytest.mark.long, id="nulls"),
            pytest.param(mark_beyond, "marks row 59 of", id="positions"),
        ],
    ),
)
def test_a_falsehood_is_found(checker: Checker, falsify: Callable[[Checker], None], said: str) -> None:
    """Before anything was published where DuckLake's rows are false: manifests follow them."""
    checker.run(LINES)
    falsify(checker)
    (found,) = checker.verify("main.t", files=True).findings
    assert found.verdict is VerifyVerdict.differs, found
    assert said in "\n".join(found.problems)


def test_a_wrong_partition_is_found(checker: Checker) -> None:
    """A file that is said to be of another day than its rows: by DuckLake, and by the manifest that is published from it."""
    checker.run(
        "CREATE TABLE t (id BIGINT, day DATE)",
        "ALTER TABLE t SET PARTITIONED BY (day)",
        "INSERT INTO t SELECT i, DATE '2026-01-01' FROM range(60) r(i)",
    )
    checker.corrupt("UPDATE ducklake_file_partition_value SET partition_value = '2026-01-02'")
    (found,) = checker.verify("main.t", files=True).findings
    assert len(found.problems) == 2, found
    assert "has rows with identity(day) of 20454, DuckLake says 2026-01-02" in found.problems[0]
    assert "is in the partition day=20455, its rows belong to 20454" in found.problems[1]


PUBLISHED = (
    "CREATE TABLE p (id BIGINT, name VARCHAR, stamp TIMESTAMP, day DATE, price DECIMAL(9, 2), ratio DOUBLE)",
    "ALTER TABLE p SET PARTITIONED BY (day, year(stamp), month(stamp))",
    "INSERT INTO p SELECT i, 'n' || i, TIMESTAMP '2026-01-05 00:00:00' + i * INTERVAL 1 HOUR, DATE '2026-01-01' + (i % 2)::INT, "
    "i / 4, i / 3 FROM range(60) r(i)",
    "INSERT INTO p SELECT i, NULL, NULL, NULL, NULL, 'nan' FROM range(60, 70) r(i)",
)
FALSEHOODS = {
    "UPDATE ducklake_file_column_stats SET min_value = '2500' WHERE column_id = 1": "DuckLake says from 2500 to",
    "UPDATE ducklake_file_column_stats SET max_value = 'n1' WHERE column_id = 2": "column name has values from",
    "UPDATE ducklake_file_column_stats SET null_count = 7 WHERE column_id = 2": "nulls, DuckLake says 7",
    "UPDATE ducklake_file_column_stats SET min_value = '2026-01-07 00:00:00' WHERE column_id = 3": "column stamp has values from",
    "UPDATE ducklake_file_column_stats SET max_value = '0.25' WHERE column_id = 5": "column price has values from",
    "UPDATE ducklake_file_column_stats SET max_value = '0.1', contains_nan = false WHERE column_id = 6": "column ratio has values from",
    "UPDATE ducklake_file_partition_value SET partition_value = '2030-01-01' WHERE partition_key_index = 0": "DuckLake says 2030-01-01",
    "UPDATE ducklake_file_partition_value SET partition_value = '9' WHERE partition_value = '1'": "with month(stamp) of 1",
}


@pytest.mark.long
def test_a_falsehood_of_ducklake_is_found_after_publication(checker: Checker) -> None:
    """Manifests say what was so when they were written; DuckDB reads by DuckLake's statistics and partition values."""
    checker.run(*PUBLISHED)
    assert checker.verify("main.p", files=True).describe()[-1] == "1 same"
    for statement in FALSEHOODS:
        checker.corrupt(statement)
    (found,) = checker.verify("main.p", files=True).findings
    said = "\n".join(found.problems)
    assert [text for text in FALSEHOODS.values() if text not in said] == [], said


TIMES = (
    "CREATE TABLE times (id BIGINT, hour TIME, day DATE, price DECIMAL(9, 2), s STRUCT(hour TIME))",
    "ALTER TABLE times SET PARTITIONED BY (day, price, year(day))",
    "INSERT INTO times SELECT i, TIME '10:00:00' + i * INTERVAL 1 MINUTE, DATE '2026-01-01' + (i % 2)::INT, i % 2 / 4, {'hour': NULL} "
    "FROM range(60) r(i)",
    "INSERT INTO times SELECT i, NULL, NULL, NULL, NULL FROM range(60, 90) r(i)",
    "INSERT INTO times VALUES (100, '12:00:00', '2026-01-01', 0, NULL)",
    "DELETE FROM times WHERE id % 7 = 3",
)
OF_HOURS = "UPDATE ducklake_file_column_stats SET min_value = '10:30:00' WHERE column_id = 2 AND min_value = '10:00:00'"
OF_PRICES = "UPDATE ducklake_file_partition_value SET partition_value = '0.50' WHERE partition_value = '0.25'"


@pytest.mark.long
def test_files_of_columns_that_spark_does_not_read_are_looked_at(checker: Checker) -> None:
    """Iceberg shows Spark no list of them: manifests are read without it, of now, of a snapshot and of all; what DuckLake says too."""
    checker.run(*TIMES)
    for options in ({}, {"every_snapshot": True}, {"snapshot_id": checker.list_snapshots("times")[-2]}):
        found = checker.look("main.times", files=True, **options)
        assert (found.verdict, found.files > 3) == (VerifyVerdict.same, True), found
    checker.corrupt(OF_HOURS)
    (said,) = checker.look("main.times", files=True).problems
    assert said.endswith("column hour has values from 36000000000 to 39480000000, DuckLake says from 10:30:00 to 10:58:00")


@pytest.mark.long
def test_what_manifests_say_falsely_of_such_files_is_found(checker: Checker) -> None:
    """Of bounds, and of partitions, which manifests have as other values than rows of DuckLake."""
    checker.run(*TIMES)
    checker.corrupt(OF_HOURS)
    checker.corrupt(OF_PRICES)
    said = [problem.partition(".parquet ")[2] for problem in checker.look("main.times", files=True).problems]
    assert sorted(said) == [
        "column hour has values from 36000000000 to 39480000000, the manifest says from 37800000000 to 39480000000",
        "has rows with identity(price) of Decimal('0.25'), DuckLake says 0.50",
        "is in the partition price=Decimal('0.50'), its rows belong to Decimal('0.25')",
    ]


UNREAD = ("TIME", "TIMETZ", "TIMESTAMP_NS", "GEOMETRY")
"""Types of DuckLake that Iceberg's library shows Spark neither in tables nor in lists of their files."""


@pytest.mark.long
def test_what_ducklake_says_of_a_file_in_its_own_words_is_no_falsehood(checker: Checker) -> None:
    """Texts of extremes of every type, of long texts, of a float that became a double, and partitions of every kind."""
    for name, kinds in {"t": [kind for kind in EXTREMES if kind not in UNREAD], "u": UNREAD}.items():
        drawn = [f"([{', '.join(f'CAST({value} AS {kind})' for value in (*EXTREMES[kind], 'NULL'))}])" for kind in kinds]
        picked = ", ".join(f"{some}[1 + n % len({some})]" for some in drawn)
        columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
        checker.run(f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} SELECT {picked} FROM range(40) r(n)")
    checker.run(
        "CREATE TABLE f (x FLOAT, long VARCHAR)",
        "INSERT INTO f SELECT i * 0.1, repeat('é', 40) || i FROM range(50) r(i)",
        "ALTER TABLE f ALTER x TYPE DOUBLE",
        "INSERT INTO f SELECT i * 0.1, repeat(chr(1114111), 300) FROM range(50) r(i)",
        "CREATE TABLE d (stamp TIMESTAMP, seen TIMESTAMPTZ, name VARCHAR, price DECIMAL(9, 2), ok BOOLEAN)",
        "ALTER TABLE d SET PARTITIONED BY (year(stamp), month(stamp), day(stamp), hour(stamp), seen, name, price, ok)",
        "INSERT INTO d SELECT TIMESTAMP '1969-12-31 22:00:00' + i * INTERVAL 1 HOUR, TIMESTAMPTZ '1969-12-31 22:00:00+00', "
        "CASE WHEN i % 3 = 0 THEN NULL ELSE 'a/b=' || i % 2 END, -0.50, i % 2 = 0 FROM range(6) r(i)",
        "CALL ducklake_flush_inlined_data('lake')",
    )
    report = checker.verify(files=True)
    assert report.status == 0, report.describe()
