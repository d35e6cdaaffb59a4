"""One object against its manifest entry and DuckLake's row, on an executor: size, content, and rows that delete files mark."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duckicelake.errors import BadRequest
from duckicelake.iceberg.puffin import decode_deletion_vector
from duckicelake.pipeline.common.spark_session import RestCatalog
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.pipeline.verify.parquet_checks import FileExpectations, check_lake_facts, check_parquet, spread_partition

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
        if entry["content"] == DATA:
            found = chain(check_parquet(file, entry, shape), check_lake_facts(file, entry, shape))
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
