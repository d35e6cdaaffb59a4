"""Snapshots that were made beside main, and those that DuckLake has let go of: compared where both sides have their rows, else told."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.pipeline.verify.job import VerifyVerdict
from tests.pipeline.ingest.mill import Mill, open_mill
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.verify.checker import Checker

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


@pytest.fixture
def mill(checker: Checker, tmp_path: Path) -> Mill:
    """A mill on the checker's lake."""
    return open_mill(checker.served, checker.spark, tmp_path / "files")


def list_log(mill: Mill, name: str) -> list[int]:
    """Where main of a table in `raw` was, oldest first."""
    metadata = mill.served.server.get(f"namespaces/raw/tables/{name}").json["metadata"]
    return [entry["snapshot-id"] for entry in metadata["snapshot-log"]]


@pytest.mark.long
def test_what_ingest_filled_is_the_same_at_every_snapshot(checker: Checker, mill: Mill) -> None:
    """A branch's snapshot has its rows on main from the lake snapshot on that moved main there; also at a rollback, and to `profile`."""
    for number in range(3):
        mill.write(f"{number}.csv", f"id\n{number}\n")
        mill.run()
        checker.run(f"INSERT INTO raw.trips VALUES ({number + 10})")
    snapshots = list_log(mill, "trips")
    for target in (snapshots[2], snapshots[1]):
        checker.ask_spark(f"CALL {{c}}.system.rollback_to_snapshot('raw.trips', {target})")
    ever = checker.verify("raw.trips", "raw.trips__ingested", every_snapshot=True)
    assert [line for found in ever.findings if found.verdict is not VerifyVerdict.same for line in found.describe()] == []
    assert [found.iceberg_rows for found in ever.findings] == [1, 2, 3, 4, 5, 6, 2, 1, 2, 3, 3]
    for name in ("trips", "trips__ingested"):
        one = checker.look(f"raw.{name}", snapshot_id=list_log(mill, name)[0])
        assert (one.verdict, one.iceberg_rows) == (VerifyVerdict.same, 1)
    [profiled] = Measurer(checker).run("raw.trips__ingested").tables
    assert sum(size.files for size in profiled.sizes) == 3
    assert all(column.bytes for column in profiled.columns)


def test_columns_are_renamed_before_main_moves(checker: Checker) -> None:
    """A branch's snapshot has the names that were when it was made, DuckLake's rows those that are when main moves there."""
    checker.ask_spark("CREATE TABLE {c}.main.t (id bigint, s struct<x: bigint, n: bigint>, l array<struct<y: bigint>>)")
    checker.ask_spark("INSERT INTO {c}.main.t VALUES (0, NULL, NULL)")
    checker.ask_spark("ALTER TABLE {c}.main.t CREATE BRANCH next")
    checker.ask_spark("INSERT INTO {c}.main.t.branch_next SELECT id, struct(id, id), array(struct(id)) FROM range(9)")
    for old, new in (("id", "number"), ("s.x", "z"), ("l.element.y", "w")):
        checker.ask_spark(f"ALTER TABLE {{c}}.main.t RENAME COLUMN {old} TO {new}")
    checker.ask_spark("CALL {c}.system.fast_forward('main.t', 'main', 'next')")
    ever = checker.verify("main.t", every_snapshot=True)
    assert [line for found in ever.findings if found.verdict is not VerifyVerdict.same for line in found.describe()] == []
    assert [found.iceberg_rows for found in ever.findings] == [1, 10, 10]


@pytest.mark.long
def test_what_ducklake_has_expired_is_passed_over_and_told(checker: Checker, mill: Mill) -> None:
    """The table as it is now is compared by its rows of now; asked for by its number, an expired snapshot cannot be looked at."""
    mill.write("0.csv", "id\n0\n")
    mill.run()
    checker.run("CREATE TABLE t AS SELECT 1 AS id", "INSERT INTO t VALUES (2)", "CREATE TABLE later (id INTEGER)")
    current = checker.list_snapshots("t")[-1]
    checker.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    report = checker.verify(every_snapshot=True)
    assert report.status == 0, report.describe()
    assert f"main.t at snapshot {current}: passed over: DuckLake has expired it" in report.describe()
    assert [found.table for found in report.findings if found.verdict is VerifyVerdict.same] == [
        *("main.later", "main.t", "raw.trips", "raw.trips__ingested"),
    ]
    one = checker.look("main.t", snapshot_id=current)
    assert one.verdict is VerifyVerdict.unknown
    assert f"DuckLake has expired snapshot {current}" in one.message


class Broken:
    """A session that DuckDB breaks over one table, and in which it refuses everything then."""

    def __init__(self, duck: DuckDBPyConnection) -> None:
        self.duck, self.is_broken = duck, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.duck, name)

    def execute(self, statement: str, *asked: Any) -> Any:
        """As a session, until then."""
        if self.is_broken:
            raise duckdb.FatalException("the database has been invalidated")
        if '"bad"' in statement:
            self.is_broken = True
            raise duckdb.InternalException("INTERNAL Error: it broke\n\nStack Trace:\n0x1\n0x2")
        return self.duck.execute(statement, *asked)


@pytest.mark.long
def test_a_session_that_breaks_is_opened_again(checker: Checker) -> None:
    """One table cannot be looked at, and says so in a line; the tables after it are."""
    checker.run("CREATE TABLE bad AS SELECT 1 AS id", "CREATE TABLE good AS SELECT 1 AS id")
    opened: list[DuckDBPyConnection] = []

    def open_lake() -> Any:
        opened.append(checker.open_lake())
        return Broken(opened[-1])

    assert checker.verify(open_lake=open_lake).describe() == [
        "main.bad now: could not look: DuckDB: INTERNAL Error: it broke",
        "main.good now: 1 rows, the same",
        "1 same, 1 could-not-look",
    ]
    assert len(opened) == 2
