"""Features of Spark 4.1 that 3.5 and 4.0 lack, each by the newest way that the installed release knows."""

from typing import Any

import pyarrow as pa
import pyspark
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType

_RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

SUMMARIZES_MERGES = _RELEASE >= (4, 1)
"""Whether the summary of a MERGE says how many rows it touched."""


EXPOSES_DEFAULTS = _RELEASE >= (4, 0)
"""Whether Spark's columns of an Iceberg table say what their defaults are."""


KEEPS_READS = _RELEASE >= (4, 0)
"""Whether rows of a snapshot that were asked for before the table's columns changed can still be read afterwards."""


IS_ANSI = _RELEASE >= (4, 0)
"""Whether Spark refuses by itself to make NULL of what it cannot compute; jobs on 3.5 go by what it has there."""


def block_pushdown(moment: Column, form: DataType) -> Column:
    """A column to be compared. Spark 3.5 hands a comparison of timestamps without a zone to the database without quotes, if it can."""
    is_handed = _RELEASE < (4, 0) and isinstance(form, T.TimestampNTZType)
    return moment + F.expr("INTERVAL '0' SECOND") if is_handed else moment


def to_arrow(rows: DataFrame) -> pa.Table:
    """Return the rows of a data frame, all at once."""
    if _RELEASE >= (4, 0):
        return rows.toArrow()
    collect: Any = getattr(rows, "_collect_as_arrow")  # noqa: B009  private, and all that Spark 3.5 has
    batches = collect()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(rows.schema).empty_table()


def from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a data frame."""
    # Without rows Spark takes no columns that are in no chunks, and none at all over Connect.
    if _RELEASE >= (4, 0) and table.num_rows:
        return spark.createDataFrame(table)
    rows: Any = table.to_pylist()
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


def parse_ddl(text: str) -> DataType:
    """Return a type, or a list of columns. Raises: PySparkException: it is neither"""
    if _RELEASE >= (4, 0):
        return T.DataType.fromDDL(text)
    parse: Any = getattr(T, "_parse_datatype_string")  # noqa: B009  private, and all that Spark 3.5 has
    return parse(text)


def get_condition(error: PySparkException) -> str | None:
    """Return the name that Spark gives to what went wrong."""
    older: Any = error
    return error.getCondition() if _RELEASE >= (4, 0) else older.getErrorClass()


def checkpoint_rows(rows: DataFrame) -> DataFrame:
    """Return the rows, read once and kept on disk; by Spark 3.5 in memory too, as long as there is room."""
    if _RELEASE >= (4, 0):
        return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    return rows.localCheckpoint(eager=True)


def is_valid_utf8(text: Column) -> Column:
    """Return whether a text's octets are UTF-8. In Spark 3.5, decoding replaces wrong octets, so the result is compared."""
    if _RELEASE >= (4, 0):
        return F.is_valid_utf8(text)
    octets = text.cast("binary")
    return F.encode(F.decode(octets, "UTF-8"), "UTF-8") == octets
