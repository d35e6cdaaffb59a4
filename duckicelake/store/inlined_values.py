"""Values of inlined rows: the Arrow type of each DuckLake type, and the parsing of one value from psycopg or from DuckDB's text.

`derived_files` and `catalog.row_files` call it. No I/O.

A value arrives as psycopg returns it or, inside lists, maps and structs, as text. It leaves as pyarrow takes it: numbers for
dates and times, 16 bytes for a UUID.

Shape:  dates and times: [year]-MM-DD[ (BC)][ hh:mm:ss[.fraction][±hh[:mm[:ss]]]], or `infinity`, `-infinity`
Units:  days or microseconds since 1970-01-01 (UTC), microseconds or nanoseconds since midnight;
        infinity is the value that DuckDB writes for it to Parquet files
Raises: ValueError — any other text; the message does not contain the text

Lists, maps and structs come in two kinds of text:
*Display* text is DuckDB's output: `['a,b', NULL, x]`, `{'k': 1}`, `{k=v}`. A part is quoted, with back-slashes before
quotes and back-slashes, only if necessary; an unquoted part is literal, and unquoted NULL is NULL.
*Literal* text is the SQL that DuckLake writes for a column of type struct: `{'a': 1, 'b': 'it''s', 'c': CAST('2020-01-01' AS
VARCHAR)}`; lists and maps inside are display text again. It may contain users' SQL and is never executed.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from duckicelake.errors import Unsupported

DATE = r"(\d{4,})-(\d\d)-(\d\d)( \(BC\))?"
CLOCK = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
OFFSET = r"([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?"

EPOCH_DAY = date(1970, 1, 1).toordinal()
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
INFINITE_DAYS = 2**31 - 1
INFINITE_TICKS = 2**63 - 1
DAY_SECONDS = 86_400
SECOND_MICROS, SECOND_NANOS = 10**6, 10**9
DAY_MICROS = DAY_SECONDS * SECOND_MICROS


def parse_date(text: str) -> int:
    """Return days since 1970-01-01."""
    if (infinite := _find_infinity(text, INFINITE_DAYS)) is not None:
        return infinite
    found = re.fullmatch(DATE, text)
    if found is None:
        raise ValueError("no date")
    return _days(*found.groups())


def parse_timestamp(text: str, ticks_per_second: int = SECOND_MICROS) -> int:
    """Return ticks since 1970-01-01 00:00:00, without a time zone; finer digits are truncated."""
    if (infinite := _find_infinity(text, INFINITE_TICKS)) is not None:
        return infinite
    found = re.fullmatch(f"{DATE} {CLOCK}", text)
    if found is None:
        raise ValueError("no timestamp")
    parts = found.groups()
    return _days(*parts[:4]) * DAY_SECONDS * ticks_per_second + _ticks(parts[4:], ticks_per_second)


def parse_timestamptz(text: str, ticks_per_second: int = SECOND_MICROS) -> int:
    """Return microseconds, or other ticks, since 1970-01-01 00:00:00 UTC, for a text in any time zone."""
    if (infinite := _find_infinity(text, INFINITE_TICKS)) is not None:
        return infinite
    found = re.fullmatch(f"{DATE} {CLOCK}{OFFSET}", text)
    if found is None:
        raise ValueError("no timestamp with time zone")
    parts = found.groups()
    return (_days(*parts[:4]) * DAY_SECONDS - _offset_seconds(*parts[8:])) * ticks_per_second + _ticks(parts[4:8], ticks_per_second)


def parse_time(text: str) -> int:
    """Return microseconds since midnight; DuckDB's 24:00:00 is a whole day, as in its Parquet files."""
    found = re.fullmatch(CLOCK, text)
    if found is None:
        raise ValueError("no time of day")
    micros = _ticks(found.groups(), SECOND_MICROS)
    if micros > DAY_MICROS:
        raise ValueError("later than 24:00:00")
    return micros


