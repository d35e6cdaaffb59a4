"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace

from duckicelake.commands.jobs.profile import ProfileCall, make_desk
from duckicelake.pipeline.profile import profile
from duckicelake.pipeline.profile_report import ProfileOptions
from tests.pipeline.dying import dying
from tests.pipeline.maintain.doomed import MACHINE, Doom, open_place, opening_early


def main(doom: Doom) -> None:
    """Run the job on all tables."""
    facts, _ = open_place(doom)
    call = ProfileCall(ProfileOptions(**doom.options), MACHINE, dry_run=False, report=None, html=None)
    with opening_early(facts) as spark, dying(doom.moment, spark) as tell:
        profile(replace(make_desk(facts, call, tell), open_spark=lambda: nullcontext(spark)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
