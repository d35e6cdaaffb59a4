"""Names, types, partitions and sort orders as Spark's SQL. Jobs call it in the driver.

It runs no query. `parse_columns` and `parse_created_columns` use Spark's own parser, so they need an open session. Everything else is pure:
`ingest.options` calls it before a session is opened.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_connect import parse_ddl

_PARTITION = re.compile(r"\s*(?:(?P<transform>[a-z]+)\s*\(\s*(?:(?P<number>\d+)\s*,\s*)?(?P<inner>[^(),]+?)\s*\)|(?P<column>[^(),]+?))\s*")
_SORT = re.compile(r"\s*(?P<column>.+?)(?:\s+(?P<direction>asc|desc))?\s*", re.IGNORECASE)
_DEFAULT = "CURRENT_DEFAULT"
"""Where Spark keeps a column's default, as SQL."""

_OUTER_COMMA = re.compile(r",(?![^(]*\))")
_NUMBERED = ("bucket", "truncate")
_TRANSFORMS = {
    **{f"{unit}{plural}": f"{unit}s" for unit in ("year", "month", "day", "hour") for plural in ("", "s")},
    "bucket": "bucket",
    "truncate": "truncate",
}
_MOMENTS = (TimestampType, TimestampNTZType)
_CUT = (ByteType, ShortType, IntegerType, LongType, DecimalType, StringType, CharType, VarcharType, BinaryType)
_DAYS: tuple[tuple[type[DataType], ...], str] = ((DateType, *_MOMENTS), "a date or a timestamp")
_TAKES: dict[str | None, tuple[tuple[type[DataType], ...], str]] = {
    **{"years": _DAYS, "months": _DAYS, "days": _DAYS, "hours": (_MOMENTS, "a timestamp")},
    "truncate": (_CUT, "a whole number, a decimal, a text or octets"),
    "bucket": ((*_CUT, DateType, *_MOMENTS), "a whole number, a decimal, a date, a timestamp, a text or octets"),
    None: ((AtomicType,), "no list, map or struct"),
}
"""The types that transforms are for."""


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """One field of the partitions: a column, or Spark's name of a transform with its number and column."""

    column: str
    transform: str | None = None
    number: int | None = None

    @property
    def sql(self) -> str:
        if self.transform is None:
            return quote(self.column)
        number = "" if self.number is None else f"{self.number}, "
        return f"{self.transform}({number}{quote(self.column)})"

    @property
    def term(self) -> str:
        """The term as `TableHead` lists it."""
        transform = "identity" if self.transform is None else self.transform.removesuffix("s") if self.number is None else self.transform
        number = "" if self.number is None else f"[{self.number}]"
        return f"{transform}{number}({self.column})".lower()


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One column of the order in which rows are written."""

    column: str
    descending: bool = False

    @property
    def sql(self) -> str:
        return f"{quote(self.column)} {'DESC' if self.descending else 'ASC'}"

    @property
    def term(self) -> str:
        """The term as `TableHead` lists it."""
        return f"identity({self.column}) {'desc' if self.descending else 'asc'}".lower()


def quote(name: str) -> str:
    """Return a name as Spark's SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Return a text in Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_ident(catalog: str, ident: TableIdent, branch: str | None = None) -> str:
    """Return a table of a catalog, or a branch of it, as Spark's SQL and writers take it."""
    parts = [catalog, *ident.namespace, ident.name, *([] if branch is None else [f"branch_{branch}"])]
    return ".".join(map(quote, parts))


def parse_partitions(text: str) -> tuple[PartitionTerm, ...]:
    """Read `day(seen), bucket(16, id), city`. Raises: BadRequest: names the part that is none"""
    return tuple(_parse_partition(part) for part in _split(text))


def _parse_partition(text: str) -> PartitionTerm:
    found = _PARTITION.fullmatch(text)
    if found is None:
        raise BadRequest(
            f"{text.strip()!r} is no partition field: write column, year(c), month(c), day(c), hour(c), bucket(n, c), truncate(n, c)"
        )
    if found["column"] is not None:
        return PartitionTerm(found["column"])
    transform = _TRANSFORMS.get(found["transform"])
    number = None if found["number"] is None else int(found["number"])
    if found["transform"] == "identity" and number is None:
        return PartitionTerm(found["inner"])
    if transform is None or (transform in _NUMBERED) != (number is not None) or number == 0:
        raise BadRequest(f"{text.strip()!r} is no partition field: bucket and truncate take a number and a column, year … hour a column")
    return PartitionTerm(found["inner"], transform, number)


def check_partitions(fields: Iterable[PartitionTerm], columns: StructType) -> None:
    """Raises: BadRequest: a transform is not for the type of its column; names all three, and the types that it is for"""
    known = {field.name.lower(): field.dataType for field in columns.fields}
    for field in fields:
        form = known.get(field.column.lower())
        takes, shown = _TAKES[field.transform]
        # What has no type at all is refused elsewhere.
        if form is not None and not isinstance(form, (*takes, NullType)):
            called = field.transform or "this"
            raise BadRequest(f"--partition-by {field.sql}: column {field.column} is {form.simpleString()}, and {called} takes {shown}")


