"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import SecretStr

from duckicelake.backends.home import Home, open_home
from duckicelake.commands.facts import Facts, format_facts
from duckicelake.commands.jobs.maintain import MaintainCall, make_desk
from duckicelake.commands.jobs.session import Machine
from duckicelake.config import LakeSettings
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.options import MaintainOptions
from duckicelake.pipeline.maintain.policy import Policies
from tests.pipeline.ingest.doomed import run_module, telling_until
from tests.pipeline.maintain.keeper import AT_ONCE
from tests.rest.serving import WAREHOUSE
from tests.support.readers import Served
from tests.support.spark import CALM

MACHINE = Machine("local[2]", "1g", CALM)


@dataclass(frozen=True, slots=True)
class Doom:
    """Where the lake is, and where the process ends: so many seconds after the step of that number was told."""

    uri: str
    lake: dict[str, str]
    home: str
    step: int
    delay_seconds: float = 0.0


def kill(served: Served, home: Path, step: int, delay_seconds: float, module: str = "tests.pipeline.maintain.doomed") -> list[str]:
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
    return run_module(module, asdict(Doom(served.rest_catalog().uri, settings, str(home), step, delay_seconds)))


def open_place(doom: Doom) -> tuple[Facts, Home]:
    """Where the lake is, as a command knows it."""
    secret = {name: SecretStr(doom.lake[name]) for name in ("postgres_dsn", "s3_secret_access_key")}
    lake = LakeSettings.model_validate(doom.lake | secret)
    # A killed process removes nothing: its scratch folder goes with the test's.
    tempfile.tempdir = doom.home
    return format_facts(lake, doom.uri), open_home(Path(doom.home))


def main(doom: Doom) -> None:
    """Run the job with every age as low as it goes."""
    call = MaintainCall(MaintainOptions(policies=Policies(AT_ONCE)), MACHINE, dry_run=False, report=None)
    maintain(make_desk(*open_place(doom), call, telling_until(doom.step, doom.delay_seconds)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
