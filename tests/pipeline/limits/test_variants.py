"""Tables with variants, of DuckDB's files and of Spark's, in the jobs."""

from pathlib import Path

import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.rest import parse_ident
from duckicelake.pipeline.ingest.options import IngestMode
from duckicelake.pipeline.verify.job import VerifyVerdict
from tests.pipeline.ingest.mill import Mill, open_mill
from tests.pipeline.maintain.keeper import Keeper, find
from tests.pipeline.profile.measurer import Measurer, by_name
from tests.pipeline.transfer.ferry import check_compared, describe, open_ferry
from tests.pipeline.verify.checker import Checker, open_checker
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

SHAPES = ("NULL", "7", "'text'", "1.50::DECIMAL(4, 2)", "DATE '2026-01-01'", "[1, NULL]", "{'b': 1, 'a': {'z': NULL, 'c': 'x'}}")


def fill(checker: Checker) -> list[tuple[object, ...]]:
    """A file of each shape, and a deleted row; the rows that are left."""
    checker.run("CREATE SCHEMA raw", "CREATE TABLE raw.t (v VARIANT, i INTEGER)")
    checker.run(*(f"INSERT INTO raw.t VALUES (({shape})::VARIANT, {number})" for number, shape in enumerate(SHAPES)))
    checker.run("DELETE FROM raw.t WHERE i = 1")
    return checker.duck.execute("SELECT i, v, v IS NULL FROM raw.t ORDER BY i").fetchall()


def check_files(checker: Checker) -> None:
    """All is well with the files, now and at every snapshot."""
    for every in (False, True):
        (found,) = checker.verify("raw.t", files=True, every_snapshot=every).findings
        assert found.verdict is VerifyVerdict.same, found.describe()


def test_files_are_checked_measured_and_compacted(served: Served, spark: Spark) -> None:
    """DuckDB's files and the copies for clients are both checked; rows are not compared; DuckDB reads Spark's file as its own."""
    checker = open_checker(served, spark)
    rows = fill(checker)
    checker.run("CREATE TABLE raw.empty (i INTEGER)")
    [(original,), *_] = checker.duck.execute("SELECT data_file FROM ducklake_list_files('lake', 't', schema => 'raw')").fetchall()
    check_files(checker)
    assert "column v is variant, whose values in Spark and DuckDB are not compared" in checker.look("raw.t").message
    [measured] = Measurer(checker).run("raw.t").tables
    columns = by_name(measured)
    assert (measured.verdict, columns["i"].distinct, columns["i"].maximum) == (Verdict.done, 6, "6")
    assert (columns["v"].type, columns["v"].distinct, columns["v"].minimum) == ("variant", None, None)
    keeper = Keeper(checker)
    [refused] = keeper.run("raw.t", dry_run=True, strategy="sort", order="V").steps[1:]
    assert refused.message == "column v is variant, whose values have no order"
    report = keeper.run("raw.t", strategy="sort", order="i")
    assert [step.removed for step in find(report, lambda step: step.verdict is Verdict.done)] == [0, len(SHAPES)], report.describe()
    assert checker.duck.execute("SELECT i, v, v IS NULL FROM raw.t ORDER BY i").fetchall() == rows
    check_files(checker)
    served.pyiceberg().catalog.load_table("raw.empty").io.delete(original)
    (found,) = checker.verify("raw.t", files=True, every_snapshot=True).findings
    assert found.problems == (f"{original} is missing",)


def test_copies_have_the_same_variants(stack: SharedStack, spark: Spark, tmp_path: Path) -> None:
    """Out to a Hadoop warehouse and in again, compared by checksums that see variants."""
    with open_ferry(stack, spark, tmp_path) as ferry:
        rows = fill(open_checker(ferry.served, spark))
        exported = ferry.bring("export", str(ferry.folder))
        assert describe(exported) == [("raw.t", "done", 6)], exported.describe()
        check_compared(exported, "rows", "checksums")
        imported = ferry.take(into="again")
        assert check_compared(imported, "rows", "checksums") == check_compared(exported, "rows", "checksums")
        assert ferry.ask_duckdb('SELECT i, v, v IS NULL FROM lake."again␟raw".t ORDER BY i') == rows
        ferry.run("UPDATE {t}.raw.t SET v = parse_json('1.5') WHERE i = 2")
        changed = ferry.take(into="third")
        assert check_compared(changed, "rows", "checksums") != check_compared(exported, "rows", "checksums")


def write(mill: Mill, name: str, *rows: str) -> dict[str, str]:
    """A folder with a file of Spark's, as an argument of the job."""
    spark, folder = mill.spark.session, mill.folder / name
    spark.sql(f"SELECT id, since, parse_json(text) AS v FROM VALUES {', '.join(rows)} AS r(id, since, text)").coalesce(1).write.parquet(
        str(folder)
    )
    return {"source": str(folder)}


def test_variants_are_ingested(served: Served, spark: Spark, tmp_path: Path) -> None:
    """Into new tables, which are of format version 3; a row that says the same again makes no new version."""
    mill = open_mill(served, spark, tmp_path / "files")
    first = write(mill, "first", """(1, 1, '{"a": 1}')""", """(2, 1, '"x"')""", "(3, 1, NULL)")
    # Twice the same row is one; a number is not the text of it.
    later = write(mill, "later", """(1, 2, '{"a": 1}')""", """(2, 2, '2')""", """(2, 2, '2')""", """(3, 2, '"2"')""")
    keyed = {"key": ("id",), "order_by": "since"}
    for source in (first, later):
        mill.run(**source, table=parse_ident("raw.a"))
        mill.run(**source, table=parse_ident("raw.u"), mode=IngestMode.upsert, **keyed)
        mill.run(**source, table=parse_ident("raw.s"), mode=IngestMode.scd2, **keyed)
    assert len(mill.rows("a")) == 7
    assert mill.rows("u") == [(1, 2, {"a": 1}), (2, 2, 2), (3, 2, "2")]
    versions = mill.ask("SELECT id, since, v, is_current FROM raw.s ORDER BY id, since")
    assert versions == [(1, 1, {"a": 1}, True), (2, 1, "x", False), (2, 2, 2, True), (3, 1, None, False), (3, 2, "2", True)]


def test_folders_with_variants_are_imported(stack: SharedStack, spark: Spark, tmp_path: Path) -> None:
    """Copied, as any other column."""
    with open_ferry(stack, spark, tmp_path) as ferry:
        ferry.spark.session.sql("""SELECT 1 AS id, parse_json('{"a": 1}') AS v""").write.parquet(str(ferry.folder / "t"))
        report = ferry.take(form="hive", into="raw")
        assert describe(report) == [("raw.t", "done", 1)], report.describe()
        assert ferry.ask_duckdb("FROM lake.raw.t") == [(1, {"a": 1})]
