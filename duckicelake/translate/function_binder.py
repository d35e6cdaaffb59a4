"""The binder: a process in which DuckDB finds the result types of queries over empty tables. It runs no query.

`catalog.function_binder` starts the process when it has no cached answer, and imports this module only for its name and limit.

The process gets one JSON object on its standard input, `{"catalog", "statements", "questions"}`, and writes a JSON list with one answer for
each question: `{"columns": [[name, type], …]}`, or `{"error": text}`. A question is a list of queries, of which the first one that DuckDB
accepts is answered. A type is a text in DuckDB's words, or `{"list": type}`, `{"struct": [[name, type], …]}`, `{"map": [key, value]}`. It
has no access to files and the network, and ends when it has used `CPU_SECONDS`, so that a macro which is expensive to bind stops no other
request.
"""

import json
import resource
import sys
from typing import Any, cast

import duckdb

from duckicelake.translate.sql import CONFIG

CPU_SECONDS = 5
MEMORY_BYTES = 2 * 1024**3
"""Of address space, of which DuckDB reserves much more than it takes."""
MAX_ERROR = 300
"""Characters of DuckDB's message that are passed on."""


def main() -> None:
    """Answer the question on the standard input."""
    # SIGXCPU ends the process at the lower limit.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


def answer(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answer for each query of the question."""
    catalog = '"' + question["catalog"].replace('"', '""') + '"'
    with duckdb.connect(":memory:", config=CONFIG | {"lock_configuration": "false"}) as conn:
        conn.execute(f"ATTACH ':memory:' AS {catalog}; USE {catalog}; SET lock_configuration = true")
        create_all(conn, question["statements"])
        return [bind_first(conn, queries) for queries in question["questions"]]


def create_all(conn: duckdb.DuckDBPyConnection, statements: list[str]) -> None:
    """Create what the statements say, in any order that works. What never works is left out, and queries that need it fail."""
    waiting = statements
    while waiting:
        left = [statement for statement in waiting if not _is_created(conn, statement)]
        if len(left) == len(waiting):
            return
        waiting = left


def _is_created(conn: duckdb.DuckDBPyConnection, statement: str) -> bool:
    try:
        [only] = conn.extract_statements(statement)
        conn.execute(only)
    except (duckdb.Error, ValueError):
        return False
    return True


def bind_first(conn: duckdb.DuckDBPyConnection, queries: list[str]) -> dict[str, Any]:
    """Return the columns of the first query that DuckDB accepts, or the error of the last."""
    found: dict[str, Any] = {}
    for query in queries:
        found = bind(conn, query)
        if "columns" in found:
            break
    return found


def bind(conn: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """Return the columns of one query, or DuckDB's error."""
    try:
        [only] = conn.extract_statements(query)
        relation = conn.sql(only)
    except ValueError:
        return {"error": "a type of a parameter is not a type"}
    except duckdb.Error as error:
        return {"error": "DuckDB refuses it: " + str(error).split("\n\nLINE")[0].replace("\n", " ")[:MAX_ERROR]}
    return {"columns": [[name, describe(kind)] for name, kind in zip(relation.columns, relation.types, strict=True)]}


def describe(kind: Any) -> Any:
    """Return a DuckDB type as JSON."""
    if kind.id in ("list", "array"):
        return {"list": describe(_get_children(kind)["child"])}
    if kind.id == "struct":
        return {"struct": [[name, describe(child)] for name, child in kind.children]}
    if kind.id == "map":
        return {"map": [describe(child) for _, child in kind.children]}
    return str(kind)


def _get_children(kind: Any) -> dict[str, Any]:
    return dict(cast("list[tuple[str, Any]]", kind.children))


if __name__ == "__main__":
    main()
