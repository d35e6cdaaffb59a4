"""DuckLake columns as an Iceberg schema: `column_id` is the field id, NOT NULL is `required`, comments are docs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.encoding.json_values import format_value
from duckicelake.iceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    decimal_type,
    find_decimal,
)
from duckicelake.lake.rows import ColumnRow, ColumnTagRow
from duckicelake.translate.values import parse_value

PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "uint8": "int",
    "uint16": "int",
    "float32": "float",
    "float64": "double",
    "varchar": "string",
    "json": "string",
    "blob": "binary",
    "uuid": "uuid",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamp_us": "timestamp",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamptz": "timestamptz",
}
"""DuckLake types that Iceberg readers read from DuckDB's Parquet as they are."""

REMEDIES: Mapping[str, str] = {
    "uint32": "BIGINT",
    "uint64": "DECIMAL(20, 0)",
    "int128": "DECIMAL(38, 0)",
    "uint128": "DECIMAL(38, 0)",
    "timestamp_ns": "TIMESTAMP",
    "timetz": "TIME or VARCHAR",
}
"""A published type that can hold what a column of an unpublished type holds; VARCHAR for the others."""

NESTED_TYPES: Mapping[str, int | None] = {"struct": None, "list": 1, "map": 2}
"""How many children each has; a struct any number."""

DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


@dataclass(frozen=True, slots=True)
class ColumnTree:
    """The columns live at one lake snapshot, by parent (None: the table) in column order."""

    children: Mapping[int | None, Sequence[ColumnRow]]
    comments: Mapping[int, str]


def columns_at(columns: Iterable[ColumnRow], tags: Iterable[ColumnTagRow], lake_snapshot_id: int) -> ColumnTree:
    """Return the columns and comments as they were at a lake snapshot."""
    children: dict[int | None, list[ColumnRow]] = {}
    for row in columns:
        if is_live(row, lake_snapshot_id):
            children.setdefault(row.parent_column, []).append(row)
    for siblings in children.values():
        siblings.sort(key=lambda row: (row.column_order, row.column_id))
    comments = {tag.column_id: tag.value for tag in tags if tag.value and is_live(tag, lake_snapshot_id)}
    return ColumnTree(children, comments)


def is_live(row: ColumnRow | ColumnTagRow, lake_snapshot_id: int) -> bool:
    """Tell whether a versioned row is live at a lake snapshot."""
    return row.begin_snapshot <= lake_snapshot_id and (row.end_snapshot is None or lake_snapshot_id < row.end_snapshot)


@dataclass(frozen=True, slots=True)
class FieldRules:
    """How columns become fields. Those of the past are left out when they cannot be said; those of the present raise.

    `defaulted` are the columns that older rows lack and that are not null there: their fields carry defaults.
    `unreadable` are versions of columns whose type older rows cannot be read by.
    """

    is_past: bool
    defaulted: frozenset[int]
    unreadable: frozenset[ColumnRow]


def to_fields(tree: ColumnTree, rules: FieldRules) -> tuple[NestedField, ...]:
    """Return the Iceberg columns of these DuckLake columns.

    Raises: Unsupported: a column of the present that is not published, naming column, type and remedy
    """
    fields = (_find_field(row, row.column_name, tree, rules) for row in tree.children.get(None, ()))
    return tuple(field for field in fields if field is not None)


def _find_field(row: ColumnRow, path: str, tree: ColumnTree, rules: FieldRules) -> NestedField | None:
    # DuckDB writes nulls_allowed = false for nested columns that it adds or renames, whatever they hold
    required = row.parent_column is None and not row.nulls_allowed
    found = _find_type(row, path, tree, rules)
    if found is None:
        return None
    initial = write = None
    if row.column_id in rules.defaulted and isinstance(found, PrimitiveType):
        try:
            initial, write = _find_defaults(row, found)
        except Unsupported:
            if rules.is_past:
                return None
            raise
    return NestedField(row.column_id, row.column_name, found, required, tree.comments.get(row.column_id), initial, write)


def _find_defaults(row: ColumnRow, type_: PrimitiveType) -> tuple[object, object]:
    initial = to_default(type_, row.initial_default, row.column_name)
    # only here DuckDB writes no default as a word
    has_write = row.default_value_type == "literal" and row.default_value != "NULL"
    return initial, to_default(type_, row.default_value, row.column_name) if has_write else None


def to_default(type_: PrimitiveType, text: str | None, column_name: str) -> object:
    """Return a default as a JSON single value, None for none.

    Raises: Unsupported: Iceberg cannot say the value
    """
    if text is None:
        return None
    try:
        value = parse_value(type_, text)
        if value is not None:
            return format_value(type_, value)
    except BadRequest:
        pass
    raise Unsupported(
        f"Column {column_name!r} has the default {text!r}, which Iceberg cannot say as {type_}. "
        "Copy it into a new column without a default and drop it."
    )


