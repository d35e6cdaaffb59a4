"""Undrop: dropped tables and namespaces come back while DuckLake still has all of their rows.

The REST routes and the command line call this, in the thread of the request. Nothing is copied: the rows that the drop ended live again, so
files, snapshots, ids and notes are those of before, and the lake has one more lake snapshot. Each undrop reads in a read transaction, and
is then one commit under the lake's lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import psycopg

from duckicelake.access.grants import format_name, format_object
from duckicelake.catalog.location_rules import NO_TABLE, check_free, check_still_own, get_place
from duckicelake.catalog.namespaces import find_schema, format_levels
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NoSuchNamespace, NoSuchTable
from duckicelake.iceberg.requests.bodies import check_name
from duckicelake.lake.branches.registry import is_shared
from duckicelake.lake.changes import kinds_of_table
from duckicelake.lake.connect import reading
from duckicelake.lake.note_rows import UnpinnedFile
from duckicelake.lake.read import read_data_path
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.dropped import (
    DroppedFilter,
    DroppedSchema,
    DroppedTable,
    find_restored_schema,
    read_dropped_schemas,
    read_dropped_tables,
    read_ended_tags,
)
from duckicelake.lake.writing.registration import find_live_table_name, find_scheduled_path, list_data_paths, take_back_purge
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import metadata_uri, table_folder
from duckicelake.translate.namespaces import Levels, ParentSchema, SchemaToRestore, fold_name, restore_schema, to_levels, to_schema_name
from duckicelake.translate.to_ducklake.tables import IdAllocator, TableStep, TableTarget, revive_table, to_lake_steps

DROP = frozenset({"dropped_table"})


@dataclass(frozen=True, slots=True)
class DroppedObject:
    """A dropped table, or namespace (`name` None), as the list shows it. `obstacle`: why it cannot come back; None if it can.

    `has_namespace`: the namespace that a table was dropped from is there. `place` orders the list, the newest drop first.
    """

    namespace: Levels
    name: str | None
    uuid: UUID
    lake_snapshot_id: int
    dropped_ms: int | None
    has_namespace: bool
    obstacle: str | None
    place: tuple[int, int]

    @property
    def text(self) -> str:
        """The name as the command line takes it."""
        return format_name(self.namespace if self.name is None else (*self.namespace, self.name))


def list_dropped(warehouse: Warehouse, before: tuple[int, int] | None, most: int | None) -> Sequence[DroppedObject]:
    """Return dropped tables and namespaces that DuckLake still has rows of, the newest drop first; those after a place in the list."""
    wanted = DroppedFilter(before=before, most=most)
    with reading(warehouse.lake) as conn:
        branched = BRANCHED if is_shared(conn) else None
        tables = [_show_table(table) for table in read_dropped_tables(conn, wanted)]
        schemas = [_show_schema(schema) for schema in read_dropped_schemas(conn, wanted)]
    found = sorted([*tables, *schemas], key=lambda item: item.place, reverse=True)[:most]
    return [replace(item, obstacle=item.obstacle or branched) for item in found]


def _show_table(table: DroppedTable) -> DroppedObject:
    return DroppedObject(
        to_levels(table.schema_name),
        table.table_name,
        table.table_uuid,
        table.end_snapshot,
        _to_ms(table),
        table.has_schema,
        _find_obstacle(table),
        (table.end_snapshot, table.table_id),
    )


def _show_schema(schema: DroppedSchema) -> DroppedObject:
    place = (schema.end_snapshot, schema.schema_id)
    obstacle = None if schema.is_complete else FORGOTTEN
    levels = to_levels(schema.schema_name)
    return DroppedObject(levels, None, schema.schema_uuid, schema.end_snapshot, _to_ms(schema), False, obstacle, place)


def _to_ms(dropped: DroppedTable | DroppedSchema) -> int | None:
    return None if dropped.dropped_time is None else round(dropped.dropped_time.timestamp() * 1000)


FORGOTTEN = "DuckLake has expired lake snapshots up to the drop, so rows and files may be gone"
BRANCHED = "the lake has branches or tags, and rows that one of them reads cannot be brought back; merge what is to stay, then delete them"
LEFT = "something was in its way when the namespace came back; it can come back now"
PURGED = "it was dropped with its files (purgeRequested), which are being deleted"


def _find_obstacle(table: DroppedTable) -> str | None:
    """Return why a table cannot come back, as far as its rows show it; None if it can."""
    if not table.is_complete:
        return FORGOTTEN
    others = kinds_of_table(table.changes_made, table.table_id) - DROP
    if others:
        return f"the transaction that dropped it also changed it ({', '.join(sorted(others))}), so its state before the drop is unknown"
    return PURGED if table.is_purged else None


@dataclass(frozen=True, slots=True)
class UndropTable:
    """A request to bring back the table that was last dropped under a name; `uuid`: the one with that uuid.

    `lake_snapshot_id`: the one that this lake snapshot dropped; a table that was registered by an older file shares the uuid of the first.
    `target`: another name for it. `with_namespace`: bring its namespace back too if that is gone. `may_manage_all`: the caller manages
    the warehouse; others bring back what was dropped from a namespace that is still there.
    """

    ident: Ident
    uuid: UUID | None = None
    target: Ident | None = None
    with_namespace: bool = False
    may_manage_all: bool = False
    lake_snapshot_id: int | None = None

    @property
    def objects(self) -> Sequence[str]:
        """The names of the request, for the audit log."""
        return [format_object((*ident.namespace, ident.name)) for ident in (self.ident, self.target) if ident is not None]


@dataclass(frozen=True, slots=True)
class UndropNamespace:
    """A request to bring back the namespace that was last dropped under a name; `uuid`: the one with that uuid. `target`: another name.

    `lake_snapshot_id`: the one that this lake snapshot dropped.
    """

    levels: Levels
    uuid: UUID | None = None
    target: Levels | None = None
    lake_snapshot_id: int | None = None

    @property
    def objects(self) -> Sequence[str]:
        """The names of the request, for the audit log."""
        return [format_object(levels) for levels in (self.levels, self.target) if levels is not None]


@dataclass(frozen=True, slots=True)
class LeftTable:
    """A table of a namespace that stays dropped when the namespace comes back, and why."""

    namespace: Levels
    name: str
    obstacle: str

    @property
    def text(self) -> str:
        """The name as the command line takes it."""
        return format_name((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Undropped:
    """A table or namespace (`name` None) that is back. `tables` came back with a namespace, and `left` could not."""

    namespace: Levels
    name: str | None
    uuid: UUID
    tables: Sequence[str] = field(default_factory=tuple)
    left: Sequence[LeftTable] = field(default_factory=tuple)

    @property
    def text(self) -> str:
        """The name as the command line takes it."""
        return format_name(self.namespace if self.name is None else (*self.namespace, self.name))


def check_levels(levels: Levels) -> None:
    """Raise BadRequest for a name that no table and no namespace can have."""
    to_schema_name(tuple(check_name(level, "name") for level in levels))


def undrop_table(warehouse: Warehouse, asked: UndropTable) -> Undropped:
    """Bring a dropped table back, with its history, uuid, properties, refs and grants.

    Raises: NoSuchTable: DuckLake has no dropped table of that name. AlreadyExists: the name is taken. NoSuchNamespace: its namespace is
    gone. BadRequest: it cannot come back whole
    """
    with reading(warehouse.lake) as conn:
        _check_metadata_file(warehouse, _get_table(conn, asked))
    with committing(warehouse.lake) as commit:
        _check_lake(commit.conn)
        table = _get_table(commit.conn, asked)
        target = asked.target or Ident(to_levels(table.schema_name), table.table_name)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        step = TableStep(changes_catalog=True)
        place = _get_target(commit, replace(asked, target=target), table, (step, ids))
        if place.schema_id < commit.head.next_catalog_id:
            check_free_name(commit.conn, target, place)
        _add_table(commit.conn, step, table, place)
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(table.table_uuid)
    return Undropped(to_levels(place.schema_name), place.table_name, table.table_uuid)


def check_free_name(conn: psycopg.Connection, target: Ident, place: TableTarget) -> None:
    """Raise AlreadyExists if a table or view has the name that a table is to come back under."""
    try:
        check_free(conn, target, place)
    except AlreadyExists as error:
        raise AlreadyExists(f"{error.message}. Choose another name for the dropped table, or rename what has this name.") from error


def _get_table(conn: psycopg.Connection, asked: UndropTable) -> DroppedTable:
    """Return the dropped table that a request names. Raises: NoSuchTable."""
    name = to_schema_name(asked.ident.namespace)
    found = [
        table
        for table in read_dropped_tables(conn, DroppedFilter(name=asked.ident.name))
        if fold_name(table.schema_name) == fold_name(name)
        and asked.uuid in (None, table.table_uuid)
        and asked.lake_snapshot_id in (None, table.end_snapshot)
    ]
    if not asked.may_manage_all:
        # Grants on a namespace that is gone, or back under another name, are not those on a namespace of this name.
        found = [table for table in found if table.has_schema]
    if not found:
        raise NoSuchTable(
            f"No dropped table {asked.ident}{_describe_choice(asked)} is left: DuckLake forgets a dropped table when it expires the lake "
            "snapshots that had it. If its namespace is gone, or back under another name, only a principal with `manage` on `warehouse` "
            "sees it. "
            "`duckicelake dropped list` (GET dropped) shows what is left."
        )
    return found[0]


def _describe_choice(asked: UndropTable | UndropNamespace) -> str:
    with_uuid = "" if asked.uuid is None else f" with the uuid {asked.uuid}"
    return with_uuid if asked.lake_snapshot_id is None else f"{with_uuid} that lake snapshot {asked.lake_snapshot_id} dropped"


def _check_lake(conn: psycopg.Connection) -> None:
    """Raise BadRequest on a lake with branches, whose rows the drop may have kept for a branch."""
    if is_shared(conn):
        raise BadRequest(f"Nothing dropped can come back: {BRANCHED}.")


def _check_metadata_file(warehouse: Warehouse, table: DroppedTable) -> None:
    """Raise BadRequest if the newest metadata file of a published table is gone: what deleted it deleted other objects too.

    A purge deletes its note last, so a table without a note and with its file is not being purged.
    """
    if table.is_purged:
        raise BadRequest(f"{_name_refused(table)}: {PURGED}.")
    if table.location is None or not table.metadata_version:
        return
    uri = metadata_uri(table.location, table.metadata_version)
    if not warehouse.objects.exists(uri):
        raise BadRequest(
            f"The table's newest metadata file {uri!r} is missing: the table was dropped with its files (purgeRequested), or its location "
            "was emptied. DuckDB's time travel still reads its rows, with AT (VERSION => …) before the drop."
        )


def _name_refused(table: DroppedTable) -> str:
    return f"The dropped table {format_levels(to_levels(table.schema_name))}.{table.table_name} cannot come back"


def _get_target(commit: Commit, asked: UndropTable, table: DroppedTable, made: tuple[TableStep, IdAllocator]) -> TableTarget:
    """Return where the table comes back; its namespace is added to the step if it is gone and asked for."""
    target = asked.target or asked.ident
    try:
        place = get_place(commit.conn, target, commit.head.lake_format)
    except NoSuchNamespace as error:
        gone = [schema for schema in read_dropped_schemas(commit.conn, DroppedFilter()) if schema.schema_uuid == table.schema_uuid]
        is_own = fold_name(to_schema_name(target.namespace)) == fold_name(table.schema_name)
        if not is_own or not asked.with_namespace or not gone:
            hint = " It was dropped too: bring it back with the table (with-namespace)," if is_own and gone else " Create it,"
            raise NoSuchNamespace(f"{error.message}.{hint} or name another one for the table.") from error
        step, ids = made
        schema_id, names = _add_schema(commit, step, gone[0], (target.namespace, ids))
        name = to_schema_name(target.namespace)
        return TableTarget(schema_id, name, names, target.name, commit.head.lake_format)
    return place


def _add_table(conn: psycopg.Connection, step: TableStep, table: DroppedTable, place: TableTarget) -> None:
    """Add the rows that bring a table back to a step; nothing is added or written if it is refused.

    Raises: BadRequest: it cannot come back whole. AlreadyExists: another live table has its uuid
    """
    paths = _check_table(conn, table)
    if not take_back_purge(conn, table.table_id):
        raise BadRequest(f"{_name_refused(table)}: {PURGED}.")
    revived = revive_table(table, place, table_folder(read_data_path(conn), table), table.end_snapshot)
    step.rows += [*revived.rows, *(UnpinnedFile(path) for path in paths)]
    step.changes += revived.changes


def _check_table(conn: psycopg.Connection, table: DroppedTable) -> Sequence[str]:
    """Return the full paths of a dropped table's data files. Raises: as `_add_table`."""
    named = _name_refused(table)
    obstacle = _find_obstacle(table)
    if obstacle is not None:
        raise BadRequest(f"{named}: {obstacle}.")
    other = find_live_table_name(conn, table.table_uuid, table.table_id)
    if other is not None:
        raise AlreadyExists(f"{named}: the table {'.'.join(other)} has its uuid {table.table_uuid}, because it was registered again.")
    if table.location is not None:
        check_still_own(conn, table.table_id, table.location)
    folder = table_folder(read_data_path(conn), table)
    paths = [folder + path if is_relative else path for path, is_relative in list_data_paths(conn, table.table_id)]
    scheduled = find_scheduled_path(conn, paths)
    if scheduled is not None:
        raise BadRequest(f"{named}: DuckLake is going to delete its data file {scheduled!r}.")
    return paths


