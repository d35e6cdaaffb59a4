"""The first step of a commit: the request is compared with the published table, and the client's manifests are read.

What the request needs is written to the store: delete files, copies of data files with row ids or variants, copies of the manifests of
branch snapshots, and a test object at a new location in another bucket. No lock is held, so the table may change at any time:
`commits.lock` checks that it has not. `commits.commit` calls this, on a thread, for each request of a batch and at each try, and to find
out if a request has landed before. Postgres is read by single statements and in several read transactions. A state that is not published
yet is published first. Only `read_committed_ids` is also called under the lake's lock.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import psycopg

from duckicelake.catalog.commits.requests import (
    NONE_COMMITTED,
    CommittedIds,
    TableCommit,
    build_id_translator,
    check_still_required,
    is_committed,
    list_unknown_ids,
)
from duckicelake.catalog.incoming.branch_snapshots import (
    BranchSnapshot,
    compute_new_specs,
    list_deleted_targets,
    list_numbers,
    prepare_branch_snapshot,
    with_data_copies,
)
from duckicelake.catalog.incoming.client_manifests import ClientManifests, ManifestReader
from duckicelake.catalog.incoming.column_names import Footers, check_stored_types, may_lack_field_ids, read_footers
from duckicelake.catalog.incoming.file_changes import (
    NO_DELETES,
    FileChange,
    PreparedDeletes,
    SnapshotContext,
    compute_changes,
    compute_emptying,
    compute_move,
    list_client_written,
    write_deletes,
)
from duckicelake.catalog.incoming.row_id_copies import RowIdWriter, SnapshotChange, choose_new, list_waiting, with_file_copies
from duckicelake.catalog.incoming.variant_copies import VariantWriter, list_variant_columns
from duckicelake.catalog.location_rules import (
    NO_TABLE,
    AllowedLocations,
    check_files,
    check_given_location,
    check_store,
    get_place,
    read_default_location,
)
from duckicelake.catalog.table_cache import PublishedTable
from duckicelake.catalog.tables import publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError, CommitFailed, NoSuchTable
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.requests.updates import AddSchema, AssignUuid, RemoveSnapshots, RemoveSpecs, SetLocation
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.branches.ancestors import list_used_folders
from duckicelake.lake.connect import query_once, reading
from duckicelake.lake.read import TableAtPosition, read_data_path
from duckicelake.lake.rows import Position, TableRow
from duckicelake.lake.writing.lookups import ReplayCheck, is_any_named, read_client_snapshots, read_replay_check
from duckicelake.translate.locations import (
    Roots,
    find_inlined_snapshot,
    list_spellings,
    table_folder,
    to_canonical,
    to_folder_uri,
)
from duckicelake.translate.name_mapping import FileColumns
from duckicelake.translate.to_ducklake.commits import (
    check_parents,
    find_main_target,
    list_off_main,
    map_updates,
    removes_main,
)

NO_LOCATIONS = AllowedLocations()
NO_POSITION = Position(-1, -1)


@dataclass(frozen=True, slots=True)
class BaseTable:
    """The table that a request builds on, and where the request's files may lie; `row` is None if there is no table of that name.

    `published` is the state of the table that clients know; None also if the request has landed before, because it needs no state.
    """

    row: TableRow | None
    published: PublishedTable | None = None
    allowed: AllowedLocations = NO_LOCATIONS

    @property
    def metadata(self) -> TableMetadata | None:
        """The metadata of the published state."""
        return None if self.published is None else self.published.metadata

    @property
    def position(self) -> Position:
        """The position of the published state. One before all others makes the lock's check find the table changed."""
        return NO_POSITION if self.published is None else self.published.position

    @property
    def has_landed(self) -> bool:
        """True if the request had been committed before it was prepared."""
        return self.row is not None and self.published is None


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The changes that a request's snapshots make to files. `changes` has one for each snapshot, `deletes` the rows that each deletes.

    With `move` the last of the changes gives main the files of that snapshot. `branch_snapshots` are the snapshots that are not for main,
    by their client's ids. `is_emptied`: main has no rows in the end. `footers` are of data files that may carry no field ids.
    `written` are the objects that were written for the request alone: copies of data files, and delete files.
    """

    changes: Sequence[FileChange] = ()
    deletes: Sequence[PreparedDeletes] = ()
    branch_snapshots: Mapping[int, BranchSnapshot] = field(default_factory=dict[int, BranchSnapshot])
    move: Snapshot | None = None
    is_emptied: bool = False
    footers: Footers = field(default_factory=dict[str, FileColumns])
    written: Sequence[str] = ()


NO_FILES = SnapshotFiles()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be committed as soon as the lake is locked, if its base is still current.

    `used_specs` are those of snapshots that stay, when the request removes specs. `manifests` are what was read for the request.
    `is_cached`: the base comes from the cache, so it was not looked up if the request has landed.
    """

    request: TableCommit
    base: BaseTable
    files: SnapshotFiles = NO_FILES
    used_specs: frozenset[int] = frozenset()
    manifests: ClientManifests | None = None
    is_cached: bool = False


