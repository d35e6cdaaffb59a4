"""An Iceberg schema as DuckLake columns: the field id is `column_id`, a list's child is `element`, a map's `key` and `value`.

`to_ducklake.tables` calls this while `catalog` plans a change under the lake's lock, or checks a staged table without it. `to_column_type`
is also called before the lock, and by the driver of `import`. No I/O.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema, get_highest_field_id
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
    walk_fields,
)
from duckicelake.lake.lake_format import V1_0, LakeFormat
from duckicelake.lake.rows import ColumnRow
from duckicelake.lake.writing.rows import EndedColumn, EndedComment, NewColumn, NewComment, NewRow, WidenedFloats
from duckicelake.translate.namespaces import check_distinct, fold_name
from duckicelake.translate.types import NESTED_TYPES, PLACEHOLDER, VARIANT, find_primitive, is_placeholder, is_promotion
from duckicelake.translate.unreadable_columns import check_names_free, list_unseen
from duckicelake.translate.values import find_default_text

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
    "timestamp_ns": "timestamp_ns",
    "geometry": "geometry",
    "variant": "variant",
    "string": "varchar",
    "uuid": "uuid",
    "binary": "blob",
}
NEWER_TYPES: Mapping[str, str] = {"unknown": "null", "timestamptz_ns": "timestamptz_ns"}
"""Types that only some versions of DuckLake can hold."""
INTERNAL_PREFIX = "_ducklake_internal_"
"""The prefix of columns that DuckLake's files hold; no column or nested field may have it in any version."""
METADATA_NAMES = frozenset({"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"})
"""Columns that Iceberg's readers add to every table; Spark and Trino cannot read tables that define one. Source: `MetadataColumns`"""
NO_DEFAULT = "NULL"
WIDENING = "float32", "float64"
NARROW = frozenset({"int8", "int16", "uint8", "uint16", "uint32", "json", "timestamp_s", "timestamp_ms"})
"""Types that hold less than the Iceberg type they are published as, and widen without loss."""
NOT_WRITABLE = frozenset({"int128", "uint128", "timetz"})


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column of the wanted schema, and its position among its siblings."""

    field: NestedField
    parent: int | None
    column_type: str
    position: int


def list_wanted(schema: Schema, lake_format: LakeFormat, kept: Collection[str] = ()) -> list[WantedColumn]:
    """Return the columns of a schema, a parent before its children. Root names in `kept` are allowed, because the table has them already.

    Raises: BadRequest: DuckLake cannot store a type, names are ambiguous, or ids are in an order it cannot load
    """
    for field in schema.fields:
        if fold_name(field.name) in METADATA_NAMES and field.name not in kept:
            raise BadRequest(f"Column {field.name!r} has the name of a metadata column, so engines could not read it; rename it.")
    return list(_walk(schema.fields, Parents(), lake_format))


@dataclass(frozen=True, slots=True)
class Parents:
    """The parents of some columns: the full name of the nearest one, its id, and the id of the next; empty and None at the root."""

    path: str = ""
    parent: int | None = None
    grandparent: int | None = None


def _walk(fields: Sequence[NestedField], above: Parents, lake_format: LakeFormat) -> Iterator[WantedColumn]:
    path, parent, grandparent = above.path, above.parent, above.grandparent
    check_distinct((field.name for field in fields), f"Columns of {path!r}" if path else "Columns")
    if grandparent is not None and parent is not None and grandparent >= parent:
        raise BadRequest(f"Column {path!r} has the id {parent}, not above its parent's; DuckLake cannot load it. Number parents first.")
    for position, field in enumerate(fields, 1):
        name = f"{path}.{field.name}" if path else field.name
        _check_name(name, field.name, lake_format, is_root=parent is None)
        if field.type == PrimitiveType(VARIANT) and parent is not None:
            raise BadRequest(f"Column {name!r} has the type {VARIANT} within another column, which is not supported; make it a column.")
        yield WantedColumn(field, parent, to_column_type(field.type, name, lake_format), position)
        children = child_fields(field.type)
        if children:
            yield from _walk(children, Parents(name, field.field_id, parent), lake_format)


def _check_name(path: str, name: str, lake_format: LakeFormat, *, is_root: bool) -> None:
    folded = fold_name(name)
    if folded.startswith(INTERNAL_PREFIX) or (
        is_root and (folded in lake_format.reserved_names or folded.startswith(lake_format.reserved_prefix))
    ):
        raise BadRequest(f"Column {path!r} has a name that DuckLake reserves; rename it.")
    if "\0" in name:
        raise BadRequest(f"Column {path!r} has a NUL character in its name, which Postgres cannot store; rename it.")


def to_column_type(type_: IcebergType, path: str, lake_format: LakeFormat = V1_0) -> str:
    """Return DuckLake's name of a type.

    Raises: BadRequest: DuckLake cannot store it
    """
    match type_:
        case StructType():
            return "struct"
        case ListType():
            return "list"
        case MapType():
            return "map"
        case PrimitiveType():
            return _to_leaf_type(type_, path, lake_format)


def _to_leaf_type(type_: PrimitiveType, path: str, lake_format: LakeFormat) -> str:
    name, decimal, length = type_.name, find_decimal(type_), find_fixed_length(type_)
    if decimal is not None:
        return f"decimal({decimal[0]},{decimal[1]})"
    if length == 0:
        raise BadRequest(f"Column {path!r} has the type {name}, which Parquet cannot hold; give it a length of 1 or more.")
    column_type = TYPES["binary"] if length is not None else TYPES.get(name)
    if column_type is None and NEWER_TYPES.get(name) in lake_format.column_types:
        return NEWER_TYPES[name]
    if column_type is None:
        raise BadRequest(f"Column {path!r} has the type {name}, which is not supported yet; docs/limitations.md lists such types.")
    return column_type


def with_placeholders(schema: Schema, columns: Sequence[ColumnRow], last_column_id: int) -> Schema:
    """Return a schema in which a table without columns, and each struct without fields, has a placeholder for DuckLake.

    A live placeholder stays; new ones get ids after `last_column_id`, the last one that the table gave, and after those of all columns.
    Raises: BadRequest: a column has the placeholder's name, or the id of a live or former placeholder, whose values would be in it
    """
    newest = {row.column_id: row for row in columns}
    for path, field in walk_fields(schema.fields):
        if fold_name(field.name) == PLACEHOLDER:
            raise BadRequest(f"Column {path!r} has a name that this catalog reserves; rename it.")
        if field.field_id in newest and is_placeholder(newest[field.field_id]):
            raise BadRequest(
                f"Column {path!r} has the id {field.field_id}, which the column {PLACEHOLDER} has or had in DuckLake. "
                "Load the table again, and give new columns ids above its last-column-id."
            )
    known = {row.parent_column: row.column_id for row in columns if row.end_snapshot is None and is_placeholder(row)}
    ids = count(max(last_column_id, get_highest_field_id(schema), *newest) + 1)
    fields = tuple(_fill(field, known, ids) for field in schema.fields)
    return replace(schema, fields=fields or _make_placeholder(None, known, ids))


def _fill(field: NestedField, known: Mapping[int | None, int], ids: Iterator[int]) -> NestedField:
    return replace(field, type=_fill_type(field.type, field.field_id, known, ids))


def _fill_type(type_: IcebergType, field_id: int, known: Mapping[int | None, int], ids: Iterator[int]) -> IcebergType:
    match type_:
        case StructType(()):
            return StructType(_make_placeholder(field_id, known, ids))
        case StructType(fields):
            return StructType(tuple(_fill(field, known, ids) for field in fields))
        case ListType():
            return replace(type_, element_type=_fill_type(type_.element_type, type_.element_id, known, ids))
        case MapType():
            key = _fill_type(type_.key_type, type_.key_id, known, ids)
            return replace(type_, key_type=key, value_type=_fill_type(type_.value_type, type_.value_id, known, ids))
        case _:
            return type_


def _make_placeholder(parent: int | None, known: Mapping[int | None, int], ids: Iterator[int]) -> tuple[NestedField]:
    field_id = known[parent] if parent in known else next(ids)
    return (NestedField(field_id, PLACEHOLDER, PrimitiveType("boolean"), False),)


def create_columns(table_id: int, schema: Schema, lake_format: LakeFormat = V1_0, last_column_id: int = 0) -> list[NewRow]:
    """Return the columns and comments of a new table."""
    wanted = list_wanted(with_placeholders(schema, (), last_column_id), lake_format)
    orders = _list_orders(wanted, {})
    rows: list[NewRow] = [_new_column(table_id, item, orders[item.field.field_id]) for item in wanted]
    return rows + [NewComment(table_id, item.field.field_id, doc) for item in wanted if (doc := _root_doc(item))]


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """The rules for changes of columns. `before` is the published schema: a default that did not change in it stays as DuckDB has it.

    `widens`: columns of narrow types get the type that holds every value that Iceberg clients may write. `last_column_id` is that of the
    new metadata.
    """

    before: Schema
    widens: bool
    lake_format: LakeFormat = V1_0
    last_column_id: int = 0


def change_columns(table_id: int, columns: Sequence[ColumnRow], after: Schema, rules: ColumnRules) -> list[NewRow]:
    """Return the rows that turn the live columns of a table into those of a schema; equal columns are unchanged.

    Raises: BadRequest: a type cannot become the wanted one
    """
    kept = {row.column_name for row in columns if row.end_snapshot is None and row.parent_column is None}
    wanted = list_wanted(with_placeholders(after, columns, rules.last_column_id), rules.lake_format, kept)
    check_names_free(list_unseen(columns, rules.before), after)
    live = {row.column_id: row for row in columns if row.end_snapshot is None}
    past = {row.column_id: row for row in columns}
    rows: list[NewRow] = []
    widened: list[NewRow] = []
    old_fields = _fields_by_id(rules.before)
    orders = _list_orders(wanted, live)
    for item in wanted:
        old = live.get(item.field.field_id)
        if old is None and item.field.field_id in past:
            _next_type(past[item.field.field_id], item, rules.widens)
        new = _new_column(table_id, item, orders[item.field.field_id])
        if old is not None:
            column_type = _next_type(old, item, rules.widens)
            before = old_fields.get(old.column_id)
            _check_length(before, item.field)
            keeps_default = before is not None and before.write_default == item.field.write_default
            new = _keep(new, old, column_type, keeps_default=keeps_default)
            if before is not None and before.required == item.field.required:
                # A NOT NULL column that may hold a NULL is published as optional, and stays NOT NULL in DuckDB.
                new = replace(new, nulls_allowed=old.nulls_allowed)
            if is_same(new, old):
                continue
            if (old.column_type.lower(), column_type) == WIDENING:
                widened.append(WidenedFloats(table_id, new.column_id))
            rows.append(EndedColumn(table_id, new.column_id))
        rows.append(new)
    # A client cannot drop columns that are not published to it, except placeholders.
    droppable = {column_id for column_id, row in live.items() if column_id in old_fields or is_placeholder(row)}
    dropped = sorted(droppable - {item.field.field_id for item in wanted})
    ends: list[NewRow] = [row for row in rows if isinstance(row, EndedColumn)]
    news: list[NewRow] = [row for row in rows if isinstance(row, NewColumn)]
    return [*(EndedColumn(table_id, column_id) for column_id in dropped), *ends, *news, *widened]


def change_comments(table_id: int, comments: Mapping[int, str], after: Schema) -> list[NewRow]:
    """Return the rows that make the comments on root columns equal to a schema's docs."""
    docs = {field.field_id: field.doc for field in after.fields if field.doc}
    ended = sorted(column_id for column_id, text in comments.items() if docs.get(column_id) != text)
    changed = sorted(column_id for column_id, text in docs.items() if comments.get(column_id) != text)
    return [*(EndedComment(table_id, column_id) for column_id in ended), *(NewComment(table_id, i, docs[i]) for i in changed)]


