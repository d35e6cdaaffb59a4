"""Checks of files that Spark would misread: headers and footers of Avro, Parquet and ORC files, and texts that look like other types.

`file_source`, `plan`, `job` and `transfer.parquet_folders` call this in the driver, which reads headers and footers on several threads to
name the file and column that Spark cannot read. Spark takes an Avro file that was cut for one that ends there, and the columns of one file
for those of all. Texts that Spark would infer as numbers or timestamps although their values would change stay texts;
`list_text_columns` and `keep_digits` run Spark jobs to find them.
Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | compressed rows | sync marker)
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import json
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import NativeFile, orc, parquet
from pyarrow.fs import S3FileSystem
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
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

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common import storage
from duckicelake.pipeline.common.spark_connect import get_condition, parse_ddl
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.common.storage import find_local_path
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.schema_evolution import fits
from duckicelake.pipeline.ingest.source import Taken

MAGIC, SYNC_BYTES = b"Obj\x01", 16
_THREADS = 16
Opening = Callable[[Taken], BinaryIO]


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """The header of an Avro file: the schema that it was written with, and its rows, where they were counted."""

    schema: bytes
    rows: int | None


class _DamagedAvro(Exception):
    """A file is damaged; the message says how."""


def read_avro_headers(files: Sequence[Taken], opening: Opening, *, counts: bool) -> Mapping[str, AvroHeader]:
    """Return what each file says of itself, by URI; `counts`: go through its blocks, without their rows.

    Raises: BadRequest: one is no Avro file, or was cut
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        looks = pool.map(partial(_read_avro, opening, counts), files)
        return dict(zip((file.uri for file in files), looks, strict=True))


def _read_avro(opening: Opening, counts: bool, file: Taken) -> AvroHeader:
    try:
        with opening(file) as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
            schema, sync = _read_header(source)
            if counts:
                return AvroHeader(schema, _count_rows(source, sync, size))
            source.seek(max(size - SYNC_BYTES, 0))
            if source.read(SYNC_BYTES) != sync:
                raise _DamagedAvro("it does not end where a block ends: it was cut")
            return AvroHeader(schema, None)
    except (_DamagedAvro, OSError) as error:
        raise BadRequest(f"{file.path} cannot be read as Avro: {error}; nothing was taken") from error


def _read_header(source: BinaryIO) -> tuple[bytes, bytes]:
    if source.read(len(MAGIC)) != MAGIC:
        raise _DamagedAvro("it does not begin as one")
    metadata: dict[bytes, bytes] = {}
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        for _ in range(abs(count)):
            key = _read_exactly(source, _read_long(source))
            metadata[key] = _read_exactly(source, _read_long(source))
    return metadata.get(b"avro.schema", b""), _read_exactly(source, SYNC_BYTES)


def _count_rows(source: BinaryIO, sync: bytes, size: int) -> int:
    rows = 0
    while source.tell() < size:
        count, length = _read_long(source), _read_long(source)
        if count < 0 or length < 0:
            raise _DamagedAvro("a block is damaged")
        source.seek(length, os.SEEK_CUR)
        if _read_exactly(source, SYNC_BYTES) != sync:
            raise _DamagedAvro("a block is damaged")
        rows += count
    return rows