def prepare_request(warehouse: Warehouse, request: TableCommit, manifests: ClientManifests | None, *, refuses: bool = False) -> Prepared:
    """Read what a request builds on, and its manifests but for those that were read before.

    Raises: NoSuchTable, BadRequest: the client's manifests cannot be taken. CommitFailed: only if it `refuses`: a requirement does not
    hold of the table as it is now, and the request has not landed; no manifest was read
    """
    past = _read_past(warehouse, request)
    warehouse.caches.name(request.ident.stored, replace(past, committed_ids={}))
    base = _read_base(warehouse, request, past)
    if refuses and base.published is not None and _has_landed_meanwhile(warehouse, request, base, past):
        base = BaseTable(base.row)
    return _prepare_on(warehouse, request, base, manifests)


def prepare_from_cache(warehouse: Warehouse, request: TableCommit, manifests: ClientManifests | None) -> Prepared | None:
    """Return a request prepared on the table as it is remembered, None when it is not, or not as the client knows it.

    The check under the lake's lock shows whether the table is still so.
    """
    cache = warehouse.caches.find_named(request.ident.stored)
    known = None if cache is None else cache.table
    if cache is None or cache.named is None or known is None or known.published is None or request.creates:
        return None
    past, published = cache.named.past, known.published
    if published.state.table != past.current.table:
        # The table was renamed; another table may have this name.
        return None
    seen = TableAtPosition(past.current.table, published.position, past.current.repair_id if known.repair_id is None else known.repair_id)
    try:
        check_still_required(request, published.metadata, NONE_COMMITTED)
        base = _read_base(warehouse, request, replace(past, current=seen))
        return _prepare_on(warehouse, request, base, manifests, is_cached=True)
    except CatalogError:
        # The error must describe the current table, so the base is read again.
        return None


def is_newest(warehouse: Warehouse, prepared: Prepared) -> bool:
    """Return True unless this server has published a newer state of the table since the request was prepared."""
    newest = find_published(warehouse, prepared.request)
    return newest is None or prepared.base.published is None or newest is prepared.base.published


def find_published(warehouse: Warehouse, request: TableCommit) -> PublishedTable | None:
    """Return the newest state of a request's table that this server has published, or None."""
    cache = warehouse.caches.find_named(request.ident.stored)
    return None if cache is None else cache.table.published


def find_landed(warehouse: Warehouse, request: TableCommit) -> TableRow | None:
    """Return the table if the request has been committed before, else None."""
    past = _read_past(warehouse, request)
    table = past.current.table
    return table if table is not None and is_committed(request, table, past.committed_ids) else None


def _read_past(warehouse: Warehouse, request: TableCommit) -> ReplayCheck:
    ids = [snapshot.snapshot_id for snapshot in request.list_added()]
    return query_once(warehouse.lake, lambda conn: read_replay_check(conn, *request.ident.stored, ids))


