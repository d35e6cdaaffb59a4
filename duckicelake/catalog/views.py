"""Views: list, exists, load; create, register, replace, rename, drop.

Every load reads the lake, so it shows the latest change by DuckDB; what DuckDB changed is then noted in `iceberg_view`, in a short
transaction, and a metadata file that is missing is written to the store. Each change is one transaction, and a lake snapshot when
DuckLake's rows change; the load after it writes the file. `rest/routes/views.py` calls this on worker threads. Texts are parsed by a DuckDB
in memory, mostly before the lake's lock. A location in another bucket than ICEBERG_PATH gets a test object (`check_store`).
"""

import gzip
import json
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.location_rules import check_location, check_may_hold_new, check_store, get_place, read_default_location
from duckicelake.catalog.namespaces import find_schema, get_parent
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import (
    AlreadyExists,
    BadRequest,
    CatalogError,
    CommitGaveUp,
    CommitStateUnknown,
    LakeBusy,
    LakeMoved,
    NoSuchView,
    Unsupported,
)
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.requests.bodies import CommitView, CreateView
from duckicelake.iceberg.requests.requirements import check_view_requirements
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.view_changes import apply_view_updates, build_new_view
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.view_metadata import ViewMetadata, encode_view, get_current_version, parse_view
from duckicelake.lake.connect import read_format, reading, writing
from duckicelake.lake.note_rows import DroppedView, LiveView, ViewNote
from duckicelake.lake.read import find_table, read_iceberg_path
from duckicelake.lake.read_views import find_view, find_view_name, find_view_note, read_named_columns, read_view_names, write_view_note
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import Roots, table_location
from duckicelake.translate.namespaces import Levels, change_tags, fold_name, to_levels, to_schema_name
from duckicelake.translate.sql import NameContext, Parser, Tree, as_query, find_qualified_query, list_names, open_parser
from duckicelake.translate.to_ducklake import tables as rows
from duckicelake.translate.to_ducklake.tables import PlannedView
from duckicelake.translate.view_columns import QueryScope, ViewColumn, ViewColumns, find_columns, name_columns, number_fields, to_columns
from duckicelake.translate.views import (
    COMMENT,
    METADATA_PATH,
    DuckLakeView,
    build_ducklake_view,
    build_view_note,
    is_unchanged,
    metadata_folder,
    parse_view_note,
    to_ducklake_view,
    update_from_ducklake,
    with_comment,
)

LOAD_TRIES = 5
ZIPPED = ".gz.metadata.json"


@dataclass(frozen=True, slots=True)
class LoadedView:
    """The result of a load. `metadata` is encoded JSON. `moved_to` is the view's name when that is not the one that was asked for."""

    metadata_location: str
    metadata: bytes
    moved_to: Ident | None = None


@dataclass(frozen=True, slots=True)
class FoundView:
    """A view in DuckLake with its metadata, and the note on which that builds: its own, or of a view that it replaced."""

    live: LiveView
    base: ViewNote | None
    view: ViewMetadata

    @property
    def is_noted(self) -> bool:
        """The note says exactly this."""
        return self.base is not None and self.base.view_id == self.live.view_id and parse_view_note(self.base) == self.view

    @property
    def is_told(self) -> bool:
        """The current version is an Iceberg client's."""
        return self.base is not None and is_unchanged(self.live, self.base)


def list_views(warehouse: Warehouse, levels: Levels) -> list[Ident]:
    """Return the views of a namespace in order of name.

    Raises: NoSuchNamespace: it does not exist
    """
    with reading(warehouse.lake) as conn:
        schema = find_schema(conn, levels)
        if schema is None:
            get_parent(conn, levels)
            return []
        stored = to_levels(schema.schema_name)
        return [Ident(stored, name) for name in read_view_names(conn, schema.schema_id)]


def check_view_exists(warehouse: Warehouse, ident: Ident) -> None:
    """Raise NoSuchView when it does not exist."""
    with reading(warehouse.lake) as conn:
        get_view(conn, ident)


def get_view(conn: psycopg.Connection, ident: Ident) -> LiveView:
    """Return the live view of that name, in any case.

    Raises: NoSuchView: there is none, or no such namespace
    """
    view = find_view(conn, to_schema_name(ident.namespace), ident.name)
    if view is None:
        raise NoSuchView(f"View does not exist: {ident}")
    return view


