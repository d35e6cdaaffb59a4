"""Whether two tables hold the same rows: counts and sums that do not depend on their order."""

from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duckicelake.iceberg.schema import Schema
from duckicelake.pipeline.older import to_arrow
from duckicelake.pipeline.verify.tally import TALLY_DDL, Look, Tally, compare, tally_batches

SUMS = ("rows", "high", "low")


def compare_rows(spark: SparkSession, source: str, target: str, schema: Schema) -> tuple[int, str]:
    """How many rows the source has, and how the target differs, "" when it does not. Columns go by their places."""
    look = Look(schema.fields)
    theirs, ours = (_tally(spark, name, look) for name in (source, target))
    parts = compare(theirs, ours)
    if not parts:
        return theirs.rows, ""
    return theirs.rows, f"{theirs.rows} rows there, {ours.rows} here, and {len(parts)} of the buckets by which they are counted differ"


def _tally(spark: SparkSession, name: str, look: Look) -> Tally:
    rows = spark.sql(f"SELECT * FROM {name}")  # noqa: S608  a quoted name
    # Spark's mapInArrow does not find columns with dots in their names.
    named = rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))
    counted = named.mapInArrow(partial(tally_batches, look=look), TALLY_DDL)
    return Tally().merge(to_arrow(counted.groupBy("key", "label").agg(*(F.sum(one).alias(one) for one in SUMS))))
