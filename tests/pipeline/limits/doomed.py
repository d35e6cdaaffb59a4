"""`verify` as a process of its own, which kills itself (-9) where it is told to."""

import json
import sys
from functools import partial

from duckicelake.commands.jobs.session import CATALOG, open_duckdb, to_catalog
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.verify.job import VerifyContext, VerifyOptions, verify
from tests.pipeline.dying import dying
from tests.pipeline.maintain.doomed import Doom, open_place, opening_early


def main(doom: Doom) -> None:
    """Run the job on all tables."""
    facts, home = open_place(doom)
    catalog = to_catalog(facts)
    with opening_early(facts) as spark, dying(doom.moment, spark) as tell:
        desk = JobContext(spark, CATALOG, lambda: open_rest(catalog), tell)
        verify(
            VerifyContext(desk, partial(open_duckdb, facts, home, read_only=True), facts.ducklake_metadata_schema),
            VerifyOptions(**doom.options),
        )


if __name__ == "__main__":
    main(Doom(**json.loads(sys.argv[1])))
