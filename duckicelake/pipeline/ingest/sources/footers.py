"""Columns of Parquet and ORC that Spark does not read: by file and name, with what to do, where Spark says the type alone."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow import NativeFile, orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.sources import avro, s3
from duckicelake.pipeline.ingest.sources.files import find_local_path
from duckicelake.pipeline.ingest.sources.reading import Taken

_THREADS = 16
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

Opening = Callable[[], BinaryIO | NativeFile]
"""Opens a file. Raises: OSError: it cannot be had"""
Unread = tuple[str, tuple[str, str]]
"""A column, what it is, and what to do about it."""


@contextmanager
def refusing_unread_types(spark: SparkSession, form: Format, list_files: Callable[[], Iterable[tuple[str, Opening]]]) -> Generator[None]:
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


def list_taken(files: Sequence[Taken], store: s3.S3Store | None) -> Iterator[tuple[str, Opening]]:
    """The files of a run that are here or on S3, and how each is opened."""
    objects = None if store is None else store.open_files()
    for file in files:
        path = find_local_path(file.path) if objects is None else None
        if objects is not None:
            yield file.path, partial(avro.open_object, objects, file)
        elif path is not None:
            yield file.path, partial(path.open, "rb")


def _find_unread(form: Format, takes_nanos: bool, file: tuple[str, Opening]) -> str | None:
    """What is to be said of the first column of a file that Spark does not read; None: it reads them all, or nobody here can look."""
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
