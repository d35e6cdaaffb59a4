"""The types a generated column can have, and what a value of each is called by DuckDB and by Iceberg."""

from dataclasses import dataclass
from typing import Any

# A value as the model keeps it: date in days, time and timestamps in microseconds (timestamp_ns: nano-) since 1970 UTC; a struct is
# ((field id, value), …), a list (value, …), a map ((key, value), …).
Value = Any


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts, by DuckLake's name for it: `int32`, `decimal(9,2)`, `timestamptz`."""

    name: str


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields, each a nullable column of its own."""

    fields: tuple["Column", ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list whose elements may be NULL."""

    element: "Kind"


@dataclass(frozen=True, slots=True)
class Mapping:
    """A map whose values may be NULL."""

    key: Scalar
    value: "Kind"


Kind = Scalar | Struct | Listing | Mapping


@dataclass(frozen=True, slots=True)
class Column:
    """A column or struct field; `column_id` is the model's own and stays through renames and promotions.

    `initial` is what rows older than the column show, `default` what an INSERT that leaves it out writes.
    """

    column_id: int
    name: str
    kind: Kind
    required: bool = False
    comment: str | None = None
    initial: Value = None
    default: Value = None


SQL_NAMES = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "int128": "HUGEINT",
    "uint128": "UHUGEINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "varchar": "VARCHAR",
    "blob": "BLOB",
    "uuid": "UUID",
    "date": "DATE",
    "time": "TIME",
    "timetz": "TIMETZ",
    "timestamp": "TIMESTAMP",
    "timestamp_s": "TIMESTAMP_S",
    "timestamp_ms": "TIMESTAMP_MS",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz": "TIMESTAMPTZ",
}
ICEBERG_NAMES = {
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
    "blob": "binary",
    "uuid": "uuid",
    "date": "date",
    "time": "time",
    "timetz": "time",
    "timestamp": "timestamp",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "timestamptz": "timestamptz",
}
DECIMALS = ("decimal(4,2)", "decimal(9,2)", "decimal(18,2)", "decimal(18,4)", "decimal(38,10)")
SCALARS = (*SQL_NAMES, *DECIMALS)
# Spark has no `time` and no nanoseconds, and Iceberg 1.11's Spark reader refuses Parquet's unsigned integers.
SPARK_SCALARS = tuple(name for name in SCALARS if name not in ("time", "timetz", "timestamp_ns", "uint8", "uint16", "uint32"))

# Published in part only: of a dropped column of these types no snapshot tells any more.
PARTIAL = ("uint32", "int128", "uint128", "timetz")

# The first data file of an Iceberg client makes columns of these types what they are to Iceberg, in DuckDB too.
NARROW = ("int8", "int16", "uint8", "uint16", "uint32", "timestamp_s", "timestamp_ms")

# What DuckDB and Iceberg both let a column grow into, without touching a file.
PROMOTIONS = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("int16", "int32", "int64"),
    "uint16": ("int32", "int64"),
    "timestamp_s": ("timestamp_ms", "timestamp"),
    "timestamp_ms": ("timestamp",),
    "float32": ("float64",),
    "decimal(4,2)": ("decimal(9,2)", "decimal(18,2)"),
    "decimal(9,2)": ("decimal(18,2)",),
}


# Values that Iceberg has no words for, by the number that files hold, as DuckDB writes them.
BEYOND_WORDS = {
    "date": {2**31 - 1: "infinity", 1 - 2**31: "-infinity"},
    "time": {86_400_000_000: "24:00:00"},
    "timestamp": {2**63 - 1: "infinity", 1 - 2**63: "-infinity"},
    "timestamptz": {2**63 - 1: "infinity", 1 - 2**63: "-infinity"},
}


def decimal_shape(name: str) -> tuple[int, int]:
    """(precision, scale) of `decimal(P,S)`."""
    precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def format_sql_type(kind: Kind) -> str:
    """The type as DuckDB's DDL writes it."""
    match kind:
        case Scalar(name):
            return SQL_NAMES.get(name, name.upper())
        case Struct(fields):
            return f"STRUCT({', '.join(f'{quote(part.name)} {format_sql_type(part.kind)}' for part in fields)})"
        case Listing(element):
            return f"{format_sql_type(element)}[]"
        case Mapping(key, value):
            return f"MAP({format_sql_type(key)}, {format_sql_type(value)})"


def format_iceberg_type(kind: Kind) -> str:
    """The type as PyIceberg prints it, without ids: `struct<a: int, b: list<string>>`."""
    match kind:
        case Scalar(name) if name.startswith("decimal"):
            return "decimal({}, {})".format(*decimal_shape(name))
        case Scalar(name):
            return ICEBERG_NAMES[name]
        case Struct(fields):
            return f"struct<{', '.join(f'{part.name}: {format_iceberg_type(part.kind)}' for part in fields)}>"
        case Listing(element):
            return f"list<{format_iceberg_type(element)}>"
        case Mapping(key, value):
            return f"map<{format_iceberg_type(key)}, {format_iceberg_type(value)}>"


def quote(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def has_leaf(kind: Kind, names: tuple[str, ...]) -> bool:
    """True when the type, or one deep inside it, is one of these."""
    match kind:
        case Scalar(name):
            return name in names
        case Struct(fields):
            return any(has_leaf(part.kind, names) for part in fields)
        case Listing(element):
            return has_leaf(element, names)
        case Mapping(key, value):
            return has_leaf(key, names) or has_leaf(value, names)


def has_many_structs(kind: Kind) -> bool:
    """True when a list or map of structs is in it."""
    match kind:
        case Scalar():
            return False
        case Struct(fields):
            return any(has_many_structs(part.kind) for part in fields)
        case Listing(part) | Mapping(_, part):
            return isinstance(part, Struct) or has_many_structs(part)


def is_nested(kind: Kind) -> bool:
    """True for struct, list and map."""
    return not isinstance(kind, Scalar)
