"""An Iceberg schema as DuckLake columns: the field id is `column_id`, a list's child is `element`, a map's `key` and `value`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import parse_value
from duckicelake.iceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    child_fields,
    find_decimal,
    find_fixed_length,
)
from duckicelake.lake.rows import ColumnRow
from duckicelake.lake.writing.rows import EndedColumn, EndedComment, NewColumn, NewComment, NewRow, WidenedFloats
from duckicelake.translate.namespaces import check_distinct, fold_name
from duckicelake.translate.to_ducklake.texts import find_text
from duckicelake.translate.types import NESTED_TYPES, find_primitive, is_promotion

TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "string": "varchar",
    "uuid": "uuid",
    "binary": "blob",
}
RESERVED_PREFIX = "_ducklake_internal_"
RESERVED_NAMES = frozenset({"row_id", "begin_snapshot", "end_snapshot"})
METADATA_NAMES = frozenset({"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"})
"""Columns that Iceberg's readers add to every table; Spark and Trino read none that has its own. Source: `MetadataColumns`"""
NO_DEFAULT = "NULL"
WIDENING = "float32", "float64"
NARROW = frozenset({"int8", "int16", "uint8", "uint16", "uint32", "json", "timestamp_s", "timestamp_ms"})
"""Types that hold less than the Iceberg type they are published as, and widen without loss."""
NOT_WRITABLE = frozenset({"int128", "uint128", "timetz", "timestamp_ns", "geometry"})


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column as the schema wants it, among its siblings in this order."""

    field: NestedField
    parent: int | None
    column_type: str
    position: int


def list_wanted(schema: Schema, kept: Collection[str] = ()) -> list[WantedColumn]:
    """Return the columns of a schema, a parent before its children. Names of the root that are `kept` are there already.

    Raises: BadRequest: no column, a type DuckLake cannot hold, names it cannot tell apart, ids in an order it cannot load
    """
    if not schema.fields:
        raise BadRequest("A table needs at least one column, for DuckLake cannot hold one without; add a column.")
    for field in schema.fields:
        if fold_name(field.name) in METADATA_NAMES and field.name not in kept:
            raise BadRequest(f"Column {field.name!r} has the name of a metadata column, so engines could not read it; rename it.")
    return list(_walk(schema.fields, None, None, ""))


def _walk(fields: Sequence[NestedField], parent: NestedField | None, grandparent: int | None, path: str) -> Iterator[WantedColumn]:
    where = f"Columns of {path!r}" if path else "Columns"
    check_distinct((field.name for field in fields), where)
    parent_id = None if parent is None else parent.field_id
    if grandparent is not None and parent_id is not None and grandparent >= parent_id:
        raise BadRequest(f"Column {path!r} has the id {parent_id}, not above its parent's; DuckLake cannot load it. Number parents first.")
    for position, field in enumerate(fields, 1):
        name = f"{path}.{field.name}" if path else field.name
        _check_name(name, field.name, is_root=parent is None)
        yield WantedColumn(field, parent_id, to_column_type(field.type, name), position)
        children = child_fields(field.type)
        if children:
            yield from _walk(children, field, parent_id, name)


def _check_name(path: str, name: str, *, is_root: bool) -> None:
    folded = fold_name(name)
    if folded.startswith(RESERVED_PREFIX) or (is_root and folded in RESERVED_NAMES):
        raise BadRequest(f"Column {path!r} has a name that DuckLake reserves; rename it.")
    if "\0" in name:
        raise BadRequest(f"Column {path!r} has a NUL character in its name, which Postgres cannot store; rename it.")


def to_column_type(type_: IcebergType, path: str) -> str:
    """Return DuckLake's name of a type.

    Raises: BadRequest: DuckLake cannot hold it
    """
    match type_:
        case StructType(fields):
            if not fields:
                raise BadRequest(f"Column {path!r} is a struct without fields, which DuckLake cannot hold; add one.")
            return "struct"
        case ListType():
            return "list"
        case MapType():
            return "map"
        case PrimitiveType(name):
            decimal = find_decimal(type_)
            if decimal is not None:
                return f"decimal({decimal[0]},{decimal[1]})"
            length = find_fixed_length(type_)
            if length == 0:
                raise BadRequest(f"Column {path!r} has the type {name}, which Parquet cannot hold; give it a length of 1 or more.")
            if length is not None:
                return TYPES["binary"]
            if name not in TYPES:
                raise BadRequest(f"Column {path!r} has the type {name}, which is not supported yet; docs/limitations.md lists such types.")
            return TYPES[name]


def create_columns(table_id: int, schema: Schema) -> list[NewRow]:
    """Return the columns and comments of a new table."""
    wanted = list_wanted(schema)
    orders = _list_orders(wanted, {})
    rows: list[NewRow] = [_new_column(table_id, item, orders[item.field.field_id]) for item in wanted]
    return rows + [NewComment(table_id, item.field.field_id, doc) for item in wanted if (doc := _root_doc(item))]


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """How columns change. `before` is what was published of them: a default that did not change there stays as DuckDB has it.

    `widens`: columns of narrow types get the type that holds all that Iceberg may write into them.
    """

    before: Schema
    widens: bool


def change_columns(table_id: int, columns: Sequence[ColumnRow], after: Schema, rules: ColumnRules) -> list[NewRow]:
    """Return the rows that make the live ones of a table's columns those of a schema; what both say alike stays untouched.

    Raises: BadRequest: a type cannot become the wanted one
    """
    wanted = list_wanted(after, {row.column_name for row in columns if row.end_snapshot is None and row.parent_column is None})
    known = {row.column_id: row for row in columns if row.end_snapshot is None}
    past = {row.column_id: row for row in columns}
    rows: list[NewRow] = []
    widened: list[NewRow] = []
    old_fields = _fields_by_id(rules.before)
    orders = _list_orders(wanted, known)
    for item in wanted:
        old = known.get(item.field.field_id)
        if old is None and item.field.field_id in past:
            _next_type(past[item.field.field_id], item, rules.widens)
        new = _new_column(table_id, item, orders[item.field.field_id])
        if old is not None:
            kind = _next_type(old, item, rules.widens)
            before = old_fields.get(old.column_id)
            _check_length(before, item.field)
            keeps_default = before is not None and before.write_default == item.field.write_default
            new = _keep(new, old, kind, keeps_default=keeps_default)
            if before is not None and before.required == item.field.required:
                # a NOT NULL column that may hold a NULL is published as optional, and stays NOT NULL to DuckDB
                new = replace(new, nulls_allowed=old.nulls_allowed)
            if is_same(new, old):
                continue
            if (old.column_type.lower(), kind) == WIDENING:
                widened.append(WidenedFloats(table_id, new.column_id))
            rows.append(EndedColumn(table_id, new.column_id))
        rows.append(new)
    # columns that are not published are not the client's to drop
    gone = sorted((known.keys() & old_fields.keys()) - {item.field.field_id for item in wanted})
    ends: list[NewRow] = [row for row in rows if isinstance(row, EndedColumn)]
    news: list[NewRow] = [row for row in rows if isinstance(row, NewColumn)]
    return [*(EndedColumn(table_id, column_id) for column_id in gone), *ends, *news, *widened]


def change_comments(table_id: int, comments: Mapping[int, str], after: Schema) -> list[NewRow]:
    """Return the rows that make the comments on root columns a schema's docs."""
    docs = {field.field_id: field.doc for field in after.fields if field.doc}
    ended = sorted(column_id for column_id, text in comments.items() if docs.get(column_id) != text)
    fresh = sorted(column_id for column_id, text in docs.items() if comments.get(column_id) != text)
    return [*(EndedComment(table_id, column_id) for column_id in ended), *(NewComment(table_id, i, docs[i]) for i in fresh)]


