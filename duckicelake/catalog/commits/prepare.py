"""The base of a commit: the published table and the client's manifests, read before the lake's lock.

Delete files, and copies of data files with row ids, are written then too.

`commits.commit` calls this, and checks under the lock that the base is still current."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import psycopg

from duckicelake.catalog.incoming.branch_snapshots import (
    BranchSnapshot,
    compute_new_specs,
    list_deleted_targets,
    list_numbers,
    prepare_branch_snapshot,
    with_data_copies,
)
from duckicelake.catalog.incoming.client_manifests import ClientManifests, ManifestReader
from duckicelake.catalog.incoming.column_names import Footers, may_lack_field_ids, read_footers
from duckicelake.catalog.incoming.file_changes import (
    NO_DELETES,
    DeleteWriter,
    FileChange,
    PreparedDeletes,
    SnapshotContext,
    compute_changes,
    compute_emptying,
    compute_move,
    list_client_written,
)
from duckicelake.catalog.incoming.row_id_copies import RowIdWriter, SnapshotChange, choose_new, list_waiting, with_file_copies
from duckicelake.catalog.location_rules import NO_TABLE, AllowedLocations, check_files, check_given_location, check_store, get_place
from duckicelake.catalog.table_cache import PublishedTable
from duckicelake.catalog.tables import Ident, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError, CommitFailed, NoSuchTable
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.requirements import check_removed_refs, check_requirements, is_create
from duckicelake.iceberg.requests.updates import AddSchema, AssignUuid, RemoveSnapshots, RemoveSpecs, SetLocation
from duckicelake.iceberg.snapshots import Snapshot, select_known_ids
from duckicelake.lake.connect import query_once, reading
from duckicelake.lake.read import TableAtPosition, find_table, read_data_path, read_iceberg_path
from duckicelake.lake.rows import Position, TableRow
from duckicelake.lake.writing.lookups import ReplayCheck, is_any_named, is_touched, read_client_snapshots, read_replay_check
from duckicelake.lake.writing.transaction import Commit, WatchedTable
from duckicelake.translate.locations import (
    Roots,
    find_inlined_snapshot,
    list_spellings,
    table_folder,
    table_location,
    to_canonical,
    to_folder_uri,
)
from duckicelake.translate.name_mapping import FileColumns
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.commits import (
    check_parents,
    find_main_target,
    is_replay,
    list_added,
    list_client_ids,
    list_off_main,
    map_requirements,
    map_updates,
    removes_main,
)

NO_LOCATIONS = AllowedLocations()


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A client's commit request for one table."""

    ident: Ident
    body: CommitTable
    incoming: ClientManifests | None = None


@dataclass(frozen=True, slots=True)
class CommitBase:
    """A table as it was `published` at a position; `table` is None when there is none of that name.

    `changes` are what the request's snapshots do to its files, and `deletes` to rows of those that stay. `used_specs` are
    those of snapshots that stay, when the request removes specs. With `move` the last of the changes gives main the files of
    that snapshot. `branch_snapshots` are the snapshots that are not for main, by their client's ids. `known` are, under the lock, the
    lake snapshots of those of the client's ids that have been committed. `is_emptied`: main has no rows in the end.
    `is_cached`: all is as it was remembered. `footers` are of data files that may carry no field ids. `copies` are the data
    files that take the place of the client's. `incoming` are the manifests that were read for the request.
    """

    ident: Ident
    table: TableRow | None
    metadata: TableMetadata | None
    position: Position
    published: PublishedTable | None = None
    changes: Sequence[FileChange] = ()
    deletes: Sequence[PreparedDeletes] = ()
    allowed: AllowedLocations = NO_LOCATIONS
    used_specs: frozenset[int] = frozenset()
    move: Snapshot | None = None
    branch_snapshots: Mapping[int, BranchSnapshot] = field(default_factory=dict[int, BranchSnapshot])
    known: Mapping[int, int] = field(default_factory=dict[int, int])
    is_emptied: bool = False
    is_cached: bool = False
    footers: Footers = field(default_factory=dict[str, FileColumns])
    copies: Sequence[str] = ()
    incoming: ClientManifests | None = None

    @property
    def has_main(self) -> bool:
        """Return True if the table has a current snapshot."""
        return self.metadata is not None and self.metadata.current_snapshot_id is not None

    def is_outdated(self, commit: Commit) -> bool:
        """Return True if the table was changed or created after the base was read."""
        if self.table is None:
            return find_table(commit.conn, to_schema_name(self.ident.namespace), self.ident.name) is not None
        check = commit.locked_check
        return is_touched(commit.conn, self.table.table_id, self.position) if check is None else check.is_touched


