"""Copies of data files of version 3 in which the NULLs of the column `_row_id` are replaced with row ids.

Iceberg computes the id of such a row from the file's first row id, and Spark's MERGE writes such rows; DuckDB reads NULL, a row without
an id. So the copy takes the place of the file, for DuckDB and for Iceberg clients.
`commits.prepare` calls this on a worker thread, before the lake's lock: it reads Postgres in its caller's read transaction, and after that
reads and writes the object store.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import uuid4

import psycopg

from duckicelake.catalog.incoming.file_changes import FIRST_LINEAGE_FORMAT, FileChange
from duckicelake.errors import NotFound, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import list_files_by_path
from duckicelake.store.objects import Objects
from duckicelake.store.row_ids import ROW_ID, open_row_ids
from duckicelake.translate.locations import list_spellings, table_folder, to_canonical

Value = TypeVar("Value")

OVERWRITE = "overwrite"
MAX_COPIED_BYTES = 1024 * 1024 * 1024
MAX_CHUNK_BYTES = 256 * 1024 * 1024
MAX_FILES = 10_000
ROW_ID_BYTES = 8
SMALL_BYTES, SMALL_ROWS = 4 * 1024 * 1024, 500_000
"""Files up to these sizes are copied side by side, through memory."""


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """A snapshot of a request and its file changes; a branch snapshot takes as many row ids as it declares."""

    snapshot: Snapshot
    change: FileChange
    is_off_main: bool = False


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A data file in which rows may wait for their ids, and the id that its first row gets."""

    file: DataFile
    first_row_id: int


def list_waiting(metadata: TableMetadata, snapshot_changes: Sequence[SnapshotChange], next_row_id: int) -> list[WaitingFile]:
    """Return the new data files in which rows may wait for their ids, by the counts in their manifests.

    If a manifest lacks counts for a column, the files of overwrites are included and must be read.
    """
    if metadata.format_version < FIRST_LINEAGE_FORMAT:
        return []
    columns = {field.field_id for field in get_current_schema(metadata).fields if isinstance(field.type, PrimitiveType)}
    found: list[WaitingFile] = []
    for snapshot_change in snapshot_changes:
        snapshot, file_row_id = snapshot_change.snapshot, next_row_id
        for file in snapshot_change.change.added:
            if snapshot_change.is_off_main:
                # Clients read this snapshot's own manifests, so row ids count from the first row id that these state.
                is_stated = file.first_row_id is not None and snapshot.first_row_id is not None
                file_row_id = next_row_id + (file.first_row_id or 0) - (snapshot.first_row_id or 0) if is_stated else -1
            if file_row_id >= 0 and _may_wait(file, columns, snapshot.summary.get("operation", "")):
                found.append(WaitingFile(file, file_row_id))
            file_row_id += file.record_count
        if snapshot_change.change.returned:
            # Returned files that DuckLake has forgotten get row ids too; their number is known only under the lock.
            break
        next_row_id = next_row_id + (snapshot.added_rows or 0) if snapshot_change.is_off_main else file_row_id
    return found[:MAX_FILES]


def _may_wait(file: DataFile, columns: Set[int], operation: str) -> bool:
    nulls = file.null_value_counts or {}
    if ROW_ID in nulls:
        return nulls[ROW_ID] > 0
    return operation == OVERWRITE and not nulls.keys() >= columns


def choose_new(conn: psycopg.Connection, table: TableRow, waiting: Sequence[WaitingFile]) -> list[WaitingFile]:
    """Return the files that are added once, in any spelling, and are not in the table; the others are refused later."""
    folder = table_folder(read_data_path(conn), table)
    spelled = {path: each.file.file_path for each in waiting for path in list_spellings(folder, each.file.file_path)}
    live = {spelled[row.path] for row in list_files_by_path(conn, table.table_id, spelled)}
    counts = Counter(to_canonical(each.file.file_path) for each in waiting)
    return [each for each in waiting if each.file.file_path not in live and counts[to_canonical(each.file.file_path)] == 1]


@dataclass(slots=True)
class RowIdWriter:
    """Copy data files of one request into a location. `copies` has the copy of each file, by the path of the file.

    `written` has the paths of all files that this may have written.
    """

    objects: Objects
    location: str
    written: list[str]
    left_bytes: int = MAX_COPIED_BYTES
    copies: dict[str, DataFile] = field(default_factory=dict[str, DataFile])

    def copy(self, files: Sequence[WaitingFile]) -> None:
        """Copy the files in which rows have no ids, up to `MAX_COPIED_BYTES`; a file that cannot be read is not copied."""
        wanted = [each for each in files if self._has_room(each.file)]
        self.objects.each(self._copy, [each for each in wanted if _is_small(each.file)])
        for each in wanted:
            if not _is_small(each.file):
                self._copy(each)

    def _has_room(self, file: DataFile) -> bool:
        size_bytes = file.file_size_in_bytes + ROW_ID_BYTES * file.record_count
        if file.file_size_in_bytes <= 0 or file.record_count <= 0 or size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True

    def _copy(self, waiting: WaitingFile) -> None:
        file, uri = waiting.file, f"{self.location}/data/ducklake-{uuid4()}.parquet"
        try:
            opened = open_row_ids(self.objects.open(file.file_path, file.file_size_in_bytes, MAX_CHUNK_BYTES), file.file_size_in_bytes)
            if opened is None or opened.rows != file.record_count:
                return
            self.written.append(uri)
            size_bytes = self._put(uri, opened.fill(waiting.first_row_id), file)
        except (NotFound, Unsupported):
            return
        self.copies[file.file_path] = _to_copy(file, uri, size_bytes)

    def _put(self, uri: str, parts: Iterator[bytes], file: DataFile) -> int:
        """Write a copy and return its size."""
        if _is_small(file):
            content = b"".join(parts)
            self.objects.put_new(uri, content)
            return len(content)
        lengths: list[int] = []
        self.objects.put_parts(uri, _count(parts, lengths))
        return sum(lengths)


def _to_copy(file: DataFile, uri: str, size_bytes: int) -> DataFile:
    """Return the description of a copy, without the metrics of the column `_row_id`, which the copy fills."""
    return replace(
        file,
        file_path=uri,
        file_size_in_bytes=size_bytes,
        column_sizes=_without_row_ids(file.column_sizes),
        null_value_counts=None if file.null_value_counts is None else {**file.null_value_counts, ROW_ID: 0},
        lower_bounds=_without_row_ids(file.lower_bounds),
        upper_bounds=_without_row_ids(file.upper_bounds),
    )


def _without_row_ids(metrics: Mapping[int, Value] | None) -> Mapping[int, Value] | None:
    return None if metrics is None else {field_id: value for field_id, value in metrics.items() if field_id != ROW_ID}


def _count(parts: Iterator[bytes], lengths: list[int]) -> Iterator[bytes]:
    for part in parts:
        lengths.append(len(part))
        yield part


def _is_small(file: DataFile) -> bool:
    return file.file_size_in_bytes <= SMALL_BYTES and file.record_count <= SMALL_ROWS


def with_file_copies(change: FileChange, copies: Mapping[str, DataFile]) -> FileChange:
    """Return a change with the copies in place of the copied files."""

    def rename(path: str) -> str:
        return copies[path].file_path if path in copies else path

    return replace(
        change,
        added=[copies.get(file.file_path, file) for file in change.added],
        spec_ids={rename(path): spec_id for path, spec_id in change.spec_ids.items()},
        removed=sorted(rename(path) for path in change.removed),
        deletes={rename(path): positions for path, positions in change.deletes.items()},
        returned=[copies.get(file.file_path, file) for file in change.returned],
    )
