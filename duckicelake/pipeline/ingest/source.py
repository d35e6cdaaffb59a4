"""The protocol of sources, and which columns each file has: a column that a file lacks must not overwrite values of the table.

`file_source.FileReading` and `database_source.JdbcReading` implement the protocol. Everything is called in the driver.
`read_json_paths` runs a Spark job, and `matching_case` changes a setting of the session for a block.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.ingest.options import Format

Path = tuple[str, ...]
"""The name of a column, or of a field with those of the structs it is in, in small letters."""

_URI, _HAS = "__duckicelake_uri", "__duckicelake_has_"
_TWICE, _SHOWN = "__duckicelake_twice", 100
_OBJECT = "map<string,string>"
_CASE = "spark.sql.caseSensitive"


@contextmanager
def matching_case(spark: SparkSession) -> Generator[None]:
    """Inside, names that differ by their capitals alone are several columns of what Spark finds in JSON, and not the first of them."""
    before = spark.conf.get(_CASE)
    spark.conf.set(_CASE, "true")
    try:
        yield
    finally:
        spark.conf.set(_CASE, before or "false")


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """The columns that some files have; without `uris`, all of them."""

    paths: frozenset[Path]
    uris: Sequence[str] = ()


def list_paths(columns: StructType, above: Path = ()) -> Iterator[Path]:
    """Yield every column and, through structs, every field."""
    for field in columns.fields:
        path = (*above, field.name.lower())
        yield path
        if isinstance(field.dataType, StructType):
            yield from list_paths(field.dataType, path)


def group_shapes(found: Mapping[str, Collection[Path]]) -> list[ColumnSet]:
    """Return the shapes of files whose paths are known by URI."""
    alike: dict[frozenset[Path], list[str]] = defaultdict(list)
    for uri, paths in found.items():
        alike[frozenset(paths)].append(uri)
    return [ColumnSet(paths, uris) for paths, uris in alike.items()]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The columns of a table that files lack: `lacked` by some or all of them, each file's own place in `shapes`."""

    lacked: Sequence[Path]
    shapes: Sequence[ColumnSet]

    @property
    def marks(self) -> list[str]:
        """The columns that say of a row whether its file has what is lacked by others, in the order of `mixed`."""
        return [f"{_HAS}{place}" for place, _ in enumerate(self.mixed)]

    @property
    def mixed(self) -> list[Path]:
        """Return what some files lack and others have."""
        return [path for path in self.lacked if any(path in shape.paths for shape in self.shapes)]

    @property
    def everywhere(self) -> list[Path]:
        """Return what all files lack."""
        return [path for path in self.lacked if not any(path in shape.paths for shape in self.shapes)]

    def mark(self, rows: DataFrame, file: str) -> DataFrame:
        """Return the rows with their marks, and without the column that names their file."""
        if not self.mixed:
            return rows.drop(file)
        kinds = [(uri, *(path in shape.paths for path in self.mixed)) for shape in self.shapes for uri in shape.uris]
        schema = ", ".join([f"{_URI} string", *(f"{mark} boolean" for mark in self.marks)])
        known = F.broadcast(rows.sparkSession.createDataFrame(kinds, schema))
        joined = rows.join(known, F.col(file) == F.col(_URI), "left")
        unknown = F.raise_error(F.concat(F.lit("the columns were not checked of "), F.col(file))).cast("boolean")
        others = [name for name in rows.columns if name != file]
        return joined.select(*(F.col(quote(name)) for name in others), *(F.coalesce(mark, unknown).alias(mark) for mark in self.marks))


def compute_coverage(columns: StructType, shapes: Sequence[ColumnSet]) -> Coverage:
    """Return what files of these shapes lack of a table's columns."""
    lacked = [
        path
        for path in list_paths(columns)
        if any(path not in shape.paths and (len(path) == 1 or path[:-1] in shape.paths) for shape in shapes)
    ]
    return Coverage(lacked, shapes)


def check_order(coverage: Coverage, column: str | None) -> None:
    """Raises: BadRequest: files lack the column that says which row is the later one"""
    if column is not None and (column.lower(),) in coverage.lacked:
        lacking = next(shape for shape in coverage.shapes if (column.lower(),) not in shape.paths)
        raise BadRequest(f"{unquote((*lacking.uris, 'the source')[0])} has no column {column} to order rows by; nothing was taken")


def fit_columns(own: StructType, wanted: StructType, get: Callable[[str], Column]) -> list[Column]:
    """Return columns, or fields of a struct, under a table's names and types, in its order; those that are not there by name are NULL."""
    known = {field.name.lower(): field for field in own.fields}
    pairs = [(field, known.get(field.name.lower())) for field in wanted.fields]
    return [
        (F.lit(None).cast(field.dataType) if one is None else _fit(get(one.name), one.dataType, field.dataType)).alias(field.name)
        for field, one in pairs
    ]


