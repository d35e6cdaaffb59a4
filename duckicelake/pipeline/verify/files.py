"""The files of a table by its manifests and by DuckLake's rows, joined by Spark and checked one by one by its executors.

Each object is compared with its manifest entry and DuckLake's row: size, content, and the rows that delete files mark. `verify.job` calls
it in the driver. DuckDB reads DuckLake's rows; executors read the objects with keys from the catalog. Nothing is written.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.avro.reader import UNLIMITED
from duckicelake.iceberg.manifest import DELETED, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.puffin import decode_deletion_vector
from duckicelake.iceberg.schema import list_leaf_fields, parse_schema
from duckicelake.iceberg.single_values import encode_value
from duckicelake.iceberg.transforms import parse_transform
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.pipeline.common.rest import RestCatalog, TableIdent
from duckicelake.pipeline.common.spark_connect import check_executors, from_arrow
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.pipeline.verify.parquet_checks import FileExpectations, PartitionPart, check_lake_facts, check_parquet, spread_partition
from duckicelake.pipeline.verify.snapshot_pairs import CatalogTable, SnapshotPair, name_metadata, read_table_id
from duckicelake.translate.locations import find_rewritten_path, to_canonical, to_uri

PATH, POSITION = "file_path", "pos"


@dataclass(frozen=True, slots=True)
class Marked:
    """The rows of one data file that a delete file marks: how many, and the last of them. `path` None: the file does not name it."""

    path: str | None
    rows: int
    last: int


def read_positions(file: pq.ParquetFile) -> list[Marked]:
    """Return what a Parquet file of positions marks."""
    found: dict[str, Marked] = {}
    for batch in file.iter_batches(columns=[PATH, POSITION]):
        table: Any = batch
        for path in table.column(PATH).unique().to_pylist():
            mine = table.filter(pc.equal(table.column(PATH), path)).column(POSITION)
            before = found.get(path, Marked(path, 0, -1))
            found[path] = Marked(path, before.rows + len(mine), max(before.last, max(mine.to_pylist(), default=-1)))
    return list(found.values())


def read_vector(blob: bytes, path: str | None) -> Marked:
    """Return what a deletion vector marks."""
    bitmap = decode_deletion_vector(blob)
    return Marked(path, len(bitmap), bitmap.max() if len(bitmap) else -1)


def check_count(marked: list[Marked], entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of how many rows are marked and is not so."""
    rows = sum(one.rows for one in marked)
    if entry["record_count"] is not None and entry["record_count"] != rows:
        yield f"marks {rows} rows, the manifest says {entry['record_count']}"
    if entry["lake_rows"] is not None and entry["lake_rows"] != rows:
        yield f"marks {rows} rows, DuckLake says {entry['lake_rows']}"


SEEN_DDL = "kind string, path string, text string, last bigint"
SEEN_SCHEMA = pa.schema([("kind", pa.string()), ("path", pa.string()), ("text", pa.string()), ("last", pa.int64())])
FILE, MARKED, PROBLEM, UNSEEN = "file", "marked", "problem", "unseen"
DATA, POSITIONS = 0, 1
_LENGTH_BYTES = 4

Seen = tuple[str, str, str, int | None]


@dataclass(frozen=True, slots=True)
class FilesLocation:
    """The location of a table's files, and the credentials to read them."""

    location: str
    catalog: RestCatalog
    given: Mapping[str, str]


def check_batches(batches: Iterable[pa.RecordBatch], place: FilesLocation, shape: FileExpectations) -> Iterator[pa.RecordBatch]:
    """Yield for each object that it was read or why not, the problems found, and which rows it marks as deleted."""
    objects = open_objects(place.location, place.catalog, place.given)
    for batch in batches:
        seen = [one for entry in batch.to_pylist() for one in check_object(objects, spread_partition(entry, shape), shape)]
        yield pa.RecordBatch.from_pylist([dict(zip(SEEN_SCHEMA.names, one, strict=True)) for one in seen], SEEN_SCHEMA)


