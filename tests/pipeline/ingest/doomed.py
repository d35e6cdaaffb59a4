"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from duckicelake.pipeline.common.rest import RestCatalog, open_rest, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext, SparkPlan, add_catalog, spark_session
from duckicelake.pipeline.ingest.job import FollowOptions, follow, ingest
from duckicelake.pipeline.ingest.options import Evolve, IngestMode, IngestOptions
from tests.pipeline.dying import Moment, dying, run_module
from tests.support.java import jar_cache
from tests.support.spark import CALM, JARS


@dataclass(frozen=True, slots=True)
class Doom:
    """What the process does: the job's few options, and where it ends: within the step of that number, after so many seconds of it."""

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
        named = {"mode": IngestMode(self.mode), "key": key, "evolve": Evolve(self.evolve), "order_by": self.order_by, "schema": self.schema}
        of_source = {"reading": self.reading, "incremental_by": self.incremental_by}
        return {"source": self.source, "table": parse_ident(self.table), **named, **of_source}


def run_doomed(doom: Doom) -> list[str]:
    """Run the process until it is killed; returns the steps that it told."""
    return run_module("tests.pipeline.ingest.doomed", asdict(doom))


def main(doom: Doom) -> None:
    """Run the job."""
    catalog = RestCatalog(**doom.catalog)
    options = IngestOptions(**doom.read_options())
    with (
        tempfile.TemporaryDirectory() as scratch,
        spark_session(SparkPlan(jar_cache(), Path(scratch), conf=CALM, jars=JARS), os.environ, lambda _: None) as spark,
    ):
        add_catalog(spark, "lake", catalog)
        with dying(Moment(doom.step, doom.delay_seconds)) as tell:
            desk = JobContext(spark, "lake", lambda: open_rest(catalog), tell)
            if doom.batches:
                how = FollowOptions(batch_files=1, settle_seconds=0, max_batches=doom.batches)
                follow(desk, options, how, lambda _: False, lambda _: None)
            else:
                ingest(desk, options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