def load_view(warehouse: Warehouse, ident: Ident) -> LoadedView:
    """Return a view's metadata; its file is written when it is not there yet.

    Raises: NoSuchView: it does not exist
    """
    return _publish(warehouse, read_noted_view(warehouse, ident))


def load_committed_view(warehouse: Warehouse, ident: Ident, view_uuid: UUID | None) -> LoadedView:
    """Return a view after its commit, by its uuid, because it may have been renamed.

    Raises: CommitStateUnknown: it cannot be published now, but it is done
    """
    try:
        return _load_view_by_uuid(warehouse, ident, view_uuid)
    except CatalogError as error:
        raise CommitStateUnknown(f"The commit to {ident} is done, but its metadata cannot be shown now: {error.message}") from error


def _load_view_by_uuid(warehouse: Warehouse, ident: Ident, view_uuid: UUID | None) -> LoadedView:
    name = ident
    for _ in range(LOAD_TRIES):
        with suppress(NoSuchView):
            loaded = load_view(warehouse, name)
            # an older server noted no uuid with its keys, and answered by name
            if view_uuid is None or parse_view_uuid(loaded) == view_uuid:
                return loaded if name == ident else replace(loaded, moved_to=name)
        if view_uuid is None:
            break
        with reading(warehouse.lake) as conn:
            found = find_view_name(conn, view_uuid)
        if found is None:
            break
        name = Ident(to_levels(found[0]), found[1])
    raise NoSuchView("the view has been dropped or replaced since.")


def parse_view_uuid(loaded: LoadedView) -> UUID:
    """Return the uuid that a view has for Iceberg clients: DuckDB may have replaced it since it was made."""
    return UUID(json.loads(loaded.metadata)["view-uuid"])


def read_noted_view(warehouse: Warehouse, ident: Ident) -> ViewNote:
    """Return what is noted of a view; what DuckDB changed since the last time is noted now.

    Raises: NoSuchView: it does not exist. LakeMoved: others change it again and again
    """
    for _ in range(LOAD_TRIES):
        with reading(warehouse.lake) as conn:
            found = read_view(conn, ident)
        live, base = found.live, found.base
        if base is not None and found.is_noted:
            return base
        note = build_view_note(live.view_id, base, found.view, DuckLakeView(live.sql, live.column_aliases), found.is_told)
        with writing(warehouse.lake) as conn:
            is_done = write_view_note(conn, base, note)
        if is_done:
            return note
    raise LakeMoved(f"The view {ident} was changed again and again while it was being read; try again.")


def read_view(conn: psycopg.Connection, ident: Ident) -> FoundView:
    """Return a view as it is now: as a client defined it, unless DuckDB changed it.

    Raises: NoSuchView: it does not exist
    """
    live = get_view(conn, ident)
    base = find_view_note(conn, live.view_id)
    return FoundView(live, base, _build_metadata(conn, live, base))


def _build_metadata(conn: psycopg.Connection, live: LiveView, base: ViewNote | None) -> ViewMetadata:
    """Return a view's metadata: as a client defined it, unless DuckDB changed it."""
    if base is not None and is_unchanged(live, base):
        return with_comment(parse_view_note(base), live.comment)
    schema = read_schema(conn, live)
    if base is not None:
        return with_comment(update_from_ducklake(parse_view_note(base), live, schema), live.comment)
    location = table_location(read_iceberg_path(conn), live.view_uuid, live.schema_name, live.view_name)
    return with_comment(build_ducklake_view(live, schema, location), live.comment)


def _publish(warehouse: Warehouse, note: ViewNote) -> LoadedView:
    """Write a view's metadata file unless it is there; its bytes follow from the note alone."""
    content, uri = note.metadata.encode(), note.metadata_location
    if not warehouse.objects.exists(uri):
        warehouse.objects.put_new(uri, gzip.compress(content, mtime=0) if uri.endswith(ZIPPED) else content)
    return LoadedView(uri, content)


MAX_DEPTH = 16
"""Views over views that are followed."""

