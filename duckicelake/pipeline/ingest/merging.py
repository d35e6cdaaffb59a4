"""Rows by key or by partition: the latest of each in the files, and the statements that bring them into the table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.sources.shapes import Coverage, Path
from duckicelake.pipeline.ingest.target import format_default, quote, quote_text

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
    """One row for each key: the last by `order_by`; `marks` say of each row what its file has.

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
    """A key that several rows have; nothing when there is none."""
    counted = rows.groupBy(*(F.col(quote(name)) for name in key)).agg(F.count("*").alias(_COUNT))
    return counted.where(F.col(_COUNT) > 1).limit(1).collect()


def keep_distinct(rows: DataFrame) -> DataFrame:
    """One of the rows that are the same; of maps the entries count, in whatever order."""
    maps = [field for field in rows.schema.fields if _has_map(field.dataType)]
    if not maps:
        return rows.distinct()
    alike = {f"{_SAME}{place}": F.expr(format_comparable(quote(field.name), field.dataType)) for place, field in enumerate(maps)}
    others = [field.name for field in rows.schema.fields if field not in maps]
    return rows.withColumns(alike).dropDuplicates([*others, *alike]).drop(*alike)


def format_comparable(value: str, form: DataType, depth: int = 0) -> str:
    """SQL of what is the same for two values just when these are: Spark compares no maps, so their entries are put in order."""
    if not _has_map(form):
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
            return value


def _has_map(form: DataType) -> bool:
    match form:
        case StructType():
            return any(_has_map(field.dataType) for field in form.fields)
        case ArrayType():
            return _has_map(form.elementType)
        case _:
            return isinstance(form, MapType)


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
    """Whether the table had these columns before: of new ones its rows have no value."""
    return {name.lower() for name in names} <= {name.lower() for name in held.columns}


def count_older(latest: DataFrame, held: DataFrame, key: Sequence[str], order_by: str) -> int:
    """How many of the rows would make a row of the table older: no value in `order_by` is before all others, and no column no value."""
    if not _has_all(held, [*key, order_by]):
        return 0
    known = held.select(*(F.col(quote(name)) for name in key), F.col(quote(order_by)).alias(_HELD))
    own = F.col(quote(order_by))
    is_older = F.col(_HELD).isNotNull() & (own.isNull() | (own < F.col(_HELD)))
    return latest.join(known, list(key)).where(is_older).count()


def count_known(held: DataFrame, latest: DataFrame, key: Sequence[str]) -> int:
    """How many keys of the files the table has; `latest` has one row for each. Raises: BadRequest: it has several rows of one"""
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
    """The statement that updates rows of known keys, where that makes them no older, and inserts the others."""
    same = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in asked.key)
    order = None if asked.order_by is None else quote(asked.order_by)
    newer = "" if order is None else f" AND (t.{order} IS NULL OR s.{order} >= t.{order})"
    update, insert = format_values(columns, coverage)
    merged = f"MERGE INTO {asked.table} t USING {quote(source)} s ON {same}"
    return f"{merged} WHEN MATCHED{newer} THEN UPDATE SET {update} WHEN NOT MATCHED THEN INSERT {insert}"


def format_values(columns: StructType, coverage: Coverage) -> tuple[str, str]:
    """What a row of the table becomes, and what a new one is: what a row's file lacks stays, or is the column's default."""
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
        """A column's value, or a field's; where the file lacks it that of `else_of`, or without that the default."""
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
    """The values of partitions, whose terms are as `TableHead` has them, as Spark's SQL makes them of a row.

    Raises: BadRequest: one is of a column inside another, or by a transform that Spark does not have
    """
    return [_format_partition(catalog, term, alias) for term in terms]


def _format_partition(catalog: str, term: str, alias: str) -> str:
    found = _TERM.fullmatch(term)
    if found is None or found["column"] == "?" or (found["transform"] not in _FUNCTIONS and found["transform"] != "identity"):
        raise BadRequest(f"the table has rows that do not lie in partitions by {term}, and cannot be told from others by it")
    column = f"{alias}.{quote(found['column'])}"
    if found["transform"] == "identity":
        return column
    number = "" if found["number"] is None else f"{found['number']}, "
    return f"{quote(catalog)}.system.{_FUNCTIONS[found['transform']]}({number}{column})"


def format_removal(table: str, source: str, partitions: Sequence[str]) -> str:
    """The statement that deletes the rows of partitions; the source has the values of each, p0, p1 …"""
    same = " AND ".join(f"{value} <=> s.p{place}" for place, value in enumerate(partitions))
    return f"MERGE INTO {table} t USING {quote(source)} s ON {same} WHEN MATCHED THEN DELETE"
