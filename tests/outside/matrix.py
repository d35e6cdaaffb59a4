"""The tables of docs/compatibility.md: what each client does with each kind of table and type, as `scripts/outside` found it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.outside.client_suite import LOADERS, TYPES, list_cases
from tests.outside.results import read_expected

CLIENTS: Mapping[str, str] = {
    "pyiceberg": "PyIceberg 0.12",
    "polars": "Polars 2.1",
    "pandas": "pandas 3.1",
    "datafusion": "DataFusion 54",
    "daft": "Daft 0.7",
    "ray": "Ray 2.60",
    "clickhouse": "ClickHouse 26.9",
    "spark": "Spark 4.1",
    "duckdb": "DuckDB 1.5's `iceberg`",
    "flink": "Flink 2.1",
    "trino": "Trino 483",
}
LOADING: Mapping[str, str] = {
    "dlt": "dlt 1.31",
    "dbt": "dbt-duckdb 1.11",
    "sqlmesh": "SQLMesh 0.236",
    "flink": "Flink 2.1",
    "kafka": "Kafka Connect 3.9",
}
JOBS: Mapping[str, Mapping[str, str]] = {
    "flink": {
        "write/tables": "create, partition, append every type, evolve, overwrite, drop",
        "stream/read": "a stream over inlined rows, files, a new column, a flush and a merge",
        "stream/restart": "a streaming write, killed and restarted from its checkpoint, beside DuckDB",
        "stream/upsert": "upserts of rows that DuckDB changed in between",
    },
    "kafka": {
        "sink/restart": "a topic into a table that the sink makes and adds a column to, killed and restarted, beside DuckDB",
        "sink/rewind": "events that the coordinator reads again after a merge in DuckDB",
    },
}


def format_matrix(entries: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return the table: `yes` where a client's rows are DuckDB's, else the word of the entry that expects the failure."""
    words = dict(_list_words() if entries is None else _list_words_of(entries, ""))
    lines = [f"| case | {' | '.join(CLIENTS.values())} |", f"| --- |{' --- |' * len(CLIENTS)}"]
    for case in list_cases():
        cells = [_find_word(words, f"{client}/{case.name}") for client in CLIENTS]
        lines.append(f"| {describe(case.name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_loads() -> str:
    """Return the table of tools and jobs that write tables of their own."""
    words = dict(_list_words())
    loads = [(tool, name, f"`{name}`") for tool, names in LOADERS.items() for name in names]
    loads += [(suite, name, text) for suite, jobs in JOBS.items() for name, text in jobs.items()]
    lines = [f"| {LOADING[tool]} | {told} | {_find_word(words, f'{tool}/{name}')} |" for tool, name, told in loads]
    return "\n".join(["| tool | what it does | DuckDB reads the same |", "| --- | --- | --- |", *lines])


def _list_words() -> Iterator[tuple[str, str]]:
    yield from _list_words_of(read_expected("clients"), "")
    for suite in ("flink", "kafka", "trino"):
        yield from _list_words_of(read_expected(suite), f"{suite}/")


def _list_words_of(entries: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, str]]:
    for entry in entries:
        yield from ((f"{prefix}{test}", entry["cell"]) for test in entry["tests"])


def _find_word(words: Mapping[str, str], test: str) -> str:
    """Return the word of a test, or of the group that its name begins with."""
    return words.get(test) or words.get(test.rpartition("/")[0]) or "yes"


def describe(name: str) -> str:
    """Return a case as the page names it."""
    operation, _, subject = name.partition("/")
    if subject in TYPES:
        return f"{'read' if operation == 'type' else operation} `{TYPES[subject][0]}`"
    return f"{operation}: {subject}" if subject else "the text of `connect`"
