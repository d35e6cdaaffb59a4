"""Folders of Parquet files as Hive and Spark leave them, and files that are registered where they are.

Names of folders are partition values. Folders are read, never written. A registered file gets a manifest entry by its footer and path.
Files that not all readers of the lake would read alike are refused before anything is created for the table. `transfer.job` calls this in
the driver, which reads footers on several threads. `RestSide` calls `take_files`, which writes manifests below the new table's location.
"""

import hashlib
import re
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from duckicelake.errors import BadRequest, CommitFailed, ServiceUnavailable, Unsupported
from duckicelake.iceberg.manifest import ADDED, DATA, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import format_spec_fields
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import Schema, format_schema, is_same_schema, list_leaf_fields
from duckicelake.iceberg.single_values import lower_bound, upper_bound
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.common import storage
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import quote
from duckicelake.pipeline.common.storage import Child, StoredFiles
from duckicelake.pipeline.ingest.file_checks import OpenFile, refusing_mixed_types, refusing_unread_types
from duckicelake.pipeline.ingest.file_source import escape_pattern
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.transfer.catalogs import (
    PUBLISHING,
    Entry,
    LazyScratchCatalog,
    ScratchCatalog,
    TransferTable,
    UnfinishedCopy,
    parse_table_file,
    refuse_views,
)
from duckicelake.pipeline.transfer.copies import DATA_PATH, METADATA_PATH, Store
from duckicelake.pipeline.transfer.serverless import NO_KEYS, is_delta
from duckicelake.pipeline.verify.parquet_checks import Column, read_leaf_columns
from duckicelake.translate.files import FLOATING, UNBOUNDED
from duckicelake.translate.locations import copy_folders, find_copy
from duckicelake.translate.name_mapping import PROPERTY, FileColumns, NameMapping, NamePath
from duckicelake.translate.to_ducklake.files import (
    find_names,
    list_folder_texts,
    list_partition_folders,
    list_partition_only,
    parse_text,
)

MAX_FILES = 10_000
"""As many as the lake's server looks into in one commit."""
THREADS = 16
REMEDY = "--mode copy writes its rows again"
_ESCAPE = re.compile(r"%(?![0-7][0-9A-Fa-f])")
"""Of what Spark, Hive and DuckDB make several things."""
_FIELD_ID = b"PARQUET:field_id"
_END = re.compile(r"([;.] rewrite it)?\.$", re.IGNORECASE)
"""The end of the server's messages, which ask the writer to rewrite the file."""


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file where it is; `values` are those of its partition, as far as something else than its path says them."""

    uri: str
    size_bytes: int | None
    values: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The table that the files are to be of: its columns by name, and those that are in no file."""

    metadata: TableMetadata
    known: Mapping[NamePath, int]
    leaves: Mapping[int, PrimitiveType]
    partitions: Sequence[NestedField] = field(default_factory=tuple[NestedField, ...])


def format_file_uri(place: str, path: str) -> str:
    """Return the URI of a file below a folder, as the store lists it."""
    return f"s3://{path}" if place.startswith("s3") else f"file://{path}"


def check_columns(metadata: TableMetadata) -> None:
    """Raises: Unsupported: no files of such columns are taken where they are"""
    schema, spec = get_current_schema(metadata), get_default_spec(metadata)
    nested = next((item for item in schema.fields if not isinstance(item.type, PrimitiveType)), None)
    if nested is not None:
        raise Unsupported(f"column {nested.name} is nested, and files with such columns are not taken where they are: {REMEDY}")
    if len(spec.fields) == len(schema.fields):
        raise Unsupported(f"all of its columns are in names of folders: {REMEDY}")


def describe_files(objects: StoredFiles, files: Sequence[FolderFile], metadata: TableMetadata) -> list[DataFile]:
    """Return what a manifest of the table says of the files.

    Raises: Unsupported: one would not be read alike by all, by its name and column; ServiceUnavailable: the store does not give one
    """
    check_columns(metadata)
    if len(files) > MAX_FILES:
        raise Unsupported(f"it has {len(files)} files, more than the {MAX_FILES} that are taken at once: {REMEDY}")
    schema = get_current_schema(metadata)
    columns = {item.field_id: item for item in schema.fields}
    known: dict[NamePath, int] = {(item.name,): item.field_id for item in schema.fields}
    partitions = [columns[item.source_id] for item in get_default_spec(metadata).fields]
    wanted = _Wanted(metadata, known, dict(list_leaf_fields(schema)), partitions)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(partial(_describe, objects, wanted), files))


