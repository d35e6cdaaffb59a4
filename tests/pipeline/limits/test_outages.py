"""What `ingest` needs is not there, or goes in its midst: the message says what, nothing is half done, and a later run does all of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckicelake.errors import CatalogError
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.ingest.job import ingest
from duckicelake.pipeline.ingest.options import IngestOptions, Status
from tests.cli.test_commands import settings_for
from tests.pipeline.ingest.mill import TABLE, Mill, open_mill
from tests.pipeline.limits.watched import obey_permissions, watch
from tests.pipeline.limits.wired import Wired, open_wired
from tests.rest.proxy import Wire
from tests.support.readers import Served
from tests.support.spark import Spark, letting_go

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
EARLIER_STEPS = ("count rows", "branch raw.trips", "write raw.trips", "write raw.trips__ingested")
STEPS = (*(pytest.param(step, marks=pytest.mark.long) for step in EARLIER_STEPS), "publish")


@pytest.fixture
def mill(served: Served, spark: Spark, tmp_path: Path) -> Mill:
    """A mill with one file taken."""
    found = open_mill(served, spark, tmp_path / "files")
    found.write("a.csv", "id\n1\n")
    found.run()
    return found


@pytest.fixture
def wired(served: Served) -> Iterator[Wired]:
    """What lies between the job and all that it needs."""
    with open_wired(served) as found:
        yield found


def run_until(mill: Mill, wired: Wired, wire: Wire, step: str) -> str:
    """Cut a wire at a step of a run that has two rows to take, none of which anybody sees; what it says of that."""
    mill.write("b.csv", "id\n2\n3\n")
    catalog = wired.served.rest_catalog()

    def tell(told: str) -> None:
        if told == step:
            wire.cut()

    desk = JobContext(mill.spark.session, mill.spark.add(catalog), lambda: open_rest(catalog), tell)
    with letting_go(), pytest.raises(CatalogError) as failed:
        ingest(desk, IngestOptions(str(mill.folder), TABLE))
    assert "Suppressed" not in failed.value.message
    assert mill.rows() == [(1,)]
    assert mill.ask("SELECT count(*) FROM raw.trips__ingested") == [(1,)]
    return failed.value.message


def check_next_run(mill: Mill) -> None:
    """It has every row once."""
    assert mill.run().status is Status.done
    assert mill.rows() == [(1,), (2,), (3,)]
    assert mill.run().status is Status.nothing_new


@pytest.mark.parametrize("step", STEPS)
def test_a_catalog_that_goes_in_the_midst(mill: Mill, wired: Wired, step: str) -> None:
    """The run fails and says so; what it staged is on a branch that nobody reads, and the next run has every row once."""
    message = run_until(mill, wired, wired.catalog, step)
    assert "catalog" in message or "Nothing was taken" in message
    check_next_run(mill)


@pytest.mark.long
@pytest.mark.parametrize("step", ["write raw.trips", pytest.param("write raw.trips__ingested", marks=pytest.mark.long)])
def test_a_store_that_goes_in_the_midst(mill: Mill, wired: Wired, step: str) -> None:
    """While rows are written, or the ledger."""
    message = run_until(mill, wired, wired.store, step)
    assert re.fullmatch(r"the store \(S3\) does not answer: [\w ]+\nNothing was taken\.", message), message
    check_next_run(mill)


@pytest.mark.long
@pytest.mark.parametrize("is_folder", [pytest.param(False, id="file"), pytest.param(True, id="folder")])
def test_what_may_not_be_read_is_named(served: Served, tmp_path: Path, is_folder: bool) -> None:
    """Among files that may: no table is made, and with the right to read it the same call takes all."""
    files, settings = tmp_path / "files", settings_for(served.lake, port=str(served.server.port))
    shut = files / "shut"
    shut.mkdir(parents=True)
    (files / "a.csv").write_text("id\n1\n")
    (shut / "b.csv").write_text("id\n2\n")
    closed = shut if is_folder else shut / "b.csv"
    closed.chmod(0)
    call = ("ingest", "files", "raw.trips", "--schema", "id BIGINT")
    try:
        done = watch(tmp_path, *call, settings=settings, before=obey_permissions)
    finally:
        closed.chmod(0o755)
    assert (done.status, closed.name in done.err, "denied" in done.err.lower()) == (1, True, True), done.err
    assert "Traceback" not in done.err
    assert served.server.get("namespaces/raw/tables/trips").status == 404
    assert watch(tmp_path, *call, settings=settings, before=obey_permissions).status == 0
    assert served.lake.duckdb().execute("SELECT id FROM raw.trips ORDER BY 1").fetchall() == [(1,), (2,)]
