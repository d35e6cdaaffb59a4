"""Whether two tables hold the same rows: counts and sums that do not depend on their order."""

from dataclasses import dataclass
from hashlib import sha256

from pyspark.sql import SparkSession

from duckicelake.iceberg.schema import Schema
from duckicelake.pipeline.verify.counting import checksum_rows
from duckicelake.pipeline.verify.tally import Checksums, CompareSpec, compare


@dataclass(frozen=True, slots=True)
class Compared:
    """How many rows a source and a target have, and the checksums by which they are the same; `difference` "": they are."""

    source_rows: int
    target_rows: int
    source_checksum: str
    target_checksum: str
    difference: str = ""


def compare_rows(spark: SparkSession, source: str, target: str, schema: Schema) -> Compared:
    """Count and sum up the rows of both. Columns go by their places."""
    look = CompareSpec(schema.fields, by_bins=True)
    theirs, ours = (_tally(spark, name, look) for name in (source, target))
    parts = compare(theirs, ours)
    said = f"{theirs.rows} rows there, {ours.rows} here, and {len(parts)} of the buckets by which they are counted differ"
    return Compared(theirs.rows, ours.rows, format_checksum(theirs), format_checksum(ours), said if parts else "")


def format_checksum(tally: Checksums) -> str:
    """A text of what is compared of the rows in bins: the same where that is the same.

    Shape:  SHA-256 of the counts, i64 LE, then the sums, u64 LE, of all bins
    """
    return sha256(tally.counts.astype("<i8").tobytes() + tally.sums.astype("<u8").tobytes()).hexdigest()


def _tally(spark: SparkSession, name: str, look: CompareSpec) -> Checksums:
    return checksum_rows(spark.sql(f"SELECT * FROM {name}"), look)  # noqa: S608  a quoted name
