"""`publish` killed (-9) anywhere: nothing is half taken over, and running again leaves what the server alone would have written."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duckicelake.commands.jobs.maintain import sweep
from duckicelake.pipeline.common.reports import Verdict
from tests.catalog.conftest import Opener
from tests.catalog.reading import load
from tests.pipeline.dying import AT_WORK, Moment, Span, draw, is_told
from tests.pipeline.holding import look_at
from tests.pipeline.maintain.doomed import kill
from tests.pipeline.publish.press import MANIFESTS, Press
from tests.rest.serving import make_settings

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261123
MODULE = "tests.pipeline.publish.doomed"
STEPS = ["look at the catalog", "plan main.t", "make", "hand"]
LONG_KILLS = 20
COUNT_MANIFESTS = "SELECT count(*) FROM iceberg_manifest"
SPANS = (Span(), Span(0.04), Span(2.5, has_tasks=True), Span(0.015))
"""The hand-over is short, for the catalog has looked at most of it by then."""


def check_whole(press: Press, open_server: Opener) -> None:
    """All or nothing was taken over; another run does what is left, and no object is there that nothing names."""
    conn = press.served.lake.psycopg()
    count = conn.execute(COUNT_MANIFESTS).fetchone()
    assert count in ((0,), (MANIFESTS,))
    # What was asked for before the end may still come.
    assert press.publish().verdict in ({Verdict.nothing} if count == (MANIFESTS,) else {Verdict.done, Verdict.nothing})
    assert conn.execute(COUNT_MANIFESTS).fetchone() == (MANIFESTS,)
    published = press.load()
    [lake] = make_settings(press.served.lake).lakes()
    assert sweep(lake, datetime.now(UTC) + timedelta(hours=1), ()) == []
    assert look_at(press.served).strays == set()
    conn.execute("DELETE FROM iceberg_manifest")
    alone = load(open_server(press.served.lake))
    assert (alone.metadata_location, json.loads(alone.metadata)) == (published["metadata-location"], published["metadata"])


@pytest.mark.long
def test_a_killed_job_is_run_again(press: Press, open_server: Opener, tmp_path: Path) -> None:
    """While executors make and write manifests, at a moment chosen by lot."""
    press.fill()
    told = kill(press.served, tmp_path, Moment(2, random.Random(SEED).uniform(0.0, 0.5), stage=0), MODULE)
    assert is_told(told, STEPS[:3]), told
    assert told[-1] == AT_WORK
    check_whole(press, open_server)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_a_job_may_be_killed_anywhere(press: Press, open_server: Opener, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    press.fill()
    moment = draw(number, SEED, SPANS)
    told = kill(press.served, tmp_path, moment, MODULE)
    assert is_told(told, STEPS[: moment.step + 1]), told
    check_whole(press, open_server)