def _add_schema(commit: Commit, step: TableStep, schema: DroppedSchema, to: tuple[Levels, IdAllocator]) -> tuple[int, Sequence[str]]:
    """Add the rows that bring a namespace back to a step, and return the new id of its schema and its names in DuckLake.

    Raises: NoSuchNamespace: a namespace that it is nested in is gone. BadRequest: it has begun to expire
    """
    levels, ids = to
    if not schema.is_complete:
        raise BadRequest(f"The dropped namespace {format_levels(levels)} cannot come back: {FORGOTTEN}.")
    parent, name = ParentSchema(), to_schema_name(levels)
    if commit.head.lake_format.nests_schemas and len(levels) > 1:
        found = find_schema(commit.conn, levels[:-1])
        if found is None:
            raise NoSuchNamespace(f"Namespace does not exist: {format_levels(levels[:-1])}. Create it, or bring it back, first.")
        parent, name = ParentSchema(found.schema_id, found.schema_names), levels[-1]
    path = schema.schema_path if schema.schema_path_is_relative else None
    restored = SchemaToRestore(ids.take_catalog_id(), schema.schema_uuid, path, read_ended_tags(commit.conn, schema))
    change, rows = restore_schema(restored, parent, name)
    step.changes.append(change)
    step.rows += rows
    return restored.schema_id, (*parent.schema_names, name)