def _read_base(warehouse: Warehouse, request: TableCommit, past: ReplayCheck) -> BaseTable:
    """Return the table as it is published, at the position that was seen or a later one."""
    table = past.current.table
    if table is not None and is_committed(request, table, past.committed_ids):
        return BaseTable(table)
    if table is None and not request.creates:
        raise NoSuchTable(f"Table does not exist: {request.ident}")
    published, allowed = None, AllowedLocations()
    if table is not None:
        if warehouse.roots.free:
            folder = Roots((to_folder_uri(table_folder(past.data_path, table)),))
            allowed = AllowedLocations(lake_folder=folder, has_data_in=partial(_has_data_in, warehouse, table.table_id))
        table, published = publish_table(warehouse, request.ident, past.current)
    metadata = None if published is None else published.metadata
    _check_requested_locations(warehouse, request, metadata, table)
    locations = (*past.earlier, *_list_locations(request, metadata))
    return BaseTable(table, published, replace(allowed, locations=locations, roots=warehouse.roots, server_roots=warehouse.server_roots))


def _has_data_in(warehouse: Warehouse, table_id: int, folder: str) -> bool:
    """Return True if files of the table lie in a folder, live or not."""
    with reading(warehouse.lake) as conn:
        return bool(list_used_folders(conn, table_id, list(dict.fromkeys((folder, folder.removeprefix("file://"))))))


def _prepare_on(
    warehouse: Warehouse, request: TableCommit, base: BaseTable, manifests: ClientManifests | None, *, is_cached: bool = False
) -> Prepared:
    if base.has_landed:
        return Prepared(request, base, is_cached=is_cached)
    reader = ManifestReader(warehouse.objects, base.allowed, readers=warehouse.readers)
    if manifests is not None:
        reader.reuse(manifests)
    if base.published is not None and base.published.newest_list[0]:
        reader.lists[base.published.newest_list[0]] = base.published.newest_list[1]
    used_specs = _list_used_specs(reader, request, base.metadata)
    files = _prepare_files(warehouse, request, base, reader)
    if files is None:
        return Prepared(request, BaseTable(base.row), is_cached=is_cached)
    return Prepared(request, base, files, used_specs, reader.list_read(), is_cached)


def _has_landed_meanwhile(warehouse: Warehouse, request: TableCommit, base: BaseTable, past: ReplayCheck) -> bool:
    """Return True if a requirement does not hold any more because the request itself has landed, False if all hold.

    `past` shows that the request had not landed when it was read. That is enough if the base is not newer, and no other id is asked for.
    Raises: CommitFailed: a requirement does not hold, and the request has not landed
    """
    try:
        _check_not_late(request, base, NONE_COMMITTED)
    except CommitFailed:
        added = {snapshot.snapshot_id for snapshot in request.list_added()}
        is_newer = base.published is None or base.published.position != past.current.position
        if not is_newer and not past.committed_ids and added.issuperset(list_unknown_ids(request, base.metadata)):
            raise
        return _has_landed(warehouse, request, base)
    return False


def _has_landed(warehouse: Warehouse, request: TableCommit, base: BaseTable) -> bool:
    """Return True if the request has landed.

    The client's ids are looked up after the table was read. So a request that landed before the table was read is found, and a request
    that is not found is refused for what the table was then.
    Raises: CommitFailed: a requirement does not hold, and the request has not landed
    """
    committed_ids = query_once(warehouse.lake, lambda conn: read_committed_ids(conn, request, base))
    if base.row is not None and is_committed(request, base.row, committed_ids):
        return True
    # A requirement may name a snapshot by the id that its client gave it.
    _check_not_late(request, base, committed_ids)
    return False


