"""Slowly changing dimensions, type 2: every version of a key is a row that says from when to when it held."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.evolution import ColumnChange, is_promotion
from duckicelake.pipeline.ingest.merging import format_comparable, keep_distinct
from duckicelake.pipeline.ingest.sources.shapes import Coverage, fit_columns
from duckicelake.pipeline.ingest.target import format_default, quote

FROM, TO, CURRENT = "valid_from", "valid_to", "is_current"
VALIDITY = (FROM, TO, CURRENT)
_OLD, _CHANGED, _KEY = "__duckicelake_old", "__duckicelake_changed", "__duckicelake_key_"


@dataclass(frozen=True, slots=True)
class History:
    """The files' columns, those by which a row is known, and the one that says from when on it holds."""

    target: StructType
    key: Sequence[str]
    order_by: str

    @property
    def columns(self) -> Sequence[str]:
        return self.target.names

    def refer(self, names: Sequence[str]) -> list[Column]:
        """Columns by name."""
        return [F.col(quote(name)) for name in names]


def add_validity(columns: StructType, order_by: str) -> StructType:
    """The columns of a table that keeps versions. Raises: BadRequest: one is there already, or there is nothing to order by."""
    taken = next((name for name in columns.names if name.lower() in VALIDITY), None)
    if taken is not None:
        raise BadRequest(f"column {taken} of the files has the name of one that scd2 keeps")
    at = next((field.dataType for field in columns.fields if field.name.lower() == order_by.lower()), None)
    if at is None:
        raise BadRequest(f"the files have no column {order_by} to order versions by")
    return StructType([*columns.fields, StructField(FROM, at), StructField(TO, at), StructField(CURRENT, BooleanType())])


def drop_validity(columns: StructType) -> StructType:
    """The columns that come from files. Raises: BadRequest: the table does not keep versions."""
    missing = next((name for name in VALIDITY if name not in columns.names), None)
    if missing is not None:
        raise BadRequest(f"the table has no column {missing}: it does not keep versions")
    return StructType([field for field in columns.fields if field.name not in VALIDITY])


def widen_validity(held: StructType, changes: Sequence[ColumnChange], incoming: StructType, order_by: str) -> tuple[ColumnChange, ...]:
    """What has to change of the validity's columns for them to hold what the column that versions are ordered by holds, or is to hold."""
    columns = {field.name.lower(): field.dataType for field in held.fields}
    own = next((field for field in held.fields if field.name.lower() == order_by.lower()), None)
    widened = any(change.path == (own.name,) for change in changes) if own is not None else False
    source = incoming if widened else held
    at = next((field.dataType for field in source.fields if field.name.lower() == order_by.lower()), None)
    narrow = [name for name in (FROM, TO) if at is not None and name in columns and is_promotion(columns[name], at)]
    return tuple(ColumnChange((name,), at.simpleString(), is_new=False) for name in narrow if at is not None)


def fill_columns(held: DataFrame, columns: StructType) -> DataFrame:
    """Rows of an earlier snapshot under a table's columns, with NULL in those, and in fields of structs, that came after it."""
    return held.select(*fit_columns(held.schema, columns, lambda name: F.col(quote(name))))