Name = tuple[str, str]
"""(schema, name), both folded."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Reads every table and view once, however many views name it."""

    conn: psycopg.Connection
    parser: Parser
    known: dict[Name, ViewColumns | None] = field(default_factory=dict[Name, ViewColumns | None])

    def read(self, live: LiveView, depth: int) -> ViewColumns:
        """Return the columns of a DuckDB view as far as they follow from its text."""
        tree = self.parser.find_query(as_query(live.sql))
        found = None if tree is None else find_columns(tree, self._read_scope(live, tree, depth))
        return name_columns(found, live.column_aliases)

    def _read_scope(self, live: LiveView, tree: Tree, depth: int) -> QueryScope:
        names = [(fold_name(schema), fold_name(name)) for schema, name in list_names(tree, live.schema_name)]
        found = {name: self._read_relation(name, depth) for name in sorted(names)}
        relations = {name: columns for name, columns in found.items() if columns is not None}
        return QueryScope(relations, live.schema_name, self._format_expression, {})

    def _read_relation(self, name: Name, depth: int) -> ViewColumns | None:
        if name not in self.known:
            # a view that comes back to itself has no columns
            self.known[name] = None
            rows = read_named_columns(self.conn, *name)
            self.known[name] = to_columns(rows) if rows else self._read_view(name, depth)
        return self.known[name]

    def _read_view(self, name: Name, depth: int) -> ViewColumns | None:
        view = find_view(self.conn, *name)
        if view is None or depth == 0:
            return None
        note = find_view_note(self.conn, view.view_id)
        if note is None or not is_unchanged(view, note):
            return self.read(view, depth - 1)
        told = parse_view_note(note)
        schema_id = get_current_version(told).schema_id
        return [ViewColumn(item.name, item.type) for schema in told.schemas if schema.schema_id == schema_id for item in schema.fields]

    def _format_expression(self, item: Tree) -> str:
        """Return what DuckDB calls a column that has no name: its text."""
        frame = self.parser.find_query("SELECT 1")
        assert frame is not None
        [statement] = frame["statements"]
        alone = {**frame, "statements": [{**statement, "node": {**statement["node"], "select_list": [item]}}]}
        return (self.parser.find_text(alone) or "SELECT ?").removeprefix("SELECT ")


def read_schema(conn: psycopg.Connection, live: LiveView) -> Schema:
    """Return the columns of a DuckDB view."""
    with open_parser() as parser:
        return Schema(0, number_fields(ColumnReader(conn, parser).read(live, MAX_DEPTH)))


COMMIT_TRIES = 10
NO_VIEW = -1
MAX_METADATA_BYTES = 32 * 1024 * 1024


class _ViewChanged(Exception):
    """Others noted the view meanwhile: nothing may be written, not even the request's key."""


def create_view(warehouse: Warehouse, ident: Ident, asked: CreateView) -> LoadedView:
    """Make a view, in DuckLake too: readable there when one of its texts is, else standing in for it.

    Raises: NoSuchNamespace. AlreadyExists: a view or table has the name. BadRequest: its location is not allowed
    """
    uuid = uuid4()
    with reading(warehouse.lake) as conn:
        place = get_place(conn, ident)
        if asked.location is None:
            check_may_hold_new(conn, place.schema_id, warehouse.server_roots)
            location = read_default_location(conn, place, uuid)
        else:
            location = check_location(conn, asked.location, warehouse.roots)
    if asked.location is not None:
        check_store(warehouse, location, None)
    _create(warehouse, ident, build_new_view(asked, NewIdentity(str(uuid), location, _now_ms())), None)
    return load_committed_view(warehouse, ident, uuid)


def register_view(warehouse: Warehouse, ident: Ident, metadata_location: str) -> LoadedView:
    """Make a view of a metadata file that exists; the file stays its metadata until the first change.

    Raises: NoSuchNamespace. AlreadyExists: a view or table has the name, or a view the uuid. NotFound: the file is missing.
    BadRequest: it is no metadata of a view, or lies where this catalog keeps nothing
    """
    with reading(warehouse.lake) as conn:
        get_place(conn, ident)
        kept = check_location(conn, metadata_location, warehouse.roots)
    view = parse_view(decode_json(_read_metadata(warehouse, kept), f"view metadata {metadata_location}"))
    try:
        uuid = UUID(view.view_uuid)
    except ValueError as error:
        raise BadRequest(f"Invalid view metadata: view-uuid {view.view_uuid[:100]!r} is no UUID; mend the metadata file") from error
    _create(warehouse, ident, view, kept)
    return load_committed_view(warehouse, ident, uuid)


