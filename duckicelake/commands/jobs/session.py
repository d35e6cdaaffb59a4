"""The folder in which Spark keeps a run's rows on disk, and those of runs that were killed, which nobody else removes."""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from duckicelake.backends.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.backends.home import BackendError, Home
from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.interruption import STOPS, Stop
from duckicelake.commands.signals import handling
from duckicelake.pipeline.connect import check_conf, is_gone
from duckicelake.pipeline.ingest.job import SPARK_FAILURES, Desk
from duckicelake.pipeline.ingest.options import read_pairs
from duckicelake.pipeline.jars import Jar, Progress
from duckicelake.pipeline.libraries import source_jars
from duckicelake.pipeline.rest import open_rest
from duckicelake.pipeline.spark import PIECES, RestCatalog, SparkPlan, add_catalog, spark_session

PREFIX = "duckicelake-"
LOCK = "running.lock"


@contextmanager
def opening_scratch_folder() -> Generator[Path]:
    """A folder of the run's own; what cannot be removed of it changes nothing of what was done."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / f"{LOCK}.new").open("w") as lock:
            # Where nothing can be locked nothing is removed either; under its name it is held from the first.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(lock.name, folder / LOCK)
            yield folder


def remove_abandoned() -> None:
    """Remove this user's folders whose run is gone."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            _remove_if_abandoned(lock)


def _remove_if_abandoned(lock: Path) -> None:
    folder = lock.parent
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return
    held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)


CATALOG = "lake"
SECONDS_TO_NEXT_PIECE = 0.2
"""How often those are cancelled that were not begun when the first ones were."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and what it is told beside our settings."""

    # A connection string may hold a token.
    master: str = field(default="local[*]", repr=False)
    memory: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


def read_spark_settings(given: Mapping[str, Any]) -> SparkSettings:
    """Return where Spark runs. Raises: BadRequest: a setting has no `=`, or is not to be chosen."""
    conf = read_pairs(given["conf"])
    check_conf(conf)
    return SparkSettings(given["master"], given["memory"], conf)


def to_catalog(facts: Facts) -> RestCatalog:
    """Return the catalog that the facts tell of: as their account, which gets keys with tables, else with the store's own keys."""
    place = facts.catalog_uri, facts.warehouse, facts.s3_endpoint, facts.s3_region
    if facts.credential is not None:
        return RestCatalog(*place, credential=facts.credential)
    return RestCatalog(*place, facts.s3_access_key_id, facts.s3_secret_access_key)


def open_duckdb(facts: Facts, home: Home, *, read_only: bool) -> DuckDBPyConnection:
    """Return a new DuckDB session with the lake attached."""
    conn = connect_duckdb(home.make_folder("extensions"))
    try:
        attach_lake(conn, LakeAddress(facts.ducklake_dsn, facts.ducklake_metadata_schema, read_only=read_only), facts.find_s3_keys())
    except BackendError:
        conn.close()
        raise
    return conn


def get_cache_folder() -> Path:
    """Return where fetched jars are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duckicelake"


@contextmanager
def showing_progress(console: Console, first: str, stop: Stop) -> Generator[Progress]:
    """The terminal: on a real one each step takes the place of the one before, else it has a line. No step is begun after a stop."""
    with console.status(first) as status:

        def show_step(step: str) -> None:
            status.update(Text(step))
            if not console.is_terminal:
                console.print(step, markup=False, highlight=False, soft_wrap=True)

        yield stop.interrupting(show_step)


@contextmanager
def opening_spark(
    spark_settings: SparkSettings, catalog: RestCatalog, show_step: Progress, jars: tuple[Jar, ...] = (), stop: Stop | None = None
) -> Generator[SparkSession]:
    """A session that knows the catalog, with a folder of its own. `stop`, if one is given, hears of jobs that a signal cancels."""
    with opening_scratch_folder() as scratch:
        plan = SparkPlan(
            get_cache_folder(),
            scratch,
            driver_memory=spark_settings.memory,
            master=spark_settings.master,
            conf=spark_settings.conf,
            jars=jars,
        )
        with cancelled_by_stops(spark_session(plan, os.environ, show_step), stop or Stop()) as spark:
            add_catalog(spark, CATALOG, catalog)
            yield spark


@contextmanager
def cancelled_by_stops(opening: AbstractContextManager[SparkSession], stop: Stop) -> Generator[SparkSession]:
    """A session whose jobs are cancelled when somebody hears a signal to end, who does hear of it.

    Whoever asks Java from within whatever Java was asked for breaks both, so another thread asks.
    """
    before, is_over = {number: signal.getsignal(number) for number in STOPS}, Event()
    with opening as spark:

        def hear(number: int, frame: FrameType | None) -> None:
            Thread(target=_cancel, args=(spark, stop, is_over), daemon=True).start()
            handler = before[number]
            if callable(handler):
                handler(number, frame)

        # Whoever stops already has put up another handler, which hears nothing.
        with handling({number: hear for number, handler in before.items() if callable(handler)}, for_good=True):
            try:
                yield spark
            finally:
                is_over.set()


def _cancel(spark: SparkSession, stop: Stop, is_over: Event) -> None:
    try:
        jobs = spark.sparkContext.statusTracker()
        stop.has_cancelled |= bool(jobs.getActiveJobsIds())
        spark.sparkContext.cancelAllJobs()
        while not is_over.wait(SECONDS_TO_NEXT_PIECE):
            stop.has_cancelled |= bool(jobs.getActiveJobsIds())
            spark.sparkContext.cancelJobsWithTag(PIECES)
    except SPARK_FAILURES as error:
        # The same signal has ended Java, if that was not to end by now. Spark Connect tells of no jobs.
        stop.has_cancelled |= is_gone(error) and not is_over.is_set()


@contextmanager
def opening_desk(
    spark_settings: SparkSettings, catalog: RestCatalog, console: Console, stop: Stop, source: str | None = None
) -> Generator[Desk]:
    """What a job works with, Spark begun after the catalog has answered, with what a source of rows needs."""
    with showing_progress(console, "starting Spark", stop) as show_step:
        open_rest(catalog)
        with opening_spark(spark_settings, catalog, show_step, () if source is None else source_jars(source), stop) as spark:
            yield Desk(spark, CATALOG, lambda: open_rest(catalog), show_step)
