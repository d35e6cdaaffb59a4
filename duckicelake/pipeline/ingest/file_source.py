"""Files as a source: which there are, which of them the ledger does not have, and their rows.

Spark reads them all, so that every file system it knows can be read. `ingest.job` opens it in the driver, which reads headers and footers
on several threads; executors read the rows.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, cast

from pyarrow import ArrowException, orc, parquet
from pyarrow.fs import S3FileSystem
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common import storage
from duckicelake.pipeline.common.spark_connect import get_condition
from duckicelake.pipeline.common.storage import DELTA_LOG, NoSource, check_counted, find_local_path, get_local_path
from duckicelake.pipeline.ingest import file_checks
from duckicelake.pipeline.ingest.options import Batch, Changed, Format, IngestOptions, find_format
from duckicelake.pipeline.ingest.source import (
    FILE,
    RAW,
    ROW,
    ColumnSet,
    Reading,
    SourceMoved,
    Taken,
    build_row_position,
    group_shapes,
    holding_unchanged,
    list_paths,
    matching_case,
    read_json_paths,
)

Listing = Callable[[], DataFrame]
"""The files that there are now, with the columns LISTED."""

_PATH_NOT_FOUND = "PATH_NOT_FOUND"


def list_files(listed: DataFrame, ledger: DataFrame | None, changed: Changed) -> list[Taken]:
    """Return the files that the ledger does not know, in the order of their names.

    Raises: BadRequest: a file that was taken is another one now
    """
    if ledger is None:
        return _collect(listed)
    # Ledgers of earlier versions have no ETags.
    known = ledger if "etag" in ledger.columns else ledger.withColumn("etag", F.lit(None).cast("string"))
    seen = known.groupBy("uri").agg(F.collect_list(F.struct("size_bytes", "modified_ms", "etag")).alias("seen"))
    found = listed.join(seen, "uri", "left").withColumn("is_same", F.expr(_IS_SAME)).where("seen IS NULL OR NOT is_same")
    rows = found.select("uri", "size_bytes", "modified_ms", "etag", F.col("seen").isNotNull().alias("is_changed")).collect()
    # Spark's own sort would list twice.
    rows.sort(key=lambda row: row.uri)
    others = [row.uri for row in rows if row.is_changed]
    if others and changed is Changed.refuse:
        raise BadRequest(
            f"{others[0]} was taken before and is another file now ({len(others)} such): rows could come twice. "
            "--changed take takes it whole again, --changed skip leaves it"
        )
    return [_to_taken(row) for row in rows if not row.is_changed or changed is Changed.take]


_IS_SAME = (
    "exists(seen, one -> one.size_bytes = size_bytes AND "
    "CASE WHEN one.etag IS NOT NULL AND etag IS NOT NULL THEN one.etag = etag ELSE one.modified_ms = modified_ms END)"
)
"""An object that was put again with the same bytes is the same."""


def _collect(listed: DataFrame) -> list[Taken]:
    return sorted(map(_to_taken, listed.collect()), key=lambda file: file.uri)


def _to_taken(row: Iterable[object]) -> Taken:
    uri, size_bytes, modified_ms, etag, *_ = row
    assert isinstance(uri, str) and isinstance(size_bytes, int) and isinstance(modified_ms, int)
    return Taken(uri, size_bytes, modified_ms, None if etag is None else str(etag))


def choose_files(files: Sequence[Taken], batch: Batch | None) -> list[Taken]:
    """Return the files of a batch: of those that have rested, the ones that changed first."""
    if batch is None:
        return list(files)
    rested = [(file.modified_ms or 0, file.uri, file) for file in files if (file.modified_ms or 0) <= batch.settled_ms]
    return sorted((file for _, _, file in sorted(rested, key=lambda one: one[:2])[: batch.files]), key=lambda file: file.uri)


def check_listed(listing: Listing, files: Iterable[Taken]) -> None:
    """Raises: SourceMoved: one of the files is gone or has changed since it was listed."""
    now = set(_collect(listing()))
    lost = [file.uri for file in files if file not in now]
    if lost:
        raise SourceMoved(f"{lost[0]} changed or vanished while it was read; nothing was taken, run again")


def check_shown(source: str) -> None:
    """Raises: BadRequest: Spark passes over a file of this name, which was meant"""
    name = os.path.basename(source)
    if name.startswith(("_", ".")) and os.path.isfile(source):
        raise BadRequest(f"Spark passes over {source}, because its name begins with {name[0]}: give it another name")


def check_places(files: Sequence[Taken]) -> None:
    """Raises: BadRequest: a file here is a Delta table's, or has a colon in its name, which Hadoop takes for the end of a scheme"""
    logs = _list_delta_logs(files)
    for file in files if logs else ():
        check_counted(get_local_path(file.path), logs)
    stray = next((file.path for file in files if file.uri.startswith("file:") and ":" in os.path.basename(file.path)), None)
    if stray is not None:
        raise BadRequest(f"Spark cannot read {stray}, because its name has a colon, and no file was taken: rename it")