def _prepare_files(warehouse: Warehouse, request: TableCommit, base: BaseTable, reader: ManifestReader) -> SnapshotFiles | None:
    """Return what the request does to files, the client's manifests read and delete files written; None if it has landed meanwhile."""
    added, move = request.list_added(), _find_move(warehouse, request, base)
    if move is None and base.metadata is not None and removes_main(request.updates):
        return _empty(base.metadata, reader)
    if not added and move is None:
        return NO_FILES
    known = () if base.metadata is None else base.metadata.schemas
    schemas = [*known, *(update.schema for update in request.updates if isinstance(update, AddSchema))]
    context = SnapshotContext(
        base.metadata, added, schemas, () if base.published is None else list_client_written(base.published.state.notes.refs)
    )
    try:
        branch_snapshots = _prepare_branch_snapshots(warehouse, request, base, (reader, context))
        changes = compute_changes(reader, context, branch_snapshots)
    except (BadRequest, CommitFailed):
        # A replay may have landed since; a late request wrote its manifests for an older table state.
        if _has_landed(warehouse, request, base):
            return None
        raise
    if move is not None and base.metadata is not None:
        changes.append(compute_move(reader, context, move))
    written: list[str] = []
    try:
        if request.checks_types:
            check_stored_types(read_footers(warehouse, base.row, base.allowed, changes), schemas)
        found = SnapshotFiles(changes=changes, branch_snapshots=branch_snapshots, move=move)
        return _write_files(warehouse, request, base, (reader, found, written))
    except CatalogError:
        remove_written(warehouse, written)
        raise


def _write_files(
    warehouse: Warehouse, request: TableCommit, base: BaseTable, found: tuple[ManifestReader, SnapshotFiles, list[str]]
) -> SnapshotFiles:
    """Return the changes with what has to be written for them. What is written is also listed in `written`, in case of an error."""
    reader, files, written = found
    changes, branch_snapshots = files.changes, files.branch_snapshots
    numbers = list_numbers(request.list_added())
    for write_copies in (_write_variants, _write_row_ids):
        files = replace(files, changes=changes, branch_snapshots=branch_snapshots)
        copies = write_copies(warehouse, request, base, (reader, files, written))
        if copies:
            changes = [with_file_copies(change, copies) for change in changes]
            branch_snapshots = {i: with_data_copies(reader, prepared, copies, numbers) for i, prepared in branch_snapshots.items()}
    lacks_ids = may_lack_field_ids(base.metadata, request.updates)
    footers = read_footers(warehouse, base.row, base.allowed, changes) if lacks_ids else dict[str, FileColumns]()
    has_deletes = any(change.deletes or change.returned for change in changes)
    locations = base.allowed.locations
    deletes = write_deletes(warehouse, locations, base.row, changes, written) if has_deletes else [NO_DELETES] * len(changes)
    return replace(files, changes=changes, branch_snapshots=branch_snapshots, footers=footers, deletes=deletes, written=written)


def remove_written(warehouse: Warehouse, written: Sequence[str]) -> None:
    """Remove objects that were written for a commit that is not done; those that are left are found as orphans."""
    if written:
        with suppress(CatalogError):
            warehouse.objects.delete_many(written)


def _write_row_ids(
    warehouse: Warehouse,
    request: TableCommit,
    base: BaseTable,
    found: tuple[ManifestReader, SnapshotFiles, list[str]],
) -> Mapping[str, DataFile]:
    """Write copies of the data files in which rows wait for their ids, and return them by the paths of those files."""
    reader, files, written = found
    changes, branch_snapshots = files.changes, files.branch_snapshots
    if base.row is None or base.published is None:
        return {}
    added = request.list_added()
    snapshot_changes = [
        SnapshotChange(
            snapshot,
            branch_snapshots[snapshot.snapshot_id].change if snapshot.snapshot_id in branch_snapshots else change,
            snapshot.snapshot_id in branch_snapshots,
        )
        for snapshot, change in zip(added, changes, strict=False)
    ]
    waiting = list_waiting(base.published.metadata, snapshot_changes, base.published.state.next_row_id)
    deleted = list_deleted_targets(reader, branch_snapshots.values(), list_numbers(added)) if waiting else set[str | None]()
    # A data file that deletes on a branch reference keeps its name.
    waiting = [] if None in deleted else [each for each in waiting if each.file.file_path not in deleted]
    if not waiting:
        return {}
    with reading(warehouse.lake) as conn:
        if _is_late(conn, request, base):
            return {}
        waiting = choose_new(conn, base.row, waiting)
        check_files(conn, base.row.table_id, base.allowed, [each.file.file_path for each in waiting])
    writer = RowIdWriter(warehouse.objects, base.allowed.locations[-1], written)
    writer.copy(waiting)
    return writer.copies


