"""The third step of a commit: the rows to write, computed from the applied requests and the rows that were found.

`commits.commit` calls `plan` in the commit's transaction, under the lake's lock. It reads nothing, and writes only one kind of object to
the store: manifests of branch snapshots in format version 1, which contain lake snapshot ids. `registration` uses `FileWriter` under the
lock, too, for the deleted rows of a table that it registers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.commits.apply import AppliedRequest
from duckicelake.catalog.commits.lock import Locked
from duckicelake.catalog.commits.look_up import NO_FILES_FOUND, FoundFiles, TableChange
from duckicelake.catalog.incoming.branch_snapshots import WITHOUT_INHERITANCE, BranchSnapshot, LakeNumbers, to_kept_snapshot, write_lake_ids
from duckicelake.catalog.incoming.column_names import ColumnNames, build_column_names
from duckicelake.catalog.incoming.file_changes import FIRST_LINEAGE_FORMAT, FileChange, PreparedDeletes, take_files
from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.changes import NOTES_KIND
from duckicelake.lake.note_rows import FormerLocation, NewKeptFile, NewMove, NewRoot, RefNotes, ReservedRowIds, ReturnedFile
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.rows import (
    ChangedTableNote,
    EndedDataFile,
    EndedDeleteFile,
    EndedInlinedRows,
    LakeHead,
    LakeStep,
    NewDeleteFile,
    NewRow,
    NewSnapshotNote,
)
from duckicelake.translate.client_schemas import mark_removed
from duckicelake.translate.client_snapshots import change_statistics
from duckicelake.translate.locations import find_inlined_snapshot, list_paths, list_spellings, to_canonical, to_folder_uri
from duckicelake.translate.partitions import has_buckets, list_partition_columns
from duckicelake.translate.to_ducklake.commits import change_refs, keep_main_target
from duckicelake.translate.to_ducklake.files import FirstIds, add_files
from duckicelake.translate.to_ducklake.tables import (
    IdAllocator,
    LiveTable,
    TableStep,
    TableTarget,
    change_table,
    changed_note,
    create_table,
    partition_table,
    to_lake_steps,
)


@dataclass(frozen=True, slots=True)
class PlannedTable:
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

    `notes` are about its branch snapshots, and `bases` the snapshots of main that these descend from; `assigned` are its snapshots
    so far. `names` are those of columns in files without field ids.
    """

    ids: IdAllocator
    planned: PlannedTable
    allowed: AllowedLocations
    found: FoundFiles = NO_FILES_FOUND
    names: ColumnNames = field(default_factory=lambda: ColumnNames({}))
    made: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: set[int] = field(default_factory=set[int])
    ended_inlined: set[int] = field(default_factory=set[int])
    notes: list[NewRow] = field(default_factory=list[NewRow])
    bases: dict[int, int] = field(default_factory=dict[int, int])
    assigned: dict[int, tuple[Snapshot, LakeNumbers]] = field(default_factory=dict[int, tuple[Snapshot, LakeNumbers]])

    def add_files(self, step: TableStep, change: FileChange, next_row_id: int) -> int:
        """Add the rows of new files, and return the row id after theirs."""
        planned = self.planned
        self._check_once([file.file_path for file in (*change.added, *change.returned)])
        taken = take_files(change, planned.new, self._return_files(step, change.returned))
        if not taken:
            return next_row_id
        first = FirstIds(self.ids.take_file_ids(len(taken)), next_row_id)
        step.rows += add_files(planned.table_id, taken, get_current_schema(planned.new), first)
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
        spelled = {path: uri for uri in uris for path in list_spellings(self.found.folder, uri)}
        for file in self.found.list_live(spelled):
            if file.data_file_id not in self.ended:
                return spelled[file.path]
        live = self.found.inlined_begins - self.ended_inlined
        locations = [to_canonical(location) for location in self.allowed.locations]
        return next((uri for uri in uris if live and find_inlined_snapshot(locations, to_canonical(uri)) in live), None)

    def assign_numbers(self, snapshot: Snapshot, snapshot_id: int, next_row_id: int) -> None:
        """Remember what the lake calls a snapshot of the request: later ones may list its manifests."""
        planned = self.planned
        made = find_snapshot(planned.new, snapshot_id)
        parent = made.parent_snapshot_id if made else None
        first_row_id = next_row_id if planned.new.format_version >= FIRST_LINEAGE_FORMAT else None
        sequence_number = 0 if planned.new.format_version == WITHOUT_INHERITANCE else snapshot_id - planned.sequence_base
        numbers = LakeNumbers(snapshot_id, parent, self._get_base_id(parent), sequence_number, first_row_id)
        self.assigned[snapshot.snapshot_id] = snapshot, numbers

    def add_branch_snapshot(self, step: TableStep, prepared: BranchSnapshot, snapshot_id: int, next_row_id: int) -> int:
        """Note a branch snapshot, which takes a lake snapshot for its number, and return the row id after its rows."""
        planned = self.planned
        # Only the check counts: DuckLake has no rows for files of a branch snapshot.
        take_files(prepared.change, planned.new)
        # a legacy word for a rewriting: DuckDB takes it for no conflict with anything
        step.add_change("compacted_table", planned.table_id)
        numbers = self.assigned[prepared.snapshot.snapshot_id][1]
        told = {
            "format-version": planned.new.format_version,
            "schema-id": planned.new.current_schema_id,
            "timestamp-ms": planned.new.last_updated_ms,
        }
        prepared = write_lake_ids(prepared, self.assigned)
        self.notes.append(to_kept_snapshot(planned.table_id, planned.new.location, prepared, self.assigned, told))
        self.bases[snapshot_id] = numbers.base_snapshot_id
        self.notes += [NewKeptFile(planned.table_id, path) for path in prepared.paths]
        if numbers.first_row_id is None or not prepared.snapshot.added_rows:
            return next_row_id
        step.rows.append(ReservedRowIds(planned.table_id, prepared.snapshot.added_rows))
        return next_row_id + prepared.snapshot.added_rows

    def _get_base_id(self, parent: int | None) -> int:
        """Return the snapshot of main that a snapshot's parent is, or grew from; none has the id -1."""
        known = {note.snapshot_id: note.base_snapshot_id for note in self.planned.noted.kept} | self.bases
        return -1 if parent is None else known.get(parent, parent)

    def _return_files(self, step: TableStep, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Give files that were in the table before a row like their last one, and return those that have none."""
        if not files:
            return ()
        table_id, sources = self.planned.table_id, self.found.sources
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
        step.add_change("deleted_from_table", self.planned.table_id)
        inlined = self._list_inlined(uris)
        self._end_inlined(step, sorted(set(inlined.values())))
        self.ended_inlined |= set(inlined.values())
        known = [uri for uri in uris if uri in self.made]
        step.rows += [EndedDataFile(data_file_id) for uri in known for data_file_id in self.made.pop(uri)]
        self._end_real(step, [uri for uri in uris if uri not in inlined and uri not in known])

    def delete_rows(self, step: TableStep, prepared: PreparedDeletes) -> None:
        """Give data files their new delete files, and end inlined rows."""
        table_id = self.planned.table_id
        if prepared.files or prepared.inlined:
            step.add_change("deleted_from_table", table_id)
        if prepared.inlined:
            step.add_change("inlined_delete", table_id)
        pairs = [(delete, i) for delete in prepared.files for i in (*delete.data_file_ids, *self.made.get(delete.data_file_path, ()))]
        folded = [delete.folded for delete in prepared.files if delete.folded is not None]
        step.rows += [replace(row, delete_file_id=self.ids.take_file_ids(1)) for row in folded]
        step.rows += [EndedDeleteFile(data_file_id) for _, data_file_id in pairs]
        for delete, data_file_id in pairs:
            row = NewDeleteFile(0, table_id, data_file_id, delete.uri, "parquet", delete.count, delete.size_bytes)
            step.rows.append(replace(row, delete_file_id=self.ids.take_file_ids(1)))
        step.rows += prepared.inlined

    def _list_inlined(self, uris: Sequence[str]) -> dict[str, int]:
        """Return the lake snapshots of the inlined rows that derived files stand for, unless DuckLake has the file itself."""
        derived = {uri: begin for uri in uris if (begin := find_inlined_snapshot(self.allowed.locations, uri)) is not None}
        return {uri: begin for uri, begin in derived.items() if uri not in self.found.live and uri not in self.made}

    def _end_inlined(self, step: TableStep, begins: Sequence[int]) -> None:
        if begins:
            table_id = self.planned.table_id
            step.add_change("inlined_delete", table_id)
            step.rows += [EndedInlinedRows(table_id, version, begin, None) for version in self.found.inlined_versions for begin in begins]

    def _end_real(self, step: TableStep, uris: Sequence[str]) -> None:
        wanted = {path: uri for uri in uris for path in list_paths(self.found.folder, uri)}
        live = self.found.list_live(wanted)
        missing = set(uris) - {wanted[file.path] for file in live}
        if missing:
            raise BadRequest(f"Cannot remove {min(missing)!r}: it is no live file of the table.")
        step.rows += [EndedDataFile(file.data_file_id) for file in live]
        self.ended |= {file.data_file_id for file in live}


def add_snapshots(writer: FileWriter, first: TableStep, applied: AppliedRequest, newest_id: int) -> list[TableStep]:
    """Return a step for each snapshot, the first one's rows in the step that is there. `newest_id` is the newest lake snapshot."""
    planned, files = writer.planned, applied.files
    count = max(len(files.changes), 1)
    steps = [first, *(TableStep() for _ in range(count - 1))]
    notes: list[list[NewRow]] = [[to_snapshot_note(planned, snapshot, newest_id + count)] for snapshot in planned.added]
    if files.move is not None:
        notes.append([NewMove(planned.table_id, files.move.snapshot_id)])
    if files.is_emptied:
        # A snapshot that only ends rows has no summary of a client.
        notes.append([NewRoot(planned.table_id)])
    published = applied.prepared.base.published
    next_row_id = 0 if published is None else published.state.next_row_id
    for number, (step, told, change, prepared) in enumerate(zip(steps, notes, files.changes, files.deletes, strict=False), 1):
        step.rows += told
        snapshot = planned.added[number - 1] if number <= len(planned.added) else None
        if snapshot is not None:
            writer.assign_numbers(snapshot, newest_id + number, next_row_id)
        branch_snapshot = None if snapshot is None else files.branch_snapshots.get(snapshot.snapshot_id)
        if branch_snapshot is not None:
            next_row_id = writer.add_branch_snapshot(step, branch_snapshot, newest_id + number, next_row_id)
            continue
        if snapshot is not None and snapshot.parent_snapshot_id is None and applied.had_main:
            step.rows.append(NewRoot(planned.table_id))
        step.add_change("inserted_into_table", planned.table_id)
        writer.remove_files(step, change.removed)
        next_row_id = writer.add_files(step, change, next_row_id)
        writer.delete_rows(step, prepared)
    return steps


def to_snapshot_note(planned: PlannedTable, snapshot: Snapshot, commit_snapshot_id: int) -> NewSnapshotNote:
    """Return what a client said of its snapshot."""
    return NewSnapshotNote(
        table_id=planned.table_id,
        commit_snapshot_id=commit_snapshot_id,
        client_snapshot_id=snapshot.snapshot_id,
        schema_id=planned.new.current_schema_id if snapshot.schema_id is None else snapshot.schema_id,
        summary=json.dumps(dict(snapshot.summary), separators=(",", ":"), ensure_ascii=False),
    )


FIRST_SEQUENCE_FORMAT, LINEAGE_FORMAT = 2, 3


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The changes of a request to its table: a step for each lake snapshot, notes that need none, and the resulting location."""

    location: str
    steps: Sequence[TableStep]
    notes: Sequence[NewRow] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows of a commit: a step for each lake snapshot, and notes that need none; nothing if the commit changes nothing.

    `digest` is stored with a request for several tables of which one shows that it has landed: a copy is compared by it then.
    """

    steps: Sequence[LakeStep] = ()
    notes: Sequence[NewRow] = ()
    digest: str = ""


def plan(locked: Locked) -> Planned:
    """Return the rows that the commit writes; none if it has landed before. All that this needs is in `locked`.

    Raises: BadRequest: the request contradicts itself, or DuckLake cannot hold it
    """
    if locked.has_landed:
        return Planned()
    head = locked.commit.head
    ids = IdAllocator(head.next_catalog_id, head.next_file_id)
    plans = [plan_table(change, ids, head) for change in locked.changes]
    check_separate_locations(locked.changes, [each.location for each in plans])
    steps = to_lake_steps(head, ids, [each.steps for each in plans if each.steps])
    notes = [note for each in plans for note in each.notes]
    requests = [change.applied.prepared.request for change in locked.changes]
    is_stored = (steps or notes) and any(request.list_added() or request.creates for request in requests)
    return Planned(steps, notes, locked.digest if is_stored else "")


def check_separate_locations(tables: Sequence[TableChange], locations: Sequence[str]) -> None:
    """Raise BadRequest when a table comes to a location within another's of the same request, or around it, or to the same."""
    if len(tables) < 2:
        return
    known = [table.applied.prepared.base.metadata for table in tables]
    stays = [metadata is not None and metadata.location == location for metadata, location in zip(known, locations, strict=True)]
    # what begins with a folder's name stands right behind it
    folders = sorted((to_folder_uri(location), stayed, location) for location, stayed in zip(locations, stays, strict=True))
    for (outer, first_stays, first), (inner, second_stays, second) in zip(folders, folders[1:], strict=False):
        if inner.startswith(outer) and not (first_stays and second_stays):
            raise BadRequest(
                f"The location {second!r} lies in another table's of the same request, or is the same: {first!r}. Choose another."
            )


def plan_table(change: TableChange, ids: IdAllocator, head: LakeHead) -> TablePlan:
    """Return what a request does to its table; nothing when it changes nothing. Raises what `plan` raises."""
    if change.target is not None:
        return _plan_creation(change, change.target, ids, head)
    return _plan_change(change, ids, head)


def _plan_creation(change: TableChange, target: TableTarget, ids: IdAllocator, head: LakeHead) -> TablePlan:
    applied, new = change.applied, change.applied.new
    base, added = applied.prepared.base, applied.prepared.request.list_added()
    table_id = ids.take_catalog_id()
    first = create_table(table_id, target, new, change.last_version)
    first.rows += partition_table(ids, table_id, new, first.rows, head.lake_format)
    first.rows += change_statistics(table_id, None, new, base.allowed.holds)
    planned = PlannedTable(table_id, None, new, added)
    if planned.added and new.format_version == FIRST_SEQUENCE_FORMAT:
        first.rows.append(changed_note(table_id, new, head.snapshot_id))
        planned = replace(planned, sequence_base=head.snapshot_id)
    names = build_column_names(None, applied.files.footers)
    writer = FileWriter(ids, planned, base.allowed, change.found, names)
    steps = add_snapshots(writer, first, applied, head.snapshot_id)
    return TablePlan(new.location, steps, [*writer.notes, *change_refs(table_id, None, new, RefNotes(), writer.bases)])


def _plan_change(change: TableChange, ids: IdAllocator, head: LakeHead) -> TablePlan:
    applied = change.applied
    base, files, old, new, found = applied.prepared.base, applied.files, applied.old, applied.new, applied.live
    assert base.row is not None and base.published is not None and old is not None and found is not None, "the table is there"
    table_id, notes = base.row.table_id, found.notes
    planned = PlannedTable(table_id, base.row, new, applied.prepared.request.list_added())
    client_order_id = notes.shapes[-1].order_id if notes.shapes else 0
    sort_id = ids.take_catalog_id() if found.sort_keys and new.current_schema_id != old.current_schema_id else 0
    brings_files = any(change.added or change.returned for change in files.changes)
    partitions = base.published.state.partitions
    ends_buckets = brings_files and has_buckets(partitions)
    live = LiveTable(
        *(table_id, found.columns, found.comments, found.tags, client_order_id, found.sort_keys, sort_id, ends_buckets),
        partition_columns=list_partition_columns(partitions),
        lake_format=head.lake_format,
    )
    note = notes.table
    sequence_base = note.sequence_base if note else 0
    first = TableStep()
    if new.location != old.location:
        first.rows.append(FormerLocation(table_id, old.location))
    change_table(first, live, old, new, adds_data=any(change.added for change in files.changes))
    if new.default_spec_id != old.default_spec_id:
        first.rows += partition_table(ids, table_id, new, [*found.columns, *first.rows], head.lake_format)
    if note is not None and note.sequence_base and old.format_version < LINEAGE_FORMAT <= new.format_version:
        _renumber(first, changed_note(table_id, new, numbered_until=head.snapshot_id))
    if planned.added and not old.snapshots and note is not None and note.is_native and new.format_version == FIRST_SEQUENCE_FORMAT:
        _renumber(first, changed_note(table_id, new, head.snapshot_id))
        sequence_base = head.snapshot_id
    marks = mark_removed(table_id, notes, old, new, {spec_id for change in files.changes for spec_id in change.spec_ids.values()})
    statistics = change_statistics(table_id, old, new, base.allowed.holds)
    if marks or statistics:
        first.rows += [*marks, *statistics]
        first.add_change("altered_table" if marks else NOTES_KIND, table_id)
    names = build_column_names(base.published.state, files.footers)
    writer = FileWriter(ids, replace(planned, sequence_base=sequence_base, noted=notes.refs), base.allowed, change.found, names)
    is_step = bool(first.changes or files.changes)
    steps = add_snapshots(writer, first, applied, head.snapshot_id) if is_step else []
    moved = [] if files.move is None else keep_main_target(table_id, files.move, notes.refs)
    return TablePlan(new.location, steps, [*writer.notes, *moved, *change_refs(table_id, old, new, notes.refs, writer.bases)])


def _renumber(step: TableStep, note: ChangedTableNote) -> None:
    """Let a step change the table's note once: Postgres applies an arbitrary change when a statement updates a row twice."""
    kept: list[NewRow] = [row for row in step.rows if not isinstance(row, ChangedTableNote)]
    step.rows = [*kept, note]
