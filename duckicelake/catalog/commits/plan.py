"""The third step of a commit: the rows to write, computed under the lake's lock from requirements, updates and files.

`commits.commit` calls `plan` in the commit's transaction, in which the few rows are looked up that depend on the files of the request.
Nothing is written here. `registration` uses `FileWriter` for the files of a table that it registers."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from duckicelake.catalog.commits.lock import Locked, LockedTable
from duckicelake.catalog.commits.prepare import Prepared, SnapshotFiles
from duckicelake.catalog.commits.requests import TableCommit, build_id_translator, check_still_required, check_uuids, list_own_ids
from duckicelake.catalog.incoming.branch_snapshots import WITHOUT_INHERITANCE, BranchSnapshot, LakeNumbers, to_kept_snapshot, write_lake_ids
from duckicelake.catalog.incoming.column_names import ColumnNames, build_column_names
from duckicelake.catalog.incoming.file_changes import FIRST_LINEAGE_FORMAT, FileChange, PreparedDeletes, renumber_specs, take_files
from duckicelake.catalog.location_rules import (
    NO_TABLE,
    AllowedLocations,
    check_files,
    check_free,
    check_may_hold_new,
    check_new_location,
    check_new_uuid,
    check_path_properties,
    check_table_location,
    get_last_version,
    get_place,
    read_default_location,
)
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema
from duckicelake.iceberg.requests.manifest_checks import build_required_columns, check_added_once, check_manifest, check_required_columns
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.table_draft import map_spec_ids, resolve_added_specs
from duckicelake.iceberg.requests.updates import RemoveSnapshots
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.changes import NOTES_KIND
from duckicelake.lake.note_rows import FormerLocation, NewKeptFile, NewMove, NewRoot, RefNotes, ReservedRowIds, ReturnedFile
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import (
    FileOrigin,
    LiveTableRows,
    list_file_origins,
    list_files_by_path,
    list_inlined_versions,
    read_file_ids_by_path,
    read_inlined_batch,
    to_live_rows,
)
from duckicelake.lake.writing.rows import (
    ChangedTableNote,
    EndedDataFile,
    EndedDeleteFile,
    EndedInlinedRows,
    LakeStep,
    NewDeleteFile,
    NewRow,
    NewSnapshotNote,
)
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.client_snapshots import change_statistics
from duckicelake.translate.locations import (
    find_inlined_snapshot,
    list_paths,
    list_spellings,
    table_folder,
    to_canonical,
    to_folder_uri,
)
from duckicelake.translate.partitions import has_buckets
from duckicelake.translate.removed import check_unused, mark_removed, with_removed
from duckicelake.translate.to_ducklake.commits import (
    check_parents,
    check_supported,
    map_updates,
    number_snapshots,
)
from duckicelake.translate.to_ducklake.files import FirstIds, add_files
from duckicelake.translate.to_ducklake.refs import change_refs, keep_main_target
from duckicelake.translate.to_ducklake.tables import (
    IdAllocator,
    LiveTable,
    TableStep,
    change_table,
    changed_note,
    create_table,
    to_lake_steps,
)
from duckicelake.translate.unreadable_columns import ColumnHistory, build_rewrite_refusal, check_appendable, list_unseen


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

    commit: Commit
    ids: IdAllocator
    planned: PlannedTable
    allowed: AllowedLocations
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
        if not change.is_trusted:
            check_files(self.commit.conn, planned.table_id, self.allowed, [file.file.file_path for file in taken])
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
        conn, row, table_id = self.commit.conn, self.planned.row, self.planned.table_id
        is_own = row is None or all(self.allowed.is_own(uri) for uri in uris)
        # no location lies under DATA_PATH, from which relative paths lead on
        folder = "" if row is None or is_own else table_folder(read_data_path(conn), row)
        spelled = {path: uri for uri in uris for path in list_spellings(folder, uri)}
        for file in list_files_by_path(conn, table_id, spelled):
            if file.data_file_id not in self.ended:
                return spelled[file.path]
        locations = [to_canonical(location) for location in self.allowed.locations]
        derived = {uri: find_inlined_snapshot(locations, to_canonical(uri)) for uri in uris}
        return next((uri for uri, begin in derived.items() if begin is not None and self._has_inlined(begin)), None)

    def _has_inlined(self, begin: int) -> bool:
        conn, table_id = self.commit.conn, self.planned.table_id
        batches = (read_inlined_batch(conn, table_id, version, begin) for version in list_inlined_versions(conn, table_id))
        return begin not in self.ended_inlined and any(end is None for batch in batches for _, end in batch)

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
        taken = take_files(prepared.change, planned.new)
        check_files(self.commit.conn, planned.table_id, self.allowed, [file.file.file_path for file in taken])
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
        table_id, sources = self.planned.table_id, self._get_sources(files)
        known = [file.file_path for file in files if file.file_path in sources]
        for data_file_id, uri in enumerate(known, self.ids.take_file_ids(len(known))):
            step.rows.append(ReturnedFile(data_file_id, table_id, sources[uri]))
            self.made.setdefault(uri, []).append(data_file_id)
        return [file for file in files if file.file_path not in sources]

    def _get_sources(self, files: Sequence[DataFile]) -> dict[str, int]:
        """Return the ids under which the lake has or had these files, by path."""
        row, table_id = self.planned.row, self.planned.table_id
        if not files:
            return {}
        folder = "" if row is None else table_folder(read_data_path(self.commit.conn), row)
        wanted = {path: file.file_path for file in files for path in list_paths(folder, file.file_path)}
        return {wanted[path]: source for path, source in read_file_ids_by_path(self.commit.conn, table_id, wanted).items()}

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

    def check_unseen(self, live: LiveTableRows, shown: Schema, files: SnapshotFiles, oldest: int) -> None:
        """Raise BadRequest for files that lack values of columns that clients do not see: NOT NULL ones, or those of rows that go.

        Rows may go in one snapshot of the request, and come back without the values in another one.
        """
        unseen = list_unseen(live.columns, shown)
        if not unseen:
            return
        off_main = any(prepared.change.added for prepared in files.branch_snapshots.values())
        if off_main:
            check_appendable(unseen)
        gone = [uri for change in files.changes for uri in (*change.removed, *change.deletes)]
        if not gone or not (off_main or any(map(self._brings_files, files.changes))):
            return
        histories = [ColumnHistory(live.columns, row, oldest) for row in unseen]
        if any(history.may_have_values(*origin) for origin in self._list_origins(gone) for history in histories):
            raise build_rewrite_refusal(unseen)

    def _brings_files(self, change: FileChange) -> bool:
        """Return True if a change adds files that a client wrote, also those of a branch that main is set to."""
        return bool(change.added) or len(change.returned) > len(self._get_sources(change.returned))

    def _list_origins(self, uris: Sequence[str]) -> list[FileOrigin]:
        """Return the origins of live files; inlined rows, and files derived from them, are DuckDB's."""
        row, table_id = self.planned.row, self.planned.table_id
        if row is None or any(find_inlined_snapshot(self.allowed.locations, uri) is not None for uri in uris):
            return [FileOrigin(0, is_noted=False, is_own=False)]
        folder = table_folder(read_data_path(self.commit.conn), row)
        return list_file_origins(self.commit.conn, table_id, folder, [path for uri in uris for path in list_paths(folder, uri)])

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
        real = {file.path for file in list_files_by_path(self.commit.conn, self.planned.table_id, derived)} if derived else set[str]()
        return {uri: begin for uri, begin in derived.items() if uri not in real | self.made.keys()}

    def _end_inlined(self, step: TableStep, begins: Sequence[int]) -> None:
        if begins:
            table_id = self.planned.table_id
            step.add_change("inlined_delete", table_id)
            versions = list_inlined_versions(self.commit.conn, table_id)
            step.rows += [EndedInlinedRows(table_id, version, begin, None) for version in versions for begin in begins]

    def _end_real(self, step: TableStep, uris: Sequence[str]) -> None:
        row = self.planned.row
        folder = "" if row is None else table_folder(read_data_path(self.commit.conn), row)
        wanted = {path: uri for uri in uris for path in list_paths(folder, uri)}
        found = list_files_by_path(self.commit.conn, self.planned.table_id, wanted)
        missing = set(uris) - {wanted[file.path] for file in found}
        if missing:
            raise BadRequest(f"Cannot remove {min(missing)!r}: it is no live file of the table.")
        step.rows += [EndedDataFile(file.data_file_id) for file in found]
        self.ended |= {file.data_file_id for file in found}


