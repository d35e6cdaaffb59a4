"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from duckicelake.backends.home import open_home
from duckicelake.commands.facts import format_facts
from duckicelake.commands.jobs.maintain import MaintainCall, make_desk
from duckicelake.commands.jobs.session import Machine
from duckicelake.config import LakeSettings
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.options import MaintainOptions
from duckicelake.pipeline.maintain.policy import Policies
from tests.pipeline.ingest.doomed import telling_until
from tests.pipeline.maintain.keeper import AT_ONCE


@dataclass(frozen=True, slots=True)
class Doom:
    """Where the lake is, and where the process ends: so many seconds after the step of that number was told."""

    uri: str
    lake: dict[str, str]
    home: str
    step: int
    delay_seconds: float = 0.0


def main(doom: Doom) -> None:
    """Run the job with every age as low as it goes."""
    secret = {name: SecretStr(doom.lake[name]) for name in ("postgres_dsn", "s3_secret_access_key")}
    lake = LakeSettings.model_validate(doom.lake | secret)
    call = MaintainCall(MaintainOptions(policies=Policies(AT_ONCE)), Machine("local[2]", "1g"), dry_run=False, report=None)
    facts = format_facts(lake, doom.uri)
    # A killed process removes nothing: its scratch folder goes with the test's.
    tempfile.tempdir = doom.home
    home = open_home(Path(doom.home))
    maintain(make_desk(facts, home, call, telling_until(doom.step, doom.delay_seconds)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