def _describe(objects: StoredFiles, wanted: _Wanted, folder_file: FolderFile) -> DataFile:
    try:
        with objects.open(folder_file.uri) as source:
            size = source.size()
            if folder_file.size_bytes not in (None, size):
                raise ServiceUnavailable(f"{folder_file.uri} is being written: {size} bytes after {folder_file.size_bytes}. Try again")
            file = pq.ParquetFile(source)
            return _describe_open(file, DataFile(DATA, folder_file.uri, "PARQUET", (), file.metadata.num_rows, size), wanted, folder_file)
    except BadRequest as error:
        raise Unsupported(f"{_END.sub('', error.message)}: {REMEDY}") from error
    except pa.ArrowException as error:
        raise Unsupported(f"{folder_file.uri} is no Parquet file that can be read ({error}): remove or rewrite it") from error
    except OSError as error:
        raise ServiceUnavailable(f"cannot read {folder_file.uri}: {error}") from error


def _describe_open(file: pq.ParquetFile, said: DataFile, wanted: _Wanted, folder_file: FolderFile) -> DataFile:
    found = _list_columns(file.schema_arrow)
    _check_names(said.file_path, found, wanted)
    partition = tuple(_read_value(folder_file, column) for column in wanted.partitions)
    told = _add_statistics(said, partition, file, wanted)
    named = find_names(folder_file.uri, found, wanted.metadata, wanted.known)
    untold = list_partition_only(folder_file.uri, found, wanted.metadata, wanted.metadata.default_spec_id, named)
    list_partition_folders(told, untold, wanted.known)
    return told


def _list_columns(schema: Any) -> FileColumns:
    ids: dict[NamePath, int | None] = {}
    kinds: dict[NamePath, str] = {}
    for item in schema:
        if (item.name,) in ids:
            raise BadRequest(f"two columns are called {item.name!r}")
        said: Mapping[bytes, bytes] = item.metadata or {}
        ids[item.name,] = int(said[_FIELD_ID]) if _FIELD_ID in said else None
        kinds[item.name,] = str(item.type.value_type if pa.types.is_dictionary(item.type) else item.type)
    return FileColumns(ids, kinds)


def _check_names(uri: str, found: FileColumns, wanted: _Wanted) -> None:
    """Raise Unsupported for columns that Iceberg's readers would not look for by the table's names."""
    in_folders = {column.name for column in wanted.partitions}
    for (name, *_), field_id in found.field_ids.items():
        if field_id is not None:
            raise Unsupported(f"{uri} carries a field id for its column {name}, by which Iceberg would read it: {REMEDY}")
        if name in in_folders:
            raise Unsupported(f"{uri} has the column {name}, which names of folders have too: {REMEDY}")
        if (name,) not in wanted.known:
            raise Unsupported(f"{uri} has a column {name}, which is spelled otherwise in other files: {REMEDY}")


def _read_value(folder_file: FolderFile, column: NestedField) -> object:
    """Return the value of a partition, where every reader of folders makes one thing of it."""
    if folder_file.values is not None:
        return folder_file.values[column.name]
    text = list_folder_texts(folder_file.uri).get(column.name)
    if text is None:
        raise Unsupported(f"{folder_file.uri} lies in no folder, or in several, that are called '{column.name}=…' and no more: {REMEDY}")
    if text.lower() == "null" or _ESCAPE.search(text):
        raise Unsupported(f"{folder_file.uri} lies in '{column.name}={text}', of which readers make several values: {REMEDY}")
    assert isinstance(column.type, PrimitiveType)
    try:
        return parse_text(column.type, text)
    except (ValueError, BadRequest) as error:
        raise Unsupported(
            f"{folder_file.uri} lies in '{column.name}={text}', of which not all readers make the same {column.type}: {REMEDY}, and "
            "--conf spark.sql.sources.partitionColumnTypeInference.enabled=false leaves it a text"
        ) from error


