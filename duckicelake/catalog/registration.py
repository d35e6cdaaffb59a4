"""Registration of tables by a metadata file, dropped ones of this lake included, and unregistration.

`rest/routes/tables.py` calls this on worker threads. Registering an external table writes its deletes as DuckLake delete files before the
lake is locked, and a test object if the table lies in another bucket than ICEBERG_PATH. One transaction under the lock then writes the
rows, and the load at the end publishes the table. Unregistering loads the table, and is then one transaction; no object is deleted.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.commits.plan import FileWriter, PlannedTable
from duckicelake.catalog.dropped.protection import check_may_drop_table
from duckicelake.catalog.external_metadata import ExternalTable, prepare_external_table, read_metadata_file
from duckicelake.catalog.incoming.delete_resolution import SequencedFile
from duckicelake.catalog.location_rules import (
    NO_TABLE,
    AllowedLocations,
    check_free,
    check_path_properties,
    check_still_own,
    check_store,
    check_table_location,
    get_last_version,
    get_place,
)
from duckicelake.catalog.table_changes import load_committed_table, to_state_unknown
from duckicelake.catalog.tables import Ident, LoadedTable, get_table, load_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, CatalogError, CommitFailed, NoSuchTable
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import find_field
from duckicelake.lake.changes import kinds_of_table
from duckicelake.lake.connect import reading
from duckicelake.lake.locations import find_owning_location
from duckicelake.lake.note_rows import (
    PLACEHOLDER_ID,
    FileSequenceNumber,
    MappedFile,
    NewMove,
    NewRegistered,
    PinnedFile,
    PlaceholderTable,
    ReservedRowIds,
    UnpinnedFile,
)
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path
from duckicelake.lake.rows import Position, TableRow
from duckicelake.lake.writing.apply import skip_to_snapshot, write_steps
from duckicelake.lake.writing.lookups import has_view, is_touched
from duckicelake.lake.writing.registration import (
    LocatedTable,
    find_drop_snapshot,
    find_dropped_table,
    find_live_table_name,
    find_scheduled_path,
    has_purge,
    list_data_paths,
    list_known_paths,
    list_located_tables,
    list_pinned_paths,
    remove_purged_location,
    take_back_purge,
    write_unregistered,
)
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.client_snapshots import change_statistics, format_log
from duckicelake.translate.locations import Roots, metadata_uri, table_folder, to_canonical, to_folder_uri
from duckicelake.translate.namespaces import to_schema_name
from duckicelake.translate.to_ducklake.commits import (
    change_main_retention,
    check_partition,
    compute_first_row_id,
    compute_lake_snapshot_id,
    keep_earlier_snapshots,
    list_former_columns,
)
from duckicelake.translate.to_ducklake.files import AddedFile, FirstIds, add_files, add_mapping, check_file
from duckicelake.translate.to_ducklake.tables import (
    IdAllocator,
    TableStep,
    changed_note,
    create_table,
    drop_table,
    partition_table,
    revive_table,
    to_lake_steps,
)
from duckicelake.translate.unreadable_columns import HIDE, PROPERTY

METADATA_FILE = re.compile(r"(.+)/metadata/v([1-9]\d{0,17})\.metadata\.json")
DROP = frozenset({"dropped_table"})


def register_table(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool = False) -> LoadedTable:
    """Make the table of a metadata file known under a name, with all of its snapshots; `overwrite`: in place of what has the name.

    What was dropped from this lake comes back by its newest file as DuckLake has it since.
    Raises: NoSuchNamespace. AlreadyExists: the name is taken, or the table is there. BadRequest: the file, or something it
    names, is missing, malformed, elsewhere or of a kind that DuckLake cannot hold, or DuckLake has begun to forget the table
    """
    with reading(warehouse.lake) as conn:
        _find_replaced(conn, ident, overwrite=overwrite)
        _check_place(conn, warehouse.roots, metadata_location)
        dropped = _find_dropped(conn, metadata_location)
    come = _register_external if dropped is None else _revive
    return load_committed_table(warehouse, ident, come(warehouse, ident, metadata_location, overwrite=overwrite))


def _check_place(conn: psycopg.Connection, roots: Roots, uri: str) -> None:
    home = to_folder_uri(read_iceberg_path(conn))
    if not Roots((*roots.folders, home), roots.anywhere).holds(uri):
        raise BadRequest(f"The metadata file {uri!r} lies neither under {home!r} nor under one of the server's allowed_locations.")


def _find_replaced(conn: psycopg.Connection, ident: Ident, *, overwrite: bool) -> TableRow | None:
    """Return the table that has the name and is to go.

    Raises: NoSuchNamespace. AlreadyExists: the name is taken, and is to stay. DropProtected: a property protects the table
    """
    place = get_place(conn, ident)
    if not overwrite:
        check_free(conn, ident, place)
        return None
    if has_view(conn, place.schema_id, ident.name):
        raise AlreadyExists(f"View with same name already exists: {ident}")
    found = find_table(conn, to_schema_name(ident.namespace), ident.name)
    if found is not None:
        check_may_drop_table(conn, found)
    return found


def _register_external(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool) -> UUID:
    metadata = read_metadata_file(warehouse.objects, metadata_location)
    with reading(warehouse.lake) as conn:
        metadata = with_own_identity(conn, metadata, warehouse.roots, _find_replaced(conn, ident, overwrite=overwrite))
        # now, and under the lock: one that ends between the two has taken what is read here
        _check_not_purged(conn, metadata_location, metadata.location)
        was_here = get_last_version(conn, metadata.location) > 0
        if was_here:
            _check_hides_nothing(metadata)
    check_store(warehouse, metadata.location, None)
    external = prepare_external_table(warehouse, metadata, with_past=was_here)
    existing = _list_existing(warehouse, external) if was_here else None
    allowed = AllowedLocations((metadata.location,), warehouse.roots)
    with committing(warehouse.lake) as commit:
        _check_not_purged(commit.conn, metadata_location, metadata.location)
        replaced = _find_replaced(commit.conn, ident, overwrite=overwrite)
        uuid = insert_registered_table(commit, TableRegistration(ident, metadata_location, external, allowed, replaced, existing))
        if not remove_purged_location(commit.conn, metadata.location):
            raise _being_deleted(metadata_location)
        commit.write_object(uuid)
    return uuid


def _check_hides_nothing(metadata: TableMetadata) -> None:
    """Raise BadRequest if a table of this lake may have had columns that are missing in its metadata."""
    if metadata.properties.get(PROPERTY) == HIDE:
        raise BadRequest(
            f"The metadata file leaves out columns that the table had in DuckDB ({PROPERTY}={HIDE}); a table made from it would lack them. "
            "Register the newest metadata file of the dropped table, before its last snapshot expires, or copy the rows."
        )


def _list_existing(warehouse: Warehouse, external: ExternalTable) -> frozenset[str]:
    """Return those data files that are there though DuckLake knows nothing of them."""
    uris = [*(found.live.file.file_path for found in external.files), *external.past]
    with reading(warehouse.lake) as conn:
        known = list_known_paths(conn, [path for uri in uris for path in list_path_spellings(uri)], NO_TABLE)
    unknown = [uri for uri in uris if not known & set(list_path_spellings(uri))]
    return frozenset(uri for uri in unknown if warehouse.objects.exists(uri))


def _revive(warehouse: Warehouse, ident: Ident, metadata_location: str, *, overwrite: bool) -> UUID:
    with reading(warehouse.lake) as conn:
        dropped = _find_dropped(conn, metadata_location)
        _check_not_purged(conn, metadata_location, "", NO_TABLE if dropped is None else dropped.table_id)
    if not warehouse.objects.exists(metadata_location):
        raise BadRequest(f"The metadata file {metadata_location!r} is missing: the table was dropped with its files.")
    with committing(warehouse.lake) as commit:
        replaced = _find_replaced(commit.conn, ident, overwrite=overwrite)
        table = _find_dropped(commit.conn, metadata_location)
        if table is None or table.end_snapshot is None:
            raise AlreadyExists(f"Table already exists: the one of {metadata_location!r} has just come back.")
        _check_not_purged(commit.conn, metadata_location, "", table.table_id)
        folder = table_folder(read_data_path(commit.conn), table)
        step = TableStep() if replaced is None else drop_table(replaced.table_id)
        revived = revive_table(table, get_place(commit.conn, ident), folder, table.end_snapshot)
        paths = [folder + path if is_relative else path for path, is_relative in list_data_paths(commit.conn, table.table_id)]
        step.rows += [*revived.rows, *(UnpinnedFile(path) for path in paths)]
        step.changes += revived.changes
        step.changes_catalog = True
        write_steps(commit, to_lake_steps(commit.head, IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id), [[step]]))
        if not take_back_purge(commit.conn, table.table_id):
            raise _being_deleted(metadata_location)
        commit.write_object(table.table_uuid)
    return table.table_uuid


def _check_not_purged(conn: psycopg.Connection, metadata_location: str, location: str, table_id: int = NO_TABLE) -> None:
    """Raise BadRequest when what the file says is about to be removed: a purge has dropped it, and has not come to its end."""
    if has_purge(conn, table_id, location):
        raise _being_deleted(metadata_location)


def _being_deleted(metadata_location: str) -> BadRequest:
    return BadRequest(
        f"The table of {metadata_location!r} was dropped with its files, which are being deleted. "
        "An hour after the last of them was deleted it can be registered, if they are still there."
    )


def _find_dropped(conn: psycopg.Connection, metadata_location: str) -> LocatedTable | None:
    """Return the dropped table whose newest metadata file that is, when every row of it is still there; None for other files.

    Of one that has begun to expire only the files are left that DuckLake has not removed.
    Raises: BadRequest: its location is another table's now, or what dropped it changed it too
    """
    match = METADATA_FILE.fullmatch(metadata_location)
    found = list_located_tables(conn, match[1]) if match else []
    table = next((table for table in found if match and table.metadata_version == int(match[2])), None)
    if match is None or table is None or table.end_snapshot is None:
        return None
    check_still_own(conn, table.table_id, match[1])
    drop = find_drop_snapshot(conn, table.end_snapshot)
    if drop is None or not drop[1]:
        return None
    others = kinds_of_table(drop[0], table.table_id) - DROP
    if others:
        raise BadRequest(
            f"The transaction that dropped the table also changed it ({', '.join(sorted(others))}); its state before that is unknown."
        )
    return table


MAX_JUMP = 2**32


@dataclass(frozen=True, slots=True)
class TableRegistration:
    """A table to be taken in under a name; `replaced` is the table that has the name and goes.

    `existing`: of a table that was in this lake before, the files that are there though DuckLake does not know them.
    """

    ident: Ident
    metadata_location: str
    external: ExternalTable
    allowed: AllowedLocations
    replaced: TableRow | None
    existing: frozenset[str] | None = None


def insert_registered_table(commit: Commit, registration: TableRegistration) -> UUID:
    """Make the table at the next lake snapshot, or at one further on where its own numbers want that, and return its uuid.

    Raises: BadRequest: it cannot be held here, or its files are not safe. AlreadyExists: the table is here, under another name
    """
    metadata = with_own_identity(commit.conn, registration.external.metadata, registration.allowed.roots, registration.replaced)
    lake_snapshot_id = compute_lake_snapshot_id(metadata, commit.head.snapshot_id, MAX_JUMP)
    commit = skip_to_snapshot(commit, lake_snapshot_id)
    ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
    table_id = ids.take_catalog_id()
    last_version = max(get_last_version(commit.conn, metadata.location), registration.external.last_version)
    step = TableStep() if registration.replaced is None else drop_table(registration.replaced.table_id)
    made = create_table(table_id, get_place(commit.conn, registration.ident, commit.head.lake_format), metadata, last_version)
    step.rows += [
        *made.rows,
        *partition_table(ids, table_id, metadata, made.rows, commit.head.lake_format),
        *list_former_columns(table_id, metadata),
        *change_statistics(table_id, None, metadata, registration.allowed.holds),
    ]
    step.changes += made.changes
    step.changes_catalog = True
    if metadata.format_version > 1:
        step.rows.append(changed_note(table_id, metadata, sequence_base=_compute_sequence_base(metadata, lake_snapshot_id)))
    if metadata.current_snapshot_id is not None:
        step.add_change("inserted_into_table", table_id)
    _add_files(step, FileWriter(ids, PlannedTable(table_id, None, metadata, ()), registration.allowed), registration.external)
    step.rows += _pin_past_files(commit.conn, ids, table_id, registration)
    notes = [
        *_build_past_notes(table_id, registration, metadata),
        *keep_earlier_snapshots(table_id, metadata, lake_snapshot_id),
        *change_main_retention(table_id, None, metadata),
    ]
    step.rows += notes
    write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
    return UUID(metadata.table_uuid)


def _compute_sequence_base(metadata: TableMetadata, lake_snapshot_id: int) -> int:
    """In version 3 sequence numbers are lake snapshot ids; below, the table's own go on."""
    return 0 if metadata.format_version > 2 else lake_snapshot_id - metadata.last_sequence_number


