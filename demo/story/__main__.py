"""`python -m demo.story`: status 0: all agree; 1: one differs, a correction is lost, or the house is not kept; 2: it cannot be told."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console

from demo.flights import DataMissing
from demo.load import FLIGHTS
from demo.read import open_duckdb
from demo.server import ServerFailed, find_server, start_server
from demo.story.chapters import find_taken, tell
from demo.story.house import open_house
from duckicelake.commands.facts import Facts
from duckicelake.embedded.home import EmbeddedError, Home
from duckicelake.errors import CatalogError
from duckicelake.pipeline.common.java import JarUnavailable, NoJava

SAME, DIFFERENT, CANNOT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell the story and return its status."""
    options = parse_options(arguments)
    console = Console()
    try:
        if options.home is not None or options.uri is not None:
            return run(options, *find_server(options.home, options.uri), console)
        console.print("A server with a lake of its own starts, and Spark …")
        with start_server() as (facts, home):
            return run(options, facts, home, console)
    except (EmbeddedError, CatalogError, DataMissing, ServerFailed, NoJava, JarUnavailable) as error:
        return complain(str(error))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="A small lakehouse, from raw files to gold, told in nine chapters.")
    parser.add_argument("--home", type=Path, help="use the server that runs on this home instead of starting one")
    parser.add_argument("--uri", help="use the catalog at this address; lake and keys come from the settings, as for `duckicelake connect`")
    parser.add_argument("--rows", type=int, default=FLIGHTS, help="about how many flights there are (default: all %(default)s)")
    parser.add_argument("--scale", type=float, default=0.05, help="scale factor of TPC-H (default: %(default)s)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, facts: Facts, home: Home, console: Console) -> int:
    """Tell the story on a running server; returns the status."""
    began = perf_counter()
    with open_duckdb(facts, home) as duck:
        taken = find_taken(duck)
    if taken:
        return complain(f"the namespace {taken[0]} exists, which the story makes itself: drop it, or tell the story in another lake")
    with open_house(facts, home, console) as house:
        is_same = tell(house, max(1, options.rows), options.scale)
    said = "[green]All readers agree" if is_same else "[red]Readers differ, a correction is lost, or the house is not kept"
    console.print(f"\n{said} ({perf_counter() - began:.0f} s).")
    return SAME if is_same else DIFFERENT


def complain(message: str) -> int:
    """Say why it cannot be told."""
    Console(stderr=True).print(f"demo: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return CANNOT


if __name__ == "__main__":
    sys.exit(main())