def check_object(objects: StoredFiles, entry: Mapping[str, Any], shape: FileExpectations) -> Iterator[Seen]:
    """Yield the same of one."""
    path: str = entry["path"]
    yield FILE, path, "", None
    try:
        with objects.files.open_input_file(path.removeprefix("file://").removeprefix("s3://")) as source:
            yield from ((PROBLEM, path, text, None) for text in _check_size(source.size(), entry))
            yield from _check_content(source, entry, shape)
    except FileNotFoundError:
        yield PROBLEM, path, "is missing", None
    except (_DamagedFile, pa.ArrowException, BadRequest, struct.error) as error:
        yield PROBLEM, path, f"cannot be read: {error}", None
    except Exception as error:  # noqa: BLE001  one odd file, or a store that does not give it, must not end the look at all the others
        yield UNSEEN, path, f"could not be looked at: {type(error).__name__}: {error}", None


def _check_size(size: int, entry: Mapping[str, Any]) -> Iterator[str]:
    if entry["file_size_in_bytes"] is not None and entry["file_size_in_bytes"] != size:
        yield f"has {size} bytes, the manifest says {entry['file_size_in_bytes']}"
    if entry["lake_bytes"] is not None and entry["lake_bytes"] != size:
        yield f"has {size} bytes, DuckLake says {entry['lake_bytes']}"


class _DamagedFile(Exception):
    """The bytes are there, and they are no such file."""


@dataclass(slots=True)
class _Watched:
    """A file as Python has it, which knows whether it was its store that failed."""

    source: pa.NativeFile
    has_failed: bool = False
    closed: bool = False

    def read(self, count: int | None = None) -> bytes:
        try:
            return self.source.read(count)
        except OSError:
            self.has_failed = True
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.source.seek(offset, whence)

    def tell(self) -> int:
        return self.source.tell()

    def close(self) -> None:
        self.closed = True


def _check_content(source: pa.NativeFile, entry: Mapping[str, Any], shape: FileExpectations) -> list[Seen]:
    """Arrow has one error for damaged bytes and for a store that fails: a second attempt after it distinguishes the two."""
    try:
        return list(_check_content_once(source, entry, shape))
    except OSError:
        watched: Any = _Watched(source)
        watched.seek(0)
        try:
            return list(_check_content_once(pa.PythonFile(watched, "r"), entry, shape))
        except OSError as error:
            if watched.has_failed:
                raise
            raise _DamagedFile(str(error)) from error


def _check_content_once(source: pa.NativeFile, entry: Mapping[str, Any], shape: FileExpectations) -> Iterator[Seen]:
    path: str = entry["path"]
    if (entry["file_format"] or entry["lake_format"] or "").lower() == "puffin":
        marked = [read_vector(_read_blob(source, entry), entry["referenced_data_file"] or entry["lake_data_path"])]
        yield from _report_marked(path, marked, entry)
        return
    with pq.ParquetFile(source) as file:
        if entry["lake_footer"] and entry["lake_footer"] != file.metadata.serialized_size:
            yield PROBLEM, path, f"has a footer of {file.metadata.serialized_size} bytes, DuckLake says {entry['lake_footer']}", None
        if entry["content"] == POSITIONS or entry["lake_kind"] == "delete":
            yield from _report_marked(path, read_positions(file), entry)
            return
        if entry["lake_rows"] is not None and entry["lake_rows"] != file.metadata.num_rows:
            yield PROBLEM, path, f"has {file.metadata.num_rows} rows, DuckLake says {entry['lake_rows']}", None
        # Manifests do not name a file of DuckDB's with variants, but a copy of it.
        if entry["content"] == DATA or entry["lake_kind"] == "data":
            by_manifest = check_parquet(file, entry, shape) if entry["content"] == DATA else ()
            found = chain(by_manifest, check_lake_facts(file, entry, shape))
            yield from ((PROBLEM, path, text, None) for text in found)


def _report_marked(path: str, marked: list[Marked], entry: Mapping[str, Any]) -> Iterator[Seen]:
    yield from ((PROBLEM, path, text, None) for text in check_count(marked, entry))
    for one in marked:
        # DuckLake knows by its row which file is meant; the path in its file may be another spelling.
        yield MARKED, path, entry["lake_data_path"] or one.path or "", one.last


def _read_blob(source: pa.NativeFile, entry: Mapping[str, Any]) -> bytes:
    """Return the deletion vector: where the manifest says, else, in DuckLake's own files, at the beginning."""
    offset = entry["content_offset"]
    if offset is not None:
        source.seek(offset)
        return source.read(entry["content_size_in_bytes"])
    length = int.from_bytes(source.read(_LENGTH_BYTES), "big")
    source.seek(0)
    return source.read(length + 2 * _LENGTH_BYTES)


