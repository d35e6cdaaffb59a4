"""The schemas of a table over time: their ids are assigned in order of appearance, and a noted schema never changes.

`catalog.snapshot_building` calls `to_schemas` for loads and commits; Spark executors of `publish` get the result as JSON.
Registrations call `without_duplicate_names`. No I/O.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import LAST_COLUMN_ID_MAX, Schema, find_field, list_leaf_fields
from duckicelake.iceberg.types import NestedField, PrimitiveType, find_fixed_length, walk_fields
from duckicelake.lake.rows import ColumnRow, JsonNote, NullableRow, TableState
from duckicelake.translate.client_schemas import carry_over_schema, format_schema_note, parse_schema_notes
from duckicelake.translate.types import (
    ONLY_IN_V3,
    VARIANT,
    FieldRules,
    build_value_refusal,
    columns_at,
    is_empty,
    list_defaulted,
    list_hidden,
    list_unreadable,
    make_optional,
    schema_changes,
    to_fields,
)
from duckicelake.translate.unreadable_columns import PROPERTY, hides_columns, is_any_within

V1, V2, V3 = 1, 2, 3
TOO_LARGE = "numbers above 2147483647 in files that no reader of signed numbers shows rightly"


@dataclass(frozen=True, slots=True)
class Schemas:
    """A table's schemas over time: `timeline` has the lake snapshot from which each is valid, ascending.

    `format_version` is the lowest that can represent all of them, and never below the published one. `hidden` are columns
    that none of them contains. `client_schemas` are the schemas of Iceberg clients, by id. `breaks_vectors`: files may contain
    values that Spark's vectorised reader (Iceberg 1.11) cannot read (an int that became a long, BYTE_ARRAY in a `fixed` column) or
    reads wrongly (milliseconds). `nullable` are the columns that are optional from a lake snapshot on, because they may hold a NULL.
    `left_out` are columns whose files hold numbers that readers mistake.
    """

    timeline: tuple[tuple[int, Schema], ...]
    new_notes: tuple[JsonNote, ...]
    last_column_id: int
    format_version: int
    hidden: frozenset[int] = frozenset()
    client_schemas: Mapping[int, Schema] = field(default_factory=dict[int, Schema])
    breaks_vectors: bool = False
    nullable: Sequence[NullableRow] = ()
    left_out: frozenset[int] = frozenset()

    def at(self, lake_snapshot_id: int) -> Schema:
        """Return the schema at a lake snapshot, or the oldest known one."""
        index = bisect_right(self.timeline, lake_snapshot_id, key=lambda item: item[0])
        return self.timeline[max(index - 1, 0)][1]

    def get_snapshot_schema_id(self, lake_snapshot_id: int, named_id: int) -> int:
        """Return the schema id that a client's snapshot names, or the id of the schema at that time if the named one is wrong.

        It is wrong if it requires a column that may hold a NULL, allows NULLs that have expired with their files, or shows a column that
        is left out.
        """
        named = self.client_schemas.get(named_id) or next((schema for _, schema in self.timeline if schema.schema_id == named_id), None)
        nullable = [row.column_id for row in self.nullable if row.lake_snapshot_id <= lake_snapshot_id]
        is_true = named is not None and make_optional(_leave_out(named, self.left_out), nullable) == named
        return named_id if is_true else self.at(lake_snapshot_id).schema_id

    def list_ids(self, lake_snapshot_id: int) -> list[int]:
        """Return the ids of the schemas up to a lake snapshot, in order."""
        return [schema.schema_id for since, schema in self.timeline if since <= lake_snapshot_id]

    def list_widened(self, lake_snapshot_id: int) -> Mapping[int, PrimitiveType]:
        """Return the leaves that are `long` or `double` at a lake snapshot and were `int` or `float` before, by column id."""
        earlier = (leaf for since, schema in self.timeline if since <= lake_snapshot_id for leaf in list_leaf_fields(schema))
        narrow = {field_id for field_id, type_ in earlier if type_.name in ("int", "float")}
        leaves = list_leaf_fields(self.at(lake_snapshot_id)) if narrow else ()
        return {field_id: type_ for field_id, type_ in leaves if field_id in narrow and type_.name in ("long", "double")}

    @property
    def lengths(self) -> Mapping[int, int]:
        """The lengths of `fixed` columns by id, from the newest schema with each column."""
        return collect_lengths(self.timeline)

    @property
    def current(self) -> Schema:
        """The schema at the lake's head."""
        return self.timeline[-1][1]

    def all(self, named: Mapping[int, Schema] | None = None) -> tuple[Schema, ...]:
        """Return every distinct schema, ordered by id; `named` are additional ones, which snapshots of tags and branches use."""
        by_id = {**(named or {}), **self.client_schemas, **{schema.schema_id: schema for _, schema in self.timeline}}
        return tuple(by_id[schema_id] for schema_id in sorted(by_id))


