"""Row-level deletes of a commit, made ready before the lock: DuckLake keeps one delete file for each data file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import psycopg

from duckicelake.catalog.gather import decode_deletes
from duckicelake.catalog.writing.ready.snapshots import FileChange
from duckicelake.lake.read import read_data_path
from duckicelake.lake.read_table import read_inlined_deletes
from duckicelake.lake.rows import InlinedDeleteRow, TableRow
from duckicelake.lake.writing.lookups import find_dated, find_delete_file, find_files_by_path, list_inlined_versions, read_inlined_batch
from duckicelake.lake.writing.rows import EndedInlinedRows, FoldedDeletes
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import encode_dated_deletes, encode_position_deletes
from duckicelake.translate.locations import find_inlined_snapshot, list_paths, table_folder, to_uri
from duckicelake.translate.to_ducklake.deletes import check_positions, choose_rows, date_deletes, unite
from duckicelake.translate.visibility import DeletedRows, Longs


@dataclass(frozen=True, slots=True)
class ReadyDelete:
    """All deleted rows of one data file, in a delete file. `data_file_ids` is empty for a file that the same commit adds.

    `folded` is what takes the place of the inlined deletes that there were.
    """

    data_file_path: str
    data_file_ids: Sequence[int]
    uri: str
    count: int
    size_bytes: int
    folded: FoldedDeletes | None = None


@dataclass(frozen=True, slots=True)
class ReadyDeletes:
    """What one snapshot deletes row by row: of data files, and of the inlined rows that derived files stand for."""

    files: Sequence[ReadyDelete]
    inlined: Sequence[EndedInlinedRows]


NO_DELETES = ReadyDeletes((), ())


@dataclass(frozen=True, slots=True)
class DeleteWriter:
    """Writes the delete files of one commit below the last of the table's locations, beside those that are published.

    `folded` are the data files whose inlined deletes one of its snapshots has folded.
    """

    conn: psycopg.Connection
    objects: Objects
    locations: Sequence[str]
    table: TableRow | None
    folded: set[int] = field(default_factory=set[int])

    def make_ready(self, changes: Sequence[FileChange]) -> list[ReadyDeletes]:
        """Return the deletes of each change, with their files written.

        Raises: BadRequest: positions outside of a file, or rows that would come back
        """
        counts: dict[str, int] = {}
        ready: list[ReadyDeletes] = []
        for change in changes:
            counts |= {file.file_path: file.record_count for file in (*change.added, *change.returned)}
            ready.append(self._make_ready({**self._list_dated(change), **change.deletes}, counts))
        return ready

    def _list_dated(self, change: FileChange) -> Mapping[str, Longs]:
        """Return no deleted rows for each file that comes back and whose rows carry lake snapshots of their own.

        DuckLake merges no file that has a delete file; merged, its rows would be there at those lake snapshots again.
        """
        if not change.returned or self.table is None:
            return {}
        folder = table_folder(read_data_path(self.conn), self.table)
        uris = {path: file.file_path for file in change.returned for path in list_paths(folder, file.file_path)}
        dated = {uris[path] for path in find_dated(self.conn, self.table.table_id, uris)}
        dated |= {file.file_path for file in change.returned if find_inlined_snapshot(self.locations, file.file_path) is not None}
        return {uri: unite(()) for uri in sorted(dated)}

    def _make_ready(self, deletes: Mapping[str, Longs], counts: Mapping[str, int]) -> ReadyDeletes:
        files: list[ReadyDelete] = []
        inlined: list[EndedInlinedRows] = []
        for path, positions in deletes.items():
            begin = self._find_inlined(path)
            if path in counts:
                check_positions(path, positions, counts[path])
                files.append(self._write(path, (), positions))
            elif begin is not None and self.table is not None:
                inlined += self._end_rows(self.table.table_id, path, begin, positions)
            elif self.table is not None:
                files += self._mark_rows(self.table, path, positions)
        return ReadyDeletes(files, inlined)

    def _find_inlined(self, path: str) -> int | None:
        """Return the lake snapshot of the inlined rows that a derived file stands for, unless DuckLake has the file itself."""
        begin = find_inlined_snapshot(self.locations, path)
        if begin is None or self.table is None or find_files_by_path(self.conn, self.table.table_id, [path]):
            return None
        return begin

    def _end_rows(self, table_id: int, path: str, begin: int, positions: Longs) -> Iterable[EndedInlinedRows]:
        for version in list_inlined_versions(self.conn, table_id):
            rows = read_inlined_batch(self.conn, table_id, version, begin)
            if rows:
                yield EndedInlinedRows(table_id, version, begin, choose_rows(path, positions, rows))

    def _mark_rows(self, table: TableRow, path: str, positions: Longs) -> Iterable[ReadyDelete]:
        folder = table_folder(read_data_path(self.conn), table)
        for found in find_files_by_path(self.conn, table.table_id, list_paths(folder, path)):
            check_positions(path, positions, found.record_count)
            ready = self._write(path, (found.data_file_id,), positions)
            inlined = read_inlined_deletes(self.conn, table.table_id, [found.data_file_id])
            # the request's first snapshot that deletes rows of the file has folded them for the others
            is_first = found.data_file_id not in self.folded
            self.folded.add(found.data_file_id)
            yield replace(ready, folded=self._fold(table, folder, path, inlined)) if inlined and is_first else ready

    def _fold(self, table: TableRow, folder: str, path: str, inlined: Sequence[InlinedDeleteRow]) -> FoldedDeletes:
        """Write one delete file for what DuckLake knows in two places.

        Its flush would give the inlined ones a file that begins before ours and never ends: two for one data file.
        """
        row = find_delete_file(self.conn, table.table_id, inlined[0].file_id)
        old = old_path = None
        if row is not None:
            old_path = folder + row.path if row.path_is_relative else row.path
            old = DeletedRows(row, *decode_deletes(row, self.objects.read(to_uri(old_path))))
        dated = date_deletes(old, inlined)
        content = encode_dated_deletes(path, dated.positions, dated.snapshot_ids)
        uri = self._put(content)
        first, last = int(dated.snapshot_ids.min()), int(dated.snapshot_ids.max())
        return FoldedDeletes(0, table.table_id, inlined[0].file_id, first, last, uri, len(dated.positions), len(content), old_path)

    def _write(self, path: str, data_file_ids: Sequence[int], positions: Longs) -> ReadyDelete:
        content = encode_position_deletes(path, positions)
        return ReadyDelete(path, data_file_ids, self._put(content), len(positions), len(content))

    def _put(self, content: bytes) -> str:
        # never shared between rows: DuckLake removes the file of a row whose lake snapshots have expired
        uri = f"{self.locations[-1]}/data/ducklake-{uuid4()}-delete.parquet"
        self.objects.put_new(uri, content)
        return uri