def _read_metadata(warehouse: Warehouse, uri: str) -> bytes:
    try:
        size_bytes = warehouse.objects.size(uri)
        if size_bytes > MAX_METADATA_BYTES:
            raise BadRequest(f"The metadata file {uri!r} has {size_bytes} bytes; {MAX_METADATA_BYTES} are taken.")
        content = warehouse.objects.read(uri)
    except Unsupported as error:
        raise BadRequest(error.message) from error
    if not uri.endswith((".gz.metadata.json", ".metadata.json.gz")):
        return content
    try:
        unzipped = zlib.decompressobj(wbits=31).decompress(content, MAX_METADATA_BYTES + 1)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise BadRequest(f"The metadata file {uri!r} is no gzip.") from error
    if len(unzipped) > MAX_METADATA_BYTES:
        raise BadRequest(f"The metadata file {uri!r} unzips to more than {MAX_METADATA_BYTES} bytes.")
    return unzipped


def _create(warehouse: Warehouse, ident: Ident, view: ViewMetadata, metadata_location: str | None) -> None:
    held = _parse_texts(warehouse, view)
    note = build_view_note(NO_VIEW, None, view, held, is_told=True)
    if metadata_location is not None:
        note = replace(note, metadata_location=metadata_location)
    with committing(warehouse.lake) as commit:
        place = get_place(commit.conn, ident)
        _check_free(commit.conn, ident)
        # A client that may not choose a location was given this one and its metadata folder.
        is_given = not warehouse.roots.free and METADATA_PATH not in view.properties
        _check_places(commit.conn, view, Roots() if is_given else warehouse.roots)
        uuid = UUID(view.view_uuid)
        _check_new(commit.conn, uuid)
        write_steps(commit, [rows.create_view(commit.head, place, PlannedView(uuid, view, note))])
        commit.write_object(uuid)


def _parse_texts(warehouse: Warehouse, view: ViewMetadata) -> DuckLakeView:
    with reading(warehouse.lake) as conn:
        nests_schemas = read_format(conn).nests_schemas
    with open_parser() as parser:
        return to_ducklake_view(parser, view, warehouse.name, nests_schemas=nests_schemas)


def _check_free(conn: psycopg.Connection, ident: Ident) -> None:
    schema_name = to_schema_name(ident.namespace)
    if find_view(conn, schema_name, ident.name) is not None:
        raise AlreadyExists(f"View already exists: {ident}")
    if find_table(conn, schema_name, ident.name) is not None:
        raise AlreadyExists(f"Table with same name already exists: {ident}")


def _check_new(conn: psycopg.Connection, uuid: UUID) -> None:
    """Raise AlreadyExists when a view of any name has this uuid: clients could not distinguish the two."""
    found = find_view_name(conn, uuid)
    if found is not None:
        raise AlreadyExists(f"View already exists: {Ident(to_levels(found[0]), found[1])} has the uuid {uuid}")


def _check_places(conn: psycopg.Connection, view: ViewMetadata, roots: Roots) -> None:
    """Raise BadRequest when metadata files of the view would lie where they may not."""
    check_location(conn, view.location, roots)
    check_location(conn, metadata_folder(view), roots)


def replace_view(warehouse: Warehouse, ident: Ident, asked: CommitView) -> LoadedView:
    """Change a view.

    Raises: NoSuchView. CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or loses a dialect
    """
    ready: ParsedTexts = {}
    with reading(warehouse.lake) as conn:
        found = read_view(conn, ident)
        planned = _plan(warehouse, found, asked, ready)
    if planned is not None and metadata_folder(planned.view) != metadata_folder(found.view):
        check_store(warehouse, metadata_folder(planned.view))
    for _ in range(COMMIT_TRIES):
        try:
            with committing(warehouse.lake) as commit:
                found = read_view(commit.conn, ident)
                planned = _plan(warehouse, found, asked, ready)
                if planned is not None and not _change(commit, found, planned, warehouse.roots):
                    raise _ViewChanged
                uuid = UUID(found.view.view_uuid)
                commit.write_object(uuid)
        except _ViewChanged:
            continue
        except LakeBusy as error:
            raise CommitGaveUp(error.message) from error
        return load_committed_view(warehouse, ident, uuid)
    raise CommitGaveUp("The view was noted again and again while this commit was being made; nothing was done. Try again.")


ParsedTexts = dict[bytes, DuckLakeView]
"""What DuckLake keeps of views, found before the lake is locked: parsing takes its time."""


