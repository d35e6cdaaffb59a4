"""`python -m bench`: runs the benchmarks on servers of its own, prints their tables and writes their JSON."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench.branches import measure_claims, measure_depth, measure_guard, measure_members, measure_merges
from bench.cached import measure_cached, measure_foreign, measure_guarded
from bench.commits.big import measure_deletes, measure_many_files
from bench.commits.contention import measure_contention
from bench.commits.floor import measure_floor
from bench.commits.kinds import measure_growth, measure_kinds
from bench.commits.limits import list_broken
from bench.commits.writers import measure_pyiceberg, measure_writers
from bench.growth import measure_files, measure_inlined, measure_later_loads, measure_snapshots
from bench.idle import measure_idle
from bench.jobs.compacting import measure_compaction
from bench.jobs.ingesting import measure_ingest
from bench.jobs.starting import measure_start
from bench.jobs.verifying import measure_verify
from bench.publishing import measure_publish
from bench.report import Result, print_result, write_json
from bench.routes import measure_routes
from bench.scale import FULL, SMALL, USUAL, Scale
from bench.stand import Stand, open_stand, temporary_home
from bench.wide import measure_wide
from bench.young import measure_young

IDLE = "idle"
ON_A_STAND: dict[str, Callable[[Stand, Scale], Result]] = {
    "cached": measure_cached,
    "guarded": measure_guarded,
    "wide": measure_wide,
    "young": measure_young,
    "snapshots": measure_snapshots,
    "files": measure_files,
    "later": measure_later_loads,
    "inlined": measure_inlined,
    "commits": measure_kinds,
    "floor": measure_floor,
    "commit_growth": measure_growth,
    "pyiceberg": measure_pyiceberg,
    "writers": measure_writers,
    "contention": measure_contention,
    "commit_files": measure_many_files,
    "deletes": measure_deletes,
    "routes": measure_routes,
    "branches": measure_members,
    "merges": measure_merges,
    "claims": measure_claims,
    "depth": measure_depth,
    "guard": measure_guard,
}
WITH_SPARK: dict[str, Callable[[Stand, Scale], Result]] = {
    "publish": measure_publish,
    "verify": measure_verify,
    "ingest": measure_ingest,
    "compaction": measure_compaction,
    "job_start": measure_start,
}
"""What needs Spark, and so runs only when it is named."""
WIDTH = 180
"""Characters of a table when nobody's window limits it."""
OUT = Path(__file__).parent / "out" / "latest.json"


def main() -> None:
    """Run what was asked for."""
    options = read_options()
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    results: dict[str, Result] = {}
    for name, result in run(options):
        results[name] = result
        print_result(console, result)
    write_json(options.json, results)
    console.print(f"Figures: {options.json}", soft_wrap=True)
    broken = list(list_broken(results)) if options.check else []
    if broken:
        raise SystemExit("\n".join(broken))


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    names = [*ON_A_STAND, *WITH_SPARK, IDLE]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", dest="scale", action="store_const", const=SMALL, help="only as much as shows that all works")
    size.add_argument("--full", dest="scale", action="store_const", const=FULL, help="also 10,000 snapshots and 1,000,000 files")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; may be repeated")
    parser.add_argument("--json", type=Path, default=OUT, help="where the figures go")
    parser.add_argument("--check", action="store_true", help="end with an error when a figure is clearly above its limit")
    parser.add_argument("--uri", help="measure loads of this table (…/v1/PREFIX/namespaces/NAMESPACE/tables/TABLE) of a running server")
    parser.add_argument("--pid", type=int, help="with --uri: the process whose CPU time counts")
    parser.set_defaults(scale=USUAL)
    return parser.parse_args()


def run(options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    """Yield one benchmark's name and result after the other."""
    if options.uri is not None:
        yield "foreign", measure_foreign(options.uri, options.pid, options.scale)
        return
    chosen = options.only or [*ON_A_STAND, IDLE]
    if IDLE in chosen:
        with temporary_home() as home:
            yield IDLE, measure_idle(home)
    if set(chosen) - {IDLE}:
        with temporary_home() as home, open_stand(home) as stand:
            for name, measure in (ON_A_STAND | WITH_SPARK).items():
                if name in chosen:
                    yield name, measure(stand, options.scale)


if __name__ == "__main__":
    main()