def with_own_identity(conn: psycopg.Connection, metadata: TableMetadata, roots: Roots, replaced: TableRow | None) -> TableMetadata:
    """Return the metadata with a uuid and a location that are the table's alone.

    Raises: AlreadyExists: the table is here, under another name. BadRequest: it may not be where it is
    """
    table_id = NO_TABLE if replaced is None else replaced.table_id
    try:
        uuid = UUID(metadata.table_uuid) if metadata.table_uuid else uuid4()
    except ValueError as error:
        raise BadRequest(f"The table's uuid {metadata.table_uuid[:100]!r} is none.") from error
    there = find_live_table_name(conn, uuid, table_id)
    if there is not None:
        raise AlreadyExists(f"Table already exists: {'.'.join(there)} has the uuid {uuid}; rename it, or drop it first.")
    location = check_table_location(conn, metadata.location, roots, table_id)
    check_path_properties(conn, table_id, AllowedLocations((location,), roots), metadata.properties, {})
    return replace(metadata, table_uuid=str(uuid), location=location)


def _add_files(step: TableStep, writer: FileWriter, external: ExternalTable) -> None:
    """Add the rows of the current snapshot's files and deletes."""
    planned, ids = writer.planned, writer.ids
    metadata, table_id = planned.new, planned.table_id
    taken = [_to_taken_file(found, metadata) for found in external.files]
    next_row_id = compute_first_row_id(metadata)
    if next_row_id:
        step.rows.append(ReservedRowIds(table_id, next_row_id))
    if not taken:
        return
    first = FirstIds(ids.take_file_ids(len(taken)), next_row_id)
    step.rows += add_files(table_id, taken, get_current_schema(metadata), first)
    by_path = {file.file.file_path: data_file_id for data_file_id, file in enumerate(taken, first.data_file_id)}
    if metadata.format_version > 1:
        step.rows += [FileSequenceNumber(by_path[found.live.file.file_path], found.number) for found in external.files]
    writer.made.update({path: [data_file_id] for path, data_file_id in by_path.items()})
    live = {field.field_id for field in get_current_schema(metadata).fields}
    mappings = {names: ids.take_file_ids(1) for names in dict.fromkeys(external.names.values())}
    for names, mapping_id in mappings.items():
        step.rows += add_mapping(table_id, mapping_id, names, live)
    step.rows += [MappedFile(by_path[path], mappings[names]) for path, names in external.names.items()]
    writer.delete_rows(step, external.prepared)