def parse_order(text: str) -> tuple[SortTerm, ...]:
    """Read `city, seen desc`. Raises: BadRequest: a part is empty"""
    parts = [_SORT.fullmatch(part) for part in _split(text)]
    return tuple(SortTerm(part["column"], (part["direction"] or "").lower() == "desc") for part in parts if part is not None)


def _split(text: str) -> list[str]:
    parts = _OUTER_COMMA.split(text)
    if not all(part.strip() for part in parts):
        raise BadRequest(f"{text!r} has an empty part between commas")
    return parts


def format_default(column: StructField) -> str:
    """Return what a new row has in a column that it says nothing of, as SQL."""
    return str(column.metadata.get(_DEFAULT, f"CAST(NULL AS {column.dataType.simpleString()})"))


def add_defaults(columns: StructType, defaults: Mapping[str, Any]) -> StructType:
    """Return the columns with their defaults, which are given by name as JSON has them in Iceberg's specification."""
    given = {name: value for name, value in defaults.items() if value is not None}
    fields = [
        StructField(one.name, one.dataType, one.nullable, {_DEFAULT: _format_value(given[one.name], one.dataType), **one.metadata})
        if one.name in given
        else one
        for one in columns.fields
    ]
    return StructType(fields)


def _format_value(value: Any, form: DataType) -> str:
    if isinstance(form, BinaryType):
        return f"X'{value}'"
    return f"CAST({quote_text(str(value))} AS {form.simpleString()})"


def parse_columns(text: str) -> StructType:
    """Read columns as DDL. Raises: BadRequest: Spark does not understand them, or a field inside one must have a value"""
    try:
        found = parse_ddl(text)
    except PySparkException as error:
        raise BadRequest(f"--schema is no list of columns: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(found, StructType):
        raise BadRequest(f"--schema {text!r} is a type and no list of columns")
    wanted = next((path for field in found.fields for path in _list_wanted(field.dataType, field.name)), None)
    if wanted is not None:
        raise BadRequest(f"--schema: {wanted} is inside another column, where NOT NULL is not looked after: leave it out")
    return found


def _list_wanted(form: DataType, path: str) -> Iterator[str]:
    """Yield the fields inside a type that must have a value."""
    if isinstance(form, StructType):
        for field in form.fields:
            here = f"{path}.{field.name}"
            yield from ([] if field.nullable else [here])
            yield from _list_wanted(field.dataType, here)
    elif isinstance(form, ArrayType):
        yield from _list_wanted(form.elementType, path)
    elif isinstance(form, MapType):
        yield from _list_wanted(form.keyType, path)
        yield from _list_wanted(form.valueType, path)


def format_columns(columns: StructType) -> str:
    """Return columns as DDL. Raises: BadRequest: one of them has no type"""
    return ", ".join(f"{quote(field.name)} {_format_field_type(field)}{'' if field.nullable else ' NOT NULL'}" for field in columns.fields)


def parse_created_columns(columns: StructType) -> StructType:
    """Return the columns that a table is going to have which is made of these."""
    made = parse_ddl(format_columns(columns))
    assert isinstance(made, StructType)
    return made


def _format_field_type(field: StructField) -> str:
    try:
        return format_type(field.dataType)
    except BadRequest as error:
        raise BadRequest(f"column {field.name}: {error.message}") from error


def format_type(form: DataType) -> str:
    """Return a type as DDL, in the words of Iceberg's types."""
    if isinstance(form, StructType):
        inner = ", ".join(f"{quote(field.name)}: {format_type(field.dataType)}" for field in form.fields)
        return f"struct<{inner}>"
    if isinstance(form, ArrayType):
        return f"array<{format_type(form.elementType)}>"
    if isinstance(form, MapType):
        return f"map<{format_type(form.keyType)}, {format_type(form.valueType)}>"
    if isinstance(form, NullType):
        raise BadRequest("there are no values from which its type could be known; give --schema")
    return "int" if isinstance(form, ByteType | ShortType) else form.simpleString()


VARIANT = "variant"


def format_needed_properties(columns: StructType) -> str:
    """Return the clause with the properties that a new table of such columns needs: variants are of format version 3."""
    has_variants = any(field.dataType.typeName() == VARIANT for field in columns.fields)
    return " TBLPROPERTIES ('format-version' = '3')" if has_variants else ""


def format_create(name: str, columns: str, partitions: Iterable[PartitionTerm] = (), *, may_be_there: bool = True) -> str:
    """Return the statement that makes a table of columns given as DDL."""
    fields, made = ", ".join(field.sql for field in partitions), "TABLE IF NOT EXISTS" if may_be_there else "TABLE"
    return f"CREATE {made} {name} ({columns}) USING iceberg" + (f" PARTITIONED BY ({fields})" if fields else "")


def format_variant(value: str) -> str:
    """Return a text that is the same for two variants just when their types and values are, which Spark does not compare; NULL for NULL.

    In an array of values of different types a date and its text, or binary and its base64 text, are the same.
    """
    return f"concat(schema_of_variant({value}), to_json({value}))"


def format_order(name: str, order: Sequence[SortTerm]) -> list[str]:
    """Return the statement that gives a table its order; none without one."""
    return [f"ALTER TABLE {name} WRITE ORDERED BY {', '.join(field.sql for field in order)}"] if order else []
