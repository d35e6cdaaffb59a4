"""`duckicelake duckdb`: DuckDB with the lake attached, for statements given or typed."""

import sys
from collections.abc import Iterable, Iterator

import duckdb
from rich.console import Console

from duckicelake.backends.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.backends.home import Home
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings

PROMPT, MORE = "lake> ", "   .. "


def run_statements(lake: LakeSettings, home: Home, statements: Iterable[str], console: Console) -> bool:
    """Run each statement on the lake, print what it returns, and say whether all went well."""
    well = True
    with connect_duckdb(home.make_folder("extensions")) as conn:
        attach_lake(conn, LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema), find_s3_keys(lake))
        conn.execute("USE lake")
        for statement in statements:
            try:
                result = conn.sql(statement)
            except duckdb.Error as error:
                well = False
                console.print(str(error), style="red", markup=False, highlight=False)
                continue
            if result is not None:  # pyright: ignore[reportUnnecessaryComparison]  a statement without rows returns None
                console.print(str(result), markup=False, highlight=False, soft_wrap=True)
    return well


def read_statements() -> Iterator[str]:
    """Yield the statements on standard input, each ended by a semicolon at the end of a line or by the end of input."""
    typing = sys.stdin.isatty()
    lines: list[str] = []
    while True:
        try:
            line = input((MORE if lines else PROMPT) if typing else "")
        except EOFError:
            break
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []
    if "".join(lines).strip():
        yield "\n".join(lines)
