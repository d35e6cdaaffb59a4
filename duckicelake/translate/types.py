"""DuckLake columns as an Iceberg schema: `column_id` is the field id, NOT NULL is `required`, comments are docs. No I/O.

The types of leaves come first: those that are published, replacements for the others, and the SQL that replaces a column. `schemas`,
`views` and `functions` of `translate` and `catalog.row_files` use them for loads, `to_ducklake` for commits; `name_mapping` calls
`reads_as_stored` for files that other writers made; `reader_limits` formats SQL for `duckicelake check`.

A type is published if every reader reads its values from DuckDB's Parquet files unchanged. Some hold only a part of their
values exactly (`PARTIAL`): a value outside of that part makes the server refuse the table. Once such a column is dropped, it is
left out of older schemas too, so that the table can be read again.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from duckicelake.errors import BadRequest, Damaged, Unsupported
from duckicelake.iceberg.schema import Schema, can_identify, find_field
from duckicelake.iceberg.single_values import format_value
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
from duckicelake.lake.rows import ColumnRow, ColumnTagRow, InlinedTable, NullableRow, PartitionRow, SchemaVersionRow, TableRow, TableState
from duckicelake.translate.values import parse_value

PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "uint8": "int",
    "uint16": "int",
    "uint32": "long",
    "int128": "double",
    "uint128": "double",
    "float32": "float",
    "float64": "double",
    "varchar": "string",
    "json": "string",
    "blob": "binary",
    "uuid": "uuid",
    "date": "date",
    "time": "time",
    "timetz": "time",
    "timestamp": "timestamp",
    "timestamp_us": "timestamp",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "timestamptz": "timestamptz",
    "timestamptz_ns": "timestamptz_ns",
    "null": "unknown",
    "geometry": "geometry",
    "variant": "variant",
}
"""DuckLake types that Iceberg readers read unchanged from DuckDB's Parquet files."""

WHOLE_DOUBLES = frozenset({"int128", "uint128"})
"""Integer types that DuckDB writes to Parquet as doubles."""

PARTIAL = WHOLE_DOUBLES | {"uint32", "timetz"}
"""uint32: values below 2^31. int128, uint128: values that a double holds. timetz: times in UTC."""

ONLY_IN_V3 = frozenset({"timestamp_ns", "timestamptz_ns", "unknown", "geometry", "variant"})
"""Iceberg types that need format version 3."""

REPLACEMENTS: Mapping[str, str] = {
    "uint32": "BIGINT",
    "uint64": "DECIMAL(20, 0)",
    "int128": "DECIMAL(38, 0)",
    "uint128": "DECIMAL(38, 0)",
    "variant": "JSON",
}
"""A published type that can hold the values of the unpublished one; VARCHAR for the others."""

VARIANT = "variant"
"""The name of the type in DuckLake and in Iceberg. It is published for columns of a table, not for fields within them."""

PROPERTY, REFUSE, HIDE = "iceberg.unreadable-columns", "refuse", "hide"
"""The table property that says what becomes of a column that Iceberg cannot represent."""

SQL_NAMES: Mapping[str, str] = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
"""DuckDB's SQL names of published types whose DuckLake name is not a SQL name."""

DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def find_primitive(column_type: str) -> PrimitiveType | None:
    """Return the Iceberg type of a DuckLake leaf type, or None if it is not published."""
    if column_type in PRIMITIVES:
        return PrimitiveType(PRIMITIVES[column_type])
    decimal = DECIMAL.fullmatch(column_type)
    return decimal_type(int(decimal[1]), int(decimal[2])) if decimal else None


def format_sql_leaf(column_type: str) -> str:
    """Return the SQL name of a leaf type, or of its replacement."""
    if column_type in PARTIAL or column_type == VARIANT or find_primitive(column_type) is None:
        return REPLACEMENTS.get(column_type, "VARCHAR")
    return SQL_NAMES.get(column_type, column_type.upper())