def _to_taken_file(found: SequencedFile, metadata: TableMetadata) -> AddedFile:
    """Return a file with its spec; where the spec's columns are gone, without its partition.

    Raises: BadRequest: it is of no spec of the table, or not of a kind that DuckLake holds
    """
    file, spec_id = found.live.file, found.live.spec_id
    where = f"Data file {file.file_path!r}"
    spec = next((spec for spec in metadata.partition_specs if spec.spec_id == spec_id), None)
    if spec is None:
        raise BadRequest(f"{where} is written for partition spec {spec_id}, which the table has not.")
    if len(spec.fields) != len(file.partition):
        raise BadRequest(f"{where} has {len(file.partition)} partition values, and its spec {len(spec.fields)} fields.")
    schema = get_current_schema(metadata)
    if any(find_field(schema, item.source_id) is None for item in spec.fields):
        file, spec = replace(file, partition=()), PartitionSpec(spec_id, ())
    check_partition(where, spec, schema, file.partition)
    taken = AddedFile(file, spec, file.first_row_id if metadata.format_version > 2 else None)
    check_file(taken)
    return taken


def _build_past_notes(table_id: int, registration: TableRegistration, metadata: TableMetadata) -> list[NewRow]:
    shown = registration.external.is_converted
    log = (*metadata.metadata_log, (metadata.last_updated_ms, registration.metadata_location))
    current = metadata.current_snapshot_id
    note = NewRegistered(table_id, current, shown, format_log(metadata.snapshot_log), format_log(log))
    return [note] if shown or current is None else [note, NewMove(table_id, current)]