def add_snapshots(writer: FileWriter, first: TableStep, applied: "_Applied") -> list[TableStep]:
    """Return a step for each snapshot, the first one's rows in the step that is there."""
    planned, commit, files = writer.planned, writer.commit, applied.files
    count = max(len(files.changes), 1)
    steps = [first, *(TableStep() for _ in range(count - 1))]
    notes: list[list[NewRow]] = [[to_snapshot_note(planned, snapshot, commit.head.snapshot_id + count)] for snapshot in planned.added]
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
            writer.assign_numbers(snapshot, commit.head.snapshot_id + number, next_row_id)
        branch_snapshot = None if snapshot is None else files.branch_snapshots.get(snapshot.snapshot_id)
        if branch_snapshot is not None:
            next_row_id = writer.add_branch_snapshot(step, branch_snapshot, commit.head.snapshot_id + number, next_row_id)
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
    """Return what the commit writes; nothing if it has landed before.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchNamespace, AlreadyExists
    """
    if locked.has_landed:
        return Planned()
    requests = [table.prepared.request for table in locked.tables]
    check_uuids(requests)
    head = locked.commit.head
    ids = IdAllocator(head.next_catalog_id, head.next_file_id)
    now_ms = time.time_ns() // 1_000_000
    plans = [plan_table(locked.commit, table, ids, now_ms) for table in locked.tables]
    check_separate_locations(locked.tables, [each.location for each in plans])
    steps = to_lake_steps(head, ids, [each.steps for each in plans if each.steps])
    notes = [note for each in plans for note in each.notes]
    is_stored = (steps or notes) and any(request.list_added() or request.creates for request in requests)
    return Planned(steps, notes, locked.digest if is_stored else "")


