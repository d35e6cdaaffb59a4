"""Checksums of rows that do not depend on their order (count, sum and exclusive or of row hashes), and the columns that are compared.

All rows together, or by partition, say whether there is a difference; then bins of hashes say where the different rows are.
From Arrow they are computed here and pure; Spark computes the same in one pass, without Python: `row_hashes` as Spark SQL.

The jobs `verify`, `import` and `export` call it in the driver; `pick_batches` also runs in executors. It writes nothing.
`maintain` and `profile` call only `check_readable`. Variants are compared between tables in Spark, not with DuckDB.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.transforms import DAY_MICROS, HOUR_MICROS, MICRO_TIMESTAMPS
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal, walk_fields
from duckicelake.pipeline.common.spark_connect import READS_VARIANTS, to_arrow
from duckicelake.pipeline.common.spark_sql import format_variant, quote
from duckicelake.pipeline.verify.row_hashes import (
    BLOCK_FIELDS,
    LONG_BYTES,
    NULL,
    OTHER,
    SUM_MASK,
    Hashes,
    hash_longs,
    hash_rows,
    hash_values,
    is_bytes,
    is_float,
    read_plain,
)

VARIANT, STRING = PrimitiveType("variant"), PrimitiveType("string")
BINS = 4096
BIN_SHIFT = 52
HALF_BITS = 32
_WRAP = 1 << 64
_UNITS = {"year": "Y", "month": "M"}
_SHOWN = {"year": 4, "month": 7, "day": 10, "hour": 13}
GROUPED_BY = ("identity", "year", "month", "day", "hour")
"""Transforms that rows are grouped by; the others give no partition with a name in DuckLake."""

PICKED_SCHEMA = pa.schema([("number", pa.int64()), ("rows", pa.int64()), ("text", pa.string())])
PICKED_DDL = "number bigint, rows bigint, text string"
MOST_PICKED, MOST_LETTERS = 500_000, 100_000_000
"""How many rows of one side are looked at one by one, of how many letters in all."""


@dataclass(frozen=True, slots=True)
class GroupField:
    """A part of the partition: a column and its transform."""

    column: str
    form: PrimitiveType
    transform: str


@dataclass(frozen=True, slots=True)
class CompareSpec:
    """The columns of rows that are compared, and what they are grouped by; `by_bins`: by their numbers instead."""

    fields: tuple[NestedField, ...]
    groups: tuple[GroupField, ...] = ()
    by_bins: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    """The number of rows, the sum of their hashes modulo 2^64, and the exclusive or of them."""

    rows: int = 0
    total: int = 0
    parity: int = 0

    def add(self, other: "Total") -> "Total":
        """This and more."""
        return Total(self.rows + other.rows, (self.total + other.total) % _WRAP, self.parity ^ other.parity)


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals of several groups or bins, and of single rows."""

    rows: NDArray[np.int64]
    totals: Hashes
    parities: Hashes


@dataclass(slots=True)
class Checksums:
    """Checksums of rows, by bin or by group. A bin follows from the row's number, so different rows are in bins that differ."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    sums: Hashes = field(default_factory=lambda: np.zeros(BINS, np.uint64))
    groups: dict[int, Total] = field(default_factory=dict[int, Total])
    labels: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def rows(self) -> int:
        return int(self.counts.sum()) + sum(group.rows for group in self.groups.values())

    def add(self, rows: pa.RecordBatch, look: CompareSpec) -> None:
        """Count the rows of a batch."""
        numbers = hash_rows(rows, look.fields)
        sums = Sums(np.ones(rows.num_rows, np.int64), numbers, numbers)
        if look.by_bins:
            self.add_bins(compute_bins(numbers), sums)
        elif rows.num_rows:
            values: Any = [rows.column(rows.schema.get_field_index(part.column)) for part in look.groups]
            self.add_groups(look.groups, values, sums)

    def add_bins(self, bins: NDArray[np.int64], sums: Sums) -> None:
        """Count rows that are in these bins."""
        np.add.at(self.counts, bins, sums.rows)
        np.add.at(self.sums, bins, sums.totals)

    def add_groups(self, groups: Sequence[GroupField], values: Sequence[Any], sums: Sums) -> None:
        """Count rows of which the groups' columns have these values; all together when there are no groups."""
        if not groups:
            whole = Total(*(int(found) for found in (sums.rows.sum(), sums.totals.sum(), np.bitwise_xor.reduce(sums.parities))))
            self._add(0, whole, "")
            return
        keys = np.zeros(len(sums.rows), np.uint64)
        for column, part in zip(values, groups, strict=True):
            keys = hash_longs(hash_values(*_transform(column, part)), keys)
        found, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
        rows, totals, parities = np.zeros(len(found), np.int64), np.zeros(len(found), np.uint64), np.zeros(len(found), np.uint64)
        np.add.at(rows, inverse, sums.rows)
        np.add.at(totals, inverse, sums.totals)
        np.bitwise_xor.at(parities, inverse, sums.parities)
        for place, (key, first) in enumerate(zip(found.tolist(), firsts.tolist(), strict=True)):
            known = self.labels.get(key)
            if known is None:
                known = ", ".join(_describe(column.slice(first, 1), part) for column, part in zip(values, groups, strict=True))
            self._add(key, Total(int(rows[place]), int(totals[place]), int(parities[place])), known)

    def _add(self, key: int, total: Total, label: str) -> None:
        self.groups[key] = self.groups.get(key, Total()).add(total)
        self.labels[key] = label


