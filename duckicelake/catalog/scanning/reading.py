"""Manifest lists, manifests and deletes of published snapshots, read once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.memory import estimate_bytes
from duckicelake.catalog.scanning.memory import ScanMemory
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.decoding.avro_types import Readers
from duckicelake.iceberg.decoding.manifests import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DATA, DELETED, ManifestEntry
from duckicelake.iceberg.manifest_list import ManifestFile, inherit
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scanning.deletes import FILE_PATH_ID, DeleteIndex, ScanFile
from duckicelake.store.objects import Objects
from duckicelake.values import replace

Entries = Sequence[ScanFile | None]
"""A manifest's entries at their places; None where a file was deleted."""
MAX_DELETE_FILES = 1_000_000
MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
TOLD_BYTES = 768
"""About what a file's JSON takes once it is kept."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where what a snapshot is made of is read: the store, what is remembered of it, and what reads Avro.

    `is_own` tells what lies in the table's own places, and nothing else is read: whoever may write there may have put anything into
    lists and manifests, and what is remembered may be of another table.
    """

    objects: Objects
    memory: ScanMemory
    readers: Readers
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

        return self.memory.get(("list", uri), make)

    def read_entries(self, listed: ManifestFile) -> tuple[PartitionSpec, Entries]:
        """Return a manifest's spec and its entries. Raises: NotFound: it is missing. Unsupported: it cannot be read"""

        self._check_own(listed.manifest_path)

        def make() -> tuple[tuple[PartitionSpec, Entries], int]:
            try:
                content = self.objects.read_small(listed.manifest_path, MAX_MANIFEST_BYTES)
                header, entries = decode_manifest(content, listed, readers=self.readers)
            except BadRequest as error:
                raise Unsupported(error.message) from error
            files = [_to_scan_file(entry, header.spec) for entry in inherit(entries, listed)]
            live = [item for item in files if item is not None]
            return (header.spec, files), max(estimate_bytes(live), len(content)) + TOLD_BYTES * len(files)

        # a manifest that several lists name says what it says, but for what its files inherit
        inherited = (listed.added_snapshot_id, listed.sequence_number, listed.first_row_id)
        return self.memory.get(("manifest", listed.manifest_path, inherited), make)

    def _check_own(self, uri: str) -> None:
        if not self.is_own(uri):
            raise NotFound("A manifest list or a manifest is none of the table's own; plan the scan anew.")

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
            return DeleteIndex(found), estimate_bytes(found) + TOLD_BYTES * len(found)

        return self.memory.get(("deletes", name), make)


def _to_scan_file(entry: ManifestEntry, spec: PartitionSpec) -> ScanFile | None:
    if entry.status == DELETED:
        return None
    numbers = (entry.snapshot_id or 0, entry.sequence_number or 0)
    return ScanFile(entry.data_file, spec.spec_id, *numbers, entry.status == ADDED, spec.is_unpartitioned)


def _without_metrics(item: ScanFile) -> ScanFile:
    """Return a delete file without what is said of its columns, but for the data file that it names by its bounds."""
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
    return replace(item, file=slim, told=None)


def _pick_path(bounds: Mapping[int, bytes]) -> Mapping[int, bytes]:
    return {FILE_PATH_ID: bounds[FILE_PATH_ID]} if FILE_PATH_ID in bounds else {}


def split_contents(listed: Sequence[ManifestFile]) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Return the data manifests and the delete manifests of a list."""
    return [item for item in listed if item.content == DATA], [item for item in listed if item.content != DATA]