def undrop_namespace(warehouse: Warehouse, asked: UndropNamespace) -> Undropped:
    """Bring a dropped namespace back, with its uuid, properties and grants, and the tables that the same transaction dropped in it.

    Tables that cannot come back stay dropped, and are named in the answer: each may come back by itself when nothing is in its way.
    Raises: NoSuchNamespace: DuckLake has no dropped namespace of that name, or its parent is gone. AlreadyExists: the name is taken.
    BadRequest: it has begun to expire
    """
    with reading(warehouse.lake) as conn:
        schema = _get_schema(conn, asked)
        obstacles = _list_obstacles(warehouse, conn, _list_tables(conn, schema.schema_id, schema.end_snapshot))
    with committing(warehouse.lake) as commit:
        _check_lake(commit.conn)
        schema = _get_schema(commit.conn, asked)
        levels = asked.target or to_levels(schema.schema_name)
        if find_schema(commit.conn, levels) is not None:
            raise AlreadyExists(
                f"Namespace already exists: {format_levels(levels)}. Name another one to bring the dropped namespace back under, "
                "or bring back its tables alone."
            )
        step = TableStep(changes_catalog=True)
        ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
        schema_id, names = _add_schema(commit, step, schema, (levels, ids))
        tables = _list_tables(commit.conn, schema.schema_id, schema.end_snapshot)
        for table in tables:
            if table.table_id in obstacles:
                continue
            place = TableTarget(schema_id, to_schema_name(levels), names, table.table_name, commit.head.lake_format)
            try:
                _add_table(commit.conn, step, table, place)
            except (AlreadyExists, BadRequest) as error:
                obstacles[table.table_id] = error.message
        write_steps(commit, to_lake_steps(commit.head, ids, [[step]]))
        commit.write_object(schema.schema_uuid)
    back = [table.table_name for table in tables if table.table_id not in obstacles]
    left = [LeftTable(levels, table.table_name, obstacles[table.table_id]) for table in tables if table.table_id in obstacles]
    return Undropped(levels, None, schema.schema_uuid, back, left)