NO_POSITION = Position(-1, -1)


def read_base(warehouse: Warehouse, request: TableCommit, *, refuses: bool = False) -> CommitBase:
    """Read what a request builds on; a request that has landed before needs nothing more.

    Raises: NoSuchTable, BadRequest: the client's manifests cannot be taken. CommitFailed: only if it `refuses`: a requirement does not
    hold of the table as it is now, and the request has not landed; no manifest was read
    """
    name = to_schema_name(request.ident.namespace), request.ident.name
    ids = [snapshot.snapshot_id for snapshot in list_added(request.body.updates)]
    past = query_once(warehouse.lake, lambda conn: read_replay_check(conn, *name, ids))
    warehouse.caches.name(name, replace(past, committed_ids={}))
    return _build_on(warehouse, request, past, refuses=refuses)


def get_cached_base(warehouse: Warehouse, request: TableCommit) -> CommitBase | None:
    """Return what a request builds on as it is remembered, None when it is not, or not as the client knows it.

    Under the lake's lock it shows whether it is still so.
    """
    cache = warehouse.caches.find_named((to_schema_name(request.ident.namespace), request.ident.name))
    if cache is None or cache.named is None or cache.published is None or is_create(request.body.requirements):
        return None
    past, published = cache.named.past, cache.published
    if published.state.table != past.current.table:
        # The table was renamed; another table may have this name.
        return None
    seen = TableAtPosition(past.current.table, published.position, past.current.repair_id if cache.repair_id is None else cache.repair_id)
    try:
        check_still_required(request, CommitBase(request.ident, seen.table, published.metadata, published.position))
        return replace(_build_on(warehouse, request, replace(past, current=seen)), is_cached=True)
    except CatalogError:
        # The error must describe the current table, so the base is read again.
        return None


def is_newest(warehouse: Warehouse, base: CommitBase) -> bool:
    """Return True unless this server has published a newer state of the table since the base was read."""
    cache = warehouse.caches.find_named((to_schema_name(base.ident.namespace), base.ident.name))
    return cache is None or base.published is None or cache.published is base.published


def find_published(warehouse: Warehouse, request: TableCommit) -> PublishedTable | None:
    """Return the newest state of a request's table that this server has published, or None."""
    cache = warehouse.caches.find_named((to_schema_name(request.ident.namespace), request.ident.name))
    return None if cache is None else cache.published


def find_landed(warehouse: Warehouse, request: TableCommit) -> TableRow | None:
    """Return the table if the request has been committed before, else None."""
    name = to_schema_name(request.ident.namespace), request.ident.name
    ids = [snapshot.snapshot_id for snapshot in list_added(request.body.updates)]
    past = query_once(warehouse.lake, lambda conn: read_replay_check(conn, *name, ids))
    table = past.current.table
    return table if table is not None and _is_committed(request, table, past.committed_ids) else None


def _build_on(warehouse: Warehouse, request: TableCommit, past: ReplayCheck, *, refuses: bool = False) -> CommitBase:
    table, earlier = past.current.table, past.earlier
    lake_folder = Roots() if table is None or not warehouse.roots.free else Roots((to_folder_uri(table_folder(past.data_path, table)),))
    creates = is_create(request.body.requirements)
    if table is not None and _is_committed(request, table, past.committed_ids):
        return CommitBase(request.ident, table, None, NO_POSITION)
    if table is None and not creates:
        raise NoSuchTable(f"Table does not exist: {request.ident}")
    metadata, position, published = None, NO_POSITION, None
    if table is not None:
        table, published = publish_table(warehouse, request.ident, past.current)
        metadata, position = published.metadata, published.position
    _check_requested_locations(warehouse, request, metadata, table)
    locations = (*earlier, *_list_locations(request, metadata))
    base = CommitBase(
        request.ident, table, metadata, position, published, allowed=AllowedLocations(locations, warehouse.roots, lake_folder)
    )
    if refuses and table is not None and _has_landed_meanwhile(warehouse, request, base):
        return CommitBase(request.ident, table, None, NO_POSITION)
    reader = ManifestReader(warehouse.objects, base.allowed, readers=warehouse.readers)
    if request.incoming is not None:
        reader.reuse(request.incoming)
    if published is not None and published.newest_list[0]:
        reader.lists[published.newest_list[0]] = published.newest_list[1]
    base = _with_changes(warehouse, request, replace(base, used_specs=_list_used_specs(reader, request, metadata)), reader)
    return replace(base, incoming=reader.list_read())


