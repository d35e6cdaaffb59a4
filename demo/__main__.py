"""`python -m demo`: load, correct, read, compare. The status is 0 when all readers agree, 1 when one differs, 2 when it cannot run."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from duckdb import DuckDBPyConnection
from rich.console import Console

from demo.compare import Comparison, compare
from demo.flights import DataMissing, find_files
from demo.load import FLIGHTS, Step, load
from demo.questions import list_questions
from demo.read import Reader, open_duckdb, open_readers
from demo.report import format_verdict, print_section
from demo.server import ServerFailed, find_server, start_server
from duckicelake.commands.facts import Facts
from duckicelake.embedded.home import Home
from duckicelake.errors import CatalogError

SAME, DIFFERENT, CANNOT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its status."""
    options = parse_options(arguments)
    console = Console()
    try:
        if options.home is not None or options.uri is not None:
            return run(options, *find_server(options.home, options.uri), console)
        console.print("Starting a server with a lake of its own …")
        with start_server() as (facts, home):
            return run(options, facts, home, console)
    except (CatalogError, DataMissing, ServerFailed) as error:
        Console(stderr=True).print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return CANNOT


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Real data, loaded by DuckDB, read by Iceberg's clients.")
    parser.add_argument("--home", type=Path, help="use the server that runs on this home instead of starting one")
    parser.add_argument("--uri", help="use the catalog at this address; lake and keys come from the settings, as for `duckicelake connect`")
    parser.add_argument("--namespace", default="nycflights13", help="where the tables go; must not exist (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=FLIGHTS, help="about how many flights to load (default: all %(default)s)")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out, which needs Java")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, facts: Facts, home: Home, console: Console) -> int:
    """Load and compare on a running server; returns the status."""
    started = time.perf_counter()
    with open_duckdb(facts, home) as conn, tempfile.TemporaryDirectory(prefix="duckicelake-demo-") as scratch:
        console.print(f"Loading into {options.namespace} of warehouse {facts.warehouse} at {facts.catalog_uri}:")
        if not create_namespace(conn, options.namespace):
            Console(stderr=True).print(f"demo: the namespace {options.namespace} exists; name another with --namespace", style="red")
            return CANNOT
        steps = load(conn, find_files(Path(scratch)), max(1, options.rows), console)
    cache = None if options.no_spark else Path.home() / ".cache" / "duckicelake"
    with open_readers(facts, home, options.namespace, cache) as readers, open_duckdb(facts, home) as judge:
        comparisons = compare_all(judge, list(steps.values()), readers, console)
    console.print(f"{format_verdict(comparisons)} ({time.perf_counter() - started:.0f} s)")
    return SAME if all(comparison.is_same for comparison in comparisons) else DIFFERENT


def create_namespace(conn: DuckDBPyConnection, name: str) -> bool:
    """Make the namespace and use it; False when it exists, so that nobody's tables are touched."""
    found = conn.execute("SELECT 1 FROM duckdb_schemas() WHERE database_name = 'lake' AND lower(schema_name) = lower(?)", [name])
    if found.fetchone() is not None:
        return False
    conn.execute(f'CREATE SCHEMA lake."{name}"')
    conn.execute(f'USE lake."{name}"')
    return True


def compare_all(judge: DuckDBPyConnection, steps: Sequence[Step], readers: Sequence[Reader], console: Console) -> list[Comparison]:
    """Ask every question, printing each section as soon as it is answered."""
    comparisons: list[Comparison] = []
    for section, questions in groupby(list_questions(steps), key=lambda question: question.section):
        answered = [compare(judge, question, readers) for question in questions]
        print_section(console, section, answered)
        comparisons += answered
    return comparisons


if __name__ == "__main__":
    sys.exit(main())