def _fields_by_id(schema: Schema) -> dict[int, NestedField]:
    return {item.field.field_id: item.field for item in _walk_leniently(schema.fields, None)}


def _walk_leniently(fields: Sequence[NestedField], parent: int | None) -> Iterator[WantedColumn]:
    for position, field in enumerate(fields):
        yield WantedColumn(field, parent, "", position)
        yield from _walk_leniently(child_fields(field.type), field.field_id)


def _list_orders(wanted: Sequence[WantedColumn], live: Mapping[int, ColumnRow]) -> dict[int, int]:
    """Return each column's `column_order` by its id: ids ascend in it, because DuckDB shows columns in the order of ids.

    The clients' order is in the note of their schema. DuckDB 1.5.5 sets the order of an altered column to its id, and if that
    reorders the columns, it writes inlined rows by other positions than it reads them by.
    """
    by_id = {item.field.field_id: item for item in sorted(wanted, key=lambda item: item.field.field_id)}
    new_orders = {i: item.position if _is_value_first(item, by_id) else i for i, item in by_id.items()}
    orders = {i: live[i].column_order if i in live else order for i, order in new_orders.items()}
    last: dict[int | None, int] = {}
    for i, item in by_id.items():
        if orders[i] <= last.get(item.parent, -1) and not _is_value_first(item, by_id):
            return new_orders
        last[item.parent] = orders[i]
    return orders