def compute_bins(numbers: Hashes) -> NDArray[np.int64]:
    """Return the bin of each row."""
    return (numbers >> np.uint64(BIN_SHIFT)).astype(np.int64)


def join_halves(high: NDArray[np.int64], low: NDArray[np.int64]) -> Hashes:
    """Sums modulo 2^64 of numbers whose upper and lower halves were added up apart, which does not overflow."""
    return (high.view(np.uint64) << np.uint64(HALF_BITS)) + low.view(np.uint64)


def _transform(values: Any, part: GroupField) -> tuple[Any, PrimitiveType]:
    if part.transform == "identity":
        # Spark has one group for both zeros.
        zero: Any = pa.scalar(0)
        return (pc.add(values, zero.cast(values.type)) if is_float(part.form) else values), part.form
    micros = read_plain(_as_stamps(values, part.form), np.dtype(np.int64))
    if part.transform in _UNITS:
        units = micros.view("datetime64[us]").astype(f"datetime64[{_UNITS[part.transform]}]").astype(np.int64)
    else:
        units = micros // (DAY_MICROS if part.transform == "day" else HOUR_MICROS)
    return pa.array(units, mask=~values.is_valid().to_numpy(zero_copy_only=False)), PrimitiveType("long")


def _as_stamps(values: Any, form: PrimitiveType) -> Any:
    """Dates and timestamps as timestamps without a zone."""
    return values.cast(pa.timestamp("us", tz=None if form.name == "date" else values.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def _describe(values: Any, part: GroupField) -> str:
    is_stamp = part.form.name in MICRO_TIMESTAMPS or part.transform != "identity"
    value = (_as_stamps(values, part.form).cast(pa.string()) if is_stamp else _transform(values, part)[0])[0].as_py()
    if part.transform == "identity" or value is None:
        return f"{part.column}={'NULL' if value is None else value}"
    return f"{part.transform}({part.column})={value[: _SHOWN[part.transform]]}"


def checksum_batches(batches: Iterable[pa.RecordBatch], look: CompareSpec) -> Checksums:
    """Return the checksums of all rows of the batches, which are forgotten one after the other."""
    found = Checksums()
    for batch in batches:
        found.add(batch, look)
    return found


def pick_batches(batches: Iterable[pa.RecordBatch], look: CompareSpec, bins: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some bins, each with its number; those of a batch that are the same, once."""
    names = [item.name for item in look.fields]
    for batch in _name(batches, look):
        numbers = hash_rows(batch, look.fields)
        places = np.flatnonzero(np.isin(compute_bins(numbers), bins))
        found, firsts, rows = np.unique(numbers[places], return_index=True, return_counts=True)
        texts = [_format_row(batch.slice(int(place), 1).select(names)) for place in places[firsts]]
        columns = [pa.array(found.view(np.int64)), pa.array(rows.astype(np.int64)), pa.array(texts, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=PICKED_SCHEMA)


def _name(batches: Iterable[pa.RecordBatch], look: CompareSpec) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns([item.name for item in look.fields]) for batch in batches)


def _format_row(row: pa.RecordBatch) -> str:
    try:
        return json.dumps(row.to_pylist()[0], default=str, ensure_ascii=False)
    except (ValueError, OverflowError) as error:
        return f"a row that has no text: {error}"


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """A partition or a bin of which both sides do not say the same."""

    name: str
    iceberg_rows: int
    ducklake_rows: int


def compare(iceberg: Checksums, ducklake: Checksums) -> tuple[GroupDifference, ...]:
    """Return the groups or bins that differ; empty if all rows are the same."""
    labels, none = iceberg.labels | ducklake.labels, Total()
    keys = sorted((key for key in labels if iceberg.groups.get(key) != ducklake.groups.get(key)), key=lambda key: labels[key])
    parts = tuple(GroupDifference(labels[key], iceberg.groups.get(key, none).rows, ducklake.groups.get(key, none).rows) for key in keys)
    return parts + tuple(
        GroupDifference(f"bucket {key} of {BINS}", int(iceberg.counts[key]), int(ducklake.counts[key]))
        for key in find_different_bins(iceberg, ducklake)
    )


def find_different_bins(iceberg: Checksums, ducklake: Checksums) -> list[int]:
    """Return the bins that hold rows which only one side has, or has more often."""
    return np.flatnonzero((iceberg.counts != ducklake.counts) | (iceberg.sums != ducklake.sums)).tolist()


def find_examples(iceberg: Iterable[Mapping[str, Any]], ducklake: Iterable[Mapping[str, Any]], limit: int) -> tuple[list[str], list[str]]:
    """Return rows that only Iceberg shows, and such that only DuckLake does, of those that were picked.

    Raises: Unsupported: there are more than can be looked at
    """
    texts: dict[int, str] = {}
    first, second = (_count(side, texts) for side in (iceberg, ducklake))
    only = [[texts[number] for number in islice((mine - other).elements(), limit)] for mine, other in ((first, second), (second, first))]
    return only[0], only[1]


def _count(picked: Iterable[Mapping[str, Any]], texts: dict[int, str]) -> Counter[int]:
    counts: Counter[int] = Counter()
    letters = 0
    for place, row in enumerate(picked):
        letters += len(row["text"])
        if place >= MOST_PICKED or letters > MOST_LETTERS:
            raise Unsupported("too many different rows are in the smallest bucket that differs")
        counts[row["number"]] += row["rows"]
        texts[row["number"]] = row["text"]
    return counts


_DUCKDB: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    # Spark shows it as text.
    "uuid": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}


def quote_duckdb(name: str) -> str:
    """Return a name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def format_select(schema: Schema, table: str, lake_snapshot_id: int | None, names: Mapping[int, str] | None = None) -> str:
    """Return the query that shows DuckLake's rows in Iceberg's columns; `names` are those that DuckLake has there, by field id.

    Raises: Unsupported: DuckLake lacks a column there
    """
    columns = ", ".join(
        f"{_format_value(quote_duckdb(_get_lake_name(item, names)), item.type, names)} AS {quote_duckdb(item.name)}"
        for item in schema.fields
    )
    at = "" if lake_snapshot_id is None else f" AT (VERSION => {lake_snapshot_id})"
    return f"SELECT {columns} FROM {table}{at}"  # noqa: S608  names are quoted


def check_readable(schema: Schema) -> None:
    """Raises: Unsupported: there is a column that Spark does not read, so jobs that write or measure rows with it cannot take the table."""
    unread = _find_column(schema, lambda form: _find_leaf(form) is None and not (READS_VARIANTS and form == VARIANT))
    if unread is not None:
        said = "reads from 4.1 on" if unread[1] == VARIANT else "does not read"
        raise Unsupported(f"column {unread[0]} is {unread[1]}, which Spark {said}")


def check_comparable(schema: Schema) -> None:
    """Raises: Unsupported: there is a column whose values in Spark cannot be compared with those in DuckDB."""
    unlike = find_incomparable(schema)
    if unlike is None:
        return
    if unlike[1] == VARIANT:
        raise Unsupported(f"column {unlike[0]} is variant, whose values in Spark and DuckDB are not compared")
    check_readable(schema)


def find_incomparable(schema: Schema) -> tuple[str, PrimitiveType] | None:
    """Return a column, also inside others, of a type that is not compared with DuckDB; None: there is none."""
    return _find_column(schema, lambda form: _find_leaf(form) is None)


def _find_column(schema: Schema, is_meant: Callable[[PrimitiveType], bool]) -> tuple[str, PrimitiveType] | None:
    leaves = ((path, item.type) for path, item in walk_fields(schema.fields) if isinstance(item.type, PrimitiveType))
    return next(((path, form) for path, form in leaves if is_meant(form)), None)


def build_compare_spec(schema: Schema, spec: Mapping[str, Any]) -> CompareSpec:
    """Return what to compare: all columns, grouped by those parts of the partition spec that say something of a row by name."""
    sources = {item.field_id: item for item in schema.fields}
    groups: list[GroupField] = []
    for part in spec["fields"]:
        source = sources.get(part["source-id"])
        if part["transform"] in GROUPED_BY and source is not None and isinstance(source.type, PrimitiveType):
            groups.append(GroupField(source.name, source.type, part["transform"]))
    return CompareSpec(schema.fields, tuple(groups))


def _get_lake_name(item: NestedField, names: Mapping[int, str] | None) -> str:
    if names is None:
        return item.name
    if item.field_id not in names:
        raise Unsupported(f"column {item.name} (id {item.field_id}) was dropped in DuckLake before main came to these rows")
    return names[item.field_id]


def _is_renamed(form: IcebergType, names: Mapping[int, str] | None) -> bool:
    """Return True if some field of a struct has another name in DuckLake: casts go by names."""
    match form:
        case StructType(fields):
            return any([_get_lake_name(item, names) != item.name or _is_renamed(item.type, names) for item in fields])
        case ListType():
            return _is_renamed(form.element_type, names)
        case MapType():
            return _is_renamed(form.key_type, names) or _is_renamed(form.value_type, names)
        case PrimitiveType():
            return False


def _format_value(value: str, form: IcebergType, names: Mapping[int, str] | None, depth: int = 0) -> str:
    """Return a value of DuckLake as Iceberg's type has it. `depth` keeps names of lambdas' parameters apart."""
    one = f"x{depth}"
    match form:
        case StructType(fields) if _is_renamed(form, names):
            theirs = [(item, f"struct_extract({value}, {_quote_text(_get_lake_name(item, names))})") for item in fields]
            parts = ", ".join(f"{quote_duckdb(item.name)} := {_format_value(field, item.type, names, depth)}" for item, field in theirs)
            return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({parts}) END"
        case ListType() if _is_renamed(form, names):
            return f"list_transform({value}, lambda {one}: {_format_value(one, form.element_type, names, depth + 1)})"
        case MapType() if _is_renamed(form, names):
            inner = (("key", form.key_type), ("value", form.value_type))
            parts = ", ".join(f"{name} := {_format_value(f'{one}.{name}', type_, names, depth + 1)}" for name, type_ in inner)
            return f"map_from_entries(list_transform(map_entries({value}), lambda {one}: struct_pack({parts})))"
        case _:
            return f"CAST({value} AS {_format_type(form)})"


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _format_type(form: IcebergType) -> str:
    match form:
        case StructType(fields):
            return f"STRUCT({', '.join(f'{quote_duckdb(item.name)} {_format_type(item.type)}' for item in fields)})"
        case ListType():
            return f"{_format_type(form.element_type)}[]"
        case MapType():
            return f"MAP({_format_type(form.key_type)}, {_format_type(form.value_type)})"
        case PrimitiveType():
            return _find_leaf(form) or ""


def _find_leaf(form: PrimitiveType) -> str | None:
    if form.name.startswith("fixed"):
        return "BLOB"
    decimal = find_decimal(form)
    return _DUCKDB.get(form.name) if decimal is None else f"DECIMAL({decimal[0]}, {decimal[1]})"


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
    number = format_number([_format_column(f"c{place}", field.type) for place, field in enumerate(look.fields)])
    return named.withColumn("number", F.expr(number))


def _format_column(column: str, form: IcebergType) -> tuple[str, IcebergType]:
    """Return a column as an expression that Spark hashes, with its type: for a variant, the types and the values within as a text."""
    return (format_variant(column), STRING) if form == VARIANT else (column, form)


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
        found += [_format_spark_value(value, form, depth) for value, form in block]
    return found


def _format_mark(value: str, form: IcebergType, bit: int) -> str:
    other = ""
    if isinstance(form, PrimitiveType) and is_float(form):
        # The power is looked at where there is a zero: of -0.0 it is -Infinity.
        other = f"WHEN {value} = 0 AND pow({value}, -1) < 0 THEN {OTHER << bit}L "
    elif isinstance(form, PrimitiveType) and is_bytes(form):
        other = f"WHEN octet_length({value}) > {LONG_BYTES} THEN {OTHER << bit}L "
    return f"CASE WHEN {value} IS NULL THEN {NULL << bit}L {other}ELSE 0L END"


def _format_spark_value(value: str, form: IcebergType, depth: int) -> str:
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