def _plan(warehouse: Warehouse, found: FoundView, asked: CommitView, ready: ParsedTexts) -> PlannedView | None:
    """Return the view as it is to be, None when it is so; DuckDB's own text stays as long as its version is the current one."""
    check_view_requirements(found.view, asked.requirements)
    new = apply_view_updates(found.view, asked.updates, _now_ms())
    if new == found.view:
        return None
    live = found.live
    if get_current_version(new) == get_current_version(found.view) and not found.is_told:
        held, is_told = DuckLakeView(live.sql, live.column_aliases), False
    else:
        held, is_told = _parse_texts_once(warehouse, new, ready), True
    return PlannedView(live.view_uuid, new, build_view_note(live.view_id, found.base, new, held, is_told))


def _parse_texts_once(warehouse: Warehouse, view: ViewMetadata, ready: ParsedTexts) -> DuckLakeView:
    version = get_current_version(view)
    schemas = tuple(replace(item, schema_id=0) for item in view.schemas if item.schema_id == version.schema_id)
    plain = replace(version, version_id=0, schema_id=0, timestamp_ms=0)
    key = encode_view(replace(view, schemas=schemas, versions=(plain,), version_log=(), current_version_id=0))
    if key not in ready:
        ready[key] = _parse_texts(warehouse, view)
    return ready[key]


def _change(commit: Commit, found: FoundView, planned: PlannedView, roots: Roots) -> bool:
    """Write the change; without a lake snapshot when DuckLake has nothing of it. Every load reads the view, so no log is needed."""
    live, note, base = found.live, planned.note, found.view
    if (base.location, metadata_folder(base)) != (planned.view.location, metadata_folder(planned.view)):
        _check_places(commit.conn, planned.view, roots)
    tags = _change_comment(live, planned.view)
    is_replaced = (note.sql, note.column_aliases) != (live.sql, live.column_aliases)
    if not is_replaced and not tags:
        is_noted = write_view_note(commit.conn, found.base, note)
        if is_noted:
            commit.note(None)
        return is_noted
    outdated = [] if found.base is None or found.base.view_id == live.view_id else [DroppedView(found.base.view_id)]
    if is_replaced:
        step = rows.replace_view(commit.head, live, planned)
    else:
        step = rows.comment_view(commit.head, live, [*tags, note])
    write_steps(commit, [replace(step, rows=(*outdated, *step.rows))])
    return True


def _change_comment(live: LiveView, new: ViewMetadata) -> Sequence[NewRow]:
    comment = new.properties.get(COMMENT)
    before = {} if live.comment is None else {COMMENT: live.comment}
    after = {} if comment is None else {COMMENT: comment}
    return change_tags(live.view_id, before, before.keys() - after.keys(), after)


def rename_view(warehouse: Warehouse, source: Ident, target: Ident) -> None:
    """Give a view another name, in its namespace or another; what it reads stays the same.

    Raises: NoSuchView, NoSuchNamespace: of the target. AlreadyExists: the name is taken
    """
    with committing(warehouse.lake) as commit:
        live = get_view(commit.conn, source)
        place = get_place(commit.conn, target)
        schema_name = to_schema_name(target.namespace)
        found = find_view(commit.conn, schema_name, target.name)
        if found is not None and (found.view_id != live.view_id or str(source) == str(target)):
            raise AlreadyExists(f"Cannot rename {source} to {target}. View already exists")
        if find_table(commit.conn, schema_name, target.name) is not None:
            raise AlreadyExists(f"Cannot rename {source} to {target}. Table already exists")
        sql = live.sql if place.schema_id == live.schema_id else _build_moved_text(commit.conn, live)
        write_steps(commit, [rows.rename_view(commit.head, live, place, sql)])


def _build_moved_text(conn: psycopg.Connection, live: LiveView) -> str:
    """Return the text of a view for another namespace: names of tables in its old namespace are qualified.

    Raises: BadRequest: the tables that it reads cannot be determined
    """
    note = find_view_note(conn, live.view_id)
    if note is not None and note.view_id == live.view_id and note.is_told:
        return live.sql
    with open_parser() as parser:
        names = NameContext(to_levels(live.schema_name), "", nests_schemas=len(live.schema_names) > 1)
        sql = find_qualified_query(parser, as_query(live.sql), names)
    if sql is None:
        raise BadRequest(f"The view {live.view_name!r} stays in its namespace: it reads more than tables and views by name. Recreate it.")
    return sql


def drop_view(warehouse: Warehouse, ident: Ident) -> None:
    """Drop a view; its metadata files stay.

    Raises: NoSuchView: it does not exist
    """
    with committing(warehouse.lake) as commit:
        live = get_view(commit.conn, ident)
        write_steps(commit, [rows.drop_view(commit.head, live)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
