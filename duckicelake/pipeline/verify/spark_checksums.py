"""The checksums of `checksums.py` computed by Spark in one pass, without Python.

The row hashes are those of `row_hashes.py`, as Spark SQL.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duckicelake.iceberg.transforms import DAY_MICROS, HOUR_MICROS
from duckicelake.iceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType, find_decimal
from duckicelake.pipeline.common.spark_compat import to_arrow
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.verify.checksums import (
    BIN_SHIFT,
    HALF_BITS,
    MOST_PICKED,
    PICKED_DDL,
    Checksums,
    CompareSpec,
    GroupField,
    Sums,
    join_halves,
    pick_batches,
)
from duckicelake.pipeline.verify.row_hashes import BLOCK_FIELDS, LONG_BYTES, NULL, OTHER, SUM_MASK, is_bytes, is_float

_DAYS_AND_HOURS = {"hour": HOUR_MICROS}
"""What rows are put together by; months and years are made of days."""
_BIN = f"shiftrightunsigned(number, {BIN_SHIFT})"
_SUMS = {
    "rows": "count(*)",
    # Halves, because Spark refuses sums that overflow.
    "high": f"sum(shiftrightunsigned(number, {HALF_BITS}))",
    "low": f"sum(number & {(1 << HALF_BITS) - 1}L)",
    "parity": "bit_xor(number)",
}
_EARLIEST = -(1 << 63) + 1

_SPARK = {"int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE"}

Parts = Sequence[tuple[str, IcebergType]]
"""Expressions of Spark's SQL, each with the type of its values."""


def checksum_rows(rows: DataFrame, look: CompareSpec) -> Checksums:
    """Return the checksums of rows whose columns come in the look's order, by position, not by name."""
    keys = [_BIN] if look.by_bins else [_format_key(f"c{_get_position(part, look)}", part) for part in look.groups]
    names = [f"k{place}" for place in range(len(keys))]
    named = _number(rows, look).select("number", *(F.expr(key).alias(name) for key, name in zip(keys, names, strict=True)))
    sums = [F.expr(made).alias(name) for name, made in _SUMS.items()]
    return _read(to_arrow(named.groupBy(*names).agg(*sums)), names, look)


