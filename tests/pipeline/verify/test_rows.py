"""Rows of both sides: equal in every state that both can show, and a difference is found, placed and shown."""

import json
from functools import partial
from typing import Any, NoReturn

import pytest
from pyspark.errors import SparkRuntimeException

from duckicelake.errors import Unsupported
from duckicelake.pipeline.verify import job
from duckicelake.pipeline.verify.job import VerifyVerdict
from tests.interop.rich_lake import MEASURES, ODD_NAMES, TRIPS, VISITS
from tests.interop.types.tables import COLUMNS, EXTREMES
from tests.pipeline.verify.checker import Checker

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "UUID"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMPTZ", "DECIMAL(4, 1)", "DECIMAL(38, 10)", "JSON"),
)
GROWN = (
    "CREATE TABLE grown (i INTEGER, f FLOAT, d DECIMAL(4, 1))",
    "INSERT INTO grown SELECT i, 0.1 * i, 0.5 * i FROM range(40) r(i)",
    "INSERT INTO grown VALUES (-1, '-0.0', NULL), (-2, 'nan', 0), (-3, 0.0, 0)",
    "ALTER TABLE grown ALTER i TYPE BIGINT",
    "ALTER TABLE grown ALTER f TYPE DOUBLE",
    "INSERT INTO grown VALUES (1099511627776, 1e300, 1)",
    "CALL ducklake_flush_inlined_data('lake')",
    "DELETE FROM grown WHERE i = 7",
)
LINES = "CREATE TABLE t AS SELECT i AS id, 'n' || i AS name, DATE '2026-01-01' + (i % 3)::INTEGER AS day FROM range(60) r(i)"