PROBLEMS = 100
"""How many problems a report names."""
FILES_A_TASK = 200
MANIFESTS_A_TASK = 8

_LAKE_FILES = """
WITH here AS (
    SELECT t.table_id,
        CASE WHEN s.path_is_relative THEN d.value || coalesce(s.path, '') ELSE coalesce(s.path, d.value) END AS schema_path,
        CASE WHEN t.path_is_relative THEN schema_path || coalesce(t.path, '') ELSE coalesce(t.path, schema_path) END AS folder
    FROM {meta}.ducklake_table t JOIN {meta}.ducklake_schema s USING (schema_id), {meta}.ducklake_metadata d
    WHERE d.key = 'data_path' AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL AND t.table_id = {table_id}
), data AS (
    SELECT f.*, here.folder, CASE WHEN f.path_is_relative THEN here.folder || f.path ELSE f.path END AS whole
    FROM {meta}.ducklake_data_file f JOIN here USING (table_id) WHERE f.table_id = {table_id}
), statistics AS (
    SELECT data_file_id, list({{'column_id': column_id, 'count': value_count, 'nulls': null_count, 'has_nan': contains_nan,
        'least': min_value, 'greatest': max_value}}) AS lake_statistics
    FROM {meta}.ducklake_file_column_stats WHERE table_id = {table_id} GROUP BY data_file_id
), partitions AS (
    SELECT v.data_file_id, list({{'column_id': c.column_id, 'transform': lower(c.transform), 'text': v.partition_value}}) AS lake_partition
    FROM {meta}.ducklake_file_partition_value v JOIN data USING (data_file_id)
        JOIN {meta}.ducklake_partition_column c ON c.partition_id = data.partition_id AND c.partition_key_index = v.partition_key_index
    WHERE v.table_id = {table_id} AND c.table_id = {table_id} GROUP BY v.data_file_id
)
SELECT 'data' AS lake_kind, whole AS path, 'parquet' AS lake_format, record_count AS lake_rows, file_size_bytes AS lake_bytes,
    footer_size AS lake_footer, NULL AS lake_data_path, lake_statistics, lake_partition, folder AS lake_folder
FROM data LEFT JOIN statistics USING (data_file_id) LEFT JOIN partitions USING (data_file_id) WHERE {live}
UNION ALL
SELECT 'delete', CASE WHEN f.path_is_relative THEN here.folder || f.path ELSE f.path END, coalesce(f.format, 'parquet'),
    CASE WHEN f.partial_max IS NULL THEN f.delete_count END, f.file_size_bytes, f.footer_size, data.whole, NULL, NULL, NULL
FROM {meta}.ducklake_delete_file f JOIN here USING (table_id) JOIN data USING (data_file_id)
WHERE f.table_id = {table_id} AND {live_delete}
"""

_ENTRIES = (
    *("content", "file_format", "spec_id", "record_count", "file_size_in_bytes", "content_offset", "content_size_in_bytes"),
    *("referenced_data_file", "partition"),
)
_BY_FIELD = ("null_value_counts", "value_counts", "lower_bounds", "upper_bounds")

_COUNTS, _BOUNDS = pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int32(), pa.binary())
_NAMED = pa.schema(
    [
        *((name, pa.string()) for name in ("file_path", "file_format", "referenced_data_file")),
        *((name, pa.int32()) for name in ("content", "spec_id")),
        *((name, pa.int64()) for name in ("record_count", "file_size_in_bytes", "content_offset", "content_size_in_bytes")),
        *((name, _COUNTS) for name in ("null_value_counts", "value_counts")),
        *((name, _BOUNDS) for name in ("lower_bounds", "upper_bounds")),
        ("partition", pa.map_(pa.string(), pa.binary())),
    ]
)
_NAMED_DDL = (
    "file_path string, file_format string, referenced_data_file string, content int, spec_id int, record_count bigint, "
    "file_size_in_bytes bigint, content_offset bigint, content_size_in_bytes bigint, null_value_counts map<int,bigint>, "
    "value_counts map<int,bigint>, lower_bounds map<int,binary>, upper_bounds map<int,binary>, partition map<string,binary>"
)
"""What manifests are decoded to, and the same to Spark."""