def _is_late(conn: psycopg.Connection, request: TableCommit, base: BaseTable) -> bool:
    """Return True if a request has landed, or its requirements do not hold any more: then it is refused under the lock."""
    if base.row is None:
        return False
    committed_ids = read_committed_ids(conn, request, base)
    if is_committed(request, base.row, committed_ids):
        return True
    try:
        check_still_required(request, base.metadata, committed_ids)
    except CatalogError:
        return True
    return False


def _write_variants(
    warehouse: Warehouse, request: TableCommit, base: BaseTable, found: tuple[ManifestReader, SnapshotFiles, list[str]]
) -> Mapping[str, DataFile]:
    """Write copies of the data files whose variants are read differently, and return them by the paths of those files.

    Raises: BadRequest: such a file cannot be copied
    """
    reader, files, written = found
    known = () if base.metadata is None else base.metadata.schemas
    columns = list_variant_columns([*known, *(update.schema for update in request.updates if isinstance(update, AddSchema))])
    branch_snapshots = files.branch_snapshots.values()
    changes = (*files.changes, *(prepared.change for prepared in branch_snapshots)) if columns else ()
    added = [file for change in changes for file in change.added]
    if not added:
        return {}
    if not base.allowed.locations:
        raise BadRequest("A new table with data files that have variants needs a location; send set-location.")
    table_id = NO_TABLE if base.row is None else base.row.table_id
    with reading(warehouse.lake) as conn:
        if _is_late(conn, request, base):
            return {}
        check_files(conn, table_id, base.allowed, [file.file_path for file in added])
    writer = VariantWriter(warehouse.objects, base.allowed.locations[-1], columns, written)
    writer.copy(added)
    named = list_deleted_targets(reader, branch_snapshots, list_numbers(request.list_added())) if writer.copies else set[str | None]()
    if writer.copies and (None in named or named.intersection(writer.copies)):
        raise BadRequest(
            "A branch gets deletes of rows of new data files with variants, and these must be written again; add the files first."
        )
    return writer.copies


def _empty(metadata: TableMetadata, reader: ManifestReader) -> SnapshotFiles:
    """Return the end of all rows of main; where there are none, nothing comes to an end."""
    if metadata.current_snapshot_id is None:
        return NO_FILES
    change = compute_emptying(reader, metadata)
    changes = [change] if change.removed else []
    return SnapshotFiles(changes, [NO_DELETES] * len(changes), is_emptied=True)


def _prepare_branch_snapshots(
    warehouse: Warehouse, request: TableCommit, base: BaseTable, brought: tuple[ManifestReader, SnapshotContext]
) -> dict[int, BranchSnapshot]:
    """Return the snapshots of a request that are not for main, each compared with its parent."""
    reader, context = brought
    branch_snapshots, added = list_off_main(request.updates), context.added
    if not branch_snapshots:
        return {}
    if base.metadata is not None and base.published is not None:
        context = replace(context, specs=compute_new_specs(base.metadata, base.published.state.notes, request.updates))
    if not base.allowed.locations:
        raise BadRequest("A new table with snapshots on branches needs a location for their manifests; send set-location.")
    there = () if base.metadata is None else base.metadata.snapshots
    lists = {snapshot.snapshot_id: snapshot.manifest_list for snapshot in (*there, *added)}
    if base.row is not None:
        with reading(warehouse.lake) as conn:
            parents = [snapshot.parent_snapshot_id for snapshot in added if snapshot.parent_snapshot_id is not None]
            known = read_client_snapshots(conn, base.row.table_id, parents)
        lists |= {client_id: lists[ours] for client_id, ours in known.items() if ours in lists and client_id not in lists}
    prepared: dict[int, BranchSnapshot] = {}
    ids = {snapshot.snapshot_id for snapshot in added}
    for snapshot in added:
        if snapshot.snapshot_id in branch_snapshots:
            parent = snapshot.parent_snapshot_id
            if parent is not None and parent not in lists:
                raise BadRequest(f"Snapshot {snapshot.snapshot_id} has the parent {parent}, which the table has not.")
            # The lake has no rows yet for files of this request, and none for the snapshots from before a registration.
            is_told = parent in ids or (base.published is not None and base.published.state.notes.refs.registered is not None)
            may_have = partial(_is_named, warehouse, base) if not is_told else bool
            parent_list = None if parent is None else lists[parent]
            prepared[snapshot.snapshot_id] = prepare_branch_snapshot(reader, snapshot, parent_list, context, may_have)
    return prepared


