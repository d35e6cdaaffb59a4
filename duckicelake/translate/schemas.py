"""The schemas a table has had: ids in order of appearance, never changed once noted."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import Schema, format_schema, leaf_fields
from duckicelake.iceberg.types import NestedField, PrimitiveType, walk_fields
from duckicelake.lake.rows import ColumnRow, JsonNote, TableState
from duckicelake.translate.shape.leaf_types import ONLY_IN_V3
from duckicelake.translate.types import (
    FieldRules,
    columns_at,
    find_defaulted,
    find_hidden,
    find_unreadable,
    refuse_value,
    schema_changes,
    to_fields,
)

V2, V3 = 2, 3
TOO_LARGE = "numbers above 2147483647 in files that no reader of signed numbers shows rightly"


@dataclass(frozen=True, slots=True)
class Schemas:
    """A table's schemas over time: `timeline` holds the lake snapshot each is valid from, ascending.

    `format_version` is the lowest that can say them all, and never below the one given out before. `hidden` are columns
    that none of them shows. `breaks_vectors`: files may hold what Spark's vectorised reader (Iceberg
    1.11) cannot read (an int that became a long) or reads wrongly (milliseconds).
    """

    timeline: tuple[tuple[int, Schema], ...]
    new_notes: tuple[JsonNote, ...]
    last_column_id: int
    format_version: int
    hidden: frozenset[int]
    breaks_vectors: bool

    def at(self, lake_snapshot_id: int) -> Schema:
        """Return the schema at a lake snapshot, the oldest known one when it is older still."""
        index = bisect_right(self.timeline, lake_snapshot_id, key=lambda item: item[0])
        return self.timeline[max(index - 1, 0)][1]

    @property
    def current(self) -> Schema:
        """The schema at the lake's head."""
        return self.timeline[-1][1]

    def all(self) -> tuple[Schema, ...]:
        """Return every distinct schema by id."""
        found = {schema.schema_id: schema for _, schema in self.timeline}
        return tuple(found[schema_id] for schema_id in sorted(found))


def to_schemas(state: TableState, oldest_row: int) -> Schemas:
    """Return the schemas of a table; `oldest_row` is the lake snapshot of the oldest row that is left.

    Raises: Unsupported: a column that cannot be published, by name, type and remedy
    """
    unreadable = find_unreadable(state.columns, oldest_row)
    defaulted, hidden = find_defaulted(state.columns, oldest_row, state.name_mappings), find_hidden(state.columns)
    ids = {note.json: note.id for note in state.notes.schemas}
    new_notes: list[JsonNote] = []
    timeline: list[tuple[int, Schema]] = []
    changes = schema_changes(state.columns, state.column_tags)
    for since, until in zip(changes, [*changes[1:], None], strict=True):
        rules = FieldRules(state.table, since != changes[-1], defaulted, unreadable, hidden)
        fields = to_fields(columns_at(state.columns, state.column_tags, since), rules)
        fields = without_twins(fields, is_in_files=until is None or until > oldest_row)
        if not fields:
            continue
        text = format_note(Schema(0, fields))
        if text not in ids:
            ids[text] = max(ids.values(), default=-1) + 1
            new_notes.append(JsonNote(ids[text], text))
        timeline.append((since, Schema(ids[text], fields)))
    _check_numbers(state, hidden)
    last_column_id = max(row.column_id for row in state.columns)
    needed = V3 if defaulted or any(_needs_v3(schema) for _, schema in timeline) else V2
    noted = state.notes.table.format_version if state.notes.table else needed
    breaks_vectors = _has_widened(timeline, oldest_row) or _has_millis(state.columns, oldest_row)
    return Schemas(tuple(timeline), tuple(new_notes), last_column_id, max(needed, noted), hidden, breaks_vectors)


def _has_millis(columns: Sequence[ColumnRow], oldest_row: int) -> bool:
    in_files = (row for row in columns if row.end_snapshot is None or row.end_snapshot > oldest_row)
    return any(row.column_type.lower() == "timestamp_ms" for row in in_files)


def _has_widened(timeline: Sequence[tuple[int, Schema]], oldest_row: int) -> bool:
    ints = set[int]()
    ends = [since for since, _ in timeline[1:]]
    for (_, schema), until in zip(timeline, [*ends, None], strict=True):
        names = {field_id: leaf.name for field_id, leaf in leaf_fields(schema)}
        if any(names.get(field_id) == "long" for field_id in ints):
            return True
        if until is None or until > oldest_row:
            ints |= {field_id for field_id, name in names.items() if name == "int"}
    return False


def _needs_v3(schema: Schema) -> bool:
    leaves = (item.type for _, item in walk_fields(schema.fields))
    return any(isinstance(leaf, PrimitiveType) and leaf.name in ONLY_IN_V3 for leaf in leaves)


def _check_numbers(state: TableState, hidden: frozenset[int]) -> None:
    for column_id in sorted(frozenset(state.too_large) - hidden):
        raise refuse_value(state.table, columns_at(state.columns, (), state.position.lake_snapshot_id), column_id, TOO_LARGE)


def without_twins(fields: tuple[NestedField, ...], is_in_files: bool) -> tuple[NestedField, ...]:
    """Return columns whose full names differ: `"a.b"` and the field `b` of `a` are one name to Iceberg's readers.

    Where no file is left that could have both, the later column is left out.
    Raises: Unsupported: two columns share a full name, and files may hold both
    """
    known: dict[str, NestedField] = {}
    kept: list[NestedField] = []
    for field in fields:
        paths = [path for path, _ in walk_fields((field,))]
        twin = next((path for path in paths if path in known), None)
        if twin is None:
            known |= dict.fromkeys(paths, field)
            kept.append(field)
        elif is_in_files:
            raise Unsupported(
                f"Columns {known[twin].name!r} and {field.name!r} share the full name {twin!r} in Iceberg. "
                "Copy the table under other names with CREATE TABLE … AS SELECT."
            )
    return tuple(kept)


def format_note(schema: Schema) -> str:
    """Return the text a schema is noted under: its fields, without its id."""
    return json.dumps(format_schema(schema)["fields"], separators=(",", ":"), ensure_ascii=False)
