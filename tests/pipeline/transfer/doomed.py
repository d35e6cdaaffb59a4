"""A job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from duckicelake.commands.jobs.session import SparkSettings, opening_spark
from duckicelake.commands.jobs.transfer import TransferCall, make_desk
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.transfer.job import transfer
from duckicelake.pipeline.transfer.options import read_options
from tests.pipeline.dying import Moment, dying
from tests.support.spark import CALM


@dataclass(frozen=True, slots=True)
class Doom:
    """What the process does, and when it ends."""

    job: str
    catalog: Mapping[str, Any]
    given: Mapping[str, Any]
    home: str
    at: Mapping[str, Any]


def main(doom: Doom) -> None:
    """Run the job."""
    # A killed process removes nothing: its scratch folder goes with the test's.
    tempfile.tempdir = doom.home
    given = {**doom.given, "properties": doom.given["properties"] and Path(doom.given["properties"])}
    catalog, options, machine = RestCatalog(**doom.catalog), read_options(given), SparkSettings("local[2]", "1g", CALM)
    call = TransferCall(doom.job, options, machine, dry_run=False, report=None)
    spark = LazySpark(partial(opening_spark, machine, catalog, lambda _: None))
    if not given["no_verify"]:
        # Before the job: the moment is one of its own work.
        spark.get()
    with dying(Moment(**doom.at)) as tell:
        transfer(make_desk(catalog, call, spark, tell), options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