STORED_KINDS: Mapping[str, str] = {
    "boolean": "bool",
    "int8": "int8",
    "int16": "u?int8|int16",
    "int32": "u?int8|u?int16|int32",
    "int64": "u?int8|u?int16|int32|int64",
    "uint8": "uint8",
    "uint16": "uint8|uint16",
    "uint32": "uint8|uint16|uint32",
    "float32": "float",
    "float64": "float|double",
    "varchar": "(large_)?string(_view)?|extension<arrow.json>",
    "json": "(large_)?string(_view)?|extension<arrow.json>",
    "blob": "(large_)?binary(_view)?|fixed_size_binary.*",
    "uuid": "extension<arrow.uuid>|fixed_size_binary.16.",
    "date": "date32.*",
    "time": "time64.us.",
    "timestamp": "timestamp.(us|ms).",
    "timestamp_us": "timestamp.(us|ms).",
    "timestamp_s": "nothing",
    "timestamp_ms": "timestamp.ms.",
    "timestamp_ns": "timestamp.ns.",
    "timestamptz": "timestamp.(us|ms), tz=.*",
    "timestamptz_ns": "timestamp.ns, tz=.*",
}
"""Arrow types that a file of another writer may store for a DuckLake type, so that Iceberg readers return the same values as DuckDB."""


def reads_as_stored(ducklake_type: str, kind: str) -> bool:
    """Return True if DuckDB and Iceberg readers read the same values from a column stored as this Arrow type."""
    stored = re.fullmatch(r"decimal(?:32|64|128)\((\d+), (\d+)\)", kind)
    column = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", ducklake_type)
    if column is not None:
        return stored is not None and stored[2] == column[2] and int(stored[1]) <= int(column[1])
    return re.fullmatch(STORED_KINDS.get(ducklake_type, ".*"), kind) is not None


_NUMBER = r"bool|u?int\d+|halffloat|float|double|decimal\d+\(.*\)"
_TEXT = r"(large_)?string(_view)?|extension<arrow.json>"
_BYTES = r"(large_)?binary(_view)?|fixed_size_binary.*"
_TIMESTAMP = r"timestamp\[.*\]"

CAST_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("boolean", "int", "long", "float", "double", "decimal"), f"{_NUMBER}|{_TEXT}"),
    "date": rf"date.*|{_TIMESTAMP}|{_TEXT}",
    "time": rf"time(32|64).*|timestamp\[\w+\]|{_TEXT}",
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), rf"date.*|{_TIMESTAMP}|{_TEXT}"),
    "string": rf"(?!{_BYTES}).*",
    "uuid": rf"extension<arrow.uuid>|{_BYTES}|{_TEXT}",
    **dict.fromkeys(("binary", "fixed"), _BYTES),
}
"""Arrow types of a file that DuckDB 1.5.5 casts to an Iceberg type without changing a value that the column can hold."""


def casts_as_stored(type_name: str, kind: str) -> bool:
    """Return True if DuckDB reads the values of a column of this Iceberg type right from a file that stores it as this Arrow type.

    DuckDB does not cast numbers to times and dates. It takes text for binary with escapes (`\\x41`), and binary for text likewise. A text
    that is no value of the column makes DuckDB fail; the footer does not show that.
    """
    wanted = CAST_KINDS.get(re.split(r"[(\[]", type_name)[0], ".*")
    return kind == "null" or re.fullmatch(wanted, kind) is not None


FindLeaf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ColumnTree:
    """The columns live at one lake snapshot, by parent (None: the table) in column order."""

    children: Mapping[int | None, Sequence[ColumnRow]]
    comments: Mapping[int, str]


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def format_remedy(table: TableRow, root: ColumnRow, tree: ColumnTree) -> str:
    """Return the advice to replace a column with DuckDB by one of a published type, with its name and values.

    Older snapshots lose the column by that.
    """
    return f"Replace it with DuckDB, going on only as long as nothing fails: {format_replacement(table, root, tree)}"


def format_choice(table: TableRow, root: ColumnRow, tree: ColumnTree) -> str:
    """Return the advice to leave a column out, or to replace it."""
    return f"Leave it out with the table property {PROPERTY}={HIDE}, or keep its values. {format_remedy(table, root, tree)}"


