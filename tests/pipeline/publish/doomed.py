"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace

from duckicelake.commands.jobs.publish import make_desk
from duckicelake.commands.jobs.session import JobCall
from duckicelake.pipeline.publish import PublishOptions, publish
from tests.pipeline.dying import dying
from tests.pipeline.maintain.doomed import MACHINE, Doom, open_place, opening_early


def main(doom: Doom) -> None:
    """Run the job on all tables."""
    facts, _ = open_place(doom)
    call = JobCall(PublishOptions(), MACHINE, dry_run=False, report=None)
    with opening_early(facts) as spark, dying(doom.moment, spark) as tell:
        publish(replace(make_desk(facts, call, tell), open_spark=lambda: nullcontext(spark)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
