"""Rows by key: the latest row of each key for `upsert`, versions with their validity for `scd2`; and rows in place of whole partitions.

`writing` calls this in the driver. It returns DataFrames and texts of SQL; functions that count or check rows start jobs of Spark. Nothing
is written here.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import VARIANT, format_default, format_variant, quote, quote_text
from duckicelake.pipeline.ingest.schema_evolution import ColumnEvolution, is_promotion
from duckicelake.pipeline.ingest.source import Coverage, Path, fit_columns

_RANK, _HAD, _HELD = "__duckicelake_rank", "__duckicelake_had_", "__duckicelake_held"
_SAME, _COUNT = "__duckicelake_same_", "__duckicelake_count"
_FUNCTIONS = {**{unit: f"{unit}s" for unit in ("year", "month", "day", "hour")}, "bucket": "bucket", "truncate": "truncate"}
"""Iceberg's transforms, as functions of its catalogs in Spark."""
_TERM = re.compile(r"(?P<transform>[a-z]+)(?:\[(?P<number>[0-9]+)\])?\((?P<column>.+)\)")


@dataclass(frozen=True, slots=True)
class MergeTarget:
    """The table that is merged into, by its name in SQL, the columns by which a row is known, and the one that says which is later."""

    table: str
    key: Sequence[str]
    order_by: str | None


def select_latest(rows: DataFrame, key: Sequence[str], order_by: str | None, marks: Sequence[str] = ()) -> DataFrame:
    """Return one row for each key: the last by `order_by`; `marks` say of each row what its file has.

    Raises: BadRequest: several rows of a key could be the last, there are several and nothing to order them by, or an earlier one's
        file has what that of the last one lacks
    """
    columns = [F.col(quote(name)) for name in key]
    latest = rows
    if order_by is not None:
        of_key = Window.partitionBy(*columns)
        had = {f"{_HAD}{place}": F.max(mark).over(of_key) for place, mark in enumerate(marks)}
        rank = F.rank().over(of_key.orderBy(F.col(quote(order_by)).desc_nulls_last()))
        latest = rows.withColumns({_RANK: rank, **had}).where(F.col(_RANK) == 1)
        _check_kept(latest, key, dict(zip(marks, had, strict=True)))
        latest = keep_distinct(latest.drop(_RANK, *had))
    twice = _find_twice(latest, key)
    if twice:
        remedy = "--order-by says which one is the last" if order_by is None else f"they do not differ in {order_by}"
        raise BadRequest(f"several rows have the key {_show(twice[0], key)}: {remedy}; nothing was taken")
    return latest


def _find_twice(rows: DataFrame, key: Sequence[str]) -> list[Row]:
    """Return a key that several rows have; nothing when there is none."""
    counted = rows.groupBy(*(F.col(quote(name)) for name in key)).agg(F.count("*").alias(_COUNT))
    return counted.where(F.col(_COUNT) > 1).limit(1).collect()


def keep_distinct(rows: DataFrame) -> DataFrame:
    """Return one of the rows that are the same; maps are compared by their entries, in any order, and variants as texts."""
    unlike = [field for field in rows.schema.fields if _is_incomparable(field.dataType)]
    if not unlike:
        return rows.distinct()
    alike = {f"{_SAME}{place}": F.expr(format_comparable(quote(field.name), field.dataType)) for place, field in enumerate(unlike)}
    others = [field.name for field in rows.schema.fields if field not in unlike]
    return rows.withColumns(alike).dropDuplicates([*others, *alike]).drop(*alike)


def format_comparable(value: str, form: DataType, depth: int = 0) -> str:
    """SQL of what is the same for two values just when these are: Spark compares no variants, and no maps, whose entries are sorted."""
    if not _is_incomparable(form):
        return value
    inner = f"x{depth}"
    match form:
        case MapType():
            key, own = (
                format_comparable(f"{inner}.{name}", one, depth + 1) for name, one in (("key", form.keyType), ("value", form.valueType))
            )
            return f"array_sort(transform(map_entries({value}), {inner} -> named_struct('key', {key}, 'value', {own})))"
        case ArrayType():
            return f"transform({value}, {inner} -> {format_comparable(inner, form.elementType, depth + 1)})"
        case StructType():
            parts = (
                f"'p{place}', {format_comparable(f'{value}.{quote(one.name)}', one.dataType, depth)}" for place, one in enumerate(form)
            )
            return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
        case _:
            return format_variant(value)


def _is_incomparable(form: DataType) -> bool:
    match form:
        case StructType():
            return any(_is_incomparable(field.dataType) for field in form.fields)
        case ArrayType():
            return _is_incomparable(form.elementType)
        case _:
            # PySpark 3.5 has no class for variants.
            return isinstance(form, MapType) or form.typeName() == VARIANT


def _check_kept(latest: DataFrame, key: Sequence[str], had: Mapping[str, str]) -> None:
    is_lost = F.lit(False)
    for mark, before in had.items():
        is_lost = is_lost | (F.col(before) & ~F.col(mark))
    lost = latest.where(is_lost).limit(1).collect() if had else []
    if lost:
        raise BadRequest(
            f"several rows have the key {_show(lost[0], key)}, and the file of the last one lacks columns that another's has, "
            "whose values would be lost: take these files one after the other; nothing was taken"
        )