def format_replacement(table: TableRow, root: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return the SQL by which DuckDB replaces a column by one of another type, with its name and values.

    `find_leaf` returns the SQL type that replaces a DuckLake leaf type.
    """
    taken = {row.column_name.lower() for row in tree.children.get(None, ())}
    spare = f"{root.column_name}_"
    while spare.lower() in taken:
        spare += "_"
    kind = format_sql_type(root, tree, find_leaf)
    name, old, new = f"{quote(table.schema_name)}.{quote(table.table_name)}", quote(root.column_name), quote(spare)
    steps = (
        ("ALTER TABLE", name, "ADD COLUMN", new, kind),
        ("UPDATE", name, "SET", new, "=", f"CAST({old} AS {kind})"),
        ("ALTER TABLE", name, "DROP COLUMN", old),
        ("ALTER TABLE", name, "RENAME COLUMN", new, "TO", old),
    )
    return f"{'; '.join(' '.join(words) for words in steps)};"


def format_sql_type(row: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return a column's type in SQL, with replacements of leaves that are not published."""
    parts = [(child, format_sql_type(child, tree, find_leaf)) for child in tree.children.get(row.column_id, ())]
    match row.column_type.lower():
        case "struct":
            return f"STRUCT({', '.join(f'{quote(child.column_name)} {kind}' for child, kind in parts)})"
        case "list":
            return f"{parts[0][1]}[]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
        case leaf:
            return find_leaf(leaf)


NESTED_TYPES: Mapping[str, int | None] = {"struct": None, "list": 1, "map": 2}
"""The number of children of each nested type; None for any number."""

PLACEHOLDER = "_iceberg_empty"
"""The name of DuckLake's column in the place of the columns that a table lacks, or of the fields that a struct lacks."""


def is_placeholder(row: ColumnRow) -> bool:
    """Return True if a column is in no Iceberg schema, because DuckLake cannot hold a table without columns or a struct without fields."""
    return row.column_name == PLACEHOLDER and row.column_type.lower() == "boolean"


def is_empty(rows: Sequence[ColumnRow]) -> bool:
    """Return True if the columns of a table, or the fields of a struct, are placeholders."""
    return bool(rows) and all(map(is_placeholder, rows))


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
    """Return True if a versioned row is live at a lake snapshot."""
    return row.begin_snapshot <= lake_snapshot_id and (row.end_snapshot is None or lake_snapshot_id < row.end_snapshot)


@dataclass(frozen=True, slots=True)
class FieldRules:
    """The rules for turning columns into fields. A past column that Iceberg cannot represent is left out, a current one is refused.

    `defaulted` are the columns that older rows lack and that are not null there: their fields have defaults.
    `unreadable` are versions of columns that older rows cannot be read as, with the older type. `hidden` are never published.
    `leaves_out`: a current column that Iceberg cannot represent is left out, too, and so is a past one if only a part of it is.
    """

    table: TableRow
    is_past: bool
    defaulted: frozenset[int]
    unreadable: Mapping[ColumnRow, str]
    hidden: frozenset[int]
    leaves_out: bool = False


Path = tuple[ColumnRow, ...]
"""A column or nested field, preceded by its parents."""


def to_fields(tree: ColumnTree, rules: FieldRules) -> tuple[NestedField, ...]:
    """Return the Iceberg columns of these DuckLake columns.

    Raises: Unsupported: a current column is not published; names the column, its type and the remedy
    """
    find = _find_whole if rules.leaves_out else _find_field
    fields = (find((row,), tree, rules) for row in tree.children.get(None, ()))
    return tuple(field for field in fields if field is not None)


def _find_whole(path: Path, tree: ColumnTree, rules: FieldRules) -> NestedField | None:
    """Return a column as a field; None if Iceberg cannot represent a part of it."""
    try:
        return _find_field(path, tree, replace(rules, is_past=False))
    except Damaged:
        raise
    except Unsupported:
        return None


def _find_field(path: Path, tree: ColumnTree, rules: FieldRules) -> NestedField | None:
    row = path[-1]
    if is_placeholder(row):
        return None
    # DuckDB writes nulls_allowed = false for nested fields that it adds or renames, whether they hold NULLs or not.
    # DuckDB takes a variant null for a value when it writes, and for a NULL when it reads.
    required = row.parent_column is None and not row.nulls_allowed and row.column_type.lower() not in ("null", VARIANT)
    type_ = _find_type(path, tree, rules)
    if type_ is None:
        return None
    initial = write = None
    if row.column_id in rules.defaulted and isinstance(type_, PrimitiveType):
        try:
            initial, write = _to_defaults(row, type_)
        except BadRequest as error:
            if rules.is_past:
                return None
            what = f"has the default {row.initial_default!r}, which Iceberg cannot represent: {error}"
            raise Unsupported(f"Column {format_path(path)!r} {what}. {format_choice(rules.table, path[0], tree)}") from None
    return NestedField(row.column_id, row.column_name, type_, required, tree.comments.get(row.column_id), initial, write)


def _to_defaults(row: ColumnRow, type_: PrimitiveType) -> tuple[object, object]:
    initial = to_default(type_, row.column_type.lower(), row.initial_default)
    # Only in this column DuckDB writes the word NULL for no default.
    has_write = row.default_value_type == "literal" and row.default_value != "NULL"
    return initial, to_default(type_, row.column_type.lower(), row.default_value) if has_write else None


def to_default(type_: PrimitiveType, column_type: str, text: str | None) -> object:
    """Return a default as a JSON single value, or None for none.

    Raises: BadRequest: Iceberg cannot represent the value
    """
    if text is None:
        return None
    value = parse_value(type_, text.removesuffix("+00") if column_type == "timetz" else text)
    if value is None or (column_type in WHOLE_DOUBLES and value != int(text)):
        raise BadRequest(f"it is no exact {type_}")
    return format_value(type_, value)


def _find_type(path: Path, tree: ColumnTree, rules: FieldRules) -> IcebergType | None:
    row = path[-1]
    children = tree.children.get(row.column_id, ())
    column_type = row.column_type.lower()
    if row.column_id in rules.hidden or (rules.is_past and row in rules.unreadable):
        return None
    if row in rules.unreadable:
        changed = f"was changed from {rules.unreadable[row]!r} to {row.column_type!r}; Iceberg cannot read the older rows as that type"
        raise Unsupported(f"Column {format_path(path)!r} {changed}. {format_choice(rules.table, path[0], tree)}")
    if column_type not in NESTED_TYPES:
        primitive = _find_leaf(path, rules)
        if primitive is None and not rules.is_past:
            what = f"has the DuckLake type {row.column_type!r}, which Iceberg cannot represent"
            raise Unsupported(f"Column {format_path(path)!r} {what}. {format_choice(rules.table, path[0], tree)}")
        return primitive
    fields = [_find_field((*path, child), tree, rules) for child in children]
    published = [field for field in fields if field is not None]
    if column_type == "struct":
        return StructType(tuple(published)) if published or is_empty(children) else None
    if len(published) < len(children):
        return None
    if len(published) != NESTED_TYPES[column_type]:
        raise Damaged(f"Column {format_path(path)!r} is a {column_type} of {len(published)} parts; run `duckicelake check`.")
    if column_type == "list":
        (element,) = published
        return ListType(element.field_id, element.type, False)
    key, value = published
    return MapType(key.field_id, key.type, value.field_id, value.type, False)


def _find_leaf(path: Path, rules: FieldRules) -> PrimitiveType | None:
    """Return the type of a leaf, None if it is not published where it is."""
    column_type = path[-1].column_type.lower()
    if column_type == "null" and any(parent.column_type.lower() in ("list", "map") for parent in path[:-1]):
        # Iceberg's files leave out columns of the type `unknown`, and elements cannot be left out.
        return None
    if column_type == VARIANT and (len(path) > 1 or rules.leaves_out):
        return None
    return find_primitive(column_type)


def format_path(path: Path) -> str:
    """Return the full name of a column or nested field."""
    return ".".join(row.column_name for row in path)


def get_path(column_id: int, tree: ColumnTree) -> Path:
    """Return a column with its parents; empty if it is not in the tree."""
    rows = {row.column_id: row for siblings in tree.children.values() for row in siblings}
    path: list[ColumnRow] = []
    row = rows.get(column_id)
    while row is not None and row not in path:
        path.insert(0, row)
        row = None if row.parent_column is None else rows.get(row.parent_column)
    return tuple(path)


def list_hidden(columns: Iterable[ColumnRow]) -> frozenset[int]:
    """Return the columns that no schema contains, not even the schemas of their own time.

    They are dropped, and have a type that is not published, or only in part: their values need not refuse the table any more.
    """
    rows = [row for row in columns if row.column_type.lower() not in NESTED_TYPES]
    live = {row.column_id for row in rows if row.end_snapshot is None}
    unpublished = {row.column_id for row in rows if row.column_type.lower() in PARTIAL or find_primitive(row.column_type.lower()) is None}
    return frozenset(unpublished - live)


def build_value_refusal(table: TableRow, tree: ColumnTree, column_id: int, what: str) -> Unsupported:
    """Return the refusal of a table for a value in a column whose type is published only in part."""
    path = get_path(column_id, tree)
    problem = f"Column {format_path(path)!r} ({path[-1].column_type}) holds {what}." if path else f"Field {column_id} holds {what}."
    remedy = "No column has that id any more: expire the lake snapshots that had it, or copy the table with CREATE TABLE … AS SELECT."
    return Unsupported(f"{problem} {format_remedy(table, path[0], tree) if path else remedy}")


def list_unreadable(columns: Sequence[ColumnRow], oldest_snapshot_id: int) -> Mapping[ColumnRow, str]:
    """Return the versions of columns that some older rows cannot be read as, each with the type of such rows.

    Units:  `oldest_snapshot_id` is the lake snapshot of the oldest row left, so types that ended before it do not matter
    Source: Iceberg spec «Schema Evolution»: int → long, float → double, a decimal to more digits
    """
    versions: dict[int, list[ColumnRow]] = {}
    for row in sorted(columns, key=lambda row: row.begin_snapshot):
        if row.end_snapshot is None or row.end_snapshot >= oldest_snapshot_id:
            versions.setdefault(row.column_id, []).append(row)
    older_types: dict[ColumnRow, str] = {}
    for rows in versions.values():
        for old, new in pairwise(rows):
            if not is_promotion(old.column_type.lower(), new.column_type.lower()):
                older_types[new] = old.column_type
            elif old in older_types:
                older_types[new] = older_types[old]
    return older_types


def is_promotion(old: str, new: str) -> bool:
    """Return True if Iceberg can read files of an older DuckLake type as a newer one."""
    if old == new:
        return True
    before, after = find_primitive(old), find_primitive(new)
    if before is None or after is None:
        return False
    decimals = find_decimal(before), find_decimal(after)
    if decimals[0] and decimals[1]:
        return decimals[0][1] == decimals[1][1] and decimals[0][0] <= decimals[1][0]
    return before == after or (before.name, after.name) in {("int", "long"), ("float", "double")}


def list_defaulted(state: TableState, oldest_row: int) -> frozenset[int]:
    """Return the columns with a default that some file lacks, so that its rows read the default instead of null.

    A file lacks the columns that are younger than itself, and those that `ducklake_add_data_files` did not find in it.
    """
    columns, mappings = state.columns, state.name_mappings
    first: dict[int, int] = {}
    for row in columns:
        first[row.column_id] = min(row.begin_snapshot, first.get(row.column_id, row.begin_snapshot))
    mapped: dict[int, set[int]] = {}
    for row in mappings:
        mapped.setdefault(row.mapping_id, set()).add(row.target_field_id)
    in_all = set[int].intersection(*mapped.values()) if mapped else first.keys()
    with_default = {row.column_id for row in columns if row.initial_default is not None}
    return frozenset(key for key in with_default if first[key] > oldest_row or key not in in_all or key in state.lacked)


def schema_changes(columns: Iterable[ColumnRow], tags: Iterable[ColumnTagRow]) -> list[int]:
    """Return the lake snapshots at which a column or comment begins or ends, in order."""
    ids: set[int] = set()
    for row in (*columns, *tags):
        ids |= {row.begin_snapshot} if row.end_snapshot is None else {row.begin_snapshot, row.end_snapshot}
    return sorted(ids)


def list_layouts(
    versions: Sequence[SchemaVersionRow], columns: Sequence[ColumnRow], partitions: Sequence[PartitionRow]
) -> list[SchemaVersionRow]:
    """Return all versions except those that change only NOT NULL and defaults: DuckDB keeps inlining into the same table then."""
    repartitioned = {row.begin_snapshot for row in partitions} | {row.end_snapshot for row in partitions}
    return [
        version
        for number, version in enumerate(versions)
        if not number or version.begin_snapshot in repartitioned or _has_changed_columns(columns, version.begin_snapshot)
    ]


def _has_changed_columns(columns: Sequence[ColumnRow], lake_snapshot_id: int) -> bool:
    """Return True if columns were added, dropped, renamed or got another type; also if none changed, which means another kind of change."""
    began = _outlines(row for row in columns if row.begin_snapshot == lake_snapshot_id)
    ended = _outlines(row for row in columns if row.end_snapshot == lake_snapshot_id)
    return began != ended or not began


def _outlines(columns: Iterable[ColumnRow]) -> set[tuple[int, int, str, str, int | None]]:
    return {(row.column_id, row.column_order, row.column_name, row.column_type, row.parent_column) for row in columns}


def make_optional(schema: Schema, nullable: Collection[int]) -> Schema:
    """Return a schema in which these columns are optional, and therefore no identifier fields."""
    if not nullable:
        return schema
    loosened = replace(schema, fields=_make_fields_optional(schema.fields, nullable))
    identifiers = ((i, find_field(loosened, i)) for i in schema.identifier_field_ids)
    return replace(loosened, identifier_field_ids=tuple(i for i, item in identifiers if item is not None and can_identify(item)))


def _make_fields_optional(fields: Iterable[NestedField], nullable: Collection[int]) -> tuple[NestedField, ...]:
    return tuple(
        replace(item, type=_make_type_optional(item.type, nullable), required=item.required and item.field_id not in nullable)
        for item in fields
    )


def _make_type_optional(type_: IcebergType, nullable: Collection[int]) -> IcebergType:
    match type_:
        case StructType(fields):
            return StructType(_make_fields_optional(fields, nullable))
        case ListType(element_id, element_type, required):
            return ListType(element_id, _make_type_optional(element_type, nullable), required and element_id not in nullable)
        case MapType(key_id, key_type, value_id, value_type, required):
            key, value = _make_type_optional(key_type, nullable), _make_type_optional(value_type, nullable)
            return MapType(key_id, key, value_id, value, required and value_id not in nullable)
        case PrimitiveType():
            return type_


def with_nullable(state: TableState, required: Mapping[int, int], earlier: Sequence[NullableRow]) -> TableState:
    """Return a state whose `nullable` columns are those of its files, of its inlined rows, and of an earlier load of the table.

    `required` are the columns that must hold no NULL, each with the lake snapshot before which its default is read.
    """
    first_nulls: dict[int, int] = {}
    inlined = [row for table in state.inlined_tables for row in _list_nullable_inlined(state, table, required)] if required else ()
    for column_id, begin in (*state.nullable, *earlier, *inlined):
        first_nulls[column_id] = min(begin, first_nulls.get(column_id, begin))
    rows = [NullableRow(*item) for item in sorted(first_nulls.items())]
    return state if rows == state.nullable else replace(state, nullable=rows)


def _list_nullable_inlined(state: TableState, table: InlinedTable, required: Mapping[int, int]) -> list[NullableRow]:
    """Return the required columns with a NULL in the inlined rows, and nested fields, whose NULLs are not counted."""
    tree = columns_at(state.columns, (), table.begin_snapshot)
    indexes = {row.column_id: index for index, row in enumerate(tree.children.get(None, ()), 3)}
    parts = {row.column_id for row in state.columns if row.parent_column is not None}
    nullable: list[NullableRow] = []
    for column_id, defaulted_until in required.items():
        index = indexes.get(column_id)
        if index is None and column_id not in parts and table.begin_snapshot < defaulted_until:
            continue
        begins = [begin for row in table.rows if index is None or row[index] is None if isinstance(begin := row[1], int)]
        nullable += [NullableRow(column_id, min(begins))] if begins else []
    return nullable


def list_nullable_names(state: TableState) -> list[str]:
    """Return the full names of the columns that DuckLake or a client's schema requires, and that may hold a NULL."""
    tree = columns_at(state.columns, (), state.position.lake_snapshot_id)
    paths = [get_path(row.column_id, tree) for row in state.nullable]
    return [format_path(path) for path in paths if len(path) > 1 or (path and not path[-1].nulls_allowed)]
