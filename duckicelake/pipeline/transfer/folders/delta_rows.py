"""The rows of a version of a Delta table as a frame: Spark reads its Parquet files, and the log says what is not in them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

from duckicelake.pipeline.ingest.sources.files import escape_pattern
from duckicelake.pipeline.ingest.target import quote
from duckicelake.pipeline.transfer.folders.delta_columns import BY_ID, MODE, format_logical, format_physical, get_physical_name
from duckicelake.pipeline.transfer.folders.delta_log import DeltaState, Positions, get_path_key

_KEY, _ROW, _OF = "__duckicelake_key", "__duckicelake_row", "__duckicelake_of"
_READS_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_START = "^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"
"""Of a URI, before its path."""


def read_rows(spark: SparkSession, state: DeltaState, settings: Mapping[str, str]) -> DataFrame:
    """The rows; `settings` say how to reach the files."""
    columns = StructType.fromJson(format_logical(state.schema))
    if not state.paths:
        return spark.createDataFrame([], columns)
    mode = state.configuration.get(MODE)
    if mode == BY_ID:
        # It changes nothing where no ids are asked for.
        spark.conf.set(_READS_BY_ID, "true")
    physical = {item["name"]: get_physical_name(item, mode) for item in state.schema["fields"]}
    written = StructType.fromJson(format_physical(state.schema, mode))
    own = StructType([field for field, name in zip(written.fields, physical, strict=True) if name not in state.partitions])
    frame = spark.read.options(**settings).schema(own).parquet(*map(escape_pattern, state.paths))
    values: dict[str, Column] = {name: F.col(quote(physical[name])) for name in physical if name not in state.partitions}
    vectors = state.read_vectors()
    if state.partitions or vectors:
        where = F.col("_metadata")
        frame = frame.withColumns({_KEY: _build_path_key(where["file_path"]), _ROW: where["row_index"]})
    if vectors:
        frame = frame.join(_list_deleted(spark, vectors), [_KEY, _ROW], "left_anti")
    if state.partitions:
        frame = frame.join(F.broadcast(_list_values(spark, state)), _KEY, "left")
        values |= {name: _read_value(number, columns[name].dataType) for number, name in enumerate(state.partitions)}
    return frame.select(*(values[field.name].cast(field.dataType).alias(field.name) for field in columns.fields))


def _build_path_key(uri: Column) -> Column:
    """As `get_path_key` of the log, of a URI as Spark writes it beside rows."""
    plain = F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, _START, "")


def _list_deleted(spark: SparkSession, vectors: Mapping[str, Positions]) -> DataFrame:
    rows: Any = pd.DataFrame({_KEY: list(vectors), _ROW: [*vectors.values()]})
    found = spark.createDataFrame(rows, f"{_KEY} string, {_ROW} array<bigint>")
    return found.select(_KEY, F.explode(_ROW).alias(_ROW))


def _list_values(spark: SparkSession, state: DeltaState) -> DataFrame:
    rows = list(zip(map(get_path_key, state.paths), *(state.values[name] for name in state.partitions), strict=True))
    names = ", ".join(f"{_OF}{number} string" for number in range(len(state.partitions)))
    return spark.createDataFrame(rows, f"{_KEY} string, {names}").withColumn(_OF, F.lit(True))


def _read_value(number: int, form: DataType) -> Column:
    """The value of a partition; a row of a file that the log does not know ends the read."""
    text = F.col(f"{_OF}{number}")
    if isinstance(form, DateType):
        value = F.date_from_unix_date(text.cast("int"))
    elif isinstance(form, TimestampType | TimestampNTZType):
        # The session's time zone is UTC.
        value = F.timestamp_micros(text.cast("bigint"))
    else:
        value = text
    stray = F.concat(F.lit("the log has no partition of "), F.col(_KEY))
    return F.when(F.col(_OF).isNull(), F.raise_error(stray).cast(form)).otherwise(value.cast(form))