def _list_delta_logs(files: Iterable[Taken]) -> set[str]:
    """Return the folders with logs of Delta in which files of this machine lie, however deep."""
    above = {os.path.dirname(get_local_path(file.path)) for file in files if file.uri.startswith("file:")}
    return {str(folder) for one in above for folder in (Path(one), *Path(one).parents) if (folder / DELTA_LOG).is_dir()}


def list_by_spark(spark: SparkSession, source: str) -> DataFrame:
    """Return the files of a path, folder or pattern, on any file system that Spark knows. Raises: NoSource"""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        found = reader.load(get_root_uri(source))
        # Spark Connect looks no earlier than it has to.
        _ = found.schema
    except AnalysisException as error:
        if get_condition(error) == _PATH_NOT_FOUND:
            raise NoSource(f"there is no {source}") from error
        raise
    meta = F.col("_metadata")
    return found.select(
        meta["file_path"].alias("uri"),
        meta["file_size"].alias("size_bytes"),
        F.unix_millis(meta["file_modification_time"]).alias("modified_ms"),
        F.lit(None).cast("string").alias("etag"),
    )


def get_root_uri(source: str) -> str:
    """Return a source as a URI, or a whole path on this machine."""
    return source if "://" in source or source.startswith("file:") else os.path.abspath(source)


_GLOB = "{}[]*?\\"
_RESERVED = (
    *("mode", "columnnameofcorruptrecord", "enforceschema", "columnpruning", "basepath", "badrecordspath", "avroschema", "avroschemaurl"),
    *("pathglobfilter", "modifiedbefore", "modifiedafter", "ignorecorruptfiles", "ignoremissingfiles", "recursivefilelookup"),
    *("ignoreextension", "positionalfieldmatching", "mergeschema"),
)
"""What would let the rows be others than those of the files that the ledger names."""

_BASE = "basePath"
_NOT_OF_HEADERS = ("header", "enforceschema", "inferschema", _BASE.lower())
_THREADS = 16
WHOLE_BYTES = 64 << 20
"""Larger files of JSON that are read whole are not looked into as texts: that takes several times their size of memory."""

LETTERS = "ISO-8859-1"
_OF_OCTETS = re.compile(r"(us-)?ascii|(iso-?8859-?|latin-?|iso_8859_|windows-125|cp125)[0-9]{1,2}|koi8-[ru]")
"""Encodings of an octet for each letter, ASCII's as ASCII has them."""
_WIDE = ("utf-16", "utf-16be", "utf-16le", "utf-32")

_NO_TEXT = "\0duckicelake: no value\0"
"""Stands for NULL in place of the empty text, so that `""` is read as empty and nothing at all as NULL."""


def choose_format(form: Format, files: Iterable[Taken]) -> Format:
    """Return the format asked for, else the one that all names end in. Raises: BadRequest: they do not agree."""
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
    """Return a path that Spark takes by the letter."""
    return "".join("\\" + letter if letter in _GLOB else letter for letter in path)