def _fit(value: Column, own: DataType, wanted: DataType) -> Column:
    # Types of the same words are the same, but for what may be NULL inside.
    if own.simpleString() == wanted.simpleString():
        return value
    # A cast of a struct goes by position.
    if isinstance(own, StructType) and isinstance(wanted, StructType):
        return F.when(value.isNotNull(), F.struct(*fit_columns(own, wanted, lambda name: value[name])))
    if isinstance(own, ArrayType) and isinstance(wanted, ArrayType):
        return F.transform(value, lambda one: _fit(one, own.elementType, wanted.elementType))
    if isinstance(own, MapType) and isinstance(wanted, MapType):
        fitted = F.transform_values(value, lambda _, one: _fit(one, own.valueType, wanted.valueType))
        is_same = own.keyType.simpleString() == wanted.keyType.simpleString()
        return fitted if is_same else F.transform_keys(fitted, lambda key, _: _fit(key, own.keyType, wanted.keyType))
    return value.cast(wanted)


def read_json_paths(texts: DataFrame, columns: StructType, options: Mapping[str, str]) -> dict[str, set[Path]]:
    """Return what values of JSON have of some columns, by path; `texts` has columns `uri` and `value`, with one value in each or a list.

    Raises: BadRequest: an object has a name twice; Spark takes the one value or the other, or none, as a scan goes
    """
    one, some = (F.from_json("value", form, dict(options)) for form in (_OBJECT, f"array<{_OBJECT}>"))
    # What is no object is read as one that holds nothing.
    is_list = F.col("value").rlike(r"^[\s\ufeff]*\[")
    objects = texts.select("uri", F.explode(F.when(is_list, some).otherwise(F.array(one))).alias("object"))
    held = list(_list_objects(F.col("object"), columns, options, ()))
    has = {(*above, field.name.lower()): F.map_contains_key(held_in, field.name) for above, held_in, own in held for field in own.fields}
    asked = [F.max(F.coalesce(found, F.lit(False))).alias(str(place)) for place, found in enumerate(has.values())]
    twice = F.max(F.coalesce(*(_show_twice(held_in) for _, held_in, _ in held))).alias(_TWICE)
    counted = objects.groupBy("uri").agg(*asked, twice).collect()
    for row in counted:
        if row[_TWICE] is not None:
            shown = f"an object in which a name is twice: {row[_TWICE]}"
            raise BadRequest(f"{unquote(row['uri'])} has {shown}. Which value counts is unclear; write each name once; nothing was taken")
    return {unquote(row["uri"]): {path for place, path in enumerate(has) if row[str(place)]} for row in counted}


def _list_objects(
    holder: Column, columns: StructType, options: Mapping[str, str], above: Path
) -> Iterator[tuple[Path, Column, StructType]]:
    """Yield an object and, through structs, those in it, each with its fields."""
    yield above, holder, columns
    for field in columns.fields:
        if isinstance(field.dataType, StructType):
            inner = F.from_json(F.try_element_at(holder, F.lit(field.name)), _OBJECT, dict(options))
            yield from _list_objects(inner, field.dataType, options, (*above, field.name.lower()))


def _show_twice(holder: Column) -> Column:
    """Return the beginning of an object that has a name twice, else NULL."""
    names = F.map_keys(holder)
    return F.when(F.size(names) > F.size(F.array_distinct(names)), F.to_json(holder).substr(1, _SHOWN))


RAW = "__duckicelake_raw"
"""The column in which Spark leaves a line that it could not read."""

WRONG = "__duckicelake_wrong"
"""The column in which a database says what is wrong with a row; RAW has it then as it is there. Neither is there if no row is bad."""

FILE, ROW = "__duckicelake_file", "__duckicelake_row"
"""The columns that say where a row comes from: its source's URI, and its number there if known, else `build_row_position`."""

Same = TypeVar("Same")


class SourceMoved(BadRequest):
    """A file changed or vanished while it was read: a writer is at work."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A source as the ledger has it: a file as it was listed, or a database with the greatest value that was read.

    `uri` is how Spark names it in its rows.
    """

    uri: str
    size_bytes: int | None = None
    modified_ms: int | None = None
    etag: str | None = None
    watermark_column: str | None = None
    watermark: str | None = None

    @property
    def path(self) -> str:
        return unquote(self.uri)


class Reading(Protocol):
    """A source of rows."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def form(self) -> Format: ...

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def path_columns(self) -> Sequence[str]: ...

    @property
    def files(self) -> Sequence[Taken]:
        """Return what is taken; of a database nothing until its rows are held."""
        ...

    def describe(self) -> str:
        """Return what is taken, in words."""
        ...

    def read_columns(self, *, looks_at_values: bool = True) -> StructType:
        """Return what the source says of its columns, or what its values look like."""
        ...

    def list_column_sets(self, columns: StructType) -> Sequence[ColumnSet]:
        """Return what each file has of the columns that it is read by."""
        ...

    def read(self, columns: StructType) -> DataFrame:
        """Return the rows, with FILE and ROW, and RAW where they are text."""
        ...

    def count(self) -> Mapping[str, int] | None:
        """Return how many rows each file says that it has, None when that is not known without reading them."""
        ...

    def holding(self) -> AbstractContextManager["Reading"]:
        """Return the same with rows that do not change within the block, however often they are read."""
        ...

    def check_still(self) -> None:
        """Raises: SourceMoved: the source is not what it was when it was listed."""
        ...


def build_row_position() -> Column:
    """Of a file that Spark reads: which block of it, and numbers that grow by one from each row of that to the next, as it reads them."""
    return F.struct(F.col("_metadata.file_block_start").alias("block"), F.monotonically_increasing_id().alias("id"))


@contextmanager
def holding_unchanged(reading: Same) -> Generator[Same]:
    """A block for what does not change by itself."""
    yield reading
