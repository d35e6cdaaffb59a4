"""Trino's answers as Arrow tables: its types are written as text, its values are Python's."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "json": pa.string(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "uuid": pa.uuid(),
}
TOKEN = re.compile(r'"(?:[^"]|"")*"|[(),]|[^\s(),"]+')


class UnknownType(AssertionError):
    """Trino answered a type that no test has met yet."""


def to_arrow(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows under names and Trino's types."""
    fields = [(name, parse_type(text)) for name, text in columns]
    arrays = [pa.array([_to_plain(row[index], kind) for row in rows], kind) for index, (_, kind) in enumerate(fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def parse_type(text: str) -> pa.DataType:
    """Arrow's type for Trino's, `row(x double, y array(varchar))` say."""
    tokens = TOKEN.findall(text)
    kind, rest = _parse(tokens)
    if rest:
        raise UnknownType(text)
    return kind


def _parse(tokens: list[str]) -> tuple[pa.DataType, list[str]]:
    """One type, and what follows it."""
    name, rest = tokens[0], tokens[1:]
    arguments: list[list[str]] = []
    if rest[:1] == ["("]:
        inside, rest = _split_at_close(rest[1:])
        arguments = list(_split_at_commas(inside))
    if rest[:3] in (["with", "time", "zone"], ["without", "time", "zone"]):
        name, rest = (f"{name} with time zone" if rest[0] == "with" else name), rest[3:]
    return _make(name, arguments), rest


def _make(name: str, arguments: list[list[str]]) -> pa.DataType:
    match name, arguments:
        case "decimal", [[precision], [scale]]:
            return pa.decimal128(int(precision), int(scale))
        case "timestamp", [[_]]:
            return pa.timestamp("us")
        case "timestamp with time zone", [[_]]:
            return pa.timestamp("us", "UTC")
        case "time", [[_]]:
            return pa.time64("us")
        case "array", [element]:
            return pa.list_(_parse(element)[0])
        case "map", [key, element]:
            return pa.map_(_parse(key)[0], _parse(element)[0])
        case "row", fields:
            return pa.struct([(_unquote(field[0]), _parse(field[1:])[0]) for field in fields])
        case _ if name in PLAIN:
            return PLAIN[name]
        case _:
            raise UnknownType(name)


def _split_at_close(tokens: list[str]) -> tuple[list[str], list[str]]:
    depth = 1
    for index, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0:
            return tokens[:index], tokens[index + 1 :]
    raise UnknownType(" ".join(tokens))


def _split_at_commas(tokens: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _to_plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    match kind:
        case pa.StructType():
            return {kind.field(index).name: _to_plain(part, kind.field(index).type) for index, part in enumerate(value)}
        case pa.ListType():
            return [_to_plain(part, kind.value_type) for part in value]
        case pa.MapType():
            return [(_to_plain(key, kind.key_type), _to_plain(part, kind.item_type)) for key, part in value.items()]
        case _:
            return value