def _pin_past_files(conn: psycopg.Connection, ids: IdAllocator, table_id: int, registration: TableRegistration) -> list[NewRow]:
    """Return what keeps the files of older snapshots, after a look whether all files will stay.

    Raises: BadRequest: one lies in another table's location, or DuckLake removes it
    """
    live, past = [found.live.file.file_path for found in registration.external.files], set(registration.external.past)
    paths = {path: uri for uri in (*live, *sorted(past)) for path in list_path_spellings(uri)}
    known = list_known_paths(conn, list(paths), NO_TABLE if registration.replaced is None else registration.replaced.table_id)
    _check_safe(conn, registration, sorted({*live, *past}), {paths[path] for path in known})
    _check_own(conn, registration, live)
    scheduled = find_scheduled_path(conn, list(paths))
    if scheduled is not None:
        raise BadRequest(f"DuckLake is going to remove the data file {scheduled!r}: the table was dropped, and has expired.")
    pinned = [paths[path] for path in sorted(known) if paths[path] in past]
    first = ids.take_file_ids(len(pinned))
    pins: Sequence[NewRow] = [PinnedFile(i, table_id, list_path_spellings(uri)[-1]) for i, uri in enumerate(pinned, first)]
    return [*pins, *(UnpinnedFile(path) for path in sorted(known))]