def parse_timetz(text: str) -> tuple[int, bool]:
    """Return microseconds since midnight UTC, as in DuckDB's Parquet files, and true if that is exactly the time in the text."""
    found = re.fullmatch(CLOCK + OFFSET, text)
    if found is None:
        raise ValueError("no time of day with an offset")
    parts = found.groups()
    micros = _ticks(parts[:4], SECOND_MICROS)
    offset_seconds = _offset_seconds(*parts[4:])
    return (micros - offset_seconds * SECOND_MICROS) % DAY_MICROS, offset_seconds == 0 and micros < DAY_MICROS


def _find_infinity(text: str, infinite: int) -> int | None:
    return {"infinity": infinite, "-infinity": -infinite}.get(text)


def _days(year_text: str, month_text: str, day_text: str, before_christ: str | None) -> int:
    year = 1 - int(year_text) if before_christ else int(year_text)
    # The calendar repeats every 400 years, and `date` knows the years 1 to 9999 only.
    cycles, year_of_cycle = divmod(year, CYCLE_YEARS)
    day = date(CYCLE_YEARS + year_of_cycle, int(month_text), int(day_text)).toordinal()
    return day - EPOCH_DAY + (cycles - 1) * CYCLE_DAYS


def _ticks(clock: Sequence[str], ticks_per_second: int) -> int:
    hours, minutes, seconds, fraction = clock
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    nanos = int(fraction.ljust(9, "0")) if fraction else 0
    return whole * ticks_per_second + nanos * ticks_per_second // SECOND_NANOS


def _offset_seconds(sign: str, hours: str, minutes: str | None, seconds: str | None) -> int:
    offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return -offset if sign == "-" else offset


ArrowType = pa.DataType
FIELD_ID = b"PARQUET:field_id"


class Inexact(ValueError):
    """A value that Iceberg cannot represent; `stored` is the value that DuckDB writes to Parquet files instead."""

    def __init__(self, reason: str, stored: object) -> None:
        super().__init__(reason)
        self.stored = stored


class UnrepresentableValue(Exception):
    """A published column contains an inexact value."""

    def __init__(self, field_id: int, reason: str) -> None:
        super().__init__(f"field {field_id} holds {reason}")
        self.field_id, self.reason = field_id, reason


@dataclass(frozen=True, slots=True)
class InlinedColumn:
    """A row of `ducklake_column` with its children in order: a struct's fields, a list's element, a map's key and value.

    `is_shown` false: no published schema has the column, so its values do not matter. `length`: that of Iceberg's `fixed`, which is
    `blob` in DuckLake.
    """

    field_id: int
    name: str
    ducklake_type: str
    children: "tuple[InlinedColumn, ...]" = ()
    is_shown: bool = True
    length: int | None = None


@dataclass(frozen=True, slots=True)
class InlinedNode:
    """A column or nested field with its conversion. `storage`: the type that pyarrow builds from Python values, cast to `arrow` then."""

    path: str
    column: InlinedColumn
    arrow: ArrowType
    storage: ArrowType
    children: "tuple[InlinedNode, ...]" = ()
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
        """Convert one leaf value. Raises: UnrepresentableValue — Iceberg cannot represent it; Unsupported — it is not of the type."""
        assert self.convert is not None
        try:
            return self.convert(value)
        except Inexact as inexact:
            if self.column.is_shown:
                raise UnrepresentableValue(self.column.field_id, str(inexact)) from None
            return inexact.stored
        except (ValueError, ArithmeticError) as error:
            raise Unsupported(
                f"Column {self.path!r} ({self.kind}) holds an inlined value that Iceberg cannot say: {error};"
                " change the value, or drop the column or change its type with DuckDB."
            ) from None


