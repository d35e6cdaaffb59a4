"""`check` warns of tables that single readers do not read, and what it advises helps."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from duckicelake.commands.check import check_lakes, list_findings
from duckicelake.embedded.home import open_home
from duckicelake.lake.inspect import LakeFinding
from duckicelake.translate.reader_limits import READER_LIMITS
from duckicelake.translate.to_ducklake.columns import METADATA_NAMES
from tests.interop.types.tables import EXTREMES, TypeTable
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

EXAMPLE = re.compile(r': ((?:ALTER TABLE|UPDATE) ".*;)$')
SILENT = "without an error"


def look(lake: FreshLake, folder: Path) -> list[LakeFinding]:
    """What `check` finds in the lake."""
    (settings,) = make_settings(lake).lakes()
    return list_findings(settings, open_home(folder / "home"))


def find(found: list[LakeFinding], part: str) -> LakeFinding:
    """The one warning whose text has that part."""
    (one,) = (finding for finding in found if part in finding.problem)
    return one


def test_a_lake_that_every_reader_reads_has_no_warnings(lake: FreshLake, tmp_path: Path) -> None:
    """Nor has one whose files all have all columns, and neither has a table without rows."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT i::INTEGER AS i, i::VARCHAR AS s, TIMESTAMP '2026-01-01' AS moment FROM range(30) r(i)")
        conn.execute("ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 42; UPDATE t SET d = d")
        conn.execute("CREATE TABLE parted (x DOUBLE, f FLOAT); ALTER TABLE parted SET PARTITIONED BY (f)")
        conn.execute("CREATE TABLE huge (x HUGEINT); ALTER TABLE huge SET PARTITIONED BY (x)")
        conn.execute("CREATE TABLE was (x DOUBLE); ALTER TABLE was SET PARTITIONED BY (x); INSERT INTO was SELECT 1 FROM range(30)")
        conn.execute("ALTER TABLE was RESET PARTITIONED BY; UPDATE was SET x = x")
        conn.execute("CREATE TABLE empty (i INTEGER); ALTER TABLE empty ADD COLUMN d INTEGER DEFAULT 42")
    assert look(lake, tmp_path) == []


def test_types_are_warned_of_by_reader_with_the_sql_that_helps(lake: FreshLake, tmp_path: Path) -> None:
    """One warning for each reader and kind of type, nested columns by their full names; the exit status stays 0."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE u (a UTINYINT, s STRUCT(b USMALLINT, c UINTEGER[])); CREATE TABLE n (moment TIMESTAMP_NS)")
        conn.execute("CREATE TABLE day (t TIME, z TIMETZ); CREATE TABLE g (g GEOMETRY)")
        conn.execute("CREATE TABLE j AS SELECT '{}'::JSON AS j FROM range(30); CREATE TABLE inlined AS SELECT '{}'::JSON AS j")
    found = look(lake, tmp_path)
    assert {(finding.severity, finding.subject) for finding in found} == {
        ("warning", "Spark"),
        ("warning", "Spark before Iceberg 1.12, PyIceberg, and Trino without its geospatial plugin"),
        ("warning", "Polars"),
    }
    unsigned = find(found, "UTINYINT")
    assert unsigned.problem.endswith(": main.u (a, s.b, s.c.element)")
    assert 'ALTER TABLE "main"."u" ADD COLUMN "a_" INTEGER; UPDATE "main"."u" SET "a_" = CAST("a" AS INTEGER);' in unsigned.remedy
    assert find(found, "TIME and TIMETZ").problem.endswith(": main.day (t, z)")
    assert find(found, "JSON").problem.endswith(": main.j (j)")
    console = Console(record=True, width=400)
    assert check_lakes(make_settings(lake), open_home(tmp_path / "home"), console)
    assert f"0 errors, {len(found)} warnings" in console.export_text()


def test_many_tables_make_one_short_warning(lake: FreshLake, tmp_path: Path) -> None:
    """Five tables and three columns of each are named."""
    with lake.duckdb() as conn:
        for number in range(8):
            conn.execute(f"CREATE TABLE t{number} (a TIME, b TIME, c TIME, d TIME)")
    (finding,) = look(lake, tmp_path)
    assert finding.problem.endswith("main.t3 (a, b, c, …), main.t4 (a, b, c, …), 3 more tables")


@pytest.mark.parametrize("rows", whole_after(1, [pytest.param(30, id="in files"), pytest.param(3, id="inlined")]))
def test_columns_that_older_rows_lack_are_warned_of(lake: FreshLake, tmp_path: Path, rows: int) -> None:
    """Three readers show NULL for their defaults and one shows another column, all of them silently."""
    with lake.duckdb() as conn:
        conn.execute(f"CREATE TABLE t AS SELECT range::INTEGER AS i FROM range({rows})")
        conn.execute("ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 42; ALTER TABLE t ADD COLUMN plain INTEGER")
    found = look(lake, tmp_path)
    assert {finding.subject for finding in found if SILENT in finding.problem} == {"Daft, Flink SQL and ClickHouse", "DataFusion"}
    null = find(found, "return NULL")
    assert null.problem.endswith(": main.t (d)")
    assert null.remedy.endswith(': UPDATE "main"."t" SET "d" = "d";')
    assert find(found, "another column").problem.endswith(": main.t (d, plain)")


@pytest.mark.whole
def test_each_advice_ends_its_warning(lake: FreshLake, tmp_path: Path) -> None:
    """The SQL runs as it is printed, keeps the values, and leaves nothing to warn of but JSON, which needs an option of Polars,
    and a partitioning."""
    with lake.duckdb() as conn:
        for kind in ("UTINYINT", "USMALLINT", "UINTEGER", "TIME", "TIMETZ", "TIMESTAMP_NS", "GEOMETRY"):
            values = " UNION ALL ".join(f"SELECT [CAST({value} AS {kind})] AS v" for value in EXTREMES[kind])
            conn.execute(f"CREATE TABLE {TypeTable(kind, 'main').ident[1]} AS SELECT v FROM ({values}), range(20)")
        conn.execute(
            "CREATE TABLE names AS SELECT "
            + ", ".join(f'range AS "{name}"' for name in sorted(METADATA_NAMES))
            + ", 1 AS file FROM range(9)"
        )
        conn.execute("CREATE TABLE j AS SELECT '{}'::JSON AS j FROM range(30)")
        conn.execute("CREATE TABLE v AS SELECT range::VARIANT AS v FROM range(30)")
        conn.execute("CREATE TABLE d AS SELECT range AS i FROM range(30); ALTER TABLE d ADD COLUMN d INTEGER DEFAULT 42")
        conn.execute("CREATE TABLE p (x DOUBLE); ALTER TABLE p SET PARTITIONED BY (x)")
        left = look(lake, tmp_path)
        assert {finding.subject for finding in left} == {limit.readers for limit in READER_LIMITS}
        while sql := [found[1] for finding in left if (found := EXAMPLE.search(finding.remedy))]:
            conn.execute(sql[0])
            left = look(lake, tmp_path)
        assert [finding.subject for finding in left] == ["PyIceberg 0.12", "Polars"]
        assert find(left, "partitioned").problem.endswith(": main.p (x)")
        assert conn.execute("SELECT sum(d) FROM d").fetchone() == (30 * 42,)
        assert conn.execute("SELECT max(v[1]) FROM t_uinteger").fetchone() == (2**31 - 1,)
        assert conn.execute("SELECT count(DISTINCT v) FROM t_time").fetchone() == (2,)
