"""A table of another catalog taken in under the lock: its files stay where they are, its past stays as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.tables import Ident
from duckicelake.catalog.writing.files import FileWriter, Planned
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.lifecycle.foreign import Foreign
from duckicelake.catalog.writing.places import Grounds, check_paths, check_table_location, find_first_version, get_place
from duckicelake.catalog.writing.ready.numbered import NumberedFile
from duckicelake.errors import AlreadyExists, BadRequest
from duckicelake.iceberg.metadata import TableMetadata, current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import find_field
from duckicelake.lake.read import read_data_path
from duckicelake.lake.refs.rows import NewMove, TakenRowIds
from duckicelake.lake.registered.read import find_known, find_live_name, find_scheduled
from duckicelake.lake.registered.rows import FreedFile, MappedFile, NewRegistered, PinnedFile
from duckicelake.lake.registered.rows import NumberedFile as NumberedRow
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.apply import apply, jump_to
from duckicelake.lake.writing.locations import find_owner
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.locations import Roots, to_canonical, to_folder_uri
from duckicelake.translate.shape.told_registered import format_log
from duckicelake.translate.shape.told_statistics import change_statistics
from duckicelake.translate.to_ducklake.files import FirstIds, TakenFile, add_files, check_file
from duckicelake.translate.to_ducklake.mapped.columns import add_mapping
from duckicelake.translate.to_ducklake.refs import name_main
from duckicelake.translate.to_ducklake.registered import (
    check_partition,
    find_first_row_id,
    find_lake_snapshot_id,
    keep_past,
    list_lost_columns,
)
from duckicelake.translate.to_ducklake.tables import TableStep, changed_note, create_table, drop_table

MAX_JUMP = 2**32
NO_TABLE = -1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A table to be taken in under a name; `replaced` is the table that has the name and goes.

    `seen`: of a table that was in this lake before, the files that are there though DuckLake does not know them.
    """

    ident: Ident
    metadata_location: str
    foreign: Foreign
    grounds: Grounds
    replaced: TableRow | None
    seen: frozenset[str] | None = None


def take_in(commit: Commit, arrival: Arrival) -> UUID:
    """Make the table at the next lake snapshot, or at one further on where its own numbers want that, and return its uuid.

    Raises: BadRequest: it cannot be held here, or its files are not safe. AlreadyExists: the table is here, under another name
    """
    metadata = settle(commit.conn, arrival.foreign.metadata, arrival.grounds.roots, arrival.replaced)
    lake_snapshot_id = find_lake_snapshot_id(metadata, commit.head.snapshot_id, MAX_JUMP)
    commit = jump_to(commit, lake_snapshot_id)
    ids = Ids(commit.head.next_catalog_id, commit.head.next_file_id)
    table_id = ids.take_catalog_id()
    last_version = max(find_first_version(commit.conn, metadata.location), arrival.foreign.last_version)
    step = TableStep() if arrival.replaced is None else drop_table(arrival.replaced.table_id)
    made = create_table(table_id, get_place(commit.conn, arrival.ident), metadata, last_version)
    step.rows += [*made.rows, *list_lost_columns(table_id, metadata), *change_statistics(table_id, None, metadata, arrival.grounds.holds)]
    step.changes += made.changes
    step.changes_catalog = True
    if metadata.format_version > 1:
        step.rows.append(changed_note(table_id, metadata, sequence_base=_find_base(metadata, lake_snapshot_id)))
    if metadata.current_snapshot_id is not None:
        step.tell("inserted_into_table", table_id)
    _add_files(step, FileWriter(commit, ids, Planned(table_id, None, metadata, ()), arrival.grounds), arrival.foreign)
    step.rows += _keep_files(commit.conn, ids, table_id, arrival)
    notes = [
        *_remember(table_id, arrival, metadata),
        *keep_past(table_id, metadata, lake_snapshot_id),
        *name_main(table_id, None, metadata),
    ]
    step.rows += notes
    apply(commit, to_lake_steps(commit.head, ids, [[step]]))
    return UUID(metadata.table_uuid)


def _find_base(metadata: TableMetadata, lake_snapshot_id: int) -> int:
    """In version 3 sequence numbers are lake snapshot ids; below, the table's own go on."""
    return 0 if metadata.format_version > 2 else lake_snapshot_id - metadata.last_sequence_number


def settle(conn: psycopg.Connection, metadata: TableMetadata, roots: Roots, replaced: TableRow | None) -> TableMetadata:
    """Return the metadata with a uuid and a location that are the table's alone.

    Raises: AlreadyExists: the table is here, under another name. BadRequest: it may not be where it is
    """
    table_id = NO_TABLE if replaced is None else replaced.table_id
    try:
        uuid = UUID(metadata.table_uuid) if metadata.table_uuid else uuid4()
    except ValueError as error:
        raise BadRequest(f"The table's uuid {metadata.table_uuid[:100]!r} is none.") from error
    there = find_live_name(conn, uuid, table_id)
    if there is not None:
        raise AlreadyExists(f"Table already exists: {'.'.join(there)} has the uuid {uuid}; rename it, or drop it first.")
    location = check_table_location(conn, metadata.location, roots, table_id)
    check_paths(conn, table_id, Grounds((location,), roots), metadata.properties, {})
    return replace(metadata, table_uuid=str(uuid), location=location)


