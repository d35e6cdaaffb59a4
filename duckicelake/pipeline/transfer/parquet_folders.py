"""Folders of Parquet files as Hive and Spark leave them: names of folders are partition values. They are read, never written."""

import hashlib
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from pyspark.sql import DataFrame

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.common import storage
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import format_columns, quote
from duckicelake.pipeline.common.storage import Child, StoredFiles
from duckicelake.pipeline.ingest.file_source import escape_pattern
from duckicelake.pipeline.ingest.footers import OpenFile, refusing_mixed_types, refusing_unread_types
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.transfer.catalogs import (
    Entry,
    LazyScratchCatalog,
    ScratchCatalog,
    TransferTable,
    UnfinishedCopy,
    parse_table_file,
    refuse_views,
)
from duckicelake.pipeline.transfer.copies import Store
from duckicelake.pipeline.transfer.hadoop import NO_KEYS, is_delta
from duckicelake.pipeline.transfer.in_place import FolderFile, describe_files, format_file_uri

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
            uri = self.bench.get().describe(format_columns(found.schema), partitions, Path(scratch).as_uri())
            metadata = parse_table_file(Path(uri.removeprefix("file:")).read_bytes(), entry.place)
        # One table is moved after another, and may have many files.
        self.files.clear()
        self.files[entry.place] = [FolderFile(format_file_uri(entry.place, path), size) for path, size, _ in files]
        state = int.from_bytes(hashlib.sha256(repr(files).encode()).digest()) >> (256 - _STATE_BITS)
        known = replace(metadata, table_uuid=str(uuid5(NAMESPACE_URL, entry.place)), current_snapshot_id=state)
        return TransferTable(entry.ident, known, entry.place, NO_KEYS)

    def describe_files(self, loaded: TransferTable) -> list[DataFile]:
        """Return what a manifest says of the table's files, as they were when it was read. Raises: as `in_place.describe_files`"""
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
