"""DuckDB's own parser, from text to tree and back. It binds and runs nothing, and its connection has no external access."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import duckdb

MAX_SQL = 65_536
"""The longest text of a view, in characters, that is parsed."""

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
    "memory_limit": "256MB",
    "threads": "1",
}

Tree = dict[str, Any]
"""A node of a query as DuckDB writes it in JSON."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A DuckDB connection that only parses. For one thread."""

    _conn: duckdb.DuckDBPyConnection

    def find_query(self, sql: str) -> Tree | None:
        """Return the tree of a text that is exactly one query, or None for any other text."""
        if len(sql) > MAX_SQL or "\0" in sql:
            return None
        try:
            tree = cast("Tree", json.loads(self._ask("SELECT json_serialize_sql(?)", sql)))
        except (duckdb.Error, RecursionError, ValueError):
            return None
        return tree if not tree["error"] and len(tree["statements"]) == 1 else None

    def find_text(self, tree: Tree) -> str | None:
        """Return a tree as DuckDB writes it as text, or None if it cannot."""
        try:
            return self._ask("SELECT json_deserialize_sql(?::JSON)", json.dumps(tree))
        except (duckdb.Error, RecursionError, ValueError):
            return None

    def _ask(self, query: str, text: str) -> str:
        row = self._conn.execute(query, [text]).fetchone()
        assert row is not None
        return str(row[0])


def replace_unquoted(sql: str, old: str, new: str, *, in_names: bool = False) -> str:
    """Replace a part of a text outside of string constants and, unless `in_names`, of quoted names."""
    content = sql.encode()
    tokens = duckdb.tokenize(sql)
    ends = [start for start, _ in tokens[1:]] + [len(content)]
    parts: list[bytes] = []
    position = 0
    for (start, kind), end in zip(tokens, ends, strict=True):
        is_name = kind == duckdb.token_type.identifier and content[start : start + 1] == b'"'
        if kind == duckdb.token_type.string_const or (is_name and not in_names):
            parts += [content[position:start].replace(old.encode(), new.encode()), content[start:end]]
            position = end
    return b"".join([*parts, content[position:].replace(old.encode(), new.encode())]).decode()


@contextmanager
def open_parser() -> Generator[Parser]:
    """Open a parser, and close it at the end of the block."""
    with duckdb.connect(":memory:", config=CONFIG) as conn:
        yield Parser(conn)
