"""The job as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys

from duckicelake.commands.jobs.publish import PublishCall, make_desk
from duckicelake.pipeline.publish.job import publish
from duckicelake.pipeline.publish.options import PublishOptions
from tests.pipeline.ingest.doomed import telling_until
from tests.pipeline.maintain.doomed import MACHINE, Doom, open_place


def main(doom: Doom) -> None:
    """Run the job on all tables."""
    facts, _ = open_place(doom)
    call = PublishCall(PublishOptions(), MACHINE, dry_run=False, report=None)
    publish(make_desk(facts, call, telling_until(doom.step, doom.delay_seconds)), call.options)


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
