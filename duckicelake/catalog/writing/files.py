"""The files of a commit in rows: a step for each snapshot, and the notes of what its client said."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.writing.bases import Base
from duckicelake.catalog.writing.ids import Ids
from duckicelake.catalog.writing.names import ColumnNames
from duckicelake.catalog.writing.places import Grounds, check_files
from duckicelake.catalog.writing.ready.beside import WITHOUT_INHERITANCE, Numbers, ReadySnapshot, to_kept, write_lake_ids
from duckicelake.catalog.writing.ready.deletes import ReadyDeletes
from duckicelake.catalog.writing.ready.snapshots import FIRST_LINEAGE_FORMAT, FileChange, take_files
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, current_schema, find_snapshot
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.read import read_data_path
from duckicelake.lake.refs.rows import NewKeptFile, NewMove, NewRoot, RefNotes, ReturnedFile, TakenRowIds
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import find_files_by_path, find_sources, list_inlined_versions, read_inlined_batch
from duckicelake.lake.writing.rows import (
    EndedDataFile,
    EndedDeleteFile,
    EndedInlinedRows,
    NewDeleteFile,
    NewRow,
    NewSnapshotNote,
)
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.locations import find_inlined_snapshot, list_paths, list_spellings, table_folder, to_canonical
from duckicelake.translate.to_ducklake.files import FirstIds, add_files
from duckicelake.translate.to_ducklake.tables import TableStep
from duckicelake.values import replace


@dataclass(frozen=True, slots=True)
class Planned:
    """A table's new metadata, with the snapshots that it adds as the client knows them; `row` is None for a new table.

    `sequence_base` is taken from a lake snapshot id to give its sequence number.
    """

    table_id: int
    row: TableRow | None
    new: TableMetadata
    added: Sequence[Snapshot]
    sequence_base: int = 0
    noted: RefNotes = RefNotes()


@dataclass(slots=True)
class FileWriter:
    """Turns one table's file changes into rows. `made` are the ids of files that earlier snapshots of the commit add, `ended`
    those of files that they take out, and `ended_inlined` the lake snapshots whose inlined rows they end.

    `notes` are about its snapshots beside main, and `bases` the snapshots of main that these grew from; `given` are its snapshots
    so far. `names` are those of columns in files without field ids.
    """

    commit: Commit
    ids: Ids
    planned: Planned
    grounds: Grounds
    names: ColumnNames = field(default_factory=lambda: ColumnNames({}))
    made: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: set[int] = field(default_factory=set[int])
    ended_inlined: set[int] = field(default_factory=set[int])
    notes: list[NewRow] = field(default_factory=list[NewRow])
    bases: dict[int, int] = field(default_factory=dict[int, int])
    given: dict[int, tuple[Snapshot, Numbers]] = field(default_factory=dict[int, tuple[Snapshot, Numbers]])

    def add_files(self, step: TableStep, change: FileChange, next_row_id: int) -> int:
        """Add the rows of new files, and return the row id after theirs."""
        planned = self.planned
        self._check_once([file.file_path for file in (*change.added, *change.returned)])
        taken = take_files(change, planned.new, self._return_files(step, change.returned))
        if not change.is_trusted:
            check_files(self.commit.conn, planned.table_id, self.grounds, [file.file.file_path for file in taken])
        if not taken:
            return next_row_id
        first = FirstIds(self.ids.take_file_ids(len(taken)), next_row_id)
        step.rows += add_files(planned.table_id, taken, current_schema(planned.new), first)
        numbered = dict(enumerate(taken, first.data_file_id))
        step.rows += self.names.map_files(planned.table_id, numbered, planned.new, self.ids)
        for data_file_id, file in numbered.items():
            self.made.setdefault(file.file.file_path, []).append(data_file_id)
        return next_row_id + sum(file.file.record_count for file in taken)

    def _check_once(self, uris: Sequence[str]) -> None:
        """Raise BadRequest for a file that is live, or comes twice: DuckLake would have its rows twice, and clients other ones."""
        seen = {to_canonical(uri) for uri in self.made}
        for uri in uris:
            if to_canonical(uri) in seen:
                raise BadRequest(f"Data file {uri!r} is added twice in this commit; add it once.")
            seen.add(to_canonical(uri))
        live = self._find_live(uris) if uris and self.planned.row is not None else None
        if live is not None:
            raise BadRequest(
                f"Data file {live!r} is in the table already, if only with deleted rows, and is there once. Take it out first, or in "
                "the same commit, or write its rows to a file of another name."
            )

    def _find_live(self, uris: Sequence[str]) -> str | None:
        """Return one of these files that is live, or stands for inlined rows that are."""
        conn, row, table_id = self.commit.conn, self.planned.row, self.planned.table_id
        is_own = row is None or all(self.grounds.is_own(uri) for uri in uris)
        # no location lies under DATA_PATH, from which relative paths lead on
        folder = "" if row is None or is_own else table_folder(read_data_path(conn), row)
        spelled = {path: uri for uri in uris for path in list_spellings(folder, uri)}
        for file in find_files_by_path(conn, table_id, spelled):
            if file.data_file_id not in self.ended:
                return spelled[file.path]
        locations = [to_canonical(location) for location in self.grounds.locations]
        derived = {uri: find_inlined_snapshot(locations, to_canonical(uri)) for uri in uris}
        return next((uri for uri, begin in derived.items() if begin is not None and self._has_inlined(begin)), None)

    def _has_inlined(self, begin: int) -> bool:
        conn, table_id = self.commit.conn, self.planned.table_id
        batches = (read_inlined_batch(conn, table_id, version, begin) for version in list_inlined_versions(conn, table_id))
        return begin not in self.ended_inlined and any(end is None for batch in batches for _, end in batch)

    def give(self, snapshot: Snapshot, snapshot_id: int, next_row_id: int) -> None:
        """Remember what the lake calls a snapshot of the request: later ones may list its manifests."""
        planned = self.planned
        made = find_snapshot(planned.new, snapshot_id)
        parent = made.parent_snapshot_id if made else None
        first_row_id = next_row_id if planned.new.format_version >= FIRST_LINEAGE_FORMAT else None
        sequence_number = 0 if planned.new.format_version == WITHOUT_INHERITANCE else snapshot_id - planned.sequence_base
        numbers = Numbers(snapshot_id, parent, self._find_base(parent), sequence_number, first_row_id)
        self.given[snapshot.snapshot_id] = snapshot, numbers

    def add_beside(self, step: TableStep, ready: ReadySnapshot, snapshot_id: int, next_row_id: int) -> int:
        """Note a snapshot beside main, which takes a lake snapshot for its number, and return the row id after its rows."""
        planned = self.planned
        taken = take_files(ready.change, planned.new)
        check_files(self.commit.conn, planned.table_id, self.grounds, [file.file.file_path for file in taken])
        # a legacy word for a rewriting: DuckDB takes it for no conflict with anything
        step.tell("compacted_table", planned.table_id)
        numbers = self.given[ready.snapshot.snapshot_id][1]
        told = {
            "format-version": planned.new.format_version,
            "schema-id": planned.new.current_schema_id,
            "timestamp-ms": planned.new.last_updated_ms,
        }
        ready = write_lake_ids(ready, self.given)
        self.notes.append(to_kept(planned.table_id, planned.new.location, ready, self.given, told))
        self.bases[snapshot_id] = numbers.base_snapshot_id
        self.notes += [NewKeptFile(planned.table_id, path) for path in ready.paths]
        if numbers.first_row_id is None or not ready.snapshot.added_rows:
            return next_row_id
        step.rows.append(TakenRowIds(planned.table_id, ready.snapshot.added_rows))
        return next_row_id + ready.snapshot.added_rows

    def _find_base(self, parent: int | None) -> int:
        """Return the snapshot of main that a snapshot's parent is, or grew from; none has the id -1."""
        known = {note.snapshot_id: note.base_snapshot_id for note in self.planned.noted.kept} | self.bases
        return -1 if parent is None else known.get(parent, parent)

    def _return_files(self, step: TableStep, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Give files that were in the table before a row like their last one, and return those that have none."""
        if not files:
            return ()
        row, table_id = self.planned.row, self.planned.table_id
        folder = "" if row is None else table_folder(read_data_path(self.commit.conn), row)
        wanted = {path: file.file_path for file in files for path in list_paths(folder, file.file_path)}
        sources = {wanted[path]: source for path, source in find_sources(self.commit.conn, table_id, wanted).items()}
        known = [file.file_path for file in files if file.file_path in sources]
        for data_file_id, uri in enumerate(known, self.ids.take_file_ids(len(known))):
            step.rows.append(ReturnedFile(data_file_id, table_id, sources[uri]))
            self.made.setdefault(uri, []).append(data_file_id)
        return [file for file in files if file.file_path not in sources]

    def remove_files(self, step: TableStep, uris: Sequence[str]) -> None:
        """End the rows of files; a derived file stands for the inlined rows of one lake snapshot.

        Raises: BadRequest: a file is not there
        """
        if not uris:
            return
        step.tell("deleted_from_table", self.planned.table_id)
        inlined = self._find_inlined(uris)
        self._end_inlined(step, sorted(set(inlined.values())))
        self.ended_inlined |= set(inlined.values())
        known = [uri for uri in uris if uri in self.made]
        step.rows += [EndedDataFile(data_file_id) for uri in known for data_file_id in self.made.pop(uri)]
        self._end_real(step, [uri for uri in uris if uri not in inlined and uri not in known])

    def delete_rows(self, step: TableStep, ready: ReadyDeletes) -> None:
        """Give data files their new delete files, and end inlined rows."""
        table_id = self.planned.table_id
        if ready.files or ready.inlined:
            step.tell("deleted_from_table", table_id)
        if ready.inlined:
            step.tell("inlined_delete", table_id)
        pairs = [(delete, i) for delete in ready.files for i in (*delete.data_file_ids, *self.made.get(delete.data_file_path, ()))]
        folded = [delete.folded for delete in ready.files if delete.folded is not None]
        step.rows += [replace(row, delete_file_id=self.ids.take_file_ids(1)) for row in folded]
        step.rows += [EndedDeleteFile(data_file_id) for _, data_file_id in pairs]
        for delete, data_file_id in pairs:
            row = NewDeleteFile(0, table_id, data_file_id, delete.uri, "parquet", delete.count, delete.size_bytes)
            step.rows.append(replace(row, delete_file_id=self.ids.take_file_ids(1)))
        step.rows += ready.inlined

    def _find_inlined(self, uris: Sequence[str]) -> dict[str, int]:
        """Return the lake snapshots of the inlined rows that derived files stand for, unless DuckLake has the file itself."""
        derived = {uri: begin for uri in uris if (begin := find_inlined_snapshot(self.grounds.locations, uri)) is not None}
        real = {file.path for file in find_files_by_path(self.commit.conn, self.planned.table_id, derived)} if derived else set[str]()
        return {uri: begin for uri, begin in derived.items() if uri not in real | self.made.keys()}

    def _end_inlined(self, step: TableStep, begins: Sequence[int]) -> None:
        if begins:
            table_id = self.planned.table_id
            step.tell("inlined_delete", table_id)
            versions = list_inlined_versions(self.commit.conn, table_id)
            step.rows += [EndedInlinedRows(table_id, version, begin, None) for version in versions for begin in begins]

    def _end_real(self, step: TableStep, uris: Sequence[str]) -> None:
        row = self.planned.row
        folder = "" if row is None else table_folder(read_data_path(self.commit.conn), row)
        wanted = {path: uri for uri in uris for path in list_paths(folder, uri)}
        found = find_files_by_path(self.commit.conn, self.planned.table_id, wanted)
        missing = set(uris) - {wanted[file.path] for file in found}
        if missing:
            raise BadRequest(f"Cannot remove {min(missing)!r}: it is no live file of the table.")
        step.rows += [EndedDataFile(file.data_file_id) for file in found]
        self.ended |= {file.data_file_id for file in found}


def add_snapshots(writer: FileWriter, first: TableStep, base: Base) -> list[TableStep]:
    """Return a step for each snapshot, the first one's rows in the step that is there."""
    planned, commit = writer.planned, writer.commit
    count = max(len(base.changes), 1)
    steps = [first, *(TableStep() for _ in range(count - 1))]
    notes: list[list[NewRow]] = [[to_note(planned, snapshot, commit.head.snapshot_id + count)] for snapshot in planned.added]
    if base.move is not None:
        notes.append([NewMove(planned.table_id, base.move.snapshot_id)])
    if base.is_emptied:
        # nobody says anything of a snapshot that is there to end the rows
        notes.append([NewRoot(planned.table_id)])
    next_row_id = 0 if base.published is None else base.published.state.next_row_id
    for number, (step, told, change, ready) in enumerate(zip(steps, notes, base.changes, base.deletes, strict=False), 1):
        step.rows += told
        snapshot = planned.added[number - 1] if number <= len(planned.added) else None
        if snapshot is not None:
            writer.give(snapshot, commit.head.snapshot_id + number, next_row_id)
        beside = None if snapshot is None else base.beside.get(snapshot.snapshot_id)
        if beside is not None:
            next_row_id = writer.add_beside(step, beside, commit.head.snapshot_id + number, next_row_id)
            continue
        if snapshot is not None and snapshot.parent_snapshot_id is None and base.has_main:
            step.rows.append(NewRoot(planned.table_id))
        step.tell("inserted_into_table", planned.table_id)
        writer.remove_files(step, change.removed)
        next_row_id = writer.add_files(step, change, next_row_id)
        writer.delete_rows(step, ready)
    return steps


def to_note(planned: Planned, snapshot: Snapshot, commit_snapshot_id: int) -> NewSnapshotNote:
    """Return what a client said of its snapshot."""
    return NewSnapshotNote(
        table_id=planned.table_id,
        commit_snapshot_id=commit_snapshot_id,
        client_snapshot_id=snapshot.snapshot_id,
        schema_id=planned.new.current_schema_id if snapshot.schema_id is None else snapshot.schema_id,
        summary=json.dumps(dict(snapshot.summary), separators=(",", ":"), ensure_ascii=False),
    )