def _list_obstacles(warehouse: Warehouse, conn: psycopg.Connection, tables: Sequence[DroppedTable]) -> dict[int, str]:
    """Return why tables cannot come back, by their ids; tables that can are left out."""
    found: dict[int, str] = {}
    for table in tables:
        try:
            _check_table(conn, table)
            _check_metadata_file(warehouse, table)
        except (AlreadyExists, BadRequest) as error:
            found[table.table_id] = error.message
    return found


def _get_schema(conn: psycopg.Connection, asked: UndropNamespace) -> DroppedSchema:
    name = fold_name(to_schema_name(asked.levels))
    for schema in read_dropped_schemas(conn, DroppedFilter()):
        is_chosen = asked.uuid in (None, schema.schema_uuid) and asked.lake_snapshot_id in (None, schema.end_snapshot)
        if fold_name(schema.schema_name) == name and is_chosen:
            return schema
    raise NoSuchNamespace(
        f"No dropped namespace {format_levels(asked.levels)}{_describe_choice(asked)} is left: DuckLake forgets it when it expires the "
        "lake snapshots that had it. `duckicelake dropped list` (GET dropped) shows what is left."
    )


def _list_tables(conn: psycopg.Connection, schema_id: int, end_snapshot: int) -> Sequence[DroppedTable]:
    """Return the tables that the transaction which dropped a namespace dropped in it."""
    return [
        table
        for table in read_dropped_tables(conn, DroppedFilter(schema_id=schema_id))
        if table.end_snapshot == end_snapshot and kinds_of_table(table.changes_made, table.table_id) >= DROP
    ]


