"""What is refused is told with its file or column, and with what to do."""

import gzip
from collections.abc import Callable
from typing import Any

import pyspark
import pytest

from duckicelake.commands.jobs.ingest import format_report
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.common.failures import explain_spark
from duckicelake.pipeline.common.spark_sql import check_partitions, parse_columns, parse_order, parse_partitions
from duckicelake.pipeline.ingest.options import IngestMode, IngestReport, Status
from tests.pipeline.ingest.mill import Mill
from tests.support.tiers import long_but

IS_OLD = pyspark.__version__.startswith("3.")
ROWS = b"id,v\n" + b"".join(b"%d,%d\n" % (number, number * 7919 % 10007) for number in range(20_000))
TOLD: dict[str, tuple[Callable[[Mill], object], dict[str, Any], str]] = {
    "no gzip": (
        lambda mill: mill.write("a.csv.gz", ROWS[:12]),
        {},
        r"^file:\S*/a\.csv\.gz cannot be read: .*\. It is not packed by gzip: give it a name without \.gz",
    ),
    "half a gzip": (
        lambda mill: mill.write("a.csv.gz", gzip.compress(ROWS)[:20_000]),
        {},
        # Before 4.0 Spark does not say which file it was.
        "Unexpected end of input stream" if IS_OLD else r"^file:\S*/a\.csv\.gz cannot be read: .*\. It was cut, or is damaged",
    ),
    "half a Parquet file": (
        lambda mill: mill.write("a.parquet", mill.write_parquet("b.parquet", id=[1, 2]).read_bytes()[:-9]),
        {},
        r"^file:\S*/a\.parquet is not a Parquet file.*\nNothing was taken",
    ),
    "a folder without a value": (
        lambda mill: mill.write("day=/a.csv", "id\n1\n"),
        {},
        r"day=/a\.csv lies in a folder day=, .* give it one",
    ),
    "a list over lines": (lambda mill: mill.write("a.json", '[{"a": 1},\n{"a": 2}]\n'), {}, "--option multiLine=true"),
    "an object over lines": (lambda mill: mill.write("a.json", '{\n  "a": 1\n}\n'), {}, "--option multiLine=true"),
    "nulls last": (
        lambda mill: mill.write("a.csv", "B\n1\n"),
        {"sort_by": parse_order("B asc nulls last")},
        "no column B asc nulls last; write a column, and asc or desc after it",
    ),
    "a day of a text": (
        lambda mill: mill.write("a.csv", "v\nx\n"),
        {"partition_by": parse_partitions("day(v)")},
        r"--partition-by days\(`v`\): column v is string, and days takes a date or a timestamp",
    ),
    "tied": (
        lambda mill: mill.write("a.csv", "k,ts,v\n1,1,a\n1,1,b\n"),
        {"mode": IngestMode.upsert, "key": ("k",), "order_by": "ts"},
        "do not differ in ts; nothing was taken",
    ),
}


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize("name", long_but(TOLD, "half a Parquet file"))
def test_a_refusal_says_what_to_do(mill: Mill, name: str) -> None:
    """And nothing is made."""
    write, options, message = TOLD[name]
    write(mill)
    with pytest.raises(CatalogError, match=message):
        mill.run(**options)
    assert mill.served.server.get("namespaces/raw").status == 404


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.usefixtures("spark")
def test_transforms_are_for_types() -> None:
    """Those of Iceberg's specification, by column, whatever its case."""
    columns = parse_columns(
        "d DATE, t TIMESTAMP_NTZ, n SMALLINT, m DECIMAL(9, 2), s VARCHAR(3), b BINARY, f DOUBLE, o BOOLEAN, x ARRAY<INT>"
    )
    check_partitions(
        parse_partitions("day(D), hour(t), bucket(4, t), truncate(2, n), bucket(4, m), truncate(2, s), bucket(4, b), f, o"), columns
    )
    for wrong in ("hour(d)", "day(s)", "truncate(2, d)", "bucket(4, f)", "truncate(2, f)", "bucket(4, o)", "x", "year(x)"):
        with pytest.raises(BadRequest, match="--partition-by .*: column . is .*, and .* takes"):
            check_partitions(parse_partitions(wrong), columns)


def test_a_task_that_failed_is_told_by_its_cause() -> None:
    """Spark says first which task it was, and again what it waited for."""
    spark = "org.apache.spark.SparkException: "
    lost = "Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (localhost executor driver): "
    waited, cause = f"{spark}Exception thrown in awaitResult: ", "java.io.IOException: file:/a.orc is not readable"
    aborted = f": {spark}Job aborted due to stage failure: {lost}"
    trace = f"An error occurred while calling o1.orc.\n{aborted}{waited}\n\tat a.b\nCaused by: {cause}\n"
    assert explain_spark(RuntimeError(trace)) == cause
    assert explain_spark(RuntimeError(f"{trace}\nDriver stacktrace:\nCaused by: {waited}\nCaused by: {cause}\n")).splitlines()[0] == cause
    assert explain_spark(RuntimeError(f"{aborted}{cause}\n")) == cause


def test_a_database_has_no_files() -> None:
    """Its rows alone are told."""
    report = IngestReport("r", "a.b", "jdbc:sqlite:/x", "append", Status.done, rows_in=5, rows_out=5)
    assert format_report(report) == "a.b: 5 rows = 5 in, none quarantined (run r)"
