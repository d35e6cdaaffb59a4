"""Views: create, register, replace, rename, drop. Each is one transaction, and a lake snapshot when DuckLake's rows change.

The metadata file is written to the store after the transaction, by the load."""

import gzip
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.location_rules import check_location, check_may_hold_new, check_store, get_place, read_default_location
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.views import FoundView, LoadedView, get_view, load_committed_view, read_view
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, CommitGaveUp, LakeBusy, Unsupported
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.requests.bodies import CommitView, CreateView
from duckicelake.iceberg.requests.requirements import check_view_requirements
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.view_changes import apply_view_updates, build_new_view
from duckicelake.iceberg.view_metadata import ViewMetadata, encode_view, get_current_version, parse_view
from duckicelake.lake.connect import read_format, reading
from duckicelake.lake.note_rows import DroppedView, LiveView
from duckicelake.lake.read import find_table
from duckicelake.lake.read_views import find_view, find_view_name, find_view_note, write_view_note
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import Roots
from duckicelake.translate.namespaces import change_tags, to_levels, to_schema_name
from duckicelake.translate.to_ducklake import views as rows
from duckicelake.translate.to_ducklake.views import PlannedView
from duckicelake.translate.views.conversion import COMMENT, METADATA_PATH, DuckLakeView, build_view_note, metadata_folder, to_ducklake_view
from duckicelake.translate.views.names import NameContext, as_query, find_qualified_query
from duckicelake.translate.views.parser import open_parser

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
