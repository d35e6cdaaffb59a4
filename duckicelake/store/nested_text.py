"""Lists, maps and structs from the two kinds of text DuckLake keeps inlined values in.

*Display* text is what DuckDB prints: `['a,b', NULL, x]`, `{'k': 1}`, `{k=v}`. A part is quoted, with back-slashes before
quotes and back-slashes, only when it must be; unquoted it stands for itself, and unquoted NULL is NULL.
*Literal* text is the SQL that DuckLake makes of a struct that is a column: `{'a': 1, 'b': 'it''s', 'c': CAST('2020-01-01' AS
VARCHAR)}`, where lists and maps inside are display text again. It may quote anybody's SQL and is never run.
"""

import re
from typing import Any

from duckicelake.store.inlined_types import Node

LITERAL_TEXT = re.compile(r"'([^']*(?:''[^']*)*)'")
LITERAL_CAST = re.compile(r"CAST\('([^']*)' AS [A-Z ]+\)|'([^']*)'::[A-Z ]+")
LITERAL_PLAIN = re.compile(r"[^\s,{}\[\]()':=]+")
LITERAL_NUL = re.compile(r"chr\(0\)")
DISPLAY_TEXT = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
DISPLAY_PLAIN = re.compile(r"[^\"'(),:=\[\]{}]+")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Cursor:
    """A place in a text. Raises ValueError where the text is not of the kind expected."""

    __slots__ = ("place", "text")

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def find(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        """What the pattern matches here, and move behind it."""
        found = pattern.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
        return found

    def take(self, token: str) -> bool:
        """Whether the token stands here, and move behind it."""
        if self.text.startswith(token, self.place):
            self.place += len(token)
            return True
        return False

    def expect(self, *tokens: str) -> str:
        """The first of the tokens that stands here, and move behind it."""
        for token in tokens:
            if self.take(token):
                return token
        raise ValueError(f"the text differs from what DuckLake writes at character {self.place}")


def parse_nested(node: Node, text: str) -> Any:
    """Read the text of a list, map or struct column: dicts for structs, lists of pairs for maps.

    Raises: ValueError — the text is of another form; Unsupported — a value inside that Iceberg cannot say
    """
    cursor = Cursor(text)
    value = _read_literal(node, cursor)
    if cursor.place != len(text):
        raise ValueError(f"the text goes on after character {cursor.place}")
    return value


def _read_literal(node: Node, cursor: Cursor) -> Any:
    if node.kind == "struct":
        return _read_literal_struct(node, cursor)
    if node.children:
        return _read_display(node, cursor)
    text = _read_literal_leaf(cursor)
    return None if text is None else node.read(text)


def _read_literal_struct(node: Node, cursor: Cursor) -> dict[str, Any] | None:
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


def _read_display(node: Node, cursor: Cursor) -> Any:
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


def _read_display_struct(node: Node, cursor: Cursor) -> dict[str, Any]:
    values: list[Any] = []
    for place, child in enumerate(node.children):
        cursor.expect(", " if place else "{")
        _read_display_leaf(cursor)
        cursor.expect(": ")
        values.append(_read_display(child, cursor))
    cursor.expect("}")
    return dict(zip(node.names, values, strict=True))


def _read_display_list(node: Node, cursor: Cursor) -> list[Any]:
    [element] = node.children
    cursor.expect("[")
    values: list[Any] = []
    if cursor.take("]"):
        return values
    while True:
        values.append(_read_display(element, cursor))
        if cursor.expect(", ", "]") == "]":
            return values


def _read_display_map(node: Node, cursor: Cursor) -> list[tuple[Any, Any]]:
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