def check_separate_locations(tables: Sequence[LockedTable], locations: Sequence[str]) -> None:
    """Raise BadRequest when a table comes to a location within another's of the same request, or around it, or to the same."""
    if len(tables) < 2:
        return
    known = [table.prepared.base.metadata for table in tables]
    stays = [metadata is not None and metadata.location == location for metadata, location in zip(known, locations, strict=True)]
    # what begins with a folder's name stands right behind it
    folders = sorted((to_folder_uri(location), stayed, location) for location, stayed in zip(locations, stays, strict=True))
    for (outer, first_stays, first), (inner, second_stays, second) in zip(folders, folders[1:], strict=False):
        if inner.startswith(outer) and not (first_stays and second_stays):
            raise BadRequest(
                f"The location {second!r} lies in another table's of the same request, or is the same: {first!r}. Choose another."
            )


@dataclass(frozen=True, slots=True)
class _Applied:
    """A request applied to the metadata of its table. `old` also has the schemas and specs that were removed from view.

    `files` have the table's own ids of partition specs.
    """

    prepared: Prepared
    old: TableMetadata | None
    new: TableMetadata
    files: SnapshotFiles

    @property
    def had_main(self) -> bool:
        """True if the table has a current snapshot before the commit."""
        return self.old is not None and self.old.current_snapshot_id is not None


def plan_table(commit: Commit, table: LockedTable, ids: IdAllocator, now_ms: int) -> TablePlan:
    """Return what a request does to its table; nothing when it changes nothing. Raises what `plan` raises."""
    request, base = table.prepared.request, table.prepared.base
    check_still_required(request, base.metadata, table.committed_ids)
    live = None if base.published is None else to_live_rows(base.published.state)
    applied = _apply(commit, table, live, now_ms)
    _check_files(applied)
    if base.row is None or applied.old is None or live is None:
        return _plan_creation(commit, applied, ids)
    check_unused(applied.old, applied.new, table.prepared.used_specs)
    return _plan_change(
        commit, applied, ids, PlannedTable(base.row.table_id, base.row, applied.new, table.prepared.request.list_added()), live
    )