def pick_rows(rows: DataFrame, look: CompareSpec, bins: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of some bins, as `pick_batches` has them, and of too many just more than are looked at."""
    numbered = _number(rows, look)
    some = numbered.where(F.expr(_BIN).isin(*bins)).drop("number")
    picked = some.mapInArrow(partial(pick_batches, look=look, bins=bins), PICKED_DDL)
    return to_arrow(picked.limit(MOST_PICKED + 1)).to_pylist()


def _number(rows: DataFrame, look: CompareSpec) -> DataFrame:
    # Neither Spark's mapInArrow nor its SQL finds columns with dots in their names.
    named = rows.toDF(*(f"c{place}" for place in range(len(look.fields))))
    number = format_number([(f"c{place}", field.type) for place, field in enumerate(look.fields)])
    return named.withColumn("number", F.expr(number))


def _get_position(part: GroupField, look: CompareSpec) -> int:
    return next(place for place, field in enumerate(look.fields) if field.name == part.column)


def _format_key(column: str, part: GroupField) -> str:
    if part.transform == "identity":
        return column
    micros = _DAYS_AND_HOURS.get(part.transform, DAY_MICROS)
    if part.form.name == "date":
        return f"unix_date({column}) * CAST({DAY_MICROS // micros} AS BIGINT)"
    stamp = f"unix_micros(CAST({column} AS TIMESTAMP))"
    return f"{stamp} DIV {micros}L - IF({stamp} % {micros}L < 0, 1L, 0L)"


def _read(table: pa.Table, names: Sequence[str], look: CompareSpec) -> Checksums:
    found = Checksums()
    if not look.groups and not look.by_bins and table.column("rows")[0].as_py() == 0:
        return found
    rows, high, low, parity = (table.column(name).to_numpy() for name in _SUMS)
    sums = Sums(rows, join_halves(high, low), parity.view(np.uint64))
    if look.by_bins:
        found.add_bins(table.column(names[0]).to_numpy().astype(np.int64), sums)
    else:
        keys: list[Any] = [table.column(name).combine_chunks() for name in names]
        found.add_groups(look.groups, [_restore(key, part) for key, part in zip(keys, look.groups, strict=True)], sums)
    return found


def _restore(key: Any, part: GroupField) -> Any:
    """Return values that are in these days or hours."""
    if part.transform == "identity":
        return key
    micros = _DAYS_AND_HOURS.get(part.transform, DAY_MICROS)
    stamps = pa.array([None if unit is None else max(unit * micros, _EARLIEST) for unit in key.to_pylist()], pa.int64())
    return stamps.cast(pa.timestamp("us")).cast(pa.date32()) if part.form.name == "date" else stamps.cast(pa.timestamp("us"))


def format_number(parts: Parts) -> str:
    """Return the number of a row that has these values, each an expression with its type."""
    return f"xxhash64({', '.join(_list_arguments(parts, 0))})"


def _list_arguments(parts: Parts, depth: int) -> list[str]:
    """Return the arguments of the hash: the marks of a block of fields, then its values. `depth` makes names of lambdas unique."""
    found: list[str] = []
    for start in range(0, len(parts), BLOCK_FIELDS):
        block = parts[start : start + BLOCK_FIELDS]
        found.append(" | ".join(_format_mark(value, form, 2 * place) for place, (value, form) in enumerate(block)))
        found += [_format_value(value, form, depth) for value, form in block]
    return found


def _format_mark(value: str, form: IcebergType, bit: int) -> str:
    other = ""
    if isinstance(form, PrimitiveType) and is_float(form):
        # The power is looked at where there is a zero: of -0.0 it is -Infinity.
        other = f"WHEN {value} = 0 AND pow({value}, -1) < 0 THEN {OTHER << bit}L "
    elif isinstance(form, PrimitiveType) and is_bytes(form):
        other = f"WHEN octet_length({value}) > {LONG_BYTES} THEN {OTHER << bit}L "
    return f"CASE WHEN {value} IS NULL THEN {NULL << bit}L {other}ELSE 0L END"


def _format_value(value: str, form: IcebergType, depth: int) -> str:
    match form:
        case StructType(fields):
            parts = [(f"{value}.{quote(field.name)}", field.type) for field in fields]
            return f"IF({value} IS NULL, NULL, xxhash64({', '.join(_list_arguments(parts, depth))}))"
        case ListType():
            element, place = f"x{depth}", f"i{depth}"
            parts = ", ".join([f"CAST({place} AS BIGINT)", *_list_arguments([(element, form.element_type)], depth + 1)])
            return _format_sum(value, f"transform({value}, ({element}, {place}) -> xxhash64({parts}))")
        case MapType():
            entry = f"x{depth}"
            parts = ", ".join(_list_arguments([(f"{entry}.key", form.key_type), (f"{entry}.value", form.value_type)], depth + 1))
            return _format_sum(value, f"transform(map_entries({value}), {entry} -> xxhash64({parts}))")
        case PrimitiveType():
            if not is_bytes(form):
                return _format_cast(value, form)
            sum_of_long = "md5({0})" if form.name in ("string", "uuid") else "CAST(md5({0}) AS BINARY)"
            return f"IF(octet_length({value}) > {LONG_BYTES}, {sum_of_long.format(value)}, {value})"


def _format_cast(value: str, form: PrimitiveType) -> str:
    """Return the value as its Iceberg type has it: where it has that already, Spark leaves the cast out."""
    decimal = find_decimal(form)
    spark = _SPARK.get(form.name) if decimal is None else f"DECIMAL({decimal[0]}, {decimal[1]})"
    return value if spark is None else f"CAST({value} AS {spark})"


def _format_sum(value: str, numbers: str) -> str:
    added = f"aggregate({numbers}, 0L, (a, b) -> (a + (b & {SUM_MASK}L)) & {SUM_MASK}L)"
    return f"IF({value} IS NULL, NULL, xxhash64(CAST(size({value}) AS BIGINT), {added}))"
