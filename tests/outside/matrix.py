"""The table of docs/compatibility.md: what each client does with each kind of table and type, as the runs of `scripts/outside` found it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.outside.client_suite import ENVIRONMENTS, TYPES, list_cases
from tests.outside.results import read_expected

CLIENTS: Mapping[str, str] = {
    "pyiceberg": "PyIceberg 0.12",
    "polars": "Polars 2.1",
    "pandas": "pandas 3.1",
    "daft": "Daft 0.7",
    "datafusion": "DataFusion 54",
    "clickhouse": "ClickHouse 26.9",
}


def format_matrix(entries: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return the table: `yes` where a client's rows are DuckDB's, else the word of the entry that expects the failure."""
    words = {test: entry["cell"] for entry in entries or read_expected("clients") for test in entry["tests"]}
    lines = [f"| case | {' | '.join(CLIENTS[client] for client in ENVIRONMENTS)} |", f"| --- |{' --- |' * len(ENVIRONMENTS)}"]
    for case in list_cases():
        cells = [words.get(f"{client}/{case.name}", "yes") for client in ENVIRONMENTS]
        lines.append(f"| {describe(case.name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe(name: str) -> str:
    """Return a case as the page names it."""
    operation, _, subject = name.partition("/")
    return f"type `{TYPES[subject][0]}`" if operation == "type" else f"{operation}: {subject}"