def _has_landed_meanwhile(warehouse: Warehouse, request: TableCommit, base: CommitBase) -> bool:
    """Return True if a requirement does not hold any more because the request itself has landed, False if all hold.

    The client's ids are looked up after the table was read. So a request that landed before the table was read is found, and a request
    that is not found is refused for what the table was then.
    Raises: CommitFailed: a requirement does not hold, and the request has not landed
    """
    try:
        _check_not_late(request, base)
    except CommitFailed:
        base = query_once(warehouse.lake, lambda conn: with_known_ids(conn, request, base))
        if base.table is not None and _is_committed(request, base.table, base.known):
            return True
        # A requirement may name a snapshot by the id that its client gave it.
        _check_not_late(request, base)
    return False


def _with_changes(warehouse: Warehouse, request: TableCommit, base: CommitBase, reader: ManifestReader) -> CommitBase:
    """Return the base with what the request does to files, the client's manifests read and delete files written."""
    added, move = list_added(request.body.updates), _find_move(warehouse, request, base)
    if move is None and base.metadata is not None and removes_main(request.body.updates):
        return _empty(base, base.metadata, reader)
    if not added and move is None:
        return base
    known = () if base.metadata is None else base.metadata.schemas
    schemas = [*known, *(update.schema for update in request.body.updates if isinstance(update, AddSchema))]
    context = SnapshotContext(
        base.metadata, added, schemas, () if base.published is None else list_client_written(base.published.state.notes.refs)
    )
    try:
        branch_snapshots = _prepare_branch_snapshots(warehouse, request, base, (reader, context))
        changes = compute_changes(reader, context, branch_snapshots)
    except (BadRequest, CommitFailed):
        # A replay may have landed since; a late request wrote its manifests for an older table state.
        with reading(warehouse.lake) as conn:
            base = with_known_ids(conn, request, base)
        if base.table is not None and _is_committed(request, base.table, base.known):
            return CommitBase(request.ident, base.table, None, NO_POSITION)
        _check_not_late(request, base)
        raise
    if move is not None and base.metadata is not None:
        changes.append(compute_move(reader, context, move))
    base = _with_row_ids(warehouse, request, replace(base, changes=changes, move=move, branch_snapshots=branch_snapshots), reader)
    if may_lack_field_ids(base.metadata, request.body.updates):
        base = replace(base, footers=read_footers(warehouse, base.table, base.allowed, base.changes))
    if not any(change.deletes or change.returned for change in base.changes):
        return replace(base, deletes=[NO_DELETES] * len(base.changes))
    with reading(warehouse.lake) as conn:
        writer = DeleteWriter(conn, warehouse.objects, base.allowed.locations, base.table)
        return replace(base, deletes=writer.prepare(base.changes))


def _with_row_ids(warehouse: Warehouse, request: TableCommit, base: CommitBase, reader: ManifestReader) -> CommitBase:
    """Return the base with copies in place of the data files in which rows wait for their ids."""
    if base.table is None or base.metadata is None or base.published is None:
        return base
    added, branch_snapshots = list_added(request.body.updates), base.branch_snapshots
    snapshot_changes = [
        SnapshotChange(
            snapshot,
            branch_snapshots[snapshot.snapshot_id].change if snapshot.snapshot_id in branch_snapshots else change,
            snapshot.snapshot_id in branch_snapshots,
        )
        for snapshot, change in zip(added, base.changes, strict=False)
    ]
    ids = list_numbers(added)
    waiting = list_waiting(base.metadata, snapshot_changes, base.published.state.next_row_id)
    deleted = list_deleted_targets(reader, branch_snapshots.values(), ids) if waiting else set[str | None]()
    # A data file that deletes on a branch reference keeps its name.
    waiting = [] if None in deleted else [each for each in waiting if each.file.file_path not in deleted]
    if not waiting:
        return base
    with reading(warehouse.lake) as conn:
        found = with_known_ids(conn, request, base)
        if _is_committed(request, base.table, found.known):
            return base
        try:
            check_still_required(request, found)
        except CatalogError:
            # A late request is refused under the lock.
            return base
        waiting = choose_new(conn, base.table, waiting)
        check_files(conn, base.table.table_id, base.allowed, [each.file.file_path for each in waiting])
    writer = RowIdWriter(warehouse.objects, base.allowed.locations[-1])
    writer.copy(waiting)
    if not writer.copies:
        return base
    return replace(
        base,
        copies=[file.file_path for file in writer.copies.values()],
        changes=[with_file_copies(change, writer.copies) for change in base.changes],
        branch_snapshots={i: with_data_copies(reader, prepared, writer.copies, ids) for i, prepared in base.branch_snapshots.items()},
    )