def to_schemas(state: TableState, oldest_row: int, *, has_deletes: bool = True) -> Schemas:
    """Return the schemas of a table; `oldest_row` is the lake snapshot of the oldest row that is left.

    A table that a client created in format version 1 keeps it until rows of its files are deleted.

    Raises: Unsupported: a column that cannot be published; names its type and a remedy
    """
    client_schemas = parse_schema_notes(state.notes.schemas if state.notes.shapes else ())
    defaulted, hidden = list_defaulted(state, oldest_row), list_hidden(state.columns)
    left_out = frozenset((*state.too_large, *_list_variants(state.columns))) if hides_columns(state.tags) else frozenset[int]()
    _check_numbers(state, hidden | left_out)
    timeline, new_notes = _build_timeline(state, oldest_row, client_schemas, (defaulted, hidden, left_out))
    _check_ids(timeline)
    table = state.notes.table
    last_column_id = max(*(row.column_id for row in state.columns), table.last_column_id if table else 0)
    needed = V3 if defaulted or any(_needs_v3(schema) for _, schema in timeline) else V2 if has_deletes or table is None else V1
    noted = table.format_version if table else needed
    breaks_vectors = _has_widened(timeline, oldest_row) or _has_millis(state.columns, oldest_row) or bool(collect_lengths(timeline))
    breaks_vectors = breaks_vectors or _has_decimal_default(timeline) or _has_variant(state.columns, oldest_row)
    format_version = max(needed, noted)
    return Schemas(
        *(tuple(timeline), tuple(new_notes), last_column_id, format_version, hidden, client_schemas, breaks_vectors, state.nullable),
        left_out=left_out,
    )


def _build_timeline(
    state: TableState, oldest_row: int, client_schemas: Mapping[int, Schema], special: tuple[frozenset[int], frozenset[int], frozenset[int]]
) -> tuple[list[tuple[int, Schema]], list[JsonNote]]:
    """Return a table's schemas, each with the lake snapshot from which it is valid, and notes of those without an id.

    `client_schemas` are the schemas of clients by id, `special` the columns with a default, the hidden ones and those that are left out.
    """
    shapes = {shape.lake_snapshot_id: shape for shape in state.notes.shapes}
    unreadable, hides = list_unreadable(state.columns, oldest_row), hides_columns(state.tags)
    ids = {note.json: note.id for note in state.notes.schemas}
    new_notes: list[JsonNote] = []
    timeline: list[tuple[int, Schema]] = []
    own = {*schema_changes(state.columns, state.column_tags), *shapes}
    changes = sorted({*own, *(row.lake_snapshot_id for row in state.nullable if row.lake_snapshot_id > min(own))})
    for since, until in zip(changes, [*changes[1:], None], strict=True):
        nullable = frozenset([row.column_id for row in state.nullable if row.lake_snapshot_id <= since])
        if since in shapes:
            noted = client_schemas[shapes[since].schema_id]
            schema = make_optional(_leave_out(noted, special[2]), nullable)
            if schema == noted:
                timeline.append((since, schema))
                continue
            if not schema.fields:
                _check_any_shown(is_current=since == changes[-1])
                continue
        else:
            rules = FieldRules(state.table, since != changes[-1], special[0], unreadable, special[1], hides)
            fields = _list_fields(state, since, rules)
            if fields is None:
                continue
            fields = without_duplicate_names(fields, is_in_files=until is None or until >= oldest_row)
            follows_client = bool(shapes) and since > min(shapes)
            schema = make_optional(carry_over_schema(fields, timeline[-1][1]) if follows_client else Schema(0, fields), nullable)
        text = format_schema_note(schema)
        if text not in ids:
            ids[text] = max(ids.values(), default=-1) + 1
            new_notes.append(JsonNote(ids[text], text))
        if since in own or not timeline or ids[text] != timeline[-1][1].schema_id:
            timeline.append((since, replace(schema, schema_id=ids[text])))
    return timeline, new_notes


def _list_fields(state: TableState, lake_snapshot_id: int, rules: FieldRules) -> tuple[NestedField, ...] | None:
    """Return a table's columns at a lake snapshot, None if it has columns and none is shown.

    Raises: Unsupported: see `to_fields`, or all current columns are left out
    """
    tree = columns_at(state.columns, state.column_tags, lake_snapshot_id)
    roots = {row.column_id: row for row in tree.children.get(None, ())}
    fields = to_fields(tree, rules)
    if rules.leaves_out:
        fields = tuple(item for item in fields if not is_any_within(state.too_large, roots[item.field_id], tree))
    if fields or is_empty(list(roots.values())):
        return fields
    if rules.leaves_out:
        _check_any_shown(is_current=not rules.is_past)
    return None


def _check_any_shown(*, is_current: bool) -> None:
    """Raise Unsupported if all current columns are left out."""
    if is_current:
        raise Unsupported(f"The property {PROPERTY!r} leaves out every column of the table; add a column of another type with DuckDB.")