def build_node(column: InlinedColumn, path: str = "") -> InlinedNode:
    """Return the conversion of a column. Raises: Unsupported — Iceberg has no such type; names column, type and remedy."""
    path = f"{path}.{column.name}" if path else column.name
    children = tuple(build_node(child, path) for child in column.children)
    make = NESTED.get(column.ducklake_type)
    if make is not None:
        fields = [_field(child, node.arrow) for child, node in zip(column.children, children, strict=True)]
        plain = [_field(child, node.storage) for child, node in zip(column.children, children, strict=True)]
        return InlinedNode(path, column, make(fields), make(plain), children)
    leaf = _find_leaf(column.ducklake_type)
    if leaf is None and not column.is_shown:
        leaf = NO_VALUES
    if leaf is None:
        raise Unsupported(
            f"Column {path!r} has type {column.ducklake_type}, which Iceberg cannot say for inlined rows;"
            " drop the column or change its type with DuckDB."
        )
    arrow, convert = leaf
    storage = pa.binary(16) if arrow == pa.uuid() else arrow
    return InlinedNode(path, column, arrow, storage, convert=convert)


def format_schema(columns: tuple[InlinedColumn, ...], nodes: tuple[InlinedNode, ...]) -> pa.Schema:
    """Return the Arrow schema of columns, with field ids at every level."""
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
    return parse_time(value.isoformat() if isinstance(value, time) else value)


def _timetz(value: Any) -> int:
    text = value.isoformat() if isinstance(value, time) else value
    micros, is_utc = parse_timetz(text)
    if not is_utc:
        raise Inexact(f"the time {text}, whose offset from UTC DuckDB's own files drop and Iceberg cannot say", micros)
    return micros


