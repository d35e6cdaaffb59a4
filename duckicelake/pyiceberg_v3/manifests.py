"""Manifests and manifest lists of version 3 for PyIceberg: read and written with their row ids."""

# PyIceberg has no public hooks, so this fits the releases in KNOWN_VERSIONS.
# pyright: reportPrivateUsage=false

from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.manifest import write_manifest as WRITE_MANIFEST
from pyiceberg.typedef import TableVersion

VERSION: Literal[3] = 3
FETCH = ManifestFile.fetch_manifest_entry

FILE_FIELDS = [field.name for field in DATA_FILE_TYPE[VERSION].fields]
FIRST_ROW_ID = FILE_FIELDS.index("first_row_id")
REFERENCED_DATA_FILE = FILE_FIELDS.index("referenced_data_file")
LIST_FIELDS = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[VERSION].fields]
LIST_FIRST_ROW_ID = LIST_FIELDS.index("first_row_id")


def pad_fields(record: Any, length: int) -> list[Any]:
    """Return the values of a record, with None for the fields that its version did not have."""
    found = list(record._data)
    return found + [None] * (length - len(found))


def fetch_manifest_entry(self: ManifestFile, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
    """Return the entries, each data file with its own or inherited first row id."""
    entries: list[ManifestEntry] = FETCH(self, io, discard_deleted=False)
    next_row_id = pad_fields(self, len(LIST_FIELDS))[LIST_FIRST_ROW_ID]
    for entry in entries:
        file: Any = entry.data_file
        if next_row_id is not None and file._data[FIRST_ROW_ID] is None:
            file._data[FIRST_ROW_ID] = next_row_id
            next_row_id += file.record_count
    return [entry for entry in entries if not discard_deleted or entry.status != ManifestEntryStatus.DELETED]


class ManifestWriterV3(ManifestWriterV2):
    """A writer of manifests of data files, or of delete files."""

    files: ManifestContent = ManifestContent.DATA

    def content(self) -> ManifestContent:
        return self.files

    @property
    def version(self) -> TableVersion:
        return VERSION

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self.files == ManifestContent.DATA else "deletes"}

    def prepare_entry(self, entry: ManifestEntry) -> ManifestEntry:
        entry = super().prepare_entry(entry)
        entry.data_file = DataFile(*pad_fields(entry.data_file, len(FILE_FIELDS)))
        return entry


def write_manifest(format_version: TableVersion, *arguments: Any, **named: Any) -> ManifestWriter:
    """Return a writer of a manifest of data files."""
    if format_version < VERSION:
        return WRITE_MANIFEST(format_version, *arguments, **named)
    return ManifestWriterV3(*arguments, **named)


@dataclass(frozen=True, slots=True)
class ListNumbers:
    """The ids and numbers of a snapshot that its manifest list contains."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    first_row_id: int


class ManifestListWriterV3(ManifestListWriterV2):
    """A writer of manifest lists that assigns row ids to manifests without them. `next_row_id` is the next unassigned id.

    Source: Iceberg spec «First Row ID Assignment»
    """

    next_row_id: int

    def __init__(self, output_file: OutputFile, numbers: ListNumbers, compression: Any) -> None:
        super().__init__(output_file, numbers.snapshot_id, numbers.parent_snapshot_id, numbers.sequence_number, compression)
        self._format_version = VERSION
        self._meta = {**self._meta, "format-version": str(VERSION), "first-row-id": str(numbers.first_row_id)}
        self.next_row_id = numbers.first_row_id

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        values = pad_fields(super().prepare_manifest(ManifestFile(*pad_fields(manifest_file, len(LIST_FIELDS)))), len(LIST_FIELDS))
        if manifest_file.content == ManifestContent.DATA and values[LIST_FIRST_ROW_ID] is None:
            values[LIST_FIRST_ROW_ID] = self.next_row_id
            self.next_row_id += (manifest_file.added_rows_count or 0) + (manifest_file.existing_rows_count or 0)
        return ManifestFile(*values)
