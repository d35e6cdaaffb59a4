"""Commands of the pipeline, one after the other, in a process that has one Spark session for all of them.

Reads a JSON list of commands, each a list of words, from standard input, and writes a JSON list of what became of each: its status,
what it printed, and how many tasks each executor ended for it.
"""

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from duckicelake.cli import main
from duckicelake.commands.jobs import session
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.spark_session import SparkPlan, spark_session


class OneSession:
    """Stands for `spark_session`: what the first job opens is there for the ones after it."""

    def __init__(self, running: contextlib.ExitStack, scratch: Path) -> None:
        self.running, self.scratch = running, scratch
        self.spark: SparkSession | None = None

    @contextlib.contextmanager
    def open(self, plan: SparkPlan, environ: MutableMapping[str, str], progress: Progress) -> Generator[SparkSession]:
        """The session, which the end of the block leaves open."""
        if self.spark is None:
            # A job's own folder goes with the job.
            lasting = dataclasses.replace(plan, scratch=self.scratch)
            self.spark = self.running.enter_context(spark_session(lasting, environ, progress))
        yield self.spark


def count_tasks() -> Mapping[str, int]:
    """Return how many tasks each executor has ended."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return {}
    spark = context._jsc.sc()
    spark.listenerBus().waitUntilEmpty()
    found = spark.statusStore().executorList(False)
    return {found.apply(at).id(): found.apply(at).completedTasks() for at in range(found.size())}


def run_one(words: Sequence[str]) -> Mapping[str, Any]:
    """Return what became of a command."""
    before, printed, status = count_tasks(), io.StringIO(), 0
    sys.argv = ["duckicelake", *words]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    tasks = {executor: count - before.get(executor, 0) for executor, count in count_tasks().items()}
    return {"status": status, "out": printed.getvalue(), "tasks": tasks}


def run_all(commands: Sequence[Sequence[str]], scratch: Path) -> list[Mapping[str, Any]]:
    """Return what became of each command."""
    with contextlib.ExitStack() as running:
        session.spark_session = OneSession(running, scratch).open
        return [run_one(words) for words in commands]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_all(json.load(sys.stdin), Path("scratch").absolute())))
