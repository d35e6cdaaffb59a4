"""What is refused is told with its file or column, and with what to do."""

import gzip
from collections.abc import Callable
from typing import Any

import pytest

from duckicelake.errors import CatalogError
from duckicelake.pipeline.ingest.job import explain
from tests.pipeline.ingest.mill import Mill

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
        r"^file:\S*/a\.csv\.gz cannot be read: .*\. It was cut, or is damaged",
    ),
    "half a Parquet file": (
        lambda mill: mill.write("a.parquet", mill.write_parquet("b.parquet", id=[1, 2]).read_bytes()[:-9]),
        {},
        r"^file:\S*/a\.parquet is not a Parquet file.*\nNothing was taken",
    ),
}


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize("name", TOLD)
def test_a_refusal_says_what_to_do(mill: Mill, name: str) -> None:
    """And nothing is made."""
    write, options, message = TOLD[name]
    write(mill)
    with pytest.raises(CatalogError, match=message):
        mill.run(**options)
    assert mill.served.server.get("namespaces/raw").status == 404


def test_a_task_that_failed_is_told_by_its_cause() -> None:
    """Spark says first which task it was, and again what it waited for."""
    spark = "org.apache.spark.SparkException: "
    lost = "Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (localhost executor driver): "
    waited, cause = f"{spark}Exception thrown in awaitResult: ", "java.io.IOException: file:/a.orc is not readable"
    aborted = f": {spark}Job aborted due to stage failure: {lost}"
    trace = f"An error occurred while calling o1.orc.\n{aborted}{waited}\n\tat a.b\nCaused by: {cause}\n"
    assert explain(RuntimeError(trace)) == cause
    assert explain(RuntimeError(f"{trace}\nDriver stacktrace:\nCaused by: {waited}\nCaused by: {cause}\n")).splitlines()[0] == cause
    assert explain(RuntimeError(f"{aborted}{cause}\n")) == cause