@dataclass(frozen=True, slots=True)
class FileReading:
    """Files of one format, and how to read them. `avro_headers`: the headers of Avro files by URI. `is_numbered`: ROW has places."""

    spark: SparkSession
    form: Format
    files: Sequence[Taken]
    options: Mapping[str, Any]
    listing: Listing
    path_columns: Sequence[str] = ()
    avro_headers: Mapping[str, file_checks.AvroHeader] | None = None
    store: storage.S3Store | None = None
    has_odd_header: bool = False
    is_numbered: bool = False

    @property
    def paths(self) -> list[str]:
        return [escape_pattern(file.path) for file in self.files]

    def describe(self) -> str:
        """Return how many files, and how large."""
        return f"take {len(self.files)} files of {self.form}, {sum(file.size_bytes or 0 for file in self.files)} bytes"

    def read_columns(self, *, looks_at_values: bool = True) -> StructType:
        """Return what the files say of their columns, or what their values look like."""
        inferred = {"inferSchema": str(looks_at_values).lower(), "mergeSchema": "true", "columnNameOfCorruptRecord": RAW}
        with matching_case(self.spark) if self.form is Format.json else nullcontext():
            found = self._load(self.paths, inferred).schema
            if looks_at_values and self.form is Format.json:
                found = file_checks.keep_digits(found, self._read_as, self.path_columns)
        if self.form is Format.avro:
            found = self._merge_avro_columns(found)
        found = StructType([field for field in found.fields if field.name != RAW])
        if looks_at_values and self.form is Format.csv:
            found = file_checks.keep_texts(found, self._list_texts(found))
        said = file_checks.list_path_values([file.path for file in self.files], self.path_columns)
        return file_checks.keep_texts(found, file_checks.list_path_texts(found, said))

    def adopt_paths(self, found: StructType, known: StructType | None) -> StructType:
        """Return the columns found, those of paths as they are known: what stands there is a text, or a number if it has only digits."""
        said = file_checks.list_path_values([file.path for file in self.files], self.path_columns)
        return file_checks.adopt_paths(found, {} if known is None else {field.name.lower(): field.dataType for field in known.fields}, said)

    def _list_texts(self, found: StructType) -> set[str]:
        """Return the columns of CSV that seem to be numbers or moments, and have a value that is a text."""
        doubtful = file_checks.list_doubtful(found, knows_times=find_option(self.options, "timestampFormat") is not None)
        named = [field for field in doubtful if field.name not in self.path_columns]
        return file_checks.list_text_columns(self._read_as(file_checks.keep_texts(found, found.names)), named) if named else set()

    def find_times(self, columns: StructType) -> Row | None:
        """Return a row of text with a time without a day where the columns say timestamp, and its file. Spark takes it for one of today."""
        kinds = {field.name: file_checks.as_texts(field.dataType) for field in columns.fields if field.name not in self.path_columns}
        asked = {name: kind for name, kind in kinds.items() if kind is not None}
        if not asked or find_option(self.options, "timestampFormat") is not None:
            return None
        is_csv = self.form is Format.csv
        wanted = file_checks.keep_texts(columns, columns.names) if is_csv else StructType([StructField(*one) for one in asked.items()])
        shown = F.to_json(F.struct(*(file_checks.name_column(name) for name in asked))).alias("row")
        rows = self._read_as(wanted).select(F.col("_metadata.file_path").alias(FILE), shown, file_checks.has_times(asked).alias("found"))
        return rows.where("found").first()

    def _read_as(self, columns: StructType) -> DataFrame:
        """Return the text under other types than those that it is taken with."""
        return self.spark.read.format(self.form).options(**self.options).schema(columns).load(self.paths)

    def read_header(self, file: Taken) -> tuple[str | None, ...]:
        """Return the first line of a file of CSV."""
        how = {name: text for name, text in self.options.items() if name.lower() not in _NOT_OF_HEADERS}
        first = self.spark.read.format("csv").options(**how).load(escape_pattern(file.path)).first()
        return tuple(cast(Sequence[str | None], first or ()))

    def read_headers(self) -> Sequence[tuple[Taken, tuple[str | None, ...]]]:
        """Return the first lines of all files of CSV that have one."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return [(file, names) for file, names in zip(self.files, pool.map(self.read_header, self.files), strict=True) if names]

    def find_other_case(self) -> str | None:
        """Return a name in JSON that is one of a column of the paths but for its capitals, where it can be looked into as texts."""
        if not self._are_texts():
            return None
        names, value = [name.lower() for name in self.path_columns], F.lower("value")
        is_named = [value.contains(f'"{name}"') for name in names]
        keys = F.explode(F.map_keys(F.from_json("value", "map<string,string>", self._list_json_options()))).alias("key")
        found = self._read_texts().where(reduce(Column.__or__, is_named)).select(keys)
        other = found.where(F.lower("key").isin(names) & ~F.col("key").isin(*self.path_columns)).first()
        return None if other is None else other["key"]

    def list_own_names(self) -> Sequence[str]:
        """Return the columns of Avro files, without those of their paths."""
        reader = self.spark.read.format(self.form).options(**{name: text for name, text in self.options.items() if name != _BASE})
        return sorted({name for kind in self._group_alike().values() for name in reader.load(escape_pattern(kind[0].path)).columns})

    def read_alone(self, columns: StructType | None = None) -> DataFrame:
        """Return the rows without what their paths say of them."""
        how = {"inferSchema": "false", "mergeSchema": "true"} | {name: text for name, text in self.options.items() if name != _BASE}
        reader = self.spark.read.format(self.form).options(**how)
        return (reader if columns is None else reader.schema(columns)).load(self.paths)

    def _merge_avro_columns(self, found: StructType) -> StructType:
        """Of every schema that the files were written with one file is asked; the columns of paths come last."""
        columns = StructType([])
        for kind in self._group_alike().values():
            columns = file_checks.merge_columns(columns, self._read_own_columns(kind[0]), kind[0].path)
        return StructType([*columns.fields, *(field for field in found.fields if field.name in self.path_columns)])

    def _read_own_columns(self, file: Taken) -> StructType:
        """Return the columns of one file."""
        how = {"inferSchema": "false", "columnNameOfCorruptRecord": RAW}
        own = self._load([escape_pattern(file.path)], how).schema
        return StructType([field for field in own.fields if field.name not in (*self.path_columns, RAW)])

    def _group_alike(self) -> Mapping[bytes, Sequence[Taken]]:
        """Return the files by what they say of their columns; one that says nothing to us is alone."""
        avro_headers = self.avro_headers
        said = (
            read_schemas(self.form, self.files, self.store)
            if avro_headers is None
            else {uri: look.schema for uri, look in avro_headers.items()}
        )
        kinds: dict[bytes, list[Taken]] = {}
        for file in self.files:
            kinds.setdefault(said.get(file.uri, file.uri.encode()), []).append(file)
        return kinds

    def list_column_sets(self, columns: StructType) -> Sequence[ColumnSet]:
        """Return what each file has of the columns that it is read by; CSV files of one run are of one header."""
        if self.form is Format.csv:
            return [ColumnSet(frozenset(list_paths(columns)))]
        of_paths = [(name.lower(),) for name in self.path_columns]
        if self.form is Format.json and self._are_texts():
            found = read_json_paths(self._read_texts(), columns, self._list_json_options())
            return group_shapes({file.uri: {*found.get(file.path, ()), *of_paths} for file in self.files})
        kinds = self._group_alike().values()
        return [
            ColumnSet(frozenset([*list_paths(self._read_own_columns(kind[0])), *of_paths]), [file.uri for file in kind]) for kind in kinds
        ]

    def _are_texts(self) -> bool:
        """Return True if they can be looked into as texts: in UTF-8, and not larger than memory where they are read whole."""
        is_utf8 = (find_option(self.options, "encoding") or find_option(self.options, "charset") or "utf-8") in ("utf-8", "utf8")
        is_whole = find_option(self.options, "multiLine") == "true"
        return is_utf8 and not (is_whole and any((file.size_bytes or 0) > WHOLE_BYTES for file in self.files))

    def _read_texts(self) -> DataFrame:
        """Return what is read as JSON, as texts: lines, or with `multiLine` whole files."""
        texts = self.read_texts(whole=find_option(self.options, "multiLine") == "true")
        return texts.select(F.col("_metadata.file_path").alias("uri"), "value")

    def read_texts(self, *, whole: bool = False) -> DataFrame:
        """Their lines as they are, or all of each file."""
        how = {name: text for name, text in self.options.items() if name.startswith("fs.") or name.lower() == "linesep"}
        return self.spark.read.options(**how).text(self.paths, wholetext=whole)

    def _list_json_options(self) -> dict[str, str]:
        return {name: str(text) for name, text in self.options.items() if not name.startswith("fs.")}

    def read(self, columns: StructType) -> DataFrame:
        """Return the rows; of text as the columns say, with lines that say otherwise in the column RAW."""
        meta = F.col("_metadata")
        row = meta["row_index"] if self.form is Format.parquet else build_row_position() if self.is_numbered else F.lit(None).cast("bigint")
        return self._read(columns).select("*", meta["file_path"].alias(FILE), row.alias(ROW))

    def _read(self, columns: StructType) -> DataFrame:
        reader = self.spark.read.format(self.form).options(**self.options)
        if self.form is Format.avro or (self.path_columns and not self.form.is_text):
            return reader.schema(self.adopt_paths(self.read_columns(), columns)).load(self.paths)
        if not self.form.is_text:
            return reader.option("mergeSchema", "true").load(self.paths)
        wanted = StructType([*(StructField(field.name, field.dataType) for field in columns.fields), StructField(RAW, StringType())])
        reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=RAW, columnPruning="false")
        return reader.schema(wanted).load(self.paths)

    def _load(self, paths: list[str], how: Mapping[str, Any]) -> DataFrame:
        return self.spark.read.format(self.form).options(**dict(how) | dict(self.options)).load(paths)

    def count(self) -> Mapping[str, int] | None:
        """Return what footers, or the blocks of Avro, say; None when they are not on this machine: Spark would go through all the rows."""
        if self.form is Format.avro:
            row_counts = {uri: look.rows for uri, look in (self.avro_headers or {}).items()}
            counts = {uri: rows for uri, rows in row_counts.items() if rows is not None}
            return counts if len(counts) == len(self.files) else None
        paths = {file.uri: find_local_path(file.path) for file in self.files}
        if any(path is None for path in paths.values()):
            return None
        return {uri: _read_footer(self.form, path) for uri, path in paths.items() if path is not None}

    def holding(self) -> AbstractContextManager[Reading]:
        """Return a block that changes nothing: files are listed again after they were read."""
        return holding_unchanged(self)

    def check_still(self) -> None:
        """Raises: SourceMoved: a file changed or vanished"""
        check_listed(self.listing, self.files)


def open_files(spark: SparkSession, options: IngestOptions, ledger: DataFrame | None) -> FileReading | None:
    """Return the files that the ledger does not know, read as the options say; None when there are none.

    Raises: NoSource; BadRequest: an option of Spark's readers is ours to set, or the files do not go together
    """
    store, source, given = None, options.source, dict(options.reading)
    check_shown(source)
    listing: Listing = partial(list_by_spark, spark, source)
    if source.startswith(storage.SCHEMES):
        store, source = storage.open_store(given), storage.name_source(source)
        given = {name: text for name, text in given.items() if name not in storage.NAMES}
        listing = partial(store.list_files, spark, source)
    files = choose_files(list_files(listing(), ledger, options.changed), options.batch)
    if not files:
        return None
    check_places(files)
    form = choose_format(options.form, files)
    how = choose_reading(form, files, given) | (store.format_settings() if store else {})
    base = get_root_uri(source).removeprefix("file:").replace("///", "/").rstrip("/") + "/"
    columns = list_path_columns([file.path.partition(base)[2] for file in files])
    avro_headers = _read_avro_headers(files, store) if form is Format.avro else None
    reading = FileReading(
        spark, form, files, how | ({_BASE: get_root_uri(source)} if columns else {}), listing, columns, avro_headers, store
    )
    is_odd = form is Format.csv and find_option(how, "header") == "true" and is_odd_header(reading.read_header(files[0]))
    # Spark's own check of headers knows nothing of the names that it gives itself.
    return replace(reading, options=dict(reading.options) | {"enforceSchema": "true"}, has_odd_header=True) if is_odd else reading


def _read_avro_headers(files: Sequence[Taken], store: storage.S3Store | None) -> Mapping[str, file_checks.AvroHeader] | None:
    """Return what the files say of themselves, None where only Spark reaches them."""
    if store is not None:
        return file_checks.read_avro_headers(files, partial(file_checks.open_object, store.open_files()), counts=False)
    paths = {file.uri: path for file in files if (path := find_local_path(file.path)) is not None}
    if len(paths) < len(files):
        return None
    return file_checks.read_avro_headers(files, lambda file: paths[file.uri].open("rb"), counts=True)


def _read_footer(form: Format, path: Path) -> int:
    try:
        return parquet.read_metadata(path).num_rows if form is Format.parquet else orc.ORCFile(path).nrows
    except (OSError, ArrowException) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from error


def read_schemas(form: Format, files: Sequence[Taken], store: storage.S3Store | None) -> dict[str, bytes]:
    """Return what footers say of columns, by URI, of files of Parquet and ORC that are here or on S3; the same columns, the same words."""
    if form not in (Format.parquet, Format.orc):
        return {}
    with ThreadPoolExecutor(_THREADS) as pool:
        said = pool.map(partial(_read_schema, form, None if store is None else store.open_files()), files)
        return {file.uri: words for file, words in zip(files, said, strict=True) if words is not None}


def _read_schema(form: Format, objects: S3FileSystem | None, file: Taken) -> bytes | None:
    path = find_local_path(file.path) if objects is None else None
    if path is None and objects is None:
        return None
    try:
        with path.open("rb") if path is not None else file_checks.open_object(cast(S3FileSystem, objects), file) as source:
            schema = parquet.read_schema(source) if form is Format.parquet else orc.ORCFile(source).schema
            return schema.to_string(show_field_metadata=False, show_schema_metadata=False).encode()
    except (OSError, ArrowException):
        # Spark may know what to make of it.
        return None


def choose_reading(form: Format, files: Iterable[Taken], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's reader: those given, and ours where they say nothing; CSV is read by RFC 4180.

    Raises: BadRequest: one is ours to set
    """
    taken = next((name for name in given if name.lower() in _RESERVED), None)
    if taken is not None:
        raise BadRequest(f"--option {taken} is set by the job itself, so that no row is lost")
    encoding = find_option(given, "encoding") or find_option(given, "charset") or "utf-8"
    if form is Format.json and encoding not in ("utf-8", "utf8"):
        is_whole = find_option(given, "multiLine") == "true"
        if not get_decodable(encoding) or (encoding in _WIDE and not is_whole):
            raise BadRequest(f"of JSON in {encoding.upper()} it is unknown whether a line goes on after its first value; write it in UTF-8")
        # Spark asks for it unless it is in UTF-8.
        return ({} if is_whole or find_option(given, "lineSep") else {"lineSep": "\n"}) | dict(given)
    if form is not Format.csv:
        return dict(given)
    ours = {"header": "true", "escape": '"', "nullValue": _NO_TEXT, "emptyValue": ""}
    ours["sep"] = "\t" if all(".tsv" in file.path.lower() for file in files) else ","
    names = {"sep" if name.lower() == "delimiter" else name.lower() for name in given}
    how = {name: text for name, text in ours.items() if name.lower() not in names} | dict(given)
    if find_option(how, "header") == "true":
        how["enforceSchema"] = "false"
    return how


