"""Manifest lists, manifests and delete files of published snapshots, from which scans are planned. Each is cached in memory.

`scanning.scans` calls this on a worker thread, outside of transactions; all worker threads share a lake's `ScanCache`. This reads the
object store; `ManifestSource.is_own` may read a table's earlier locations from Postgres.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Lock
from typing import TypeVar, cast

from duckicelake.catalog.table_cache import estimate_bytes
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.avro.reader import ReaderPool
from duckicelake.iceberg.manifest import ADDED, DATA, DELETED, ManifestEntry
from duckicelake.iceberg.manifest_list import ManifestFile, inherit_from_list
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scan_tasks import FILE_PATH_ID, DeleteIndex, ScanFile, ScanRequest
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.store.objects import Objects

Cached = TypeVar("Cached")
USUAL_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class ScanCache:
    """A cache of the most recently used values, up to about `most_bytes`; a value larger than a fourth of that is not kept."""

    most_bytes: int = USUAL_BYTES
    size_bytes: int = 0
    _entries: OrderedDict[Hashable, tuple[object, int]] = field(default_factory=OrderedDict[Hashable, tuple[object, int]])
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable, make: Callable[[], tuple[Cached, int]]) -> Cached:
        """Return the cached value of a key, else the value that `make` returns with its size. Two threads may call `make` at once."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return cast("Cached", found[0])
        made, size_bytes = make()
        if size_bytes <= self.most_bytes // 4:
            self._put(key, made, size_bytes)
        return made

    def _put(self, key: Hashable, made: object, size_bytes: int) -> None:
        with self._lock:
            known = self._entries.pop(key, (None, 0))
            self._entries[key] = (made, size_bytes)
            self.size_bytes += size_bytes - known[1]
            while self.size_bytes > self.most_bytes:
                self.size_bytes -= self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)


Entries = Sequence[ScanFile | None]
"""A manifest's entries at their places; None where a file was deleted."""
MAX_DELETE_FILES = 1_000_000
MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
FILE_JSON_BYTES = 768
"""The approximate size of a file's JSON in the cache."""


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """The source of a snapshot's manifests: the store, its cache and the Avro readers.

    `is_own` tests for the table's own locations. Nothing else is read: a writer may put any URI into lists and manifests, and the
    cache may hold objects of other tables.
    """

    objects: Objects
    cache: ScanCache
    readers: ReaderPool
    is_own: Callable[[str], bool]

    def read_list(self, uri: str) -> Sequence[ManifestFile]:
        """Return the manifests that a list names. Raises: NotFound: it is missing. Unsupported: it cannot be read"""

        self._check_own(uri)

        def make() -> tuple[Sequence[ManifestFile], int]:
            try:
                content = self.objects.read_small(uri, MAX_LIST_BYTES)
                listed = tuple(decode_manifest_list(content, uri, readers=self.readers))
            except BadRequest as error:
                raise Unsupported(error.message) from error
            return listed, estimate_bytes(listed)

        return self.cache.get(("list", uri), make)

    def read_entries(self, listed: ManifestFile) -> tuple[PartitionSpec, Entries]:
        """Return a manifest's spec and its entries. Raises: NotFound: it is missing. Unsupported: it cannot be read"""

        self._check_own(listed.manifest_path)

        def make() -> tuple[tuple[PartitionSpec, Entries], int]:
            try:
                content = self.objects.read_small(listed.manifest_path, MAX_MANIFEST_BYTES)
                header, entries = decode_manifest(content, listed, readers=self.readers)
            except BadRequest as error:
                raise Unsupported(error.message) from error
            files = [_to_scan_file(entry, header.spec) for entry in inherit_from_list(entries, listed)]
            live = [item for item in files if item is not None]
            return (header.spec, files), max(estimate_bytes(live), len(content)) + FILE_JSON_BYTES * len(files)

        # Several lists may name one manifest; only the values that its files inherit may differ.
        inherited = (listed.added_snapshot_id, listed.sequence_number, listed.first_row_id)
        return self.cache.get(("manifest", listed.manifest_path, inherited), make)

    def _check_own(self, uri: str) -> None:
        if not self.is_own(uri):
            raise NotFound("A manifest list or a manifest is none of the table's own; plan the scan again.")

    def read_deletes(self, name: str, manifests: Sequence[ManifestFile]) -> DeleteIndex:
        """Return the delete files of the delete manifests of a list, which is known by its name.

        Raises: NotFound: a manifest is missing. Unsupported: one cannot be read
        """

        def make() -> tuple[DeleteIndex, int]:
            found: list[ScanFile] = []
            for listed in manifests:
                found += [_without_metrics(item) for item in self.read_entries(listed)[1] if item is not None]
                if len(found) > MAX_DELETE_FILES:
                    raise Unsupported(f"The snapshot has more than {MAX_DELETE_FILES} delete files; let the client plan scans itself.")
            return DeleteIndex(found), estimate_bytes(found) + FILE_JSON_BYTES * len(found)

        return self.cache.get(("deletes", name), make)


def _to_scan_file(entry: ManifestEntry, spec: PartitionSpec) -> ScanFile | None:
    if entry.status == DELETED:
        return None
    numbers = (entry.snapshot_id or 0, entry.sequence_number or 0)
    return ScanFile(entry.data_file, spec.spec_id, *numbers, entry.status == ADDED, spec.is_unpartitioned)