def _is_value_first(item: WantedColumn, by_id: Mapping[int, WantedColumn]) -> bool:
    """Return True if the column belongs to a map whose value has a lower id than its key: a map's key must come first."""
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

    Raises: BadRequest: DuckLake cannot store it
    """
    if default is None:
        return None
    text = find_default_text(field.type, parse_value(field.type, default)) if isinstance(field.type, PrimitiveType) else None
    if text is None or text == NO_DEFAULT:
        raise BadRequest(f"Column {field.name!r} has the default {str(default)[:100]!r}, which DuckLake cannot hold; leave it out.")
    return text


def _keep(new: NewColumn, old: ColumnRow, column_type: str, *, keeps_default: bool) -> NewColumn:
    """Return a column's next version with the properties that the client did not change."""
    is_reformatted = (old.column_type.lower(), column_type) == WIDENING and new.initial_default is not None
    merged = replace(new, column_type=column_type, initial_default=new.initial_default if is_reformatted else old.initial_default)
    if new.parent_column is not None:
        merged = replace(merged, nulls_allowed=old.nulls_allowed)
    if keeps_default:
        kind = old.default_value_type or new.default_value_type
        merged = replace(merged, default_value=old.default_value, default_value_type=kind)
    return merged


def is_same(new: NewColumn, old: ColumnRow) -> bool:
    """Return True if a column's next version equals its live one."""
    return (
        (new.column_order, new.column_name, new.column_type) == (old.column_order, old.column_name, old.column_type.lower())
        and (new.nulls_allowed, new.parent_column) == (old.nulls_allowed, old.parent_column)
        and _normalize_default(new.default_value) == _normalize_default(old.default_value)
    )