def build_versions(rows: DataFrame, current: DataFrame, history: History, coverage: Coverage) -> tuple[DataFrame, DataFrame]:
    """The versions to insert, with their validity, and those that end, with when they do.

    A column that a row's file lacks is as it was before, and in the first version of a key its default.
    Raises: BadRequest: two rows of a key hold from the same moment, or one from before the current one
    """
    key, at = history.refer(history.key), F.col(quote(history.order_by))
    columns = history.refer(history.columns)
    held = current.select(*columns, F.lit(True).alias(_OLD)).join(rows.select(*key).distinct(), list(history.key), "left_semi")
    marks = {path[0]: mark for path, mark in zip(coverage.mixed, coverage.marks, strict=True) if len(path) == 1}
    fresh = keep_distinct(rows.select(*columns, *marks.values())).withColumn(_OLD, F.lit(False))
    held = held.withColumns({mark: F.lit(True) for mark in marks.values()}) if marks else held
    in_order = Window.partitionBy(*key).orderBy(at, F.col(_OLD).desc())
    told = [field for field in history.target.fields if field.name.lower() != history.order_by.lower()]
    tracked = F.struct(*(F.expr(format_comparable(quote(field.name), field.dataType)) for field in told))
    lacking = {path[0] for path in coverage.everywhere if len(path) == 1}
    everything = held.unionByName(fresh)
    everything = everything.select(*(_fill(field, marks, lacking, in_order) for field in history.target.fields), _OLD)
    before = F.lag(tracked).over(in_order)
    versions = everything.withColumn(_CHANGED, ~tracked.eqNullSafe(before)).withColumn("__previous", F.lag(at).over(in_order))
    _check_version_order(versions.withColumn("__old_before", F.lag(F.col(_OLD)).over(in_order)), history)
    kept = versions.where(F.col(_CHANGED) | F.col(_OLD))
    ends = F.lead(at).over(Window.partitionBy(*key).orderBy(at))
    timed = kept.select(*columns, at.alias(FROM), ends.alias(TO), ends.isNull().alias(CURRENT), _OLD)
    return timed.where(~F.col(_OLD)).drop(_OLD), timed.where(F.col(_OLD) & F.col(TO).isNotNull()).drop(_OLD)


def _fill(field: StructField, marks: Mapping[str, str], lacking: Collection[str], in_order: WindowSpec) -> Column:
    """A column's value, or where the file lacks it that of another row of the same moment, or the one before it, or the default."""
    own, name = F.col(quote(field.name)), field.name.lower()
    if name not in marks and name not in lacking:
        return own
    is_told = F.col(_OLD) if name in lacking else F.col(marks[name])
    # In a struct, since NULL may be what was told. Of rows that contradict each other it is any: both of them are there to be refused.
    told = F.last(F.when(is_told, F.struct(own.alias("value"))), ignorenulls=True).over(in_order)
    return F.when(is_told, own).when(told.isNull(), F.expr(format_default(field))).otherwise(told["value"]).alias(field.name)


def _check_version_order(versions: DataFrame, history: History) -> None:
    at = F.col(quote(history.order_by))
    is_late = F.col(_OLD) & F.col("__previous").isNotNull()
    is_tied = (at == F.col("__previous")) & F.col(_CHANGED)
    wrong = versions.where(is_late | is_tied).limit(1).collect()
    if wrong:
        shown = ", ".join(f"{name} = {wrong[0][name]!r}" for name in history.key)
        raise BadRequest(f"the rows of {shown} hold from the same {history.order_by} or from before the current one; nothing was taken")


def format_source(inserted: DataFrame, ended: DataFrame, key: Sequence[str]) -> DataFrame:
    """What is merged: versions to insert match nothing, versions that end match the current one of their key."""
    none = [F.lit(None).cast(inserted.schema[name].dataType).alias(f"{_KEY}{number}") for number, name in enumerate(key)]
    known = [F.col(quote(name)).alias(f"{_KEY}{number}") for number, name in enumerate(key)]
    return inserted.select("*", *none).unionByName(ended.select("*", *known))


def format_versions_merge(table: str, source: str, history: History) -> str:
    """The statement that ends versions and inserts others."""
    same = " AND ".join(f"t.{quote(name)} = s.{quote(f'{_KEY}{number}')}" for number, name in enumerate(history.key))
    names = [quote(name) for name in (*history.columns, *VALIDITY)]
    columns, values = ", ".join(names), ", ".join(f"s.{name}" for name in names)
    insert = " ".join(("INSERT", f"({columns})", "VALUES", f"({values})"))
    end = f"UPDATE SET t.{TO} = s.{TO}, t.{CURRENT} = false"
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} AND t.{CURRENT} WHEN MATCHED THEN {end} WHEN NOT MATCHED THEN {insert}"
