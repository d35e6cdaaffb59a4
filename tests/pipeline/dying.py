"""How a job dies in a test: by kill -9, in the step that was drawn, and never after its end."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread, Timer
from typing import Any

from pyspark.sql import SparkSession

from duckicelake.pipeline.common.reports import Progress
from tests.support.commands import environment
from tests.support.shared_stack import ROOT
from tests.support.waiting import wait_for

SECONDS = 180
AT_WORK, AT_REST = "killed at work", "killed at rest"
"""What is told of a kill that counted from tasks of Spark: whether some run as it comes."""


@dataclass(frozen=True, slots=True)
class Moment:
    """So many seconds after the step of that number was told, and before the next one is.

    With a `stage` they count from when tasks of Spark's stage of that number, or a later one, run.
    """

    step: int
    delay_seconds: float = 0.0
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """How many seconds a step lasts about, 0 where it is over at once or changes nothing; from its first tasks on where Spark works."""

    seconds: float = 0.0
    has_tasks: bool = False


def draw(number: int, seed: int, spans: Sequence[Span]) -> Moment:
    """Each step in turn as it begins, then in turn those that last, at moments by lot; after the last one's end nobody can be killed."""
    if number < len(spans):
        return Moment(number)
    lasting = [step for step, span in enumerate(spans) if span.seconds]
    step = lasting[(number - len(spans)) % len(lasting)]
    return Moment(step, random.Random(seed + number).uniform(0.0, spans[step].seconds), 0 if spans[step].has_tasks else None)


def is_told(told: Sequence[str], steps: Sequence[str]) -> bool:
    """Whether these steps were told, each of which begins so, and none after them."""
    own = [line for line in told if line not in (AT_WORK, AT_REST)]
    return len(own) == len(steps) and all(map(str.startswith, own, steps))


def run_module(module: str, doom: Mapping[str, Any]) -> list[str]:
    """Run a module that dies by its own kill -9, and wait for Java's end too; returns the steps that it told.

    Raises: AssertionError: it ended otherwise, or before its moment
    """
    command = [sys.executable, "-m", module, json.dumps(doom)]
    done = subprocess.Popen(command, cwd=ROOT, env=environment({}), stdout=subprocess.PIPE, text=True, start_new_session=True)
    out, _ = done.communicate(timeout=SECONDS)
    wait_for(lambda: not _is_alive(done.pid), "the end of Java", SECONDS)
    told = out.splitlines()
    assert done.returncode == -signal.SIGKILL, f"status {done.returncode} after {told}: it was not killed"
    return told


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def dying(moment: Moment, spark: SparkSession | None = None) -> Generator[Progress]:
    """Who hears of a job's steps says them on standard output, and ends the process at that moment, or at the end of the step.

    Inside is the job alone: what it works with is open before, so that the moment falls into its own work.
    Raises: AssertionError: the job has ended before
    """
    death = Death(moment, spark)
    try:
        yield death.tell
    finally:
        death.is_over = True
    raise AssertionError("the job ended before it was killed: draw an earlier moment")


@dataclass(slots=True)
class Death:
    """The end of this process."""

    moment: Moment
    spark: SparkSession | None
    told: int = 0
    is_over: bool = False
    """Whether the job has ended, and nobody is to be killed any more."""

    def tell(self, step: str) -> None:
        """Say a step; the one that was drawn is the last."""
        if self.told > self.moment.step:
            self._kill()
        say(step)
        self.told += 1
        if self.told > self.moment.step:
            self._begin()

    def _begin(self) -> None:
        if self.moment.stage is not None:
            Thread(target=self._kill_at_work, daemon=True).start()
        elif self.moment.delay_seconds:
            self._kill_later()
        else:
            self._kill()

    def _kill_at_work(self) -> None:
        wait_for(self._count_tasks, "tasks of Spark", SECONDS)
        self._kill_later()

    def _kill_later(self) -> None:
        timer = Timer(self.moment.delay_seconds, self._kill)
        # A job that has ended is not to wait for it.
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        if self.is_over:
            return
        if self.moment.stage is not None:
            say(AT_WORK if self._count_tasks() else AT_REST)
        os.kill(os.getpid(), signal.SIGKILL)

    def _count_tasks(self) -> int | None:
        """How many tasks run of the stage that is meant and of later ones, None where there are none."""
        assert self.spark is not None
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds() if number >= (self.moment.stage or 0)]
        return sum(stage.numActiveTasks for stage in stages if stage is not None) or None


def say(line: str) -> None:
    """A line on standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
