"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from duckicelake.pipeline.follow import FollowOptions, follow
from duckicelake.pipeline.ingest.job import Desk, ingest
from duckicelake.pipeline.ingest.options import Evolve, IngestOptions, Mode
from duckicelake.pipeline.rest import open_rest, parse_ident
from duckicelake.pipeline.spark import RestCatalog, SparkPlan, add_catalog, spark_session
from tests.support.commands import environment
from tests.support.java import jar_cache
from tests.support.shared_stack import ROOT
from tests.support.spark import CALM, JARS
from tests.support.waiting import wait_for

SECONDS = 180


@dataclass(frozen=True, slots=True)
class Doom:
    """What the process does: the job's few options, and where it ends: so many seconds after the step of that number was told."""

    catalog: Mapping[str, Any]
    source: str
    table: str
    step: int
    delay_seconds: float = 0.0
    mode: str = "append"
    key: str = ""
    reading: Mapping[str, str] = field(default_factory=dict[str, str])
    incremental_by: str | None = None
    batches: int = 0
    """Not 0: the source is followed, a file at a time."""
    evolve: str = "fail"
    order_by: str | None = None
    schema: str | None = None

    def read_options(self) -> dict[str, Any]:
        """What is asked of the job, by name."""
        key = tuple(self.key.split(",")) if self.key else ()
        named = {"mode": Mode(self.mode), "key": key, "evolve": Evolve(self.evolve), "order_by": self.order_by, "schema": self.schema}
        of_source = {"reading": self.reading, "incremental_by": self.incremental_by}
        return {"source": self.source, "table": parse_ident(self.table), **named, **of_source}


def run_doomed(doom: Doom) -> list[str]:
    """Run the process to its end, and Java's with it; returns the steps that it told."""
    return run_module("tests.pipeline.ingest.doomed", asdict(doom))


def run_module(module: str, doom: Mapping[str, Any]) -> list[str]:
    """Run a module that tells its steps, to its end or to that of kill -9, and Java's with it; returns the steps."""
    command = [sys.executable, "-m", module, json.dumps(doom)]
    done = subprocess.Popen(command, cwd=ROOT, env=environment({}), stdout=subprocess.PIPE, text=True, start_new_session=True)
    out, _ = done.communicate(timeout=SECONDS)
    wait_for(lambda: not _is_alive(done.pid), "the end of Java", SECONDS)
    assert done.returncode in (0, -signal.SIGKILL), f"status {done.returncode}"
    return out.splitlines()


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main(doom: Doom) -> None:
    """Run the job."""
    tell = telling_until(doom.step, doom.delay_seconds)
    catalog = RestCatalog(**doom.catalog)
    options = IngestOptions(**doom.read_options())
    with (
        tempfile.TemporaryDirectory() as scratch,
        spark_session(SparkPlan(jar_cache(), Path(scratch), conf=CALM, jars=JARS), os.environ, lambda _: None) as spark,
    ):
        add_catalog(spark, "lake", catalog)
        desk = Desk(spark, "lake", lambda: open_rest(catalog), tell)
        if doom.batches:
            how = FollowOptions(batch_files=1, settle_seconds=0, max_batches=doom.batches)
            follow(desk, options, how, lambda _: False, lambda _: None)
        else:
            ingest(desk, options)


def telling_until(last: int, delay_seconds: float) -> Callable[[str], None]:
    """Say each step on standard output; the process ends so long after the step of that number."""
    told: list[str] = []

    def tell(step: str) -> None:
        told.append(step)
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        if len(told) - 1 == last:
            die(delay_seconds)

    return tell


def die(seconds: float) -> None:
    """End as the kernel would end us."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if seconds:
        Timer(seconds, kill).start()
    else:
        kill()


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
