"""Resources of the job commands: Spark session, scratch folder, DuckDB session, catalog, and progress on the terminal.

Each job's module calls it on the main thread. Jars are downloaded to a folder in `~/.cache`; a run has a scratch folder in the temporary
folder, and removes those of killed runs. DuckDB and Spark get the lake's own keys, or Spark those that the catalog vends to an account.
"""

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
from typing import Any, Generic, TypeVar

from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.reports import STOPS, Stop
from duckicelake.commands.signals import handling
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import EmbeddedError, Home
from duckicelake.pipeline.common.failures import SPARK_FAILURES
from duckicelake.pipeline.common.java import Jar, source_jars
from duckicelake.pipeline.common.reports import Progress, read_pairs
from duckicelake.pipeline.common.rest import RestCatalog, open_rest
from duckicelake.pipeline.common.spark_connect import check_conf, is_gone
from duckicelake.pipeline.common.spark_session import PIECES, JobContext, SparkPlan, add_catalog, spark_session

OptionsT = TypeVar("OptionsT")
PREFIX = "duckicelake-"
LOCK = "running.lock"


@contextmanager
def opening_scratch_folder() -> Generator[Path]:
    """Yield a new folder for the run, and remove it afterwards. Errors at the removal are ignored."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / f"{LOCK}.new").open("w") as lock:
            # Lock the file before the rename, so that it is locked whenever it exists. Without locks, no folder is ever removed.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(lock.name, folder / LOCK)
            yield folder


def remove_abandoned() -> None:
    """Remove this user's scratch folders whose run has ended."""
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
"""Interval at which jobs are cancelled that started after the first cancellation."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The options of the Spark session: master, driver memory, and extra configuration."""

    # A connection string may hold a token.
    master: str = field(default="local[*]", repr=False)
    memory: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


def read_spark_settings(given: Mapping[str, Any]) -> SparkSettings:
    """Return the options of the Spark session. Raises: BadRequest: a `--conf` has no `=`, or may not be set."""
    conf = read_pairs(given["conf"])
    check_conf(conf)
    return SparkSettings(given["master"], given["memory"], conf)


@dataclass(frozen=True, slots=True)
class JobCall(Generic[OptionsT]):
    """The arguments of a job's command without those that name the lake."""

    options: OptionsT
    spark_settings: SparkSettings
    dry_run: bool
    report: Path | None


def read_job_call(options: OptionsT, given: Mapping[str, Any]) -> JobCall[OptionsT]:
    """Return the arguments of a command; `given` has its parameters by name. Raises: as `read_spark_settings`"""
    return JobCall(options, read_spark_settings(given), given["dry_run"], given["report"])


def to_catalog(facts: Facts) -> RestCatalog:
    """Return the catalog of the facts: with their account, which gets vended credentials, else with the store's own keys."""
    place = facts.catalog_uri, facts.warehouse, facts.s3_endpoint, facts.s3_region
    if facts.credential is not None:
        return RestCatalog(*place, credential=facts.credential)
    return RestCatalog(*place, facts.s3_access_key_id, facts.s3_secret_access_key)


def open_duckdb(facts: Facts, home: Home, *, read_only: bool) -> DuckDBPyConnection:
    """Return a new DuckDB session with the lake attached."""
    conn = connect_duckdb(home.make_folder("extensions"))
    try:
        attach_lake(conn, LakeAddress(facts.ducklake_dsn, facts.ducklake_metadata_schema, read_only=read_only), facts.find_s3_keys())
    except EmbeddedError:
        conn.close()
        raise
    return conn


def get_cache_folder() -> Path:
    """Return the folder of downloaded jars."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duckicelake"


@contextmanager
def showing_progress(console: Console, first: str, stop: Stop) -> Generator[Progress]:
    """Yield a function that shows a step: in place on a terminal, else as a line. After a stop signal it raises Interrupted."""
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
    """Yield a Spark session with the catalog and its own scratch folder. `stop` records whether a signal cancelled jobs."""
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
    """Yield a session whose jobs are cancelled on a stop signal. The handlers that were set before are called too.

    A signal can interrupt a call to Java, and a second call from the handler would break both. So another thread cancels the jobs.
    """
    before, is_over = {number: signal.getsignal(number) for number in STOPS}, Event()
    with opening as spark:

        def hear(number: int, frame: FrameType | None) -> None:
            Thread(target=_cancel, args=(spark, stop, is_over), daemon=True).start()
            handler = before[number]
            if callable(handler):
                handler(number, frame)

        # A command that stops already has set another handler, which ignores signals; keep that one.
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
        # The same signal may have ended Java. Spark Connect has no status tracker.
        stop.has_cancelled |= is_gone(error) and not is_over.is_set()


@contextmanager
def opening_desk(
    spark_settings: SparkSettings, catalog: RestCatalog, console: Console, stop: Stop, source: str | None = None
) -> Generator[JobContext]:
    """Yield the job's context. Spark starts after the catalog has responded, with the jars that the source needs."""
    with showing_progress(console, "starting Spark", stop) as show_step:
        open_rest(catalog)
        with opening_spark(spark_settings, catalog, show_step, () if source is None else source_jars(source), stop) as spark:
            yield JobContext(spark, CATALOG, lambda: open_rest(catalog), show_step)
