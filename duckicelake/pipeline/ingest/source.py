"""Which files there are, and how they are read: all by Spark, so that every file system it knows is a source."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.evolution import adopt, fits
from duckicelake.pipeline.ingest.options import Batch, Changed, Evolve, Format, IngestOptions, find_format

RAW = "__duckicelake_raw"
"""The column in which Spark leaves a line that it could not read."""

_GLOB = "{}[]*?\\"
_PATH_NOT_FOUND = "PATH_NOT_FOUND"
_RESERVED = (
    *("mode", "columnnameofcorruptrecord", "enforceschema", "columnpruning", "basepath", "badrecordspath"),
    *("pathglobfilter", "modifiedbefore", "modifiedafter", "ignorecorruptfiles", "ignoremissingfiles", "recursivefilelookup"),
)
"""What would let the rows be others than those of the files that the ledger names."""

_NO_TEXT = "\0duckicelake: no value\0"
"""Stands for NULL in place of the empty text, so that `""` is read as empty and nothing at all as NULL."""


class NoSource(BadRequest):
    """There is no such path, or nothing of the pattern."""


class SourceMoved(BadRequest):
    """A file changed or vanished while it was read: somebody is writing it."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was listed; `uri` is how Spark names it beside its rows."""

    uri: str
    size_bytes: int
    modified_ms: int

    @property
    def path(self) -> str:
        return unquote(self.uri)


def list_files(spark: SparkSession, source: str, ledger: DataFrame | None, changed: Changed) -> list[SourceFile]:
    """The files of a path, folder or pattern that the ledger does not know, in the order of their names.

    Raises: NoSource; BadRequest: a file that was taken is another one now
    """
    listed = _list(spark, source)
    if ledger is None:
        return _collect(listed.orderBy("uri"))
    seen = ledger.groupBy("uri").agg(F.collect_set(F.struct("size_bytes", "modified_ms")).alias("seen"))
    same = F.array_contains("seen", F.struct("size_bytes", "modified_ms"))
    found = listed.join(seen, "uri", "left").where(F.col("seen").isNull() | ~same).orderBy("uri")
    rows = found.select("uri", "size_bytes", "modified_ms", F.col("seen").isNotNull().alias("is_changed")).collect()
    others = [row.uri for row in rows if row.is_changed]
    if others and changed is Changed.refuse:
        raise BadRequest(
            f"{others[0]} was taken before and is another file now ({len(others)} such): rows could come twice. "
            "--changed take takes it whole again, --changed skip leaves it"
        )
    return [SourceFile(row.uri, row.size_bytes, row.modified_ms) for row in rows if not row.is_changed or changed is Changed.take]


def _collect(listed: DataFrame) -> list[SourceFile]:
    return [SourceFile(row.uri, row.size_bytes, row.modified_ms) for row in listed.collect()]


def choose_files(files: Sequence[SourceFile], batch: Batch | None) -> list[SourceFile]:
    """The files of a batch: of those that have rested, the ones that changed first."""
    if batch is None:
        return list(files)
    rested = sorted((file for file in files if file.modified_ms <= batch.settled_ms), key=lambda file: (file.modified_ms, file.uri))
    return sorted(rested[: batch.files], key=lambda file: file.uri)


def list_again(spark: SparkSession, source: str, files: Iterable[SourceFile]) -> None:
    """Raises: SourceMoved: one of the files is gone or has changed since it was listed."""
    now = set(_collect(_list(spark, source)))
    lost = [file.uri for file in files if file not in now]
    if lost:
        raise SourceMoved(f"{lost[0]} changed or vanished while it was read; nothing was taken, run again")


def _list(spark: SparkSession, source: str) -> DataFrame:
    where = _find_root(source)
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        found = reader.load(where)
    except AnalysisException as error:
        if error.getCondition() == _PATH_NOT_FOUND:
            raise NoSource(f"there is no {source}") from error
        raise
    meta = F.col("_metadata")
    return found.select(
        meta["file_path"].alias("uri"),
        meta["file_size"].alias("size_bytes"),
        F.unix_millis(meta["file_modification_time"]).alias("modified_ms"),
    )


def choose_format(form: Format, files: Iterable[SourceFile]) -> Format:
    """The format asked for, else the one that all names end in. Raises: BadRequest: they do not agree."""
    if form is not Format.auto:
        return form
    found = {file.path: find_format(file.path) for file in files}
    unknown = next((path for path, one in found.items() if one is None), None)
    if unknown is not None:
        raise BadRequest(f"{unknown} does not say by its name what it is; give --format")
    kinds = sorted({one for one in found.values() if one is not None})
    if len(kinds) > 1:
        raise BadRequest(f"the files are of several formats ({', '.join(kinds)}); take one after the other")
    return kinds[0]


def escape_pattern(path: str) -> str:
    """A path that Spark takes by the letter."""
    return "".join("\\" + letter if letter in _GLOB else letter for letter in path)


