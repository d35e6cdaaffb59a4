"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pyspark.sql import SparkSession

from duckicelake.commands.facts import Facts, format_facts
from duckicelake.commands.jobs.maintain import make_desk
from duckicelake.commands.jobs.session import JobCall, SparkSettings, opening_spark, to_catalog
from duckicelake.config import LakeSettings
from duckicelake.embedded.home import Home, open_home
from duckicelake.pipeline.maintain import compaction
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.pipeline.dying import Moment, dying, run_module
from tests.pipeline.maintain.keeper import AT_ONCE, make_eager
from tests.rest.serving import WAREHOUSE
from tests.support.readers import Served
from tests.support.spark import CALM

MACHINE = SparkSettings("local[2]", "1g", {**CALM, "spark.ui.liveUpdate.period": "0"})
"""Tasks are known as soon as they run."""
GROUP_BYTES = "group-bytes"


@dataclass(frozen=True, slots=True)
class Doom:
    """Where the lake is, when the process ends, and what is asked of the job beside what every test asks."""

    uri: str
    lake: dict[str, str]
    home: str
    at: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def moment(self) -> Moment:
        """When."""
        return Moment(**self.at)


def kill(
    served: Served, home: Path, moment: Moment, module: str = "tests.pipeline.maintain.doomed", options: Mapping[str, Any] | None = None
) -> list[str]:
    """Kill a job on that lake there; the steps that it told."""
    lake = served.lake
    settings = {
        "name": WAREHOUSE,
        "postgres_dsn": lake.dsn,
        "metadata_schema": lake.metadata_schema,
        "s3_endpoint": lake.store.endpoint,
        "s3_region": lake.store.region,
        "s3_access_key_id": lake.store.access_key_id,
        "s3_secret_access_key": lake.store.secret_access_key,
    }
    return run_module(module, asdict(Doom(served.rest_catalog().uri, settings, str(home), asdict(moment), options or {})))


def open_place(doom: Doom) -> tuple[Facts, Home]:
    """Where the lake is, as a command knows it."""
    secret = {name: SecretStr(doom.lake[name]) for name in ("postgres_dsn", "s3_secret_access_key")}
    lake = LakeSettings.model_validate(doom.lake | secret)
    # A killed process removes nothing: its scratch folder goes with the test's.
    tempfile.tempdir = doom.home
    return format_facts(lake, doom.uri), open_home(Path(doom.home))


def opening_early(facts: Facts) -> AbstractContextManager[SparkSession]:
    """The job's session, before the job: what it tells and the moment that counts from there are of its own work."""
    return opening_spark(MACHINE, to_catalog(facts), lambda _: None)


def main(doom: Doom) -> None:
    """Run the job with every age as low as it goes, and no pity on orphans. Options: a policy's, and from where on it goes by pieces."""
    asked = dict(doom.options)
    compaction.GROUP_BYTES = asked.pop(GROUP_BYTES, compaction.GROUP_BYTES)
    call = JobCall(MaintainOptions(policies=MaintainPolicies(AT_ONCE | asked)), MACHINE, dry_run=False, report=None)
    facts, home = open_place(doom)
    with opening_early(facts) as spark, dying(doom.moment, spark) as tell:
        desk = make_desk(facts, home, call, tell)
        maintain(replace(make_eager(desk), open_spark=lambda: nullcontext(spark)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
