"""Texts that Spark would infer as numbers or timestamps although their values would change; such columns stay texts."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from duckicelake.pipeline.common.spark_sql import quote

_LONG = r"^\s*[-+]?[0-9]{16,}\s*$|^\s*[-+]?[0.]*[1-9](\.?[0-9]){16,}\.?[1-9]0*\s*$"
"""Of 16 digits a double loses the last ones. With a point it is written with 17 at most, unless there is an exponent."""
_CODE, _TIME = r"[0-9.][dDfF]\s*$|^\s*[-+]?0[xX]|" + _LONG, r"^\s*T?[0-9]{1,2}:[0-9]"
"""Java takes `12F` for the number 12.0, and Spark a time for one of today."""

_NUMBER_OF_PATHS = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?")
_DIGITS: dict[type[DataType], int] = {ByteType: 2, ShortType: 4, IntegerType: 9, LongType: 18}
"""Every number of so many digits fits the type; of more digits Spark would keep the lower bits."""
Way = tuple[str | None, ...]
"""Where values stand: a column, and the fields of structs in it; None stands for all that is in a list."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition folder that means NULL."""


def list_doubtful(columns: StructType, *, knows_times: bool) -> list[StructField]:
    """Return the columns of CSV whose texts may have looked like something else; `knows_times`: it was said how times are written."""
    kinds = DoubleType if knows_times else DoubleType | TimestampType | TimestampNTZType
    return [field for field in columns.fields if isinstance(field.dataType, kinds)]


def list_text_columns(texts: DataFrame, doubtful: Iterable[StructField]) -> set[str]:
    """Return those of the doubtful columns that have a value which is a text; `texts` has them as such."""
    patterns = {field.name: _CODE if isinstance(field.dataType, DoubleType) else _TIME for field in doubtful}
    if not patterns:
        return set()
    asked = [F.max(name_column(name).rlike(pattern)).alias(str(place)) for place, (name, pattern) in enumerate(patterns.items())]
    (found,) = texts.agg(*asked).collect()
    return {name for place, name in enumerate(patterns) if found[str(place)]}


def keep_texts(columns: StructType, names: Iterable[str]) -> StructType:
    """Return the columns, those of these names as texts."""
    kept = set(names)
    return StructType([StructField(field.name, StringType()) if field.name in kept else field for field in columns.fields])


def keep_digits(columns: StructType, read: Callable[[StructType], DataFrame], of_paths: Collection[str]) -> StructType:
    """Return the columns of JSON, with texts in place of such doubles, also inside, as have a number that no double holds.

    `read` has the rows under other types; the columns `of_paths` stay as they are.
    """
    ways = [way for field in columns.fields if field.name not in of_paths for way in _list_doubles(field.dataType, (field.name,))]
    if not ways:
        return columns
    asked = [F.max(_is_long(name_column(str(name)), inner)).alias(str(place)) for place, (name, *inner) in enumerate(ways)]
    (found,) = read(_put_texts(columns, ways)).agg(*asked).collect()
    return _put_texts(columns, [way for place, way in enumerate(ways) if found[str(place)]])


def _list_doubles(form: DataType, here: Way) -> Iterator[Way]:
    if isinstance(form, StructType):
        for field in form.fields:
            yield from _list_doubles(field.dataType, (*here, field.name))
    elif isinstance(form, ArrayType):
        yield from _list_doubles(form.elementType, (*here, None))
    elif isinstance(form, DoubleType):
        yield here


def _is_long(value: Column, inner: Sequence[str | None]) -> Column:
    if not inner:
        return value.rlike(_LONG)
    name, *rest = inner
    return F.exists(value, lambda one: _is_long(one, rest)) if name is None else _is_long(value[name], rest)


def _put_texts(columns: StructType, ways: Collection[Way], above: Way = ()) -> StructType:
    return StructType([StructField(one.name, _put_text(one.dataType, ways, (*above, one.name))) for one in columns.fields])


def _put_text(form: DataType, ways: Collection[Way], here: Way) -> DataType:
    if isinstance(form, StructType):
        return _put_texts(form, ways, here)
    if isinstance(form, ArrayType):
        return ArrayType(_put_text(form.elementType, ways, (*here, None)))
    return StringType() if here in ways else form


def list_path_texts(columns: StructType, values: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield the columns of paths that have a value which no number and no moment is written like; `values` by column."""
    for field in columns.fields:
        told = {unquote(value) for value in values.get(field.name, ()) if value != NO_VALUE}
        if isinstance(field.dataType, NumericType) and not all(map(_NUMBER_OF_PATHS.fullmatch, told)):
            yield field.name
        if isinstance(field.dataType, TimestampType | TimestampNTZType) and any(re.match(_TIME, value) for value in told):
            yield field.name


def adopt_paths(columns: StructType, known: Mapping[str, DataType], values: Mapping[str, Iterable[str]]) -> StructType:
    """The columns, those of paths as the types that are known by names in small letters: texts, and numbers where all `values` are."""
    fields: list[StructField] = []
    for field in columns.fields:
        form, told = known.get(field.name.lower()), values.get(field.name)
        takes = form is not None and told is not None and (isinstance(form, StringType) or _are_digits(field.dataType, form, told))
        fields.append(StructField(field.name, form) if takes and form is not None else field)
    return StructType(fields)


def _are_digits(found: DataType, form: DataType, told: Iterable[str]) -> bool:
    most = _DIGITS.get(type(form), 0)
    is_told = all(value.isascii() and value.isdecimal() and len(value) <= most for value in told if value != NO_VALUE)
    return most > 0 and isinstance(found, StringType) and is_told


def list_path_values(paths: Iterable[str], columns: Iterable[str]) -> dict[str, set[str]]:
    """Return what paths say of their columns."""
    found: dict[str, set[str]] = {name: set() for name in columns}
    for path in paths:
        for part in path.split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals and name in found:
                found[name].add(value)
    return found


def as_texts(form: DataType) -> DataType | None:
    """Return a type with texts in the place of timestamps and without all else; None when it has no timestamp."""
    if isinstance(form, TimestampType):
        return StringType()
    if isinstance(form, StructType):
        inner = [StructField(field.name, kept) for field in form.fields if (kept := as_texts(field.dataType)) is not None]
        return StructType(inner) if inner else None
    if isinstance(form, ArrayType):
        kept = as_texts(form.elementType)
        return None if kept is None else ArrayType(kept)
    if isinstance(form, MapType):
        kept = as_texts(form.valueType)
        return None if kept is None else MapType(StringType(), kept)
    return None


def has_times(columns: Mapping[str, DataType]) -> Column:
    """Build the condition that one of the columns, whose types `as_texts` made, has a time without a day in it."""
    found = [F.coalesce(_has_time(name_column(name), form), F.lit(False)) for name, form in columns.items()]
    return F.array_contains(F.array(*found), True)


def _has_time(value: Column, form: DataType) -> Column:
    if isinstance(form, StructType):
        found = [F.coalesce(_has_time(value[field.name], field.dataType), F.lit(False)) for field in form.fields]
        return F.array_contains(F.array(*found), True)
    if isinstance(form, ArrayType):
        return F.exists(value, lambda one: _has_time(one, form.elementType))
    if isinstance(form, MapType):
        return F.exists(F.map_values(value), lambda one: _has_time(one, form.valueType))
    return value.rlike(_TIME)


def name_column(name: str) -> Column:
    """Return a column by its name, which may hold any character."""
    return F.col(quote(name))