def get_decodable(encoding: str) -> str:
    """Return an encoding that Spark decodes, in which what JSON is made of stands at the same places; empty when there is none."""
    return LETTERS if _OF_OCTETS.fullmatch(encoding) else encoding.upper() if encoding in _WIDE else ""


def is_odd_header(names: Sequence[str | None]) -> bool:
    """Return True if a header has columns without a name, or two of one: Spark names them itself."""
    lowered = [(name or "").lower() for name in names]
    return "" in lowered or len(set(lowered)) < len(lowered)


def find_option(options: Mapping[str, Any], name: str) -> str | None:
    """Return an option of Spark's, whose names have no case, in lower case."""
    return next((str(text).lower() for one, text in options.items() if one.lower() == name.lower()), None)


def list_path_columns(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that names like `day=2026-03-01` make, in paths below a folder.

    Raises: BadRequest: some files have them and others do not; Spark would pass over rows
    """
    found: dict[tuple[str, ...], str] = {}
    for path in paths:
        parts = [part.partition("=") for part in path.split("/")[:-1]]
        found.setdefault(tuple(name for name, equals, _ in parts if equals), path)
    if len(found) > 1:
        (some, one), (others, other), *_ = found.items()
        shown = f"{one} has ({', '.join(some)}) as columns in its path, {other} has ({', '.join(others)})"
        raise BadRequest(f"{shown}: take these files apart from each other")
    return next(iter(found), ())