def _empty(base: CommitBase, metadata: TableMetadata, reader: ManifestReader) -> CommitBase:
    """Return the base with the end of all rows of main; where there are none, nothing comes to an end."""
    if metadata.current_snapshot_id is None:
        return base
    change = compute_emptying(reader, metadata)
    changes = [change] if change.removed else []
    return replace(base, changes=changes, deletes=[NO_DELETES] * len(changes), is_emptied=True)


def _prepare_branch_snapshots(
    warehouse: Warehouse, request: TableCommit, base: CommitBase, brought: tuple[ManifestReader, SnapshotContext]
) -> dict[int, BranchSnapshot]:
    """Return the snapshots of a request that are not for main, each compared with its parent."""
    reader, context = brought
    branch_snapshots, added = list_off_main(request.body.updates), context.added
    if not branch_snapshots:
        return {}
    if base.metadata is not None and base.published is not None:
        context = replace(context, specs=compute_new_specs(base.metadata, base.published.state.notes, request.body.updates))
    if not base.allowed.locations:
        raise BadRequest("A new table with snapshots on branches needs a location for their manifests; send set-location.")
    there = () if base.metadata is None else base.metadata.snapshots
    lists = {snapshot.snapshot_id: snapshot.manifest_list for snapshot in (*there, *added)}
    if base.table is not None:
        with reading(warehouse.lake) as conn:
            parents = [snapshot.parent_snapshot_id for snapshot in added if snapshot.parent_snapshot_id is not None]
            known = read_client_snapshots(conn, base.table.table_id, parents)
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


def _is_named(warehouse: Warehouse, base: CommitBase, uris: Sequence[str]) -> bool:
    """Return True if the lake has or had one of these files, or one of them holds derived inlined rows."""
    if base.table is None or not uris:
        return False
    locations = [to_canonical(location) for location in base.allowed.locations]
    if any(find_inlined_snapshot(locations, to_canonical(uri)) is not None for uri in uris):
        return True
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), base.table)
        return is_any_named(conn, [path for uri in uris for path in list_spellings(folder, uri)])


def _find_move(warehouse: Warehouse, request: TableCommit, base: CommitBase) -> Snapshot | None:
    """Return the snapshot that main is to go to, when it is there already and main is somewhere else."""
    target = find_main_target(request.body.updates)
    if target is None or base.table is None or base.metadata is None:
        return None
    with reading(warehouse.lake) as conn:
        known = read_client_snapshots(conn, base.table.table_id, [target])
    found = find_snapshot(base.metadata, target) or find_snapshot(base.metadata, known.get(target, target))
    return None if found is None or found.snapshot_id == base.metadata.current_snapshot_id else found


def _list_used_specs(reader: ManifestReader, request: TableCommit, metadata: TableMetadata | None) -> frozenset[int]:
    if metadata is None or not any(isinstance(update, RemoveSpecs) for update in request.body.updates):
        return frozenset()
    gone = {i for update in request.body.updates if isinstance(update, RemoveSnapshots) for i in update.snapshot_ids}
    stay = (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone)
    return frozenset(file.partition_spec_id for snapshot in stay for file in reader.read_list(snapshot.manifest_list))


def _list_locations(request: TableCommit, metadata: TableMetadata | None) -> Sequence[str]:
    """Return where the table is, and where it will be as the request says it."""
    present = [] if metadata is None else [metadata.location]
    told = [update.location.rstrip("/") for update in request.body.updates if isinstance(update, SetLocation)]
    return [*present, *told]