def _is_named(warehouse: Warehouse, base: BaseTable, uris: Sequence[str]) -> bool:
    """Return True if the lake has or had one of these files, or one of them holds derived inlined rows."""
    if base.row is None or not uris:
        return False
    locations = [to_canonical(location) for location in base.allowed.locations]
    if any(find_inlined_snapshot(locations, to_canonical(uri)) is not None for uri in uris):
        return True
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), base.row)
        return is_any_named(conn, [path for uri in uris for path in list_spellings(folder, uri)])


def _find_move(warehouse: Warehouse, request: TableCommit, base: BaseTable) -> Snapshot | None:
    """Return the snapshot that main is to go to, when it is there already and main is somewhere else."""
    target = find_main_target(request.updates)
    if target is None or base.row is None or base.metadata is None:
        return None
    with reading(warehouse.lake) as conn:
        known = read_client_snapshots(conn, base.row.table_id, [target])
    found = find_snapshot(base.metadata, target) or find_snapshot(base.metadata, known.get(target, target))
    return None if found is None or found.snapshot_id == base.metadata.current_snapshot_id else found


def _list_used_specs(reader: ManifestReader, request: TableCommit, metadata: TableMetadata | None) -> frozenset[int]:
    if metadata is None or not any(isinstance(update, RemoveSpecs) for update in request.updates):
        return frozenset()
    gone = {i for update in request.updates if isinstance(update, RemoveSnapshots) for i in update.snapshot_ids}
    stay = (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone)
    return frozenset(file.partition_spec_id for snapshot in stay for file in reader.read_list(snapshot.manifest_list))


def _list_locations(request: TableCommit, metadata: TableMetadata | None) -> Sequence[str]:
    """Return where the table is, and where it will be as the request says it."""
    present = [] if metadata is None else [metadata.location]
    told = [update.location.rstrip("/") for update in request.updates if isinstance(update, SetLocation)]
    return [*present, *told]


def _check_requested_locations(warehouse: Warehouse, request: TableCommit, metadata: TableMetadata | None, table: TableRow | None) -> None:
    """Raise Forbidden for a location that the client may not choose, before anything is read or written there.

    Raises: BadRequest: the table may not have it, or the store takes no objects there
    """
    told = [update.location.rstrip("/") for update in request.updates if isinstance(update, SetLocation)]
    if not told:
        return
    if warehouse.roots.free:
        if metadata is None or told[-1] != metadata.location:
            check_store(warehouse, told[-1], NO_TABLE if table is None else table.table_id)
        return
    if metadata is not None:
        given = metadata.location
    else:
        uuids = [update.uuid for update in request.updates if isinstance(update, AssignUuid)]
        with reading(warehouse.lake) as conn:
            place = get_place(conn, request.ident)
            given = read_default_location(conn, place, UUID(uuids[-1])) if uuids else ""
    for location in told:
        check_given_location(location, given)


def _check_not_late(request: TableCommit, base: BaseTable, committed_ids: CommittedIds) -> None:
    check_still_required(request, base.metadata, committed_ids)
    check_parents(base.metadata, map_updates(request.updates, build_id_translator(base.metadata, committed_ids)))


def read_committed_ids(conn: psycopg.Connection, request: TableCommit, base: BaseTable) -> CommittedIds:
    """Return the lake snapshots of those of the request's ids that have been committed to its table."""
    client_ids = list_unknown_ids(request, base.metadata)
    return read_client_snapshots(conn, base.row.table_id, client_ids) if base.row is not None and client_ids else NONE_COMMITTED