def _as_is(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    return None


NO_VALUES = (pa.string(), _nothing)
"""For unpublished columns of types that Iceberg does not have: every value becomes NULL."""


LEAVES: dict[str, tuple[ArrowType, Callable[[Any], Any]]] = {
    "boolean": (pa.bool_(), _boolean),
    "int8": (pa.int32(), int),
    "int16": (pa.int32(), int),
    "int32": (pa.int32(), int),
    "int64": (pa.int64(), int),
    "uint8": (pa.int32(), int),
    "uint16": (pa.int32(), int),
    # Written as Iceberg's long, because Java misreads DuckDB's unsigned INT32 from 2^31 on.
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
    "date": (pa.date32(), parse_date),
    "time": (pa.time64("us"), _time),
    "timetz": (pa.time64("us"), _timetz),
    "timestamp": (pa.timestamp("us"), parse_timestamp),
    "timestamp_us": (pa.timestamp("us"), parse_timestamp),
    "timestamp_ms": (pa.timestamp("us"), parse_timestamp),
    "timestamp_s": (pa.timestamp("us"), parse_timestamp),
    "timestamp_ns": (pa.timestamp("ns"), partial(parse_timestamp, ticks_per_second=SECOND_NANOS)),
    "timestamptz": (pa.timestamp("us", tz="UTC"), parse_timestamptz),
    "timestamptz_ns": (pa.timestamp("ns", tz="UTC"), partial(parse_timestamptz, ticks_per_second=SECOND_NANOS)),
    "null": (pa.null(), _nothing),
}


LITERAL_TEXT = re.compile(r"'([^']*(?:''[^']*)*)'")
LITERAL_CAST = re.compile(r"CAST\('([^']*)' AS [A-Z ]+\)|'([^']*)'::[A-Z ]+")
LITERAL_PLAIN = re.compile(r"[^\s,{}\[\]()':=]+")
LITERAL_NUL = re.compile(r"chr\(0\)")
DISPLAY_TEXT = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
DISPLAY_PLAIN = re.compile(r"[^\"'(),:=\[\]{}]+")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Cursor:
    """A position in a text. Raises ValueError if the text does not match."""

    __slots__ = ("place", "text")

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def find(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        """Return the match of a pattern at the position and move past it, None if there is none."""
        found = pattern.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
        return found

    def take(self, token: str) -> bool:
        """True if the token is at the position; moves past it."""
        if self.text.startswith(token, self.place):
            self.place += len(token)
            return True
        return False

    def expect(self, *tokens: str) -> str:
        """Return the first of the tokens that is at the position, and move past it."""
        for token in tokens:
            if self.take(token):
                return token
        raise ValueError(f"the text differs from what DuckLake writes at character {self.place}")


def parse_nested(node: InlinedNode, text: str) -> Any:
    """Return the value in the text of a list, map or struct column: dicts for structs, lists of pairs for maps.

    Raises: ValueError — the text has another form; Unsupported — Iceberg cannot represent a value in it
    """
    cursor = Cursor(text)
    value = _read_literal(node, cursor)
    if cursor.place != len(text):
        raise ValueError(f"the text goes on after character {cursor.place}")
    return value


def _read_literal(node: InlinedNode, cursor: Cursor) -> Any:
    if node.kind == "struct":
        return _read_literal_struct(node, cursor)
    if node.children:
        return _read_display(node, cursor)
    text = _read_literal_leaf(cursor)
    return None if text is None else node.read(text)


def _read_literal_struct(node: InlinedNode, cursor: Cursor) -> dict[str, Any] | None:
    if cursor.take("NULL"):
        return None
    values: list[Any] = []
    for place, child in enumerate(node.children):
        cursor.expect(", " if place else "{")
        if cursor.find(LITERAL_TEXT) is None:
            raise ValueError(f"a field name is missing at character {cursor.place}")
        cursor.expect(": ")
        values.append(_read_literal(child, cursor))
    cursor.expect("}")
    return dict(zip(node.names, values, strict=True))


def _read_literal_leaf(cursor: Cursor) -> str | None:
    if found := cursor.find(LITERAL_CAST):
        return found[1] if found[1] is not None else found[2]
    if found := cursor.find(LITERAL_TEXT):
        return found[1].replace("''", "'")
    if cursor.take("CONCAT("):
        return _read_literal_parts(cursor)
    if found := cursor.find(LITERAL_PLAIN):
        return None if found[0] == "NULL" else found[0]
    raise ValueError(f"a value is missing at character {cursor.place}")


def _read_literal_parts(cursor: Cursor) -> str:
    parts: list[str] = []
    while True:
        if found := cursor.find(LITERAL_TEXT):
            parts.append(found[1].replace("''", "'"))
        elif cursor.find(LITERAL_NUL):
            parts.append("\0")
        if cursor.expect(", ", ")") == ")":
            return "".join(parts)


def _read_display(node: InlinedNode, cursor: Cursor) -> Any:
    if not node.children:
        text = _read_display_leaf(cursor)
        return None if text is None else node.read(text)
    if cursor.take("NULL"):
        return None
    return {"struct": _read_display_struct, "list": _read_display_list, "map": _read_display_map}[node.kind](node, cursor)


def _read_display_leaf(cursor: Cursor) -> str | None:
    if found := cursor.find(DISPLAY_TEXT):
        return ESCAPED.sub(r"\1", found[1])
    if found := cursor.find(DISPLAY_PLAIN):
        return None if found[0] == "NULL" else found[0]
    raise ValueError(f"a value is missing at character {cursor.place}")


def _read_display_struct(node: InlinedNode, cursor: Cursor) -> dict[str, Any]:
    values: list[Any] = []
    for place, child in enumerate(node.children):
        cursor.expect(", " if place else "{")
        _read_display_leaf(cursor)
        cursor.expect(": ")
        values.append(_read_display(child, cursor))
    cursor.expect("}")
    return dict(zip(node.names, values, strict=True))


def _read_display_list(node: InlinedNode, cursor: Cursor) -> list[Any]:
    [element] = node.children
    cursor.expect("[")
    values: list[Any] = []
    if cursor.take("]"):
        return values
    while True:
        values.append(_read_display(element, cursor))
        if cursor.expect(", ", "]") == "]":
            return values


def _read_display_map(node: InlinedNode, cursor: Cursor) -> list[tuple[Any, Any]]:
    key, value = node.children
    cursor.expect("{")
    pairs: list[tuple[Any, Any]] = []
    if cursor.take("}"):
        return pairs
    while True:
        entry_key = _read_display(key, cursor)
        cursor.expect("=")
        pairs.append((entry_key, _read_display(value, cursor)))
        if cursor.expect(", ", "}") == "}":
            return pairs
