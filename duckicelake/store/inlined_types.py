"""What becomes of each DuckLake type: its Arrow type, and the reading of one inlined value.

A value comes as psycopg returns it or, inside lists, maps and structs, as text. It leaves as what pyarrow takes:
numbers for dates and times, 16 bytes for a UUID.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from functools import partial
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from duckicelake.errors import Unsupported
from duckicelake.store import time_text

ArrowType = pa.DataType
FIELD_ID = b"PARQUET:field_id"


class Inexact(ValueError):
    """A value that Iceberg cannot say; `stored` is what DuckDB's own Parquet files hold instead."""

    def __init__(self, reason: str, stored: object) -> None:
        super().__init__(reason)
        self.stored = stored


class UnsayableValue(Exception):
    """A column that is shown holds an inexact value."""

    def __init__(self, field_id: int, reason: str) -> None:
        super().__init__(f"field {field_id} holds {reason}")
        self.field_id, self.reason = field_id, reason


@dataclass(frozen=True, slots=True)
class InlinedColumn:
    """A row of `ducklake_column` with its children in order: a struct's fields, a list's element, a map's key and value.

    What is not shown stands in no published schema, so its values do not matter. `length`: that of Iceberg's `fixed`, of which
    DuckLake knows `blob`.
    """

    field_id: int
    name: str
    ducklake_type: str
    children: "tuple[InlinedColumn, ...]" = ()
    is_shown: bool = True
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A column or a part of one, ready to read values. `storage` is `arrow` in types that pyarrow builds from plain values."""

    path: str
    column: InlinedColumn
    arrow: ArrowType
    storage: ArrowType
    children: "tuple[Node, ...]" = ()
    convert: Callable[[Any], Any] | None = None

    @property
    def kind(self) -> str:
        """The DuckLake type."""
        return self.column.ducklake_type

    @property
    def names(self) -> tuple[str, ...]:
        """The children's names."""
        return tuple(child.name for child in self.column.children)

    def read(self, value: Any) -> Any:
        """Read one leaf value. Raises: UnsayableValue — a value Iceberg cannot say; Unsupported — none of the type."""
        assert self.convert is not None
        try:
            return self.convert(value)
        except Inexact as found:
            if self.column.is_shown:
                raise UnsayableValue(self.column.field_id, str(found)) from None
            return found.stored
        except (ValueError, ArithmeticError) as error:
            raise Unsupported(
                f"Column {self.path!r} ({self.kind}) holds an inlined value that Iceberg cannot say: {error};"
                " change the value, or drop the column or change its type with DuckDB."
            ) from None


def build_node(column: InlinedColumn, path: str = "") -> Node:
    """Prepare a column. Raises: Unsupported — a type that no Iceberg column can hold, naming column, type and remedy."""
    path = f"{path}.{column.name}" if path else column.name
    children = tuple(build_node(child, path) for child in column.children)
    make = NESTED.get(column.ducklake_type)
    if make is not None:
        fields = [_field(child, node.arrow) for child, node in zip(column.children, children, strict=True)]
        plain = [_field(child, node.storage) for child, node in zip(column.children, children, strict=True)]
        return Node(path, column, make(fields), make(plain), children)
    leaf = _find_leaf(column.ducklake_type)
    if leaf is None and not column.is_shown:
        leaf = NOTHING
    if leaf is None:
        raise Unsupported(
            f"Column {path!r} has type {column.ducklake_type}, which Iceberg cannot say for inlined rows;"
            " drop the column or change its type with DuckDB."
        )
    arrow, convert = leaf
    storage = pa.binary(16) if arrow == pa.uuid() else arrow
    return Node(path, column, arrow, storage, convert=convert)


def format_schema(columns: tuple[InlinedColumn, ...], nodes: tuple[Node, ...]) -> pa.Schema:
    """The Arrow schema of the columns, every node with its field id."""
    return pa.schema([_field(column, node.arrow) for column, node in zip(columns, nodes, strict=True)])


def _field(column: InlinedColumn, arrow: ArrowType) -> Any:
    return pa.field(column.name, arrow, metadata={FIELD_ID: str(column.field_id)})


def _make_map(fields: list[Any]) -> ArrowType:
    key, value = fields
    return cast("ArrowType", pa.map_(key.with_nullable(False), value))


def _make_list(fields: list[Any]) -> ArrowType:
    [element] = fields
    return pa.list_(element)


NESTED: dict[str, Callable[..., ArrowType]] = {"struct": pa.struct, "list": _make_list, "map": _make_map}


def _find_leaf(ducklake_type: str) -> tuple[ArrowType, Callable[[Any], Any]] | None:
    if found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", ducklake_type):
        return pa.decimal128(int(found[1]), int(found[2])), Decimal
    return LEAVES.get(ducklake_type)


def _boolean(value: Any) -> bool:
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _exact_double(value: Any) -> float:
    whole = int(value)
    double = float(whole)
    if int(double) != whole:
        raise Inexact(f"the number {whole}, which a double, as DuckDB's own files hold for this type, cannot hold exactly", double)
    return double


def _blob(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), value.encode())


def _uuid(value: Any) -> bytes:
    return (value if isinstance(value, UUID) else UUID(value)).bytes


def _time(value: Any) -> int:
    return time_text.parse_time(value.isoformat() if isinstance(value, time) else value)


def _timetz(value: Any) -> int:
    text = value.isoformat() if isinstance(value, time) else value
    micros, is_utc = time_text.parse_timetz(text)
    if not is_utc:
        raise Inexact(f"the time {text}, whose offset from UTC DuckDB's own files drop and Iceberg cannot say", micros)
    return micros


def _as_is(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    return None


NOTHING = (pa.string(), _nothing)
"""Holds no value: for columns that are not shown and that no Iceberg type fits."""


LEAVES: dict[str, tuple[ArrowType, Callable[[Any], Any]]] = {
    "boolean": (pa.bool_(), _boolean),
    "int8": (pa.int32(), int),
    "int16": (pa.int32(), int),
    "int32": (pa.int32(), int),
    "int64": (pa.int64(), int),
    "uint8": (pa.int32(), int),
    "uint16": (pa.int32(), int),
    # Iceberg's long: Java reads DuckDB's unsigned INT32 wrongly from 2^31 on, and a file of ours need not repeat that.
    "uint32": (pa.int64(), int),
    "uint64": (pa.uint64(), int),
    "int128": (pa.float64(), _exact_double),
    "uint128": (pa.float64(), _exact_double),
    "float32": (pa.float32(), float),
    "float64": (pa.float64(), float),
    "varchar": (pa.string(), _as_is),
    "json": (pa.string(), _as_is),
    "blob": (pa.binary(), _blob),
    "uuid": (pa.uuid(), _uuid),
    "date": (pa.date32(), time_text.parse_date),
    "time": (pa.time64("us"), _time),
    "timetz": (pa.time64("us"), _timetz),
    "timestamp": (pa.timestamp("us"), time_text.parse_timestamp),
    "timestamp_us": (pa.timestamp("us"), time_text.parse_timestamp),
    "timestamp_ms": (pa.timestamp("us"), time_text.parse_timestamp),
    "timestamp_s": (pa.timestamp("us"), time_text.parse_timestamp),
    "timestamp_ns": (pa.timestamp("ns"), partial(time_text.parse_timestamp, ticks_per_second=time_text.SECOND_NANOS)),
    "timestamptz": (pa.timestamp("us", tz="UTC"), time_text.parse_timestamptz),
}
