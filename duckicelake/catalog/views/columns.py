"""The schema of a view that DuckDB made: read from its text and from the tables and views that it names."""

from dataclasses import dataclass, field

import psycopg

from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.views.view_metadata import current_version
from duckicelake.lake.views.read import find_view, find_view_note, read_named_columns
from duckicelake.lake.views.rows import LiveView
from duckicelake.translate.to_ducklake.names import fold_name
from duckicelake.translate.views.columns import Column, Columns, Scope, find_columns, name_columns
from duckicelake.translate.views.found import is_as_told, parse_note
from duckicelake.translate.views.names import as_query, list_names
from duckicelake.translate.views.parser import Parser, Tree, open_parser
from duckicelake.translate.views.types import number_fields, to_columns

MAX_DEPTH = 16
"""Views over views that are followed."""

Name = tuple[str, str]
"""(schema, name), both folded."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Reads every table and view once, however many views name it."""

    conn: psycopg.Connection
    parser: Parser
    known: dict[Name, Columns | None] = field(default_factory=dict[Name, Columns | None])

    def read(self, live: LiveView, depth: int) -> Columns:
        """Return the columns of a DuckDB view as far as its text tells them."""
        tree = self.parser.find_query(as_query(live.sql))
        found = None if tree is None else find_columns(tree, self._read_scope(live, tree, depth))
        return name_columns(found, live.column_aliases)

    def _read_scope(self, live: LiveView, tree: Tree, depth: int) -> Scope:
        names = [(fold_name(schema), fold_name(name)) for schema, name in list_names(tree, live.schema_name)]
        found = {name: self._read_relation(name, depth) for name in sorted(names)}
        relations = {name: columns for name, columns in found.items() if columns is not None}
        return Scope(relations, live.schema_name, self._format_expression, {})

    def _read_relation(self, name: Name, depth: int) -> Columns | None:
        if name not in self.known:
            # a view that comes back to itself has no columns
            self.known[name] = None
            rows = read_named_columns(self.conn, *name)
            self.known[name] = to_columns(rows) if rows else self._read_view(name, depth)
        return self.known[name]

    def _read_view(self, name: Name, depth: int) -> Columns | None:
        view = find_view(self.conn, *name)
        if view is None or depth == 0:
            return None
        note = find_view_note(self.conn, view.view_id)
        if note is None or not is_as_told(view, note):
            return self.read(view, depth - 1)
        told = parse_note(note)
        schema_id = current_version(told).schema_id
        return [Column(item.name, item.type) for schema in told.schemas if schema.schema_id == schema_id for item in schema.fields]

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
