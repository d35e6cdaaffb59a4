"""`duckicelake duckdb`: DuckDB with the lake attached, for statements given or typed; called by the command line.

Statements may write to the lake: DuckDB runs in this process, with the lake's own Postgres address and the store's own keys.
"""

import sys
from collections.abc import Iterable, Iterator

import duckdb
from rich.console import Console

from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import Home

PROMPT, MORE = "lake> ", "   .. "


def run_statements(lake: LakeSettings, home: Home, texts: Iterable[str], console: Console) -> bool:
    """Run the statements of each text on the lake, print what each one returns, and return True if none failed.

    A statement that fails ends its text; the next text is run.
    """
    is_well = True
    with connect_duckdb(home.make_folder("extensions")) as conn:
        attach_lake(conn, LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema), find_s3_keys(lake))
        conn.execute("USE lake")
        for text in texts:
            try:
                _run(conn, text, console)
            except duckdb.Error as error:
                is_well = False
                console.print(str(error), style="red", markup=False, highlight=False)
    return is_well


def _run(conn: duckdb.DuckDBPyConnection, text: str, console: Console) -> None:
    if not text.isascii():
        # Python's UTF-8 mode lets other bytes of standard input through; encoding them raises UnicodeEncodeError.
        text.encode("utf-8")
    for statement in conn.extract_statements(text):
        # The text of one statement is not enough: PIVOT is several, whose texts are parts.
        result = conn.sql(statement)
        if result is not None:  # pyright: ignore[reportUnnecessaryComparison]  a statement without rows returns None
            console.print(str(result), markup=False, highlight=False, soft_wrap=True)


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