def _show(row: Row, key: Sequence[str]) -> str:
    return ", ".join(f"{name} = {row[name]!r}" for name in key)


def _has_all(held: DataFrame, names: Sequence[str]) -> bool:
    """Return True if the table had these columns before: of new ones its rows have no value."""
    return {name.lower() for name in names} <= {name.lower() for name in held.columns}


def count_older(latest: DataFrame, held: DataFrame, key: Sequence[str], order_by: str) -> int:
    """Return how many rows are older than the table's row of their key; NULL in `order_by` is before all others."""
    if not _has_all(held, [*key, order_by]):
        return 0
    known = held.select(*(F.col(quote(name)) for name in key), F.col(quote(order_by)).alias(_HELD))
    own = F.col(quote(order_by))
    is_older = F.col(_HELD).isNotNull() & (own.isNull() | (own < F.col(_HELD)))
    return latest.join(known, list(key)).where(is_older).count()


def count_known(held: DataFrame, latest: DataFrame, key: Sequence[str]) -> int:
    """Return how many keys of the files the table has; `latest` has one row for each. Raises: BadRequest: it has several rows of one"""
    if not _has_all(held, key):
        return 0
    columns = [F.col(quote(name)) for name in key]
    same = held.select(*columns).join(latest.select(*columns), list(key), "left_semi")
    counted = same.groupBy(*columns).agg(F.count("*").alias(_COUNT))
    most = F.max_by(F.struct(*columns, F.col(_COUNT)), F.col(_COUNT))
    found = counted.agg(F.count("*").alias("known"), most.alias("most")).collect()[0]
    if found["known"] and found["most"][_COUNT] > 1:
        raise BadRequest(f"the table has several rows of one key ({_show(found['most'], key)}); nothing was taken")
    return int(found["known"])


def format_merge(source: str, asked: MergeTarget, columns: StructType, coverage: Coverage) -> str:
    """Return the statement that updates rows of known keys, where that makes them no older, and inserts the others."""
    same = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in asked.key)
    order = None if asked.order_by is None else quote(asked.order_by)
    newer = "" if order is None else f" AND (t.{order} IS NULL OR s.{order} >= t.{order})"
    update, insert = format_values(columns, coverage)
    merged = f"MERGE INTO {asked.table} t USING {quote(source)} s ON {same}"
    return f"{merged} WHEN MATCHED{newer} THEN UPDATE SET {update} WHEN NOT MATCHED THEN INSERT {insert}"


def format_values(columns: StructType, coverage: Coverage) -> tuple[str, str]:
    """Return what a row of the table becomes, and what a new one is: what a row's file lacks stays, or is the column's default."""
    if not coverage.lacked:
        return "*", "*"
    writing = _Values(dict.fromkeys(coverage.everywhere, "false") | dict(zip(coverage.mixed, map(_name_mark, coverage.marks), strict=True)))
    names = [quote(field.name) for field in columns.fields]
    kept = [writing.format(field, (), "t") for field in columns.fields]
    update = ", ".join(f"t.{name} = {value}" for name, value in zip(names, kept, strict=True) if value != f"t.{name}")
    values = ", ".join(writing.format(field, (), None) for field in columns.fields)
    return update, f"({', '.join(names)}) VALUES ({values})"


def _name_mark(mark: str) -> str:
    return f"s.{mark}"


@dataclass(frozen=True, slots=True)
class _Values:
    """SQL of the values of a merged row, `t` being the table's row and `s` that of a file; `has` says what files have, if not all do."""

    has: Mapping[Path, str]

    def format(self, field: StructField, above: Sequence[str], else_of: str | None) -> str:
        """Return a column's value, or a field's; where the file lacks it that of `else_of`, or without that the default."""
        names = (*above, field.name)
        path = tuple(name.lower() for name in names)
        column = ".".join(map(quote, names))
        other = f"{else_of}.{column}" if else_of is not None else format_default(field)
        has = self.has.get(path, "true")
        if has == "false":
            return other
        own = f"CAST(s.{column} AS {field.dataType.simpleString()})" if above else f"s.{column}"
        if isinstance(field.dataType, StructType) and any(inner[: len(path)] == path and inner != path for inner in self.has):
            parts = [f"{quote_text(one.name)}, {self.format(one, names, else_of)}" for one in field.dataType.fields]
            own = f"IF(s.{column} IS NULL, NULL, named_struct({', '.join(parts)}))"
        return own if has == "true" else f"IF({has}, {own}, {other})"


def format_partitions(catalog: str, terms: Sequence[str], alias: str) -> list[str]:
    """Return the values of partitions, whose terms are as `TableHead` has them, as Spark's SQL makes them of a row.

    Raises: BadRequest: one is of a column inside another, or by a transform that Spark does not have
    """
    return [_format_partition(catalog, term, alias) for term in terms]