def _read_long(source: BinaryIO) -> int:
    value, shift = 0, 0
    while True:
        (byte,) = _read_exactly(source, 1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise _DamagedAvro("a number has too many bytes")


def _read_exactly(source: BinaryIO, length: int) -> bytes:
    if length < 0:
        raise _DamagedAvro("a length is below 0")
    content = source.read(length)
    if len(content) != length:
        raise _DamagedAvro("it was cut")
    return content


def open_object(files: S3FileSystem, file: Taken) -> BinaryIO:
    """Return an object of S3 to look at."""
    return cast(BinaryIO, files.open_input_file(file.path.partition("://")[2]))


def merge_columns(known: StructType, more: StructType, file: str) -> StructType:
    """Return the columns of both, by name, of two types the one that holds all values of the other.

    Raises: BadRequest: neither does; names the column and the file that has it otherwise than others
    """
    fields = {field.name.lower(): field for field in known.fields}
    for field in more.fields:
        own = fields.get(field.name.lower())
        form = field.dataType if own is None else _merge_types(own.dataType, field.dataType, field.name, file)
        fields[field.name.lower()] = StructField(field.name if own is None else own.name, form)
    return StructType(list(fields.values()))


def _merge_types(known: DataType, more: DataType, path: str, file: str) -> DataType:
    if isinstance(known, StructType) and isinstance(more, StructType):
        return merge_columns(known, more, file)
    if isinstance(known, ArrayType) and isinstance(more, ArrayType):
        return ArrayType(_merge_types(known.elementType, more.elementType, path, file))
    if isinstance(known, MapType) and isinstance(more, MapType):
        return MapType(known.keyType, _merge_types(known.valueType, more.valueType, path, file))
    if known != more and not (fits(known, more) or fits(more, known)):
        shown = f"{more.simpleString()}, and others {known.simpleString()}"
        raise BadRequest(f"column {path} of {file} is {shown}: take these files apart from each other")
    return more if fits(known, more) else known


_NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"
_MOST_DIGITS = 38
_NANOS = (
    "a timestamp in nanoseconds",
    (f"write it in microseconds (pandas and pyarrow: coerce_timestamps='us'), or take whole numbers: --conf {_NANOS_AS_LONG}=true"),
)
_ZONED = "a timestamp with a time zone", "write it without one, in UTC, or write Parquet"
_KINDS = {
    "TIME": ("a time of day", "write it as a text, or as a whole number"),
    "FLOAT16": ("a float of 16 bits", "write it as one of 32"),
    "INTERVAL": ("an interval", "write it as a text, or as a whole number"),
}
_LONG = f"a decimal of more than {_MOST_DIGITS} digits", f"write it with {_MOST_DIGITS} at most, or as a text"

OpenFile = Callable[[], BinaryIO | NativeFile]
"""Opens a file. Raises: OSError: it cannot be had"""
Unread = tuple[str, tuple[str, str]]
"""A column, what it is, and what to do about it."""


@contextmanager
def refusing_unread_types(spark: SparkSession, form: Format, list_files: Callable[[], Iterable[tuple[str, OpenFile]]]) -> Generator[None]:
    """A block in which Spark looks for the columns of files, which are listed by name when it cannot.

    Raises: BadRequest: one has a column that Spark does not read
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        takes_nanos = spark.conf.get(_NANOS_AS_LONG, "false") == "true"
        with ThreadPoolExecutor(_THREADS) as pool:
            looks = pool.map(partial(_find_unread, form, takes_nanos), list_files())
            found = next(filter(None, looks), None)
        if found is None:
            raise
        raise BadRequest(found) from error


def list_taken(files: Sequence[Taken], store: storage.S3Store | None) -> Iterator[tuple[str, OpenFile]]:
    """Yield the files of a run that are here or on S3, and how each is opened."""
    objects = None if store is None else store.open_files()
    for file in files:
        path = find_local_path(file.path) if objects is None else None
        if objects is not None:
            yield file.path, partial(open_object, objects, file)
        elif path is not None:
            yield file.path, partial(path.open, "rb")


def _find_unread(form: Format, takes_nanos: bool, file: tuple[str, OpenFile]) -> str | None:
    """Return the message for the first column that Spark does not read; None: there is none, or the file cannot be read here."""
    name, opening = file
    try:
        with opening() as source:
            found = next(_list_orc(source) if form is Format.orc else _list_parquet(source, takes_nanos), None)
    except (OSError, pa.ArrowException):
        return None
    if found is None:
        return None
    column, (kind, remedy) = found
    return f"{name}: column {column} is {kind}, which Spark does not read: {remedy}"


def _list_parquet(source: BinaryIO | NativeFile, takes_nanos: bool) -> Iterator[Unread]:
    schema = parquet.ParquetFile(source).schema
    for place in range(len(schema)):
        column = schema.column(place)
        said: dict[str, Any] = json.loads(column.logical_type.to_json())
        kind = str(said.get("Type", "")).upper()
        if kind == "TIMESTAMP" and said.get("timeUnit") == "nanoseconds" and not takes_nanos:
            yield column.path, _NANOS
        elif kind == "DECIMAL" and int(said["precision"]) > _MOST_DIGITS:
            yield column.path, _LONG
        elif kind in _KINDS:
            yield column.path, _KINDS[kind]


def _list_orc(source: BinaryIO | NativeFile) -> Iterator[Unread]:
    schema: Any = orc.ORCFile(source).schema
    for field in schema:
        yield from _list_zoned(field.name, field.type)


def _list_zoned(path: str, kind: Any) -> Iterator[Unread]:
    if _is_zoned(kind):
        yield path, _ZONED
    for place in range(kind.num_fields):
        inner = kind.field(place)
        yield from _list_zoned(f"{path}.{inner.name}", inner.type)


def _is_zoned(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


_CANNOT_MERGE = "CANNOT_MERGE_SCHEMAS"


@contextmanager
def refusing_mixed_types(remedy: str) -> Generator[None]:
    """Raises: BadRequest: the files that are looked at inside have such a column; names it, and says what to do."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition, told = _read_error(error)
        if condition != _CANNOT_MERGE:
            raise
        raise BadRequest(f"{_describe(told)}, which Spark does not read together: {remedy}") from error


def _read_error(error: PySparkException | Py4JJavaError) -> tuple[str | None, Mapping[str, str]]:
    """Return the name of what went wrong, and what Spark says of it by name. Not all errors of its Java become PySpark's own."""
    if isinstance(error, PySparkException):
        return get_condition(error), error.getMessageParameters() or {}
    told: Any = error
    java = told.java_exception
    try:
        return java.getErrorClass(), dict(java.getMessageParameters())
    except (Py4JError, TypeError):
        return None, {}


def _describe(told: Mapping[str, str]) -> str:
    try:
        one, other = (parse_ddl(told[side].strip('"')) for side in ("left", "right"))
    except (PySparkException, KeyError):
        one = other = None
    if isinstance(one, StructType) and isinstance(other, StructType):
        types = {field.name.lower(): field.dataType for field in other.fields}
        for field in one.fields:
            its = types.get(field.name.lower(), field.dataType)
            if its != field.dataType:
                return f"column {field.name} is {field.dataType.simpleString()} in some files and {its.simpleString()} in others"
    return "the files have a column under several types"


_LONG_NUMBER = r"^\s*[-+]?[0-9]{16,}\s*$|^\s*[-+]?[0.]*[1-9](\.?[0-9]){16,}\.?[1-9]0*\s*$"
"""Of 16 digits a double loses the last ones. With a point it is written with 17 at most, unless there is an exponent."""
_CODE, _TIME = r"[0-9.][dDfF]\s*$|^\s*[-+]?0[xX]|" + _LONG_NUMBER, r"^\s*T?[0-9]{1,2}:[0-9]"
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
        return value.rlike(_LONG_NUMBER)
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