def _fields_by_id(schema: Schema) -> dict[int, NestedField]:
    return {item.field.field_id: item.field for item in _walk_leniently(schema.fields, None)}


def _walk_leniently(fields: Sequence[NestedField], parent: int | None) -> Iterator[WantedColumn]:
    for position, field in enumerate(fields):
        yield WantedColumn(field, parent, "", position)
        yield from _walk_leniently(child_fields(field.type), field.field_id)


def _list_orders(wanted: Sequence[WantedColumn], known: Mapping[int, ColumnRow]) -> dict[int, int]:
    """Return the order of each column by its id: that of ids, in which DuckDB shows columns, wherever clients put them.

    Clients' order is noted with their schema. DuckDB 1.5.5 gives a column that it alters its id as order, and writes inlined rows by
    other places than it reads them by when that changes the order of columns.
    """
    by_id = {item.field.field_id: item for item in sorted(wanted, key=lambda item: item.field.field_id)}
    own = {i: item.position if _is_value_first(item, by_id) else i for i, item in by_id.items()}
    kept = {i: known[i].column_order if i in known else order for i, order in own.items()}
    last: dict[int | None, int] = {}
    for i, item in by_id.items():
        if kept[i] <= last.get(item.parent, -1) and not _is_value_first(item, by_id):
            return own
        last[item.parent] = kept[i]
    return kept


def _is_value_first(item: WantedColumn, by_id: Mapping[int, WantedColumn]) -> bool:
    """Tell whether a column is of a map whose value has a lower id than its key: a map's key comes first, whatever their ids."""
    parent = None if item.parent is None else by_id[item.parent].field.type
    return isinstance(parent, MapType) and parent.value_id < parent.key_id