def _check_requested_locations(warehouse: Warehouse, request: TableCommit, metadata: TableMetadata | None, table: TableRow | None) -> None:
    """Raise Forbidden for a location that the client may not choose, before anything is read or written there.

    Raises: BadRequest: the table may not have it, or the store takes no objects there
    """
    told = [update.location.rstrip("/") for update in request.body.updates if isinstance(update, SetLocation)]
    if not told:
        return
    if warehouse.roots.free:
        if metadata is None or told[-1] != metadata.location:
            check_store(warehouse, told[-1], NO_TABLE if table is None else table.table_id)
        return
    if metadata is not None:
        given = metadata.location
    else:
        uuids = [update.uuid for update in request.body.updates if isinstance(update, AssignUuid)]
        with reading(warehouse.lake) as conn:
            place = get_place(conn, request.ident)
            given = table_location(read_iceberg_path(conn), UUID(uuids[-1]), place.schema_name, place.table_name) if uuids else ""
    for location in told:
        check_given_location(location, given)


def _check_not_late(request: TableCommit, base: CommitBase) -> None:
    check_still_required(request, base)
    check_parents(base.metadata, map_updates(request.body.updates, build_id_translator(base)))


def with_known_ids(conn: psycopg.Connection, request: TableCommit, base: CommitBase) -> CommitBase:
    """Return the base with those of the client's ids that are known."""
    client_ids = _list_client_ids(request, base)
    if base.table is None or not client_ids:
        return base
    return replace(base, known=read_client_snapshots(conn, base.table.table_id, client_ids))


def _list_client_ids(request: TableCommit, base: CommitBase) -> list[int]:
    """Return the ids of a request that are not the table's own, or should not be."""
    added = {snapshot.snapshot_id for snapshot in list_added(request.body.updates)}
    others = set(list_client_ids(request.body.requirements, request.body.updates)) - added
    return [*(others - list_own_ids(base, others)), *added]


def build_watched(requests: Sequence[TableCommit], bases: Sequence[CommitBase]) -> WatchedTable | None:
    """Return what the lake's lock is to look after: the table, if it is one and is there."""
    if len(bases) != 1 or bases[0].table is None:
        return None
    return WatchedTable(bases[0].table.table_id, bases[0].table.table_uuid, bases[0].position, _list_client_ids(requests[0], bases[0]))


def with_known_ids_under_lock(commit: Commit, requests: Sequence[TableCommit], bases: Sequence[CommitBase]) -> list[CommitBase]:
    """Return the bases with those of the clients' ids that are known, under the lock."""
    if commit.locked_check is not None:
        return [replace(bases[0], known=commit.locked_check.committed_ids)]
    return [with_known_ids(commit.conn, request, base) for request, base in zip(requests, bases, strict=True)]


def list_own_ids(base: CommitBase, ids: Collection[int]) -> set[int]:
    """Return those of the ids that snapshots of the table have."""
    return set() if base.metadata is None else select_known_ids(base.metadata.snapshots, ids)


def build_id_translator(base: CommitBase) -> Callable[[int], int]:
    """Return what gives the id that the lake has for a snapshot which a client may know by its own."""
    known, ours = base.known, list_own_ids(base, base.known.keys())
    return lambda snapshot_id: snapshot_id if snapshot_id in ours else known.get(snapshot_id, snapshot_id)


def check_still_required(request: TableCommit, base: CommitBase) -> None:
    """Raise CommitFailed when a requirement does not hold."""
    requirements = map_requirements(request.body.requirements, build_id_translator(base))
    check_requirements(base.metadata, requirements)
    if any([isinstance(update, RemoveSnapshots) for update in request.body.updates]):
        check_removed_refs(base.metadata, requirements, map_updates(request.body.updates, build_id_translator(base)))


def is_committed(commit: Commit, request: TableCommit, base: CommitBase) -> bool:
    """Return True if the request has been committed before; call it under the lock."""
    if base.table is not None:
        return _is_committed(request, base.table, base.known)
    table = find_table(commit.conn, to_schema_name(request.ident.namespace), request.ident.name)
    ids = [snapshot.snapshot_id for snapshot in list_added(request.body.updates)]
    return table is not None and _is_committed(request, table, read_client_snapshots(commit.conn, table.table_id, ids) if ids else {})


def _is_committed(request: TableCommit, table: TableRow, known: Mapping[int, int]) -> bool:
    """A request has landed when all snapshots it adds are known, or when the table it makes is there under its uuid."""
    if list_added(request.body.updates):
        return is_replay(request.body.updates, known)
    uuids = [update.uuid.lower() for update in request.body.updates if isinstance(update, AssignUuid)]
    return is_create(request.body.requirements) and str(table.table_uuid) in uuids
