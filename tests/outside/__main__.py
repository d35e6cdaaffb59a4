"""Run suites of other projects against a server of this checkout: `scripts/outside [SUITE …] [-- arguments of the suite's runner]`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.outside import client_suite, flink_suite, go_suite, kafka_suite, pyiceberg_suite, spark_suite, trino_suite
from tests.outside.results import Result, format_summary, judge, read_expected
from tests.outside.stand import Stand, open_stand
from tests.support.shared_stack import use_shared_stack

CACHE = Path.home() / ".cache" / "duckicelake" / "outside"
SUITES: Mapping[str, Callable[[Path, Stand, list[str]], dict[str, Result]]] = {
    "pyiceberg": pyiceberg_suite.run,
    "go": go_suite.run,
    "clients": client_suite.run,
    "flink": flink_suite.run,
    "kafka": kafka_suite.run,
    "spark": spark_suite.run,
    "trino": trino_suite.run,
}


def main() -> int:
    """Run the suites that are named, or all; 1 if one of them has a result that is not expected."""
    parser = argparse.ArgumentParser(prog="scripts/outside", description="Run suites of other projects against a server of ours.")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="suites to run (all)")
    parser.add_argument("--only", action="append", default=[], help="an argument of the suite's runner: what to run of it")
    parser.add_argument("--results", type=Path, help="write all results as JSON into this folder, a file for each suite")
    options = parser.parse_args()
    status = 0
    CACHE.mkdir(parents=True, exist_ok=True)
    for suite in options.suites or SUITES:
        with TemporaryDirectory() as folder, use_shared_stack() as stack:
            with open_stand(stack, has_bucket=suite in {"pyiceberg", "go"}, folder=folder if suite == "spark" else None) as stand:
                results = SUITES[suite](CACHE, stand, options.only)
        verdict = judge(results, read_expected(suite))
        sys.stdout.write(format_summary(suite, results, verdict))
        if options.results is not None:
            options.results.mkdir(parents=True, exist_ok=True)
            written = {test: [result.outcome, result.reason] for test, result in sorted(results.items())}
            (options.results / f"{suite}.json").write_text(json.dumps(written, indent=1))
        status |= bool(verdict.unexpected or verdict.mended)
    return status


if __name__ == "__main__":
    sys.exit(main())