def _format_partition(catalog: str, term: str, alias: str) -> str:
    found = _TERM.fullmatch(term)
    if found is None or found["column"] == "?" or (found["transform"] not in _FUNCTIONS and found["transform"] != "identity"):
        raise BadRequest(f"the table has rows that do not lie in partitions by {term}, and Spark cannot find these rows")
    column = f"{alias}.{quote(found['column'])}"
    if found["transform"] == "identity":
        return column
    number = "" if found["number"] is None else f"{found['number']}, "
    return f"{quote(catalog)}.system.{_FUNCTIONS[found['transform']]}({number}{column})"


def format_removal(table: str, source: str, partitions: Sequence[str]) -> str:
    """Return the statement that deletes the rows of partitions; the source has the values of each, p0, p1 …"""
    same = " AND ".join(f"{value} <=> s.p{place}" for place, value in enumerate(partitions))
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} WHEN MATCHED THEN DELETE"


FROM, TO, CURRENT = "valid_from", "valid_to", "is_current"
VALIDITY = (FROM, TO, CURRENT)
_OLD, _CHANGED, _KEY_COLUMN = "__duckicelake_old", "__duckicelake_changed", "__duckicelake_key_"


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
        """Return columns by name."""
        return [F.col(quote(name)) for name in names]


def add_validity(columns: StructType, order_by: str) -> StructType:
    """Return the columns of a table that keeps versions. Raises: BadRequest: one is there already, or there is nothing to order by."""
    taken = next((name for name in columns.names if name.lower() in VALIDITY), None)
    if taken is not None:
        raise BadRequest(f"column {taken} of the files has the name of one that scd2 keeps")
    at = next((field.dataType for field in columns.fields if field.name.lower() == order_by.lower()), None)
    if at is None:
        raise BadRequest(f"the files have no column {order_by} to order versions by")
    return StructType([*columns.fields, StructField(FROM, at), StructField(TO, at), StructField(CURRENT, BooleanType())])


def drop_validity(columns: StructType) -> StructType:
    """Return the columns that come from files. Raises: BadRequest: the table does not keep versions."""
    missing = next((name for name in VALIDITY if name not in columns.names), None)
    if missing is not None:
        raise BadRequest(f"the table has no column {missing}: it does not keep versions")
    return StructType([field for field in columns.fields if field.name not in VALIDITY])


def widen_validity(
    held: StructType, changes: Sequence[ColumnEvolution], incoming: StructType, order_by: str
) -> tuple[ColumnEvolution, ...]:
    """Return the changes that make the validity columns as wide as the column that versions are ordered by."""
    columns = {field.name.lower(): field.dataType for field in held.fields}
    own = next((field for field in held.fields if field.name.lower() == order_by.lower()), None)
    widened = any(change.path == (own.name,) for change in changes) if own is not None else False
    source = incoming if widened else held
    at = next((field.dataType for field in source.fields if field.name.lower() == order_by.lower()), None)
    narrow = [name for name in (FROM, TO) if at is not None and name in columns and is_promotion(columns[name], at)]
    return tuple(ColumnEvolution((name,), at.simpleString(), is_new=False) for name in narrow if at is not None)


def fill_columns(held: DataFrame, columns: StructType) -> DataFrame:
    """Return rows of an earlier snapshot under a table's columns, with NULL in those, and in fields of structs, that came after it."""
    return held.select(*fit_columns(held.schema, columns, lambda name: F.col(quote(name))))


def build_versions(rows: DataFrame, current: DataFrame, history: History, coverage: Coverage) -> tuple[DataFrame, DataFrame]:
    """Return the versions to insert, with their validity, and those that end, with when they do.

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
    """Return a column's value, or where the file lacks it that of another row of the same moment, or the one before it, or the default."""
    own, name = F.col(quote(field.name)), field.name.lower()
    if name not in marks and name not in lacking:
        return own
    is_told = F.col(_OLD) if name in lacking else F.col(marks[name])
    # In a struct, because the value may be NULL. Rows that contradict each other are refused later, so any of them will do.
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
    """Return what is merged: versions to insert match nothing, versions that end match the current one of their key."""
    none = [F.lit(None).cast(inserted.schema[name].dataType).alias(f"{_KEY_COLUMN}{number}") for number, name in enumerate(key)]
    known = [F.col(quote(name)).alias(f"{_KEY_COLUMN}{number}") for number, name in enumerate(key)]
    return inserted.select("*", *none).unionByName(ended.select("*", *known))


def format_versions_merge(table: str, source: str, history: History) -> str:
    """Return the statement that ends versions and inserts others."""
    same = " AND ".join(f"t.{quote(name)} = s.{quote(f'{_KEY_COLUMN}{number}')}" for number, name in enumerate(history.key))
    names = [quote(name) for name in (*history.columns, *VALIDITY)]
    columns, values = ", ".join(names), ", ".join(f"s.{name}" for name in names)
    insert = " ".join(("INSERT", f"({columns})", "VALUES", f"({values})"))
    end = f"UPDATE SET t.{TO} = s.{TO}, t.{CURRENT} = false"
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} AND t.{CURRENT} WHEN MATCHED THEN {end} WHEN NOT MATCHED THEN {insert}"