def _add_statistics(said: DataFile, partition: tuple[object, ...], file: pq.ParquetFile, wanted: _Wanted) -> DataFile:
    """Return the file with its partition, and what its footer says of columns. Bounds are left out where readers disagree about order."""
    found = read_leaf_columns(file, wanted.leaves, wanted.known)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    places = {file.schema.column(place).path: place for place in range(file.metadata.num_columns)}
    sizes = {
        field_id: sum(group.column(places[column.name]).total_compressed_size for group in groups) for field_id, column in found.items()
    }
    bounds = {field_id: _encode_bounds(wanted.leaves[field_id], column) for field_id, column in found.items()}
    return DataFile(
        said.content,
        said.file_path,
        said.file_format,
        partition,
        said.record_count,
        said.file_size_in_bytes,
        column_sizes=sizes,
        value_counts=dict.fromkeys(found, said.record_count),
        null_value_counts={field_id: column.nulls for field_id, column in found.items() if column.nulls is not None},
        lower_bounds={field_id: lower for field_id, (lower, upper) in bounds.items() if lower is not None and upper is not None},
        upper_bounds={field_id: upper for field_id, (lower, upper) in bounds.items() if lower is not None and upper is not None},
    )


def _encode_bounds(form: PrimitiveType, column: Column) -> tuple[bytes | None, bytes | None]:
    if form.name in FLOATING | UNBOUNDED or column.lower is None:
        return None, None
    return lower_bound(form, column.lower), upper_bound(form, column.upper)


_ID_BITS = 62
_FIRST = 1
"""The sequence number of a table's first snapshot."""


def take_files(store: Store, prepared: TransferTable, source: TableMetadata, files: Sequence[DataFile], identity: str) -> TableMetadata:
    """The prepared table with these files, which were described for the source's columns; only its last metadata file is to be written.

    `identity` says of what catalog it is to be. Nothing is written but below the table's own location.
    Raises: CommitFailed: the catalog has made other columns of the source's
    """
    _check_like(source, prepared.metadata)
    new, staged = prepared.metadata, prepared.metadata_location
    data, metadata = copy_folders(new.location, find_copy(new.location, staged) or "")
    objects = store.open(new.location, prepared.keys)
    paths = {METADATA_PATH: metadata, DATA_PATH: data}
    objects.write(staged, encode_metadata(replace(new, properties={**new.properties, **paths})))
    snapshot_id, now = secrets.randbits(_ID_BITS), datetime.now(UTC)
    header = ManifestHeader(get_current_schema(new), get_default_spec(new), new.format_version, DATA)
    entries = [ManifestEntry(ADDED, snapshot_id, None, None, file) for file in files]
    content = encode_manifest(header, entries)
    manifest = build_manifest_file(header, entries, WrittenManifest(f"{metadata}/files-m0.avro", len(content), snapshot_id, _FIRST))
    objects.write(manifest.manifest_path, content)
    listed, named = f"{metadata}/snap-{snapshot_id}.avro", [manifest] if files else []
    objects.write(listed, encode_manifest_list(ManifestListHeader(snapshot_id, None, _FIRST, new.format_version), named))
    at_ms = int(now.timestamp() * 1000)
    snapshot = Snapshot(snapshot_id, None, _FIRST, at_ms, listed, _summarise(files), get_current_schema(new).schema_id)
    objects.write(f"{metadata}/{PUBLISHING}", identity.encode())
    properties = {**new.properties, PROPERTY: format_names(get_current_schema(new))}
    return replace(new, properties=properties, snapshots=(snapshot,), current_snapshot_id=snapshot_id, metadata_log=())


def format_names(schema: Schema) -> str:
    """Return the property by which readers find columns in files without field ids: by their names."""
    names = {(item.name,): item.field_id for item in schema.fields}
    return NameMapping({}, names, {}, frozenset(names.values())).format() or "[]"


def _check_like(source: TableMetadata, new: TableMetadata) -> None:
    ours, theirs = get_current_schema(source), get_current_schema(new)
    specs = [format_spec_fields(get_default_spec(one)) for one in (source, new)]
    if not is_same_schema(replace(theirs, identifier_field_ids=ours.identifier_field_ids), ours) or specs[0] != specs[1]:
        made = f"{format_schema(theirs)}, {specs[1]}"
        raise CommitFailed(f"the catalog would make other columns of it: {made}. --mode copy writes its rows again")


