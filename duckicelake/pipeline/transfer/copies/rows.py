"""Whether two tables hold the same rows: counts and sums that do not depend on their order."""

from pyspark.sql import SparkSession

from duckicelake.iceberg.schema import Schema
from duckicelake.pipeline.verify.counting import tally_rows
from duckicelake.pipeline.verify.tally import Look, Tally, compare


def compare_rows(spark: SparkSession, source: str, target: str, schema: Schema) -> tuple[int, str]:
    """How many rows the source has, and how the target differs, "" when it does not. Columns go by their places."""
    look = Look(schema.fields, by_bins=True)
    theirs, ours = (_tally(spark, name, look) for name in (source, target))
    parts = compare(theirs, ours)
    if not parts:
        return theirs.rows, ""
    return theirs.rows, f"{theirs.rows} rows there, {ours.rows} here, and {len(parts)} of the buckets by which they are counted differ"


def _tally(spark: SparkSession, name: str, look: Look) -> Tally:
    return tally_rows(spark.sql(f"SELECT * FROM {name}"), look)  # noqa: S608  a quoted name