def get_undropped(warehouse: Warehouse, uuid: UUID | None, asked: UndropTable | UndropNamespace) -> Undropped:
    """Return the answer to a repeated request.

    A table that was moved since is named as it is now only to who manages the warehouse: others may not see where it is.
    """
    if isinstance(asked, UndropNamespace):
        return _get_undropped_namespace(warehouse, uuid, asked)
    target = asked.target or asked.ident
    with reading(warehouse.lake) as conn:
        found = None if uuid is None else find_live_table_name(conn, uuid, NO_TABLE)
    now = None if found is None else Ident(to_levels(found[0]), found[1])
    if now is None or not (asked.may_manage_all or _is_same_name(now, target)):
        return Undropped(target.namespace, target.name, uuid or UUID(int=0))
    return Undropped(now.namespace, now.name, uuid or UUID(int=0))


def _is_same_name(one: Ident, other: Ident) -> bool:
    names = [(fold_name(to_schema_name(ident.namespace)), fold_name(ident.name)) for ident in (one, other)]
    return names[0] == names[1]


def _get_undropped_namespace(warehouse: Warehouse, uuid: UUID | None, asked: UndropNamespace) -> Undropped:
    """Return the answer to a repeated request: what came back with the namespace, and what of its drop is still dropped."""
    levels = asked.target or asked.levels
    if uuid is None:
        return Undropped(levels, None, UUID(int=0))
    with reading(warehouse.lake) as conn:
        found = find_restored_schema(conn, uuid)
        if found is None:
            return Undropped(levels, None, uuid)
        tables = _list_tables(conn, found.former_schema_id, found.former_end_snapshot)
        obstacles = _list_obstacles(warehouse, conn, tables)
    levels = to_levels(found.schema_name)
    left = [LeftTable(levels, table.table_name, obstacles.get(table.table_id, LEFT)) for table in tables]
    return Undropped(levels, None, uuid, found.tables, left)