def _apply(commit: Commit, table: LockedTable, live: LiveTableRows | None, now_ms: int) -> _Applied:
    """Return the table's metadata after the request, with the ids of lake snapshots for those that it adds."""
    request, files, known = table.prepared.request, table.prepared.files, table.prepared.base.metadata
    shown = {spec.spec_id for spec in known.partition_specs} if known else set[int]()
    old = known if known is None or live is None else with_removed(known, live.notes)
    to_lake_id = build_id_translator(known, table.committed_ids)
    fresh = {snapshot.snapshot_id: commit.head.snapshot_id + number for number, snapshot in enumerate(request.list_added(), 1)}
    _check_new_ids(fresh, table)
    _check_not_removed(fresh, request)
    updates = map_updates(request.updates, lambda i: fresh[i] if i in fresh else to_lake_id(i))
    updates = updates if old is None else resolve_added_specs(updates, shown)
    check_parents(old, updates)
    last = old.last_sequence_number if old else 0
    next_row_id = old.next_row_id if old else 0
    new = apply_updates(old, number_snapshots(updates, last, next_row_id), now_ms)
    spec_ids = map_spec_ids(updates, shown, new)
    if spec_ids and old is not None:
        # Copies for branches have the table's ids already.
        files = replace(files, changes=[renumber_specs(change, spec_ids) for change in files.changes])
    main = [ours for snapshot_id, ours in fresh.items() if snapshot_id not in files.branch_snapshots]
    check_supported(old, new, main, files.move.snapshot_id if files.move else None, emptied=files.is_emptied)
    if files.is_emptied and not files.changes and old is not None:
        # there is nothing to end, so main stays where it is
        new = replace(new, current_snapshot_id=old.current_snapshot_id)
    return _Applied(table.prepared, old, new, files)


def _check_files(applied: _Applied) -> None:
    """Raise BadRequest for files and manifests that do not fit the table, or come twice."""
    new, files = applied.new, applied.files
    for change in (*files.changes, *(prepared.change for prepared in files.branch_snapshots.values())):
        if change.added and not change.is_trusted:
            rules = build_required_columns(new)
            for file in change.added:
                check_required_columns(file, change.spec_ids[file.file_path], rules)
        check_added_once(change.fresh)
        for manifest in change.fresh:
            check_manifest(manifest, new)


def _check_new_ids(fresh: Mapping[int, int], table: LockedTable) -> None:
    ours = list_own_ids(table.prepared.base.metadata, fresh.keys())
    taken = [snapshot_id for snapshot_id in fresh if snapshot_id in table.committed_ids or snapshot_id in ours]
    if taken:
        raise BadRequest(f"Cannot add snapshot {taken[0]}: the table has a snapshot of that id; choose another.")


def _check_not_removed(fresh: Mapping[int, int], request: TableCommit) -> None:
    for update in request.updates:
        if isinstance(update, RemoveSnapshots) and not fresh.keys().isdisjoint(update.snapshot_ids):
            lost = next(snapshot_id for snapshot_id in update.snapshot_ids if snapshot_id in fresh)
            raise BadRequest(f"Cannot add snapshot {lost} and remove it in one commit; leave out one of the two.")