def test_every_snapshot_of_every_table_is_the_same(checker: Checker) -> None:
    """Files, inlined rows, deletes and updates of both sides, deletion vectors, partitions, renames, promotions, odd names."""
    checker.run(*TRIPS, *VISITS, *MEASURES, *ODD_NAMES, *GROWN)
    checker.ask_spark(
        "CREATE TABLE {c}.main.vectors (i bigint, s string) PARTITIONED BY (bucket(4, i)) TBLPROPERTIES ('format-version' = 3)"
    )
    checker.ask_spark("INSERT INTO {c}.main.vectors SELECT id, concat('s', id) FROM range(90)")
    checker.ask_spark("ALTER TABLE {c}.main.vectors SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    checker.ask_spark("DELETE FROM {c}.main.vectors WHERE i % 10 = 3")
    checker.run("DELETE FROM vectors WHERE i = 8", "INSERT INTO vectors VALUES (1000, NULL)")
    checker.ask_spark("ALTER TABLE {c}.main.vectors CREATE BRANCH aside")
    checker.ask_spark("INSERT INTO {c}.main.vectors.branch_aside VALUES (5, 'on the branch alone')")
    checker.ask_spark("INSERT INTO {c}.main.vectors VALUES (5, 'rolled back')")
    before = checker.list_snapshots("vectors")[-2]
    checker.ask_spark(f"CALL {{c}}.system.rollback_to_snapshot('main.vectors', {before})")
    ever, now = checker.verify("main.trips", "main.grown", "main.vectors", every_snapshot=True), checker.verify()
    assert [line for found in (*ever.findings, *now.findings) if found.verdict is not VerifyVerdict.same for line in found.describe()] == []
    assert (ever.status, now.status) == (0, 0)
    rows = {found.table: found.iceberg_rows for found in now.findings}
    assert (rows["main.vectors"], rows["main.empty"], len(rows)) == (81, 0, 9)
    assert len(ever.findings) > 18


def test_every_type_that_spark_reads_is_compared(checker: Checker) -> None:
    """Extremes and NULLs, bare and in lists, maps and structs, in a file and inlined."""
    shapes = [(name, kind) for name, kind in COLUMNS.items() if name != "i"]
    columns = [f"{name}{place} {kind.format(kept, kept)}" for place, kept in enumerate(TYPES) for name, kind in shapes]
    many, few = "{v}, [{v}, NULL], MAP {{'k': {v}}}, [{{'a': {v}}}], {{'a': {v}, 'l': [{v}]}}", "{v}, NULL, NULL, [], NULL"
    values = [[f"CAST({value} AS {kept})" for value in (*EXTREMES[kept], "NULL")] for kept in TYPES]
    drawn = [f"([{', '.join(some)}])[1 + n % {len(some)}]" for some in values]
    checker.run(f"CREATE TABLE t ({', '.join(columns)})")
    for shown, rows in ((many, "range(12)"), (few, "range(6)")):
        checker.run(f"INSERT INTO t SELECT {', '.join(shown.format(v=value) for value in drawn)} FROM {rows} r(n)")
    report = checker.verify(every_snapshot=True)
    assert [finding.verdict for finding in report.findings] == [VerifyVerdict.same] * 3, report
    assert [finding.ducklake_rows for finding in report.findings] == [12, 18, 18]


def fail(error: Exception, *_: Any) -> NoReturn:
    """What cannot be done."""
    raise error


def test_a_row_that_one_side_alone_has_is_shown(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inlined row that ends in DuckLake's tables alone, after it was published: table, moment, partition, counts and the row itself.

    That the row cannot be shown makes no less of the difference.
    """
    checker.run(
        LINES,
        "ALTER TABLE t SET PARTITIONED BY (day)",
        "INSERT INTO t VALUES (100, 'extra', '2026-02-01')",
        "INSERT INTO t VALUES (101, 'x', NULL)",
    )
    assert checker.look("main.t").describe() == ["main.t now: 62 rows, the same"]
    (name,) = checker.duck.execute(
        "SELECT table_name FROM __ducklake_metadata_lake.lake.ducklake_inlined_data_tables ORDER BY schema_version DESC"
    ).fetchone() or ("",)
    checker.corrupt(f"UPDATE {name} SET end_snapshot = begin_snapshot WHERE id = 100")
    found = checker.look("main.t")
    assert (found.verdict, found.iceberg_rows, found.ducklake_rows) == (VerifyVerdict.differs, 62, 61)
    assert [(part.name, part.iceberg_rows, part.ducklake_rows) for part in found.parts] == [("day=2026-02-01", 1, 0)]
    assert found.only_in_iceberg == ('{"id": 100, "name": "extra", "day": "2026-02-01"}',)
    assert found.only_in_ducklake == ()
    for error in (SparkRuntimeException, Unsupported):
        monkeypatch.setattr(job, "pick_rows", partial(fail, error("too big")))
        unshown = checker.look("main.t")
        assert (unshown.verdict, unshown.parts, unshown.only_in_iceberg) == (VerifyVerdict.differs, found.parts, ())
        pointed = "\n" + job.POINTER.format("main.t") if error is SparkRuntimeException else ""
        assert unshown.message == f"the rows cannot be shown: too big{pointed}"


@pytest.mark.long
def test_what_cannot_be_compared_says_why(checker: Checker) -> None:
    """A type that Spark does not read, a table and a snapshot that are not there; a dry run looks at nothing."""
    checker.run("CREATE TABLE t AS SELECT TIME '12:00:00' AS at", LINES.replace("TABLE t", "TABLE lines"))
    (time,) = checker.verify("main.t").findings
    assert time.describe() == ["main.t now: could not look: column at is time, which Spark does not read"]
    assert checker.look("main.none").describe() == ["main.none: could not look: Table does not exist: main.none"]
    assert "there is no snapshot 999" in checker.look("main.lines", snapshot_id=999).message
    planned = checker.verify(dry_run=True)
    assert [finding.describe() for finding in planned.findings] == [
        ["main.lines now: would be looked at"],
        ["main.t now: would be looked at"],
    ]


@pytest.mark.long
def test_a_lake_without_tables_is_not_told_as_one_that_is_the_same(checker: Checker) -> None:
    """There is nothing to look at, now or when its tables were dropped, and the report says so; no failure."""
    for statements in ((), ("CREATE TABLE t (i INTEGER)", "DROP TABLE t")):
        checker.run(*statements)
        for report in (checker.verify(), checker.verify(dry_run=True)):
            assert (report.verdict, report.status, report.describe()) == ("nothing-to-look-at", 0, ["nothing to look at"])
            assert json.loads(report.format_json())["status"] == "nothing-to-look-at"