def list_entries(spark: SparkSession, table: str, pair: SnapshotPair, *, is_all: bool) -> DataFrame:
    """Return the files that manifests name, as Iceberg lists them: of a moment, or of every snapshot there is."""
    at = "" if pair.snapshot_id is None or is_all else f" VERSION AS OF {pair.snapshot_id}"
    name = f"{table}.{'all_files' if is_all else 'files'}"
    return choose_entries(spark.sql(f"SELECT * FROM {name}{at}"))  # noqa: S608  a quoted name


def choose_entries(entries: DataFrame) -> DataFrame:
    """Return each file once, with what is looked at; `path` is how DuckLake's rows name it too."""
    path = F.regexp_replace(F.regexp_replace("file_path", "^s3[an]://", "s3://"), "^(file:)?/+", "file:///")
    kept = [name for name in (*_ENTRIES, *_BY_FIELD) if name in entries.columns]
    return entries.dropDuplicates(["file_path", "content_offset"]).select(path.alias("path"), *kept)


def decode_entries(spark: SparkSession, lists: Iterable[str], place: FilesLocation, shape: FileExpectations) -> DataFrame:
    """Return the files that some manifest lists lead to, with the columns that Iceberg's own list has, partition values encoded by name.

    Raises: ServiceUnavailable, BadRequest: a list is not to be had, or is none
    """
    objects = open_objects(place.location, place.catalog, place.given)
    listed = {one.manifest_path: one for uri in lists for one in decode_manifest_list(objects.read(uri), uri, UNLIMITED)}
    check_executors(spark)
    paths = spark.createDataFrame([(path,) for path in listed], "path string")
    paths = paths.repartition(max(1, -(-len(listed) // MANIFESTS_A_TASK)))
    return paths.mapInArrow(partial(_read_batches, listed=listed, place=place, shape=shape), _NAMED_DDL)


def _read_batches(
    batches: Iterable[pa.RecordBatch], listed: Mapping[str, ManifestFile], place: FilesLocation, shape: FileExpectations
) -> Iterator[pa.RecordBatch]:
    objects = open_objects(place.location, place.catalog, place.given)
    for batch in batches:
        for row in batch.to_pylist():
            path: str = row["path"]
            header, entries = decode_manifest(objects.read(path), listed[path], UNLIMITED)
            spec_id, names = listed[path].partition_spec_id, [item.name for item in header.spec.fields]
            forms = {part.name: part.result for part in shape.specs.get(spec_id, ())}
            live = [entry.data_file for entry in entries if entry.status != DELETED]
            found = [{**_format_file(file, names, forms), "spec_id": spec_id} for file in live]
            yield pa.RecordBatch.from_pylist(found, _NAMED)


def _format_file(file: DataFile, names: Sequence[str], forms: Mapping[str, PrimitiveType]) -> dict[str, Any]:
    """Return a file without its spec; of its partition what the table still knows the types of, `names` being those of its parts."""
    parts = [(name, value) for name, value in zip(names, file.partition, strict=True) if value is not None and name in forms]
    said: dict[str, Any] = {name: getattr(file, name) for name in _NAMED.names if name not in ("spec_id", "partition")}
    # Arrow takes a map as its pairs.
    maps = {name: list(said[name].items()) for name in _BY_FIELD if said[name] is not None}
    return {**said, **maps, "partition": [(name, encode_value(forms[name], value)) for name, value in parts]}


def list_lake_files(duck: DuckDBPyConnection, metadata_schema: str, ident: TableIdent, pair: SnapshotPair, *, is_all: bool) -> pa.Table:
    """Return the files that DuckLake's rows name: of a moment, or of every lake snapshot there is."""
    at = pair.lake_snapshot_id
    live = "TRUE" if is_all else "{0}.end_snapshot IS NULL"
    if at is not None and not is_all:
        live = f"{{0}}.begin_snapshot <= {at} AND ({{0}}.end_snapshot IS NULL OR {{0}}.end_snapshot > {at})"
    meta = name_metadata(metadata_schema)
    table_id = read_table_id(duck, meta, ident)
    sql = _LAKE_FILES.format(meta=meta, table_id=table_id, live=live.format("data"), live_delete=live.format("f"))
    found = duck.execute(sql).to_arrow_table()
    for name in ("path", "lake_data_path"):
        uris = [None if path is None else to_canonical(to_uri(path)) for path in found.column(name).to_pylist()]
        found = found.set_column(found.schema.get_field_index(name), name, pa.array(uris, pa.string()))
    return found


def make_shape(state: CatalogTable) -> FileExpectations:
    """Return what has to be known of the table to read its files."""
    schemas = [parse_schema(schema) for schema in state.metadata["schemas"]]
    leaves = {field_id: form for schema in schemas for field_id, form in list_leaf_fields(schema)}
    specs = {spec["spec-id"]: _make_spec(spec["fields"], leaves) for spec in state.metadata["partition-specs"]}
    return FileExpectations(leaves, specs)


def _make_spec(fields: list[dict[str, Any]], leaves: dict[int, PrimitiveType]) -> tuple[PartitionPart, ...]:
    made: list[PartitionPart] = []
    for field in fields:
        form = leaves.get(field["source-id"])
        result = None if form is None else parse_transform(field["transform"]).result_type(form)
        if form is not None and result is not None:
            made.append(PartitionPart(field["name"], field["source-id"], field["transform"], form, result))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """The number of files, the problems found, and the files that could not be read."""

    files: int
    problems: tuple[str, ...]
    unseen: tuple[str, ...]


def check_files(spark: SparkSession, entries: DataFrame, lake: pa.Table, place: FilesLocation, shape: FileExpectations) -> FilesSeen:
    """Return what a look at every file finds; of problems and unreadable files at most as many as a person can read.

    A file that DuckLake has and no manifest names is wrong only when it holds rows that no copy of it has: its own delete files are
    published in another form.
    """
    check_executors(spark)
    originals = _list_originals(entries, lake)
    lake = lake.drop_columns(["lake_folder"])
    facts = entries.join(from_arrow(spark, lake), "path", "full_outer")
    facts = facts.repartition(max(1, -(-facts.count() // FILES_A_TASK)))
    seen = facts.mapInArrow(partial(check_batches, place=place, shape=shape), SEEN_DDL).cache()
    try:
        files = seen.where(F.col("kind") == FILE).count()
        said = seen.where(F.col("kind").isin(PROBLEM, UNSEEN)).select("path", "text", "kind")
        is_unnamed = F.lit("DuckLake has it, no manifest names it"), F.lit(PROBLEM)
        unnamed = facts.where("lake_kind = 'data' AND content IS NULL").join(originals, "path", "left_anti").select("path", *is_unnamed)
        sizes = facts.where("content = 0 OR lake_kind = 'data'").select(
            F.col("path").alias("text"), F.coalesce("record_count", "lake_rows").alias("rows")
        )
        beyond = seen.where(F.col("kind") == MARKED).join(sizes, "text").where(F.col("last") >= F.col("rows"))
        far = beyond.select("path", F.format_string("marks row %d of %s, which has %d", "last", "text", "rows"), F.lit(PROBLEM))
        found = said.unionAll(unnamed).unionAll(far).distinct().orderBy("kind", "path", "text").limit(PROBLEMS).collect()
    finally:
        seen.unpersist()
    problems, unseen = (tuple(f"{row['path']} {row['text']}" for row in found if row["kind"] == kind) for kind in (PROBLEM, UNSEEN))
    return FilesSeen(files, problems, unseen)


def _list_originals(entries: DataFrame, lake: pa.Table) -> DataFrame:
    """Return the paths of the data files whose copies with variants rewritten are named, as DuckLake's rows name them."""
    folder = next((str(one) for one in lake.column("lake_folder").to_pylist() if one is not None), "")
    return entries.select("path").mapInArrow(partial(_read_original_names, folder=folder), "path string").distinct()


def _read_original_names(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        uris = cast("list[str]", batch.column(0).to_pylist())
        names = [name for uri in uris if (name := find_rewritten_path(uri)) is not None]
        # A name of a copy does not say whether the path is relative to the table's folder.
        paths = [to_canonical(to_uri(path)) for name in names for path in (name, folder + name)]
        yield pa.RecordBatch.from_arrays([pa.array(paths, pa.string())], names=["path"])
