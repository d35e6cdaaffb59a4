"""Trino: the cases of `clients`, by the catalog file that `connect` prints, row by row against DuckDB."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from duckicelake.commands.snippets import format_trino
from tests.outside.client_program import NEW_ROW, simplify
from tests.outside.client_suite import Case, copy_id, judge_case, list_cases, make_tables
from tests.outside.results import Result
from tests.outside.stand import Stand
from tests.support.trino.server import Trino, TrinoRefused, start_trino


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the cases that are chosen, or all; the results by case. Its jars lie beside `cache`."""
    cases = [case for case in list_cases() if not chosen or case.name in chosen]
    with stand.lake.duckdb() as conn, TemporaryDirectory() as folder, start_trino(Path(folder)) as trino:
        make_tables(conn)
        printed = dict(line.split("=", 1) for line in format_trino(stand.facts).splitlines() if line and not line.startswith("#"))
        name = trino.add({key: text for key, text in printed.items() if key != "connector.name"})
        return {case.name: judge_case("trino", case, ask_case(trino, name, case), conn, "") for case in cases}


def ask_case(trino: Trino, catalog: str, case: Case) -> Mapping[str, Any]:
    """Return the rows of a case, or the error."""
    table = f'{catalog}.main."{case.table}"'
    try:
        if case.operation == "append":
            trino.arrow(f"INSERT INTO {table} VALUES ({NEW_ROW['id']}, '{NEW_ROW['name']}', {NEW_ROW['v']})")
        if case.operation == "copy":
            trino.arrow(f"INSERT INTO {table} SELECT {copy_id('trino')}, x FROM {table} WHERE id = 1")
            return {"rows": []}
        # Trino's Python client rounds nanoseconds.
        columns = "id, CAST(x AS VARCHAR) AS x" if case.table == "type_timestamp_ns" else "*"
        rows = trino.arrow(f"SELECT {columns} FROM {table}{' WHERE id < 10' if case.operation == 'filter' else ''}")
        return {"rows": simplify(rows.to_pylist())}
    except TrinoRefused as error:
        return {"error": str(error)[:2000]}