def _check_safe(conn: psycopg.Connection, registration: TableRegistration, uris: Sequence[str], known: set[str]) -> None:
    """Raise BadRequest for a file that lies where the table may have none, or that DuckLake would remove."""
    data_folder = to_folder_uri(read_data_path(conn))
    for uri in uris:
        lies_in_data = to_canonical(uri).startswith(data_folder)
        if not lies_in_data and not registration.allowed.holds(uri):
            raise BadRequest(
                f"Data file {uri!r} does not lie in the table's location {registration.allowed.locations[-1]!r}, "
                "nor under one of the server's allowed_locations."
            )
        if uri in known:
            continue
        if lies_in_data:
            raise BadRequest(f"Data file {uri!r} lies under DuckLake's DATA_PATH, where DuckLake removes files it does not know.")
        if registration.existing is not None and uri not in registration.existing:
            raise BadRequest(f"Data file {uri!r} is missing: the table was dropped from this lake, and has expired.")


def _check_own(conn: psycopg.Connection, registration: TableRegistration, live: Sequence[str]) -> None:
    """Raise BadRequest for a file in the location of another table."""
    external = [to_canonical(uri) for uri in live if not registration.allowed.is_own(uri)]
    table_id = NO_TABLE if registration.replaced is None else registration.replaced.table_id
    owned = find_owning_location(conn, table_id, external) if external else None
    if owned is not None:
        raise BadRequest(f"A data file lies in the location of another table, {owned!r}; copy its rows.")


