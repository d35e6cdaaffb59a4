"""`verify` as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
from functools import partial

from duckicelake.commands.jobs.session import CATALOG, open_duckdb, opening_spark, to_catalog
from duckicelake.pipeline.ingest.job import Desk
from duckicelake.pipeline.rest import open_rest
from duckicelake.pipeline.verify.job import VerifyDesk, verify
from duckicelake.pipeline.verify.options import VerifyOptions
from tests.pipeline.ingest.doomed import telling_until
from tests.pipeline.maintain.doomed import MACHINE, Doom, open_place


def main(doom: Doom) -> None:
    """Run the job on all tables."""
    facts, home = open_place(doom)
    catalog, tell = to_catalog(facts), telling_until(doom.step, doom.delay_seconds)
    with opening_spark(MACHINE, catalog, lambda _: None) as spark:
        desk = Desk(spark, CATALOG, lambda: open_rest(catalog), tell)
        verify(VerifyDesk(desk, partial(open_duckdb, facts, home, read_only=True), facts.ducklake_metadata_schema), VerifyOptions())


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
