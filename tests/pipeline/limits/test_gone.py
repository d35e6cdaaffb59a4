"""What a job needs goes while it is at work: it says so, keeps what is told of other tables, and a later run does all of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pipeline.limits.jobs import OPENERS, ExportingToRest, ImportingFromRest, Job, Told
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark
from tests.support.tiers import long_after

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
Opening = Callable[[str], Job]
NOT_FOR_PEOPLE = re.compile(r"Traceback|Suppressed|\bat [\w.$]+\(|org\.apache|java\.|password=(?!…)", re.IGNORECASE)
NO_CATALOG, NO_POSTGRES = "no catalog answers at 127.0.0.1:{port}", "Postgres"
NO_STORE = ("the store (S3) does not answer", "http://127.0.0.1:{port}/", "cannot look for s3://")
"""As it is told of Spark, as DuckDB tells it, and of what the driver itself looks for."""


@pytest.fixture
def opening(stack: SharedStack, spark: Spark, tmp_path: Path) -> Iterator[Opening]:
    """What opens a job by its name, with something to do."""
    with ExitStack() as opened:

        def open_job(name: str) -> Job:
            job = opened.enter_context(OPENERS[name](stack, spark, tmp_path))
            job.fill()
            return job

        yield open_job


def check_told(told: Told, words: Sequence[str], kept: str) -> None:
    """It failed and says why, in words for people; what was told of the table before is as if nothing had been."""
    messages = told.list_messages()
    assert told.status != 0, told
    assert messages
    assert all(any(one in message for one in words) and not NOT_FOR_PEOPLE.search(message) for message in messages), messages
    if kept:
        assert told.list_verdicts(kept)
        assert told.list_verdicts(kept) <= {"done", "same", "nothing-to-do"}


def check_mended(job: Job) -> None:
    """Nothing was half done, and running again does all of it."""
    job.check_whole()
    told = job.run()
    assert told.status == 0, told
    job.check_whole()
    job.check_done()


def late(*case: str) -> object:
    """A case for the long run."""
    return pytest.param(*case, marks=pytest.mark.long)


MAINTAIN = ("look at the catalog", "drop branches of main.a", "drop branches of main.b", "flush main.a", "compact main.a", "flush main.b")
TRANSFER = ("copy ns.a", "publish ns.a", "compare ns.a", "copy ns.b", "publish ns.b", "compare ns.b")


@pytest.mark.parametrize(
    ("name", "step", "kept"),
    long_after(
        2,
        [
            *(late("maintain", step, "main.a" if "main.b" in step else "") for step in MAINTAIN),
            late("maintain", "compact main.b", "main.a"),
            late("maintain", "lake snapshots", "main.a"),
            late("maintain", "snapshots of main.b", "main.a"),
            late("maintain", "clean-up", "main.b"),
            late("maintain", "orphans", "main.b"),
            late("profile", "look at the catalog", ""),
            late("profile", "compute main.a", ""),
            late("profile", "scan main.a", ""),
            ("profile", "compute main.b", "main.a"),
            late("profile", "scan main.b", "main.a"),
            late("publish", "look at the catalog", ""),
            late("publish", "plan main.a", ""),
            late("publish", "plan main.t", "main.a"),
            late("publish", "make", "main.a"),
            ("publish", "hand", "main.a"),
            late("verify", "list tables", ""),
            late("verify", "main.a now", ""),
            ("verify", "main.b now", "main.a"),
            *(late("import", step, "ns.a" if "ns.b" in step else "") for step in ("list", *TRANSFER[:-2], TRANSFER[-1])),
            ("import", "publish ns.b", "ns.a"),
            *(late("register", step, "ns.a" if "ns.b" in step else "") for step in ("register ns.a", "compare ns.a", "register ns.b")),
            *(late("export", step, "ns.a" if "ns.b" in step else "") for step in ("list", *TRANSFER[:-1])),
            ("export", "compare ns.b", "ns.a"),
            *(late("export to REST", step, "ns.a" if "ns.b" in step else "") for step in ("list", *TRANSFER)),
        ],
    ),
)
def test_a_catalog_that_goes_in_the_midst(opening: Opening, name: str, step: str, kept: str) -> None:
    """Whatever the job was about to do."""
    job = opening(name)
    told = job.run(job.wired.cutting(job.wired.catalog, step))
    assert any(step in one for one in job.wired.told), job.wired.told
    check_told(told, [NO_CATALOG.format(port=job.wired.catalog.port)], kept)
    job.wired.catalog.mend()
    check_mended(job)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step", "kept"),
    [
        *(late("export to REST", step, "ns.a" if "ns.b" in step else "") for step in ("list", *TRANSFER[:-2], TRANSFER[-1])),
        ("export to REST", "publish ns.b", "ns.a"),
        *(late("import from REST", step, "ns.a" if "ns.b" in step else "") for step in ("list", *TRANSFER)),
    ],
)
def test_another_catalog_that_goes_in_the_midst(opening: Opening, name: str, step: str, kept: str) -> None:
    """The target of an export, the source of an import: the message names that one."""
    job = opening(name)
    assert isinstance(job, ExportingToRest | ImportingFromRest)
    told = job.run(job.wired.cutting(job.theirs.catalog, step))
    assert any(step in one for one in job.wired.told), job.wired.told
    check_told(told, [NO_CATALOG.format(port=job.theirs.catalog.port)], kept)
    job.theirs.catalog.mend()
    check_mended(job)


@pytest.mark.parametrize(
    ("name", "step", "kept"),
    long_after(
        1,
        [
            *(late("maintain", step, "main.a" if "main.b" in step else "") for step in MAINTAIN),
            ("maintain", "compact main.b", "main.a"),
            late("maintain", "lake snapshots", "main.a"),
            late("maintain", "snapshots of main.b", "main.a"),
            late("maintain", "clean-up", "main.b"),
            late("maintain", "orphans", "main.b"),
            late("profile", "look at the catalog", ""),
            late("profile", "compute main.a", ""),
            late("profile", "scan main.a", ""),
            late("profile", "compute main.b", "main.a"),
            late("profile", "scan main.b", "main.a"),
            late("publish", "look at the catalog", ""),
            late("publish", "plan main.t", "main.a"),
            ("publish", "make", "main.a"),
            late("verify", "list tables", ""),
            late("verify", "main.a now", ""),
            late("verify", "main.b now", "main.a"),
        ],
    ),
)
def test_a_postgres_that_goes_in_the_midst(opening: Opening, name: str, step: str, kept: str) -> None:
    """The job's own way to it; the server has another."""
    job = opening(name)
    told = job.run(job.wired.cutting(job.wired.postgres, step))
    assert any(step in one for one in job.wired.told), job.wired.told
    check_told(told, [NO_POSTGRES], kept)
    job.wired.postgres.mend()
    check_mended(job)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step", "kept"),
    [
        late("maintain", "flush main.a", ""),
        late("maintain", "compact main.a", ""),
        late("maintain", "compact main.b", "main.a"),
        late("maintain", "clean-up", "main.b"),
        late("maintain", "orphans", "main.b"),
        late("profile", "compute main.b", "main.a"),
        late("publish", "make", "main.a"),
        ("verify", "main.b now", "main.a"),
    ],
)
def test_a_store_that_goes_in_the_midst(opening: Opening, name: str, step: str, kept: str) -> None:
    """The job's own way to it; the server has another."""
    job = opening(name)
    told = job.run(job.wired.cutting(job.wired.store, step))
    assert any(step in one for one in job.wired.told), job.wired.told
    check_told(told, [words.format(port=job.wired.store.port) for words in NO_STORE], kept)
    job.wired.store.mend()
    check_mended(job)