def list_path_spellings(uri: str) -> tuple[str, ...]:
    """Return the ways in which DuckLake may have written a full path down; its own comes last."""
    return (uri, uri.removeprefix("file://")) if uri.startswith("file://") else (uri,)


UNREGISTER_TRIES = 10


class _TableChanged(Exception):
    """The table changed between loading it and locking the lake: nothing may be written, not even the request's key."""


def unregister_table(warehouse: Warehouse, ident: Ident) -> LoadedTable:
    """Take a table out of the lake and return it as it was then; its files and metadata stay for the catalog that registers it next.

    Raises: NoSuchTable: it does not exist. CommitFailed: others change it all the time. BadRequest: on a branch
    """
    if warehouse.repository is not None:
        raise BadRequest(f"The table {ident} cannot be unregistered on a branch: merge the branch, and unregister the table in the lake.")
    for _ in range(UNREGISTER_TRIES):
        loaded = load_table(warehouse, ident)
        with suppress(_TableChanged), committing(warehouse.lake) as commit:
            table = get_table(commit.conn, ident)
            if table.table_id != loaded.table_id or is_touched(commit.conn, table.table_id, loaded.position):
                raise _TableChanged
            check_may_drop_table(commit.conn, table)
            _drop_and_pin(commit, table)
            write_unregistered(commit.conn, table)
            commit.write_object(table.table_uuid)
            return loaded
    raise CommitFailed(f"The table {ident} was changed again and again while it was being unregistered; nothing was done. Try again.")


def get_unregistered(warehouse: Warehouse, ident: Ident, table_uuid: UUID | None) -> LoadedTable:
    """Return the table with that uuid, which was unregistered, as its answer said.

    Raises: CommitStateUnknown: DuckLake has forgotten it, or its metadata file is gone
    """
    with reading(warehouse.lake) as conn:
        found = None if table_uuid is None else find_dropped_table(conn, table_uuid)
    if found is None:
        raise to_state_unknown(ident, NoSuchTable("DuckLake has forgotten the table."))
    table_id, location, version = found
    uri = metadata_uri(location, version)
    try:
        return LoadedTable(uri, warehouse.objects.read(uri), {}, table_id, Position(-1, -1))
    except CatalogError as error:
        raise to_state_unknown(ident, error) from error


def _drop_and_pin(commit: Commit, table: TableRow) -> None:
    """Drop the table from the lake and let DuckLake go on knowing its data files, so that it removes none of them."""
    ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
    step = drop_table(table.table_id)
    step.rows += _pin_files(commit, table, ids)
    write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))


def _pin_files(commit: Commit, table: TableRow, ids: IdAllocator) -> Iterator[NewRow]:
    folder = table_folder(read_data_path(commit.conn), table)
    paths = {folder + path if is_relative else path for path, is_relative in list_data_paths(commit.conn, table.table_id)}
    fresh = sorted(paths - list_pinned_paths(commit.conn, sorted(paths)))
    if fresh:
        yield PlaceholderTable(PLACEHOLDER_ID)
    for delete_file_id, path in enumerate(fresh, ids.take_file_ids(len(fresh))):
        yield PinnedFile(delete_file_id, PLACEHOLDER_ID, path)