def _leave_out(schema: Schema, column_ids: Collection[int]) -> Schema:
    """Return a schema without the columns that are one of these, or have one within; they identify no rows either."""
    ids = frozenset(column_ids)
    kept = tuple(item for item in schema.fields if ids.isdisjoint(part.field_id for _, part in walk_fields((item,))))
    if len(kept) == len(schema.fields):
        return schema
    left = replace(schema, fields=kept)
    return replace(left, identifier_field_ids=tuple(i for i in schema.identifier_field_ids if find_field(left, i) is not None))


def collect_lengths(timeline: Sequence[tuple[int, Schema]]) -> Mapping[int, int]:
    """Return the lengths of `fixed` columns by id, from the newest schema with each column."""
    types = {item.field_id: item.type for _, schema in timeline for _, item in walk_fields(schema.fields)}
    lengths = {i: find_fixed_length(type_) for i, type_ in types.items() if isinstance(type_, PrimitiveType)}
    return {i: length for i, length in lengths.items() if length is not None}


def _has_millis(columns: Sequence[ColumnRow], oldest_row: int) -> bool:
    in_files = (row for row in columns if row.end_snapshot is None or row.end_snapshot >= oldest_row)
    return any(row.column_type.lower() == "timestamp_ms" for row in in_files)


def has_variants(schema: Schema) -> bool:
    """Return True if a schema has a column of the type `variant`."""
    return any(item.type == PrimitiveType(VARIANT) for item in schema.fields)


def _list_variants(columns: Sequence[ColumnRow]) -> list[int]:
    return [row.column_id for row in columns if row.column_type.lower() == VARIANT]


def _has_variant(columns: Sequence[ColumnRow], oldest_row: int) -> bool:
    """Return True if files may hold a variant: Spark's vectorised reader fails over its shredded fields in every query."""
    in_files = (row for row in columns if row.end_snapshot is None or row.end_snapshot >= oldest_row)
    return any(row.column_type.lower() == VARIANT for row in in_files)


def _has_widened(timeline: Sequence[tuple[int, Schema]], oldest_row: int) -> bool:
    ints = set[int]()
    ends = [since for since, _ in timeline[1:]]
    for (_, schema), until in zip(timeline, [*ends, None], strict=True):
        names = {field_id: leaf.name for field_id, leaf in list_leaf_fields(schema)}
        if any(names.get(field_id) == "long" for field_id in ints):
            return True
        # One transaction may write rows before it changes their columns.
        if until is None or until >= oldest_row:
            ints |= {field_id for field_id, name in names.items() if name == "int"}
    return False


def _has_decimal_default(timeline: Sequence[tuple[int, Schema]]) -> bool:
    """Return True if a decimal has a default: Iceberg's vectorised reader fails, because it takes the default for the stored type."""
    fields = (item for _, schema in timeline for _, item in walk_fields(schema.fields))
    defaulted = (item.type for item in fields if (item.initial_default, item.write_default) != (None, None))
    return any(isinstance(leaf, PrimitiveType) and leaf.name.startswith("decimal") for leaf in defaulted)


def _needs_v3(schema: Schema) -> bool:
    leaves = (item.type for _, item in walk_fields(schema.fields))
    return any(isinstance(leaf, PrimitiveType) and leaf.name in ONLY_IN_V3 for leaf in leaves)


def _check_numbers(state: TableState, hidden: frozenset[int]) -> None:
    for column_id in sorted(frozenset(state.too_large) - hidden):
        raise build_value_refusal(state.table, columns_at(state.columns, (), state.position.lake_snapshot_id), column_id, TOO_LARGE)


def _check_ids(timeline: Sequence[tuple[int, Schema]]) -> None:
    """Refuse a column id in Iceberg's reserved range: DuckDB counts on from a client's ids without a limit."""
    reserved = (item for _, schema in timeline for item in walk_fields(schema.fields) if item[1].field_id > LAST_COLUMN_ID_MAX)
    for path, item in reserved:
        raise Unsupported(
            f"Column {path!r} has the id {item.field_id}, and Iceberg keeps those above {LAST_COLUMN_ID_MAX} for columns that readers add. "
            "Copy the table with CREATE TABLE … AS SELECT."
        )


def without_duplicate_names(fields: tuple[NestedField, ...], is_in_files: bool) -> tuple[NestedField, ...]:
    """Return columns with distinct full names: `"a.b"` and the field `b` of `a` are one name to Iceberg's readers.

    The later of two such columns is left out if no remaining file can contain both.
    Raises: Unsupported: two columns share a full name, and files may contain both
    """
    columns_by_path: dict[str, NestedField] = {}
    distinct: list[NestedField] = []
    for column in fields:
        paths = [path for path, _ in walk_fields((column,))]
        twin = next((path for path in paths if path in columns_by_path), None)
        if twin is None:
            columns_by_path |= dict.fromkeys(paths, column)
            distinct.append(column)
        elif is_in_files:
            raise Unsupported(
                f"Columns {columns_by_path[twin].name!r} and {column.name!r} share the full name {twin!r} in Iceberg. "
                "Copy the table under other names with CREATE TABLE … AS SELECT."
            )
    return tuple(distinct)
