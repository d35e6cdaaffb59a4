"""Views: list, exists, load. Every load reads the lake, so it shows the latest change by DuckDB."""

import gzip
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

import psycopg

from duckicelake.catalog.namespaces import find_schema, get_parent
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, CommitStateUnknown, LakeMoved, NoSuchView
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.view_metadata import ViewMetadata, get_current_version
from duckicelake.lake.connect import reading, writing
from duckicelake.lake.note_rows import LiveView, ViewNote
from duckicelake.lake.read import read_iceberg_path
from duckicelake.lake.read_views import find_view, find_view_name, find_view_note, read_named_columns, read_view_names, write_view_note
from duckicelake.translate.locations import table_location
from duckicelake.translate.namespaces import Levels, fold_name, to_levels, to_schema_name
from duckicelake.translate.views.columns import QueryScope, ViewColumn, ViewColumns, find_columns, name_columns, number_fields, to_columns
from duckicelake.translate.views.conversion import (
    DuckLakeView,
    build_ducklake_view,
    build_view_note,
    is_unchanged,
    parse_view_note,
    update_from_ducklake,
    with_comment,
)
from duckicelake.translate.views.names import as_query, list_names
from duckicelake.translate.views.parser import Parser, Tree, open_parser

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