def _without_metrics(item: ScanFile) -> ScanFile:
    """Return a delete file without its column metrics, except bounds of `file_path`, which may name its only data file."""
    file = item.file
    bounds = [None if known is None else _pick_path(known) for known in (file.lower_bounds, file.upper_bounds)]
    slim = replace(
        file,
        column_sizes=None,
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
    )
    return replace(item, file=slim, encoded_json=None)


def _pick_path(bounds: Mapping[int, bytes]) -> Mapping[int, bytes]:
    return {FILE_PATH_ID: bounds[FILE_PATH_ID]} if FILE_PATH_ID in bounds else {}


def split_contents(listed: Sequence[ManifestFile]) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Return the data manifests and the delete manifests of a list."""
    return [item for item in listed if item.content == DATA], [item for item in listed if item.content != DATA]


FindLakeId = Callable[[int], int | None]
"""A function that returns DuckLake's id of a snapshot, given the id that its client chose."""
OWN_LIST = re.compile(r"snap-(\d+)-[0-9a-f-]{32,36}\.avro")
APPEND = "append"
NO_SNAPSHOT = -1


@dataclass(frozen=True, slots=True)
class ScanInput:
    """The manifests that a scan is planned from.

    `list_name` identifies it. `appended`: only the files that these snapshots added are scanned; None: all live files.
    """

    list_name: str
    manifests: Sequence[ManifestFile]
    deletes: DeleteIndex
    appended: frozenset[int] | None = None


EMPTY_INPUT = ScanInput("", (), DeleteIndex(()))


def pick_snapshot(metadata: TableMetadata, request: ScanRequest, find: FindLakeId) -> Snapshot | None:
    """Return the snapshot that a request names, or main's newest; None for a table without any.

    Raises: BadRequest: the table has no such snapshot
    """
    wanted = request.end_snapshot_id if request.snapshot_id is None else request.snapshot_id
    return find_snapshot(metadata, metadata.current_snapshot_id) if wanted is None else get_snapshot(metadata, wanted, find)


def get_snapshot(metadata: TableMetadata, snapshot_id: int, find: FindLakeId) -> Snapshot:
    """Return a snapshot, with DuckLake's id, by that id or by the id that its client chose.

    Raises: BadRequest: the table has no such snapshot
    """
    found = find_snapshot(metadata, snapshot_id) or find_snapshot(metadata, find(snapshot_id))
    if found is None:
        raise BadRequest(f"Cannot find snapshot with ID {snapshot_id}")
    return found


def read_snapshot_input(source: ManifestSource, snapshot: Snapshot) -> ScanInput:
    """Return the manifests from which a scan of a snapshot is planned. Raises: NotFound, Unsupported: an object cannot be read."""
    if not snapshot.manifest_list:
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} has no manifest list; let the client plan scans itself.")
    return _read_list_input(source, snapshot.manifest_list)


def _read_list_input(source: ManifestSource, uri: str) -> ScanInput:
    manifests, deletes = split_contents(source.read_list(uri))
    return ScanInput(uri.rpartition("/")[2], manifests, source.read_deletes(uri, deletes))


def read_planned_input(source: ManifestSource, metadata: TableMetadata, snapshot_id: int, list_name: str) -> ScanInput:
    """Return the manifests of an earlier plan: the list of that name, even if the snapshot has another list by now.

    Raises: NotFound: there is none, or it is no list of this snapshot of this table
    """
    snapshot = find_snapshot(metadata, snapshot_id)
    if snapshot is not None and snapshot.manifest_list.rpartition("/")[2] == list_name:
        return read_snapshot_input(source, snapshot)
    match = OWN_LIST.fullmatch(list_name)
    if match is None or int(match[1]) != snapshot_id:
        raise NotFound(f"Snapshot {snapshot_id} has another manifest list by now.")
    return _read_list_input(source, f"{metadata.location}/metadata/{list_name}")


def read_appended_input(source: ManifestSource, metadata: TableMetadata, start_snapshot_id: int, end: Snapshot) -> ScanInput:
    """Return the manifests that appends added after one snapshot, up to another; other operations in between are left out.

    Raises: BadRequest: the first is no ancestor of the second
    """
    appends = [item for item in list_between(metadata, start_snapshot_id, end) if item.summary.get("operation") == APPEND]
    manifests: list[ManifestFile] = []
    for snapshot in appends:
        listed = read_snapshot_input(source, snapshot).manifests
        manifests += [item for item in listed if item.added_snapshot_id == snapshot.snapshot_id]
    list_names = "\n".join(snapshot.manifest_list for snapshot in appends)
    name = f"appended-{sha256(list_names.encode()).hexdigest()[:32]}"
    return ScanInput(name, manifests, EMPTY_INPUT.deletes, frozenset(item.snapshot_id for item in appends))


def list_between(metadata: TableMetadata, start_snapshot_id: int, end: Snapshot) -> list[Snapshot]:
    """Return the snapshots after one, up to another, oldest first. Raises: BadRequest: the first is no ancestor of the second"""
    by_id = {item.snapshot_id: item for item in metadata.snapshots}
    found: list[Snapshot] = []
    at: Snapshot | None = end
    while at is not None and at.snapshot_id != start_snapshot_id:
        found.append(at)
        if at.parent_snapshot_id == start_snapshot_id:
            return found[::-1]
        at = by_id.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None and len(found) <= len(by_id) else None
    if at is None:
        raise BadRequest(f"Starting snapshot (exclusive) {start_snapshot_id} is not a parent ancestor of end snapshot {end.snapshot_id}")
    return found[::-1]