@dataclass(frozen=True, slots=True)
class Reading:
    """Files of one format, and how to read them."""

    spark: SparkSession
    form: Format
    files: Sequence[SourceFile]
    options: Mapping[str, Any]
    path_columns: Sequence[str] = ()

    @property
    def paths(self) -> list[str]:
        return [escape_pattern(file.path) for file in self.files]

    def find_columns(self, *, looks_at_values: bool = True) -> StructType:
        """What the files say of their columns, or what their values look like."""
        inferred = {"inferSchema": str(looks_at_values).lower(), "mergeSchema": "true", "columnNameOfCorruptRecord": RAW}
        how = inferred | dict(self.options)
        found = self.spark.read.format(self.form).options(**how).load(self.paths).schema
        return StructType([field for field in found.fields if field.name != RAW])

    def read(self, columns: StructType) -> DataFrame:
        """The rows; of text as the columns say, with lines that say otherwise in the column RAW."""
        reader = self.spark.read.format(self.form).options(**self.options)
        if not self.form.is_text:
            return reader.option("mergeSchema", "true").load(self.paths)
        wanted = StructType([*(StructField(field.name, field.dataType) for field in columns.fields), StructField(RAW, StringType())])
        reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=RAW, columnPruning="false")
        return reader.schema(wanted).load(self.paths)


def open_reading(spark: SparkSession, options: IngestOptions, files: Sequence[SourceFile]) -> Reading:
    """The files, read as the options say.

    Raises: BadRequest: an option of Spark's readers is ours to set, or the files are of several formats
    """
    form = choose_format(options.form, files)
    how = choose_reading(form, files, options.reading)
    base = _find_base(options.source)
    columns = find_path_columns([file.path.partition(base)[2] for file in files])
    return Reading(spark, form, files, how | ({"basePath": _find_root(options.source)} if columns else {}), columns)


def choose_reading(form: Format, files: Iterable[SourceFile], given: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's reader: those given, and ours where they say nothing; CSV is read by RFC 4180.

    Raises: BadRequest: one is ours to set
    """
    taken = next((name for name in given if name.lower() in _RESERVED), None)
    if taken is not None:
        raise BadRequest(f"--option {taken} is set by the job itself, so that no row is lost")
    if form is not Format.csv:
        return dict(given)
    ours = {"header": "true", "escape": '"', "nullValue": _NO_TEXT, "emptyValue": ""}
    ours["sep"] = "\t" if all(".tsv" in file.path.lower() for file in files) else ","
    names = {"sep" if name.lower() == "delimiter" else name.lower() for name in given}
    how = {name: text for name, text in ours.items() if name.lower() not in names} | dict(given)
    if find_option(how, "header") == "true":
        how["enforceSchema"] = "false"
    return how


def find_option(options: Mapping[str, Any], name: str) -> str | None:
    """An option of Spark's, whose names have no case, in lower case."""
    return next((str(text).lower() for one, text in options.items() if one.lower() == name.lower()), None)


def _find_base(source: str) -> str:
    return _find_root(source).removeprefix("file:").replace("///", "/").rstrip("/") + "/"


def find_path_columns(paths: Iterable[str]) -> tuple[str, ...]:
    """The columns that names like `day=2026-03-01` make, in paths below a folder."""
    parts = [part.partition("=") for path in paths for part in path.split("/")[:-1]]
    return tuple(dict.fromkeys(name for name, equals, _ in parts if equals))


def _find_root(source: str) -> str:
    return source if "://" in source or source.startswith("file:") else os.path.abspath(source)


def choose_columns(reading: Reading, given: StructType | None, target: StructType | None, evolve: Evolve) -> StructType:
    """The columns that the files bring: given, else their own; text that the table knows is read as the table has it.

    Raises: BadRequest: the files or their paths have columns that the given ones do not hold
    """
    if reading.form.is_text:
        if given is None:
            return adopt(_find_text_columns(reading, target, evolve), target, evolve)
        _check_paths(reading.path_columns, given)
        return given
    own = reading.find_columns()
    if given is not None:
        _check_given(own, given)
        return given
    return own


def _find_text_columns(reading: Reading, target: StructType | None, evolve: Evolve) -> StructType:
    if reading.form is Format.csv and target is not None and evolve is not Evolve.widen:
        named, known = reading.find_columns(looks_at_values=False), {name.lower() for name in target.names}
        if all(name.lower() in known for name in named.names):
            return named
    return reading.find_columns()


def _check_paths(columns: Sequence[str], given: StructType) -> None:
    names = {name.lower() for name in given.names}
    missing = next((name for name in columns if name.lower() not in names), None)
    if missing is not None:
        raise BadRequest(f"column {missing} of the paths ({missing}=…) is not in --schema")


def _check_given(own: StructType, given: StructType) -> None:
    wanted = {field.name.lower(): field for field in given.fields}
    for field in own.fields:
        column = wanted.get(field.name.lower())
        if column is None:
            raise BadRequest(f"column {field.name} of the files is not in --schema")
        if not fits(field.dataType, column.dataType):
            raise BadRequest(
                f"column {field.name}: the files have {field.dataType.simpleString()}, which does not fit {column.dataType.simpleString()}"
            )