def _find_type(row: ColumnRow, path: str, tree: ColumnTree, rules: FieldRules) -> IcebergType | None:
    children = tree.children.get(row.column_id, ())
    column_type = row.column_type.lower()
    if row in rules.unreadable:
        return None
    if column_type not in NESTED_TYPES:
        return find_primitive(column_type) if rules.is_past else to_primitive(column_type, path)
    fields = [_find_field(child, f"{path}.{child.column_name}", tree, rules) for child in children]
    known = [field for field in fields if field is not None]
    if column_type == "struct":
        return StructType(tuple(known)) if known else None
    if len(known) < len(children):
        return None
    if len(known) != NESTED_TYPES[column_type]:
        raise Unsupported(f"Column {path!r} is a {column_type} with {len(known)} children; the lake's metadata is damaged.")
    if column_type == "list":
        (element,) = known
        return ListType(element.field_id, element.type, False)
    key, value = known
    return MapType(key.field_id, key.type, value.field_id, value.type, False)


def find_primitive(column_type: str) -> PrimitiveType | None:
    """Return the Iceberg type of a DuckLake leaf type, or None when it is not published."""
    if column_type in PRIMITIVES:
        return PrimitiveType(PRIMITIVES[column_type])
    decimal = DECIMAL.fullmatch(column_type)
    return decimal_type(int(decimal[1]), int(decimal[2])) if decimal else None


def to_primitive(column_type: str, path: str) -> PrimitiveType:
    """Return the Iceberg type of a DuckLake leaf type.

    Raises: Unsupported: the type is not published
    """
    found = find_primitive(column_type)
    if found is None:
        raise Unsupported(
            f"Column {path!r} has the DuckLake type {column_type!r}, which is not published yet. "
            f"Copy it into a new column of type {REMEDIES.get(column_type, 'VARCHAR')} and drop it."
        )
    return found


def find_unreadable(columns: Sequence[ColumnRow], oldest_snapshot_id: int) -> frozenset[ColumnRow]:
    """Return the versions of columns whose type changed in a way that Iceberg cannot read old files by.

    Units:  `oldest_snapshot_id` is the lake snapshot of the oldest row left, so older types do not matter
    Raises: Unsupported: a live column is among them, by name and types
    Source: Iceberg spec «Schema Evolution»: int → long, float → double, a decimal to more digits
    """
    versions: dict[int, list[ColumnRow]] = {}
    for row in sorted(columns, key=lambda row: row.begin_snapshot):
        if row.end_snapshot is None or row.end_snapshot > oldest_snapshot_id:
            versions.setdefault(row.column_id, []).append(row)
    found: set[ColumnRow] = set()
    for rows in versions.values():
        for old, new in pairwise(rows):
            is_readable = is_promotion(old.column_type.lower(), new.column_type.lower())
            if not is_readable and rows[-1].end_snapshot is None:
                raise Unsupported(
                    f"Column {new.column_name!r} was changed from {old.column_type!r} to {new.column_type!r}; Iceberg cannot read "
                    "the older rows by the new type. Copy it into a new column and drop it."
                )
            if not is_readable or old in found:
                found.add(new)
    return frozenset(found)


def is_promotion(old: str, new: str) -> bool:
    """Tell whether Iceberg reads files of an older DuckLake type by a newer one."""
    if old == new:
        return True
    before, after = find_primitive(old), find_primitive(new)
    if before is None or after is None:
        return False
    decimals = find_decimal(before), find_decimal(after)
    if decimals[0] and decimals[1]:
        return decimals[0][1] == decimals[1][1] and decimals[0][0] <= decimals[1][0]
    return before == after or (before.name, after.name) in {("int", "long"), ("float", "double")}


def find_defaulted(columns: Sequence[ColumnRow], oldest_snapshot_id: int) -> frozenset[int]:
    """Return the columns that were added with a default while older rows are left: those read as it, not as null."""
    first: dict[int, int] = {}
    for row in columns:
        first[row.column_id] = min(row.begin_snapshot, first.get(row.column_id, row.begin_snapshot))
    return frozenset(row.column_id for row in columns if row.initial_default is not None and first[row.column_id] > oldest_snapshot_id)


def schema_changes(columns: Iterable[ColumnRow], tags: Iterable[ColumnTagRow]) -> list[int]:
    """Return the lake snapshots at which some column or comment begins or ends, in order."""
    ids: set[int] = set()
    for row in (*columns, *tags):
        ids |= {row.begin_snapshot} if row.end_snapshot is None else {row.begin_snapshot, row.end_snapshot}
    return sorted(ids)