def _normalize_default(text: str | None) -> str:
    return NO_DEFAULT if text is None else text


def _next_type(old: ColumnRow, item: WantedColumn, widens: bool) -> str:
    """Return the type of a column's next version: the live one if Iceberg treats it as the wanted one."""
    live = old.column_type.lower()
    if live == item.column_type:
        return live
    wanted_is_leaf = item.column_type not in NESTED_TYPES
    if wanted_is_leaf and live not in NESTED_TYPES and is_promotion(live, item.column_type):
        keeps = find_primitive(live) == find_primitive(item.column_type) and not (widens and _is_narrow(old))
        return live if keeps else item.column_type
    raise BadRequest(f"Column {item.field.name!r} cannot change its type from {live} to {item.column_type}; add another column.")


def _check_length(before: NestedField | None, after: NestedField) -> None:
    """Raise BadRequest if a `fixed` column would get another length or become `binary`: both are `blob`, but readers distinguish them."""
    if before is None or not isinstance(before.type, PrimitiveType) or not isinstance(after.type, PrimitiveType):
        return
    if find_fixed_length(before.type) != find_fixed_length(after.type):
        raise BadRequest(f"Column {after.name!r} cannot change its type from {before.type} to {after.type}; add another column.")


def has_narrow(columns: Sequence[ColumnRow]) -> bool:
    """Return True if a live column's DuckLake type holds less than the Iceberg type it is published as.

    An Iceberg client may write any `int` into an `int8` of DuckDB, and any text into a `json`.
    """
    return any(_is_narrow(row) for row in columns if row.end_snapshot is None)


def _is_narrow(row: ColumnRow) -> bool:
    return row.column_type.lower() in NARROW


def check_writable(columns: Sequence[ColumnRow]) -> None:
    """Raise BadRequest if a live column cannot store every value that Iceberg clients may write.

    For example, DuckDB would change a fraction that a client writes into an `int128`, which is published as a double.
    """
    for row in columns:
        if row.end_snapshot is None and row.column_type.lower() in NOT_WRITABLE:
            raise BadRequest(
                f"Column {row.column_name!r} has the DuckLake type {row.column_type}, which Iceberg clients cannot write. "
                "Copy it into a column of another type in DuckDB and drop it."
            )