def _summarise(files: Sequence[DataFile]) -> Mapping[str, str]:
    counts = Counter({"records": 0, "files-size": 0, "data-files": 0})
    for file in files:
        counts.update({"records": file.record_count, "files-size": file.file_size_in_bytes, "data-files": 1})
    added = {f"added-{name}": str(count) for name, count in counts.items()}
    totals = {f"total-{name}": str(count) for name, count in counts.items()}
    none = {f"total-{name}": "0" for name in ("delete-files", "position-deletes", "equality-deletes")}
    return {"operation": "append", **added, **totals, **none}


DATABASE = ".db"


@dataclass(frozen=True, slots=True)
class ReadFolders(ABC):
    """A catalog that takes nothing in, of the tables below a root; `x.db` is the namespace `x`."""

    root: str
    store: Store

    @property
    def name(self) -> str:
        return self.root

    @property
    def identity(self) -> str:
        return self.root

    def list_tables_below(self, is_table: Callable[[list[Child]], bool], is_shown: Callable[[str], bool]) -> Iterator[Entry]:
        """Yield every folder that is a table by what lies in it; the root may be the only one. Names that are not shown are passed over.

        Raises: BadRequest: there is no such folder
        """
        objects = self.store.open(self.root, NO_KEYS)
        if not objects.list_folder(self.root):
            raise BadRequest(f"{self.root} is no folder, or has nothing in it")

        def walk(levels: tuple[str, ...]) -> Iterator[Entry]:
            place = "/".join((self.root, *levels))
            children = objects.list_folder(place)
            if is_table(children):
                *namespace, name = levels or (place.rpartition("/")[2],)
                yield Entry(TableIdent(tuple(level.removesuffix(DATABASE) for level in namespace), name), place=place)
                return
            for child in children:
                if child.is_folder and is_shown(child.name):
                    yield from walk((*levels, child.name))

        yield from walk(())

    def open_s3(self) -> storage.S3Store | None:
        """Return the store and who asks it, where the root is on S3. Raises: BadRequest: there are no keys to it"""
        return storage.open_store(self.store.format_settings(NO_KEYS)) if self.root.startswith(storage.SCHEMES) else None

    def list_names(self, place: str) -> list[str]:
        """Return what lies directly in a folder."""
        return [child.name for child in self.open(place).list_folder(place)]

    def open(self, place: str) -> StoredFiles:
        """Return the objects of a folder's store."""
        return self.store.open(place, NO_KEYS)

    @abstractmethod
    def describe_files(self, loaded: TransferTable) -> list[DataFile]:
        """Return what a manifest says of a table's files where they are. Raises: CatalogError: not all readers would read them alike"""

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Refuse: there are no views."""
        raise refuse_views("a folder of files")

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Refuse: folders of files are read only."""
        raise _refuse()

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Refuse: folders of files are read only."""
        raise _refuse()

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Refuse: folders of files are read only."""
        raise _refuse()

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Refuse: folders of files are read only."""
        raise _refuse()

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """Refuse: folders of files are read only."""
        raise _refuse()

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Refuse: folders of files are read only."""
        raise _refuse()


def _refuse() -> Unsupported:
    return Unsupported("folders of files are read, and not written")


_PARTITION = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_HIDDEN = re.compile(r"\..*|_[^=]*|.*\._COPYING_", re.DOTALL)
_STATE_BITS = 62