def _add_files(step: TableStep, writer: FileWriter, foreign: Foreign) -> None:
    """Add the rows of the current snapshot's files and deletes."""
    planned, ids = writer.planned, writer.ids
    metadata, table_id = planned.new, planned.table_id
    taken = [_take(found, metadata) for found in foreign.files]
    next_row_id = find_first_row_id(metadata)
    if next_row_id:
        step.rows.append(TakenRowIds(table_id, next_row_id))
    if not taken:
        return
    first = FirstIds(ids.take_file_ids(len(taken)), next_row_id)
    step.rows += add_files(table_id, taken, current_schema(metadata), first)
    by_path = {file.file.file_path: data_file_id for data_file_id, file in enumerate(taken, first.data_file_id)}
    if metadata.format_version > 1:
        step.rows += [NumberedRow(by_path[found.live.file.file_path], found.number) for found in foreign.files]
    writer.made.update({path: [data_file_id] for path, data_file_id in by_path.items()})
    live = {field.field_id for field in current_schema(metadata).fields}
    mappings = {names: ids.take_file_ids(1) for names in dict.fromkeys(foreign.names.values())}
    for names, mapping_id in mappings.items():
        step.rows += add_mapping(table_id, mapping_id, names, live)
    step.rows += [MappedFile(by_path[path], mappings[names]) for path, names in foreign.names.items()]
    writer.delete_rows(step, foreign.ready)


def _take(found: NumberedFile, metadata: TableMetadata) -> TakenFile:
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
    schema = current_schema(metadata)
    if any(find_field(schema, item.source_id) is None for item in spec.fields):
        file, spec = replace(file, partition=()), PartitionSpec(spec_id, ())
    check_partition(where, spec, schema, file.partition)
    taken = TakenFile(file, spec, file.first_row_id if metadata.format_version > 2 else None)
    check_file(taken)
    return taken


def _remember(table_id: int, arrival: Arrival, metadata: TableMetadata) -> list[NewRow]:
    shown = arrival.foreign.is_converted
    log = (*metadata.metadata_log, (metadata.last_updated_ms, arrival.metadata_location))
    current = metadata.current_snapshot_id
    note = NewRegistered(table_id, current, shown, format_log(metadata.snapshot_log), format_log(log))
    return [note] if shown or current is None else [note, NewMove(table_id, current)]


def _keep_files(conn: psycopg.Connection, ids: Ids, table_id: int, arrival: Arrival) -> list[NewRow]:
    """Return what keeps the files of older snapshots, after a look whether all files will stay.

    Raises: BadRequest: one lies in another table's location, or DuckLake removes it
    """
    live, past = [found.live.file.file_path for found in arrival.foreign.files], set(arrival.foreign.past)
    paths = {path: uri for uri in (*live, *sorted(past)) for path in spell(uri)}
    known = find_known(conn, list(paths), NO_TABLE if arrival.replaced is None else arrival.replaced.table_id)
    _check_safe(conn, arrival, sorted({*live, *past}), {paths[path] for path in known})
    _check_own(conn, arrival, live)
    scheduled = find_scheduled(conn, list(paths))
    if scheduled is not None:
        raise BadRequest(f"DuckLake is going to remove the data file {scheduled!r}: the table was dropped, and has expired.")
    pinned = [paths[path] for path in sorted(known) if paths[path] in past]
    first = ids.take_file_ids(len(pinned))
    pins: Sequence[NewRow] = [PinnedFile(i, table_id, spell(uri)[-1]) for i, uri in enumerate(pinned, first)]
    return [*pins, *(FreedFile(path) for path in sorted(known))]


def _check_safe(conn: psycopg.Connection, arrival: Arrival, uris: Sequence[str], known: set[str]) -> None:
    """Raise BadRequest for a file that lies where the table may have none, or that nobody keeps."""
    data_folder = to_folder_uri(read_data_path(conn))
    for uri in uris:
        lies_in_data = to_canonical(uri).startswith(data_folder)
        if not lies_in_data and not arrival.grounds.holds(uri):
            raise BadRequest(
                f"Data file {uri!r} does not lie in the table's location {arrival.grounds.locations[-1]!r}, "
                "nor under one of the server's allowed_locations."
            )
        if uri in known:
            continue
        if lies_in_data:
            raise BadRequest(f"Data file {uri!r} lies under DuckLake's DATA_PATH, where DuckLake removes files it does not know.")
        if arrival.seen is not None and uri not in arrival.seen:
            raise BadRequest(f"Data file {uri!r} is missing: the table was dropped from this lake, and has expired.")


def _check_own(conn: psycopg.Connection, arrival: Arrival, live: Sequence[str]) -> None:
    """Raise BadRequest for a file in the location of another table."""
    foreign = [to_canonical(uri) for uri in live if not arrival.grounds.is_own(uri)]
    table_id = NO_TABLE if arrival.replaced is None else arrival.replaced.table_id
    owned = find_owner(conn, table_id, foreign) if foreign else None
    if owned is not None:
        raise BadRequest(f"A data file lies in the location of another table, {owned!r}; copy its rows.")


def spell(uri: str) -> tuple[str, ...]:
    """Return the ways in which DuckLake may have written a full path down; its own comes last."""
    return (uri, uri.removeprefix("file://")) if uri.startswith("file://") else (uri,)