def _plan_creation(commit: Commit, applied: _Applied, ids: IdAllocator) -> TablePlan:
    request, base, new = applied.prepared.request, applied.prepared.base, applied.new
    place = get_place(commit.conn, request.ident, commit.head.lake_format)
    check_free(commit.conn, request.ident, place)
    uuid = UUID(new.table_uuid) if new.table_uuid else uuid4()
    check_new_uuid(commit.conn, uuid)
    check_may_hold_new(commit.conn, place.schema_id, base.allowed.server_roots)
    default = read_default_location(commit.conn, place, uuid)
    location = check_new_location(commit.conn, new.location, default, base.allowed.roots) if new.location else default
    new = replace(new, table_uuid=str(uuid), location=location)
    check_path_properties(commit.conn, NO_TABLE, AllowedLocations((location,), base.allowed.roots), new.properties, {})
    table_id = ids.take_catalog_id()
    first = create_table(table_id, place, new, get_last_version(commit.conn, location))
    first.rows += change_statistics(table_id, None, new, base.allowed.holds)
    planned = PlannedTable(table_id, None, new, request.list_added())
    if planned.added and new.format_version == FIRST_SEQUENCE_FORMAT:
        first.rows.append(changed_note(table_id, new, commit.head.snapshot_id))
        planned = replace(planned, sequence_base=commit.head.snapshot_id)
    writer = FileWriter(commit, ids, planned, base.allowed, build_column_names(None, applied.files.footers))
    steps = add_snapshots(writer, first, applied)
    return TablePlan(location, steps, [*writer.notes, *change_refs(table_id, None, new, RefNotes(), writer.bases)])


def _plan_change(commit: Commit, applied: _Applied, ids: IdAllocator, planned: PlannedTable, found: LiveTableRows) -> TablePlan:
    base, files, conn = applied.prepared.base, applied.files, commit.conn
    old, new, table_id, notes = applied.old, planned.new, planned.table_id, found.notes
    assert old is not None
    if new.location != old.location:
        new = replace(new, location=check_table_location(conn, new.location, base.allowed.roots, table_id))
        planned = replace(planned, new=new)
    check_path_properties(conn, table_id, base.allowed, new.properties, old.properties)
    client_order_id = notes.shapes[-1].order_id if notes.shapes else 0
    sort_id = ids.take_catalog_id() if found.sort_keys and new.current_schema_id != old.current_schema_id else 0
    brings_files = any(change.added or change.returned for change in files.changes)
    ends_buckets = brings_files and base.published is not None and has_buckets(base.published.state.partitions)
    live = LiveTable(
        *(table_id, found.columns, found.comments, found.tags, client_order_id, found.sort_keys, sort_id, ends_buckets),
        lake_format=commit.head.lake_format,
    )
    note = notes.table
    sequence_base = note.sequence_base if note else 0
    first = TableStep()
    if new.location != old.location:
        first.rows.append(FormerLocation(table_id, old.location))
    change_table(first, live, old, new, adds_data=any(change.added for change in files.changes))
    if note is not None and note.sequence_base and old.format_version < LINEAGE_FORMAT <= new.format_version:
        _renumber(first, changed_note(table_id, new, numbered_until=commit.head.snapshot_id))
    if planned.added and not old.snapshots and note is not None and note.is_native and new.format_version == FIRST_SEQUENCE_FORMAT:
        _renumber(first, changed_note(table_id, new, commit.head.snapshot_id))
        sequence_base = commit.head.snapshot_id
    marks = mark_removed(table_id, notes, old, new, {spec_id for change in files.changes for spec_id in change.spec_ids.values()})
    statistics = change_statistics(table_id, old, new, base.allowed.holds)
    if marks or statistics:
        first.rows += [*marks, *statistics]
        first.add_change("altered_table" if marks else NOTES_KIND, table_id)
    names = build_column_names(base.published.state if base.published else None, files.footers)
    writer = FileWriter(commit, ids, replace(planned, sequence_base=sequence_base, noted=notes.refs), base.allowed, names)
    assert base.published is not None, "a table that is there has been published"
    writer.check_unseen(found, get_current_schema(old), files, base.published.state.oldest.snapshot_id)
    is_step = bool(first.changes or files.changes)
    steps = add_snapshots(writer, first, applied) if is_step else []
    moved = [] if files.move is None else keep_main_target(table_id, files.move, notes.refs)
    return TablePlan(new.location, steps, [*writer.notes, *moved, *change_refs(table_id, old, new, notes.refs, writer.bases)])


def _renumber(step: TableStep, note: ChangedTableNote) -> None:
    """Let a step change the table's note once: Postgres applies an arbitrary change when a statement updates a row twice."""
    kept: list[NewRow] = [row for row in step.rows if not isinstance(row, ChangedTableNote)]
    step.rows = [*kept, note]