def _root_doc(item: WantedColumn) -> str | None:
    return item.field.doc if item.parent is None else None


def _new_column(table_id: int, item: WantedColumn, order: int) -> NewColumn:
    field = item.field
    is_leaf = item.column_type not in NESTED_TYPES
    return NewColumn(
        table_id=table_id,
        column_id=field.field_id,
        column_order=order,
        column_name=field.name,
        column_type=item.column_type,
        initial_default=_to_default(field, field.initial_default),
        default_value=NO_DEFAULT if (default := _to_default(field, field.write_default)) is None else default,
        default_value_type="literal" if is_leaf else "",
        nulls_allowed=item.parent is not None or not field.required,
        parent_column=item.parent,
    )


def _to_default(field: NestedField, default: object) -> str | None:
    """Return a default as DuckDB's text.

    Raises: BadRequest: a default of a kind DuckLake cannot hold
    """
    if default is None:
        return None
    text = find_text(field.type, parse_value(field.type, default)) if isinstance(field.type, PrimitiveType) else None
    if text is None or text == NO_DEFAULT:
        raise BadRequest(f"Column {field.name!r} has the default {str(default)[:100]!r}, which DuckLake cannot hold; leave it out.")
    return text


def _keep(new: NewColumn, old: ColumnRow, column_type: str, *, keeps_default: bool) -> NewColumn:
    """Return a column's next version with what the client cannot mean to change."""
    is_retold = (old.column_type.lower(), column_type) == WIDENING and new.initial_default is not None
    kept = replace(new, column_type=column_type, initial_default=new.initial_default if is_retold else old.initial_default)
    if new.parent_column is not None:
        kept = replace(kept, nulls_allowed=old.nulls_allowed)
    if keeps_default:
        kind = old.default_value_type or new.default_value_type
        kept = replace(kept, default_value=old.default_value, default_value_type=kind)
    return kept


def is_same(new: NewColumn, old: ColumnRow) -> bool:
    """Tell whether a column's next version says nothing else than its live one."""
    return (
        (new.column_order, new.column_name, new.column_type) == (old.column_order, old.column_name, old.column_type.lower())
        and (new.nulls_allowed, new.parent_column) == (old.nulls_allowed, old.parent_column)
        and _normalize_default(new.default_value) == _normalize_default(old.default_value)
    )


def _normalize_default(text: str | None) -> str:
    return NO_DEFAULT if text is None else text


def _next_type(old: ColumnRow, item: WantedColumn, widens: bool) -> str:
    """Return the type of a column's next version: the live one as long as Iceberg takes it for the wanted one."""
    live = old.column_type.lower()
    if live == item.column_type:
        return live
    wanted_is_leaf = item.column_type not in NESTED_TYPES
    if wanted_is_leaf and live not in NESTED_TYPES and is_promotion(live, item.column_type):
        keeps = find_primitive(live) == find_primitive(item.column_type) and not (widens and _is_narrow(old))
        return live if keeps else item.column_type
    raise BadRequest(f"Column {item.field.name!r} cannot change its type from {live} to {item.column_type}; add another column.")


def _check_length(before: NestedField | None, after: NestedField) -> None:
    """Raise BadRequest when a `fixed` column would get another length or become `binary`: both are `blob`, and readers take them apart."""
    if before is None or not isinstance(before.type, PrimitiveType) or not isinstance(after.type, PrimitiveType):
        return
    if find_fixed_length(before.type) != find_fixed_length(after.type):
        raise BadRequest(f"Column {after.name!r} cannot change its type from {before.type} to {after.type}; add another column.")


def has_narrow(columns: Sequence[ColumnRow]) -> bool:
    """Tell whether some live column's DuckLake type holds less than the Iceberg type it is published as.

    An Iceberg client may write any `int` into what DuckDB made an `int8`, and any text into what it made `json`.
    """
    return any(_is_narrow(row) for row in columns if row.end_snapshot is None)


def _is_narrow(row: ColumnRow) -> bool:
    return row.column_type.lower() in NARROW


def check_writable(columns: Sequence[ColumnRow]) -> None:
    """Raise BadRequest when a live column would not hold what Iceberg clients may write into it.

    A fraction in what DuckDB reads as a whole number is the kind of value that would be another one there.
    """
    for row in columns:
        if row.end_snapshot is None and row.column_type.lower() in NOT_WRITABLE:
            raise BadRequest(
                f"Column {row.column_name!r} has the DuckLake type {row.column_type}, which Iceberg clients cannot write. "
                "Copy it into a column of another type in DuckDB and drop it."
            )