@dataclass(frozen=True, slots=True)
class HiveFolders(ReadFolders):
    """A folder with files, or with folders like `day=2026-03-01`, is a table."""

    bench: LazyScratchCatalog
    files: dict[str, Sequence[FolderFile]] = field(default_factory=dict[str, Sequence[FolderFile]], repr=False)
    """Those of the table that was read last, by place."""

    def list_entries(self) -> Iterator[Entry]:
        """Yield every folder that is a table; the root may be the only one."""
        yield from self.list_tables_below(lambda children: is_delta(children) or any(map(_is_of_table, children)), _is_shown)

    def load(self, entry: Entry) -> TransferTable:
        """Return the table that Iceberg makes of the columns that Spark finds; its state is that of the list of files."""
        objects = self.store.open(entry.place, NO_KEYS)
        if is_delta(objects.list_folder(entry.place)):
            raise BadRequest("it is a Delta table, of whose files some may count no longer: --format delta")
        root = entry.place.rpartition("://")[2] + "/"
        files = [file for file in objects.list_below(entry.place) if _is_shown(file[0].removeprefix(root))]
        if not files:
            raise BadRequest(f"{entry.place} has no files")
        columns = find_partitions(entry.place, [path.removeprefix(root) for path, _, _ in files])
        found, partitions = self._read(self.bench.get(), entry.place), ", ".join(map(quote, columns))
        if {*found.columns} <= {*columns}:
            raise BadRequest(f"{files[0][0]} has no column, and so have all files of the table: leave it out")
        with tempfile.TemporaryDirectory(prefix="duckicelake-") as scratch:
            uri = self.bench.get().describe(found.schema, partitions, Path(scratch).as_uri())
            metadata = parse_table_file(Path(uri.removeprefix("file:")).read_bytes(), entry.place)
        # One table is moved after another, and may have many files.
        self.files.clear()
        self.files[entry.place] = [FolderFile(format_file_uri(entry.place, path), size) for path, size, _ in files]
        state = int.from_bytes(hashlib.sha256(repr(files).encode()).digest()) >> (256 - _STATE_BITS)
        known = replace(metadata, table_uuid=str(uuid5(NAMESPACE_URL, entry.place)), current_snapshot_id=state)
        return TransferTable(entry.ident, known, entry.place, NO_KEYS)

    def describe_files(self, loaded: TransferTable) -> list[DataFile]:
        """Return what a manifest says of the table's files, as they were when it was read. Raises: as the function `describe_files`"""
        return describe_files(self.open(loaded.metadata_location), self.files[loaded.metadata_location], loaded.metadata)

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows as a view of this session."""
        name = f"hive_{loaded.metadata.table_uuid.replace('-', '_')}"
        self._read(bench, loaded.metadata_location).createOrReplaceTempView(name)
        return quote(name)

    def _read(self, bench: ScratchCatalog, place: str) -> DataFrame:
        store = self.open_s3()
        reader = bench.spark.read.options(**({} if store is None else store.format_settings()))
        # Files of several ages may have several columns.
        looking = refusing_unread_types(bench.spark, Format.parquet, partial(self._list_files, place))
        with refusing_mixed_types("write these again, or copy the folder by `ingest`, part by part"), looking:
            rows = reader.option("basePath", place).option("mergeSchema", "true").parquet(escape_pattern(place))
            # Spark Connect looks no earlier than it has to.
            _ = rows.schema
            return rows

    def _list_files(self, place: str) -> Iterator[tuple[str, OpenFile]]:
        objects = self.open(place)
        root = place.rpartition("://")[2] + "/"
        for path, _, _ in objects.list_below(place):
            if _is_shown(path.removeprefix(root)):
                yield path, partial(objects.open, format_file_uri(place, path))


def find_partitions(place: str, paths: Sequence[str]) -> list[str]:
    """Return the columns that are in the names of folders, outermost first; `paths` are those of the files below the table's folder.

    Raises: BadRequest: a file lies elsewhere than all others do, where Spark would pass over it
    """
    shown = [path for path in paths if _is_shown(path)]
    levels = {path: tuple(map(_PARTITION.fullmatch, path.split("/")[:-1])) for path in shown}
    columns = {path: tuple(match[1] for match in found if match) for path, found in levels.items()}
    wanted = max(columns.values(), key=len, default=())
    stray = next((path for path in shown if None in levels[path] or columns[path] != wanted), None)
    if stray is not None:
        told = "/".join(f"{name}=…" for name in wanted) or "no folders"
        raise BadRequest(f"{place}/{stray} lies elsewhere than the table's other files ({told}), and Spark would pass over some: move it")
    empty = next((path for path in shown if any(match and not match[2] for match in levels[path])), None)
    if empty is not None:
        raise BadRequest(f"{place}/{empty} lies in a folder without a value, of which Spark makes none: give it one")
    return list(wanted)


def _is_of_table(child: Child) -> bool:
    return _is_shown(child.name) and (not child.is_folder or _PARTITION.fullmatch(child.name) is not None)


def _is_shown(path: str) -> bool:
    """Return True if Spark looks at what is at a path below a table."""
    return not any(_HIDDEN.fullmatch(name) for name in path.split("/"))
