"""The Spark session of a job, the Iceberg REST catalogs in it, and what a job carries from step to step.

A process has one session. `commands/jobs/session.py` opens it on the main thread: that fetches missing jars, starts Java (but
for Spark Connect) and changes the process's environment until the session ends.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from duckicelake.pipeline.common.java import Jar, fetch_jars, find_trust_store, get_java_home, iceberg_jars, join_options, leave_given
from duckicelake.pipeline.common.reports import SECRET, Progress
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableIdent
from duckicelake.pipeline.common.spark_connect import (
    FIXED_CONF,
    LISTING_CONF,
    SCHEME,
    connect_session,
    name_commits,
    writes_with_properties,
)
from duckicelake.pipeline.common.spark_sql import quote_ident

_LOG_SETTINGS = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{5}
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.filter.told.type = RegexFilter
logger.executor.filter.told.regex = Exception in task .*
logger.executor.filter.told.onMatch = DENY
logger.executor.filter.told.onMismatch = NEUTRAL
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.filter.told.type = RegexFilter
logger.tasks.filter.told.regex = Task .* failed [0-9]+ times; aborting job
logger.tasks.filter.told.onMatch = DENY
logger.tasks.filter.told.onMismatch = NEUTRAL
"""
"""Errors are shown, but for those of tasks: a failed task fails the action of the job, which reports it."""
_SECONDS_TO_STOP = 20
PIECES = "duckicelake-pieces"
"""The tag of jobs that are one of many pieces: cancelling one means cancelling those that follow it too."""
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""Where PySpark's functions look whether they are for Spark Connect."""


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """The size of a session, and the folders of its jars, logs and scratch files.

    `master` None: this machine, with `threads`. `conf` is Spark's own and stronger than ours, but for what rows depend on; `jars` are
    needed in addition to Iceberg's.
    """

    cache: Path
    scratch: Path
    threads: int = 2
    driver_memory: str = "1g"
    # A connection string may hold a token.
    master: str | None = field(default=None, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    jars: tuple[Jar, ...] = ()

    @property
    def is_connect(self) -> bool:
        """Return True if the work is given to a server of Spark Connect."""
        return self.master is not None and self.master.startswith(SCHEME)

    @property
    def is_local(self) -> bool:
        """Return True if the driver's process does all the work."""
        return self.master is None or self.master.startswith("local")

    @property
    def cores(self) -> int | None:
        """Return how many tasks this machine does at once; None where that is not known: on a cluster."""
        found = _LOCAL.fullmatch(self.master or f"local[{self.threads}]")
        if found is None:
            return None
        return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


@contextlib.contextmanager
def spark_session(plan: SparkPlan, environ: MutableMapping[str, str], progress: Progress) -> Generator[SparkSession]:
    """The one Spark session of this process, ended with its Java process at the end of the block.

    `environ` is the process's own environment: Spark's launcher reads JAVA_HOME there, and finds ours.
    Raises: BadRequest: a given library cannot be used; BadRequest, ServiceUnavailable: a server of Spark Connect cannot be used
    """
    if plan.is_connect:
        with _environment(environ, {_CONNECT_MODE: "1"}):
            needed = (*iceberg_jars(pyspark.__version__), *plan.jars)
            with connect_session(plan.master or "", plan.conf, needed, progress) as session:
                yield session
        return
    wanted = leave_given((*iceberg_jars(pyspark.__version__), *plan.jars), plan.conf)
    java_home = get_java_home(environ, plan.cache)
    store = find_trust_store(java_home)
    trust = [f"-Djavax.net.ssl.trustStore={store}"] if store else []
    jars = fetch_jars(wanted, plan.cache / "jars", [str(java_home / "bin" / "java"), *trust], progress)
    # Spark starts any python3 for our functions unless this names one.
    python = environ.get("PYSPARK_PYTHON", sys.executable)
    own: dict[str, str | None] = {"JAVA_HOME": str(java_home), "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": python}
    # A given master takes precedence over the server that this variable names.
    own |= {"SPARK_REMOTE": None} | ({"SPARK_LOCAL_IP": "127.0.0.1"} if plan.is_local else {})
    with _environment(environ, own):
        session = _build(format_settings(plan, jars, trust))
        try:
            yield session
        finally:
            _stop(session)


def add_catalog(spark: SparkSession, name: str, catalog: RestCatalog) -> None:
    """Make `name.namespace.table` readable in this session; a name can be given once only."""
    prefix = f"spark.sql.catalog.{name}"
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for key, setting in catalog_settings(catalog).items():
        spark.conf.set(f"{prefix}.{key}", setting)


@contextlib.contextmanager
def commits_with_properties(properties: Mapping[str, str]) -> Generator[None]:
    """Inside, every snapshot that this session commits carries these in its summary."""
    # Procedures take no summary; Iceberg's setting for the session is for writes alone, and not for those of Spark 3.5.
    context: Any = SparkContext
    environment = context._jvm.org.apache.iceberg.EnvironmentContext
    try:
        for name, value in properties.items():
            environment.put(name, value)
        yield
    finally:
        # When Java is gone there is nothing to take back, and what ended the work counts.
        with contextlib.suppress(Py4JError, OSError):
            for name in properties:
                environment.remove(name)


@contextlib.contextmanager
def jobs_tagged_as_pieces(spark: SparkSession) -> Generator[None]:
    """Inside, what this thread asks of Spark are pieces."""
    spark.sparkContext.addJobTag(PIECES)
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):
            spark.sparkContext.removeJobTag(PIECES)


def statements_with_properties(spark: SparkSession, properties: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """Return the same for statements; over Spark Connect for those that write rows."""
    return writes_with_properties(spark, properties) if is_remote() else commits_with_properties(properties)


def procedures_with_properties(spark: SparkSession, catalog: str, properties: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """Return the same for Iceberg's procedures, where the lake's catalog was not used in the session for anything else before."""
    if not is_remote():
        return commits_with_properties(properties)
    name_commits(spark, catalog, properties)
    return contextlib.nullcontext()


def catalog_settings(catalog: RestCatalog) -> Mapping[str, str]:
    """Return Spark's settings for a catalog."""
    settings = {
        "type": "rest",
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.path-style-access": "true",
        "s3.endpoint": catalog.s3_endpoint,
        "client.region": catalog.s3_region,
        "s3.access-key-id": catalog.s3_access_key_id,
        "s3.secret-access-key": catalog.s3_secret_access_key,
        "credential": catalog.credential,
    }
    if catalog.credential is not None:
        settings |= {"rest.auth.type": "oauth2", "oauth2-server-uri": f"{catalog.uri.rstrip('/')}/v1/oauth/tokens", "scope": "catalog"}
        settings["header.X-Iceberg-Access-Delegation"] = "vended-credentials,remote-signing"
    elif catalog.s3_endpoint is None:
        settings["io-impl"] = "org.apache.iceberg.hadoop.HadoopFileIO"
    return {key: setting for key, setting in settings.items() if setting is not None}


def format_settings(plan: SparkPlan, jars: list[Path], java_options: list[str]) -> dict[str, str]:
    """Return what Spark is started with."""
    plan.scratch.mkdir(parents=True, exist_ok=True)
    log_settings = plan.scratch / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS)
    # Derby, if anything starts it, writes its log where it stands.
    derby = f"-Dderby.stream.error.file={plan.scratch / 'derby.log'}"
    options = [f"-Dlog4j2.configurationFile={log_settings.as_uri()}", "-XX:+UseSerialGC", derby, *java_options]
    return {
        "spark.master": plan.master or f"local[{plan.threads}]",
        "spark.driver.memory": plan.driver_memory,
        # executors of a cluster must find the driver: Spark knows its address
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if plan.is_local else {}),
        "spark.local.dir": str(plan.scratch / "local"),
        "spark.sql.warehouse.dir": str(plan.scratch / "warehouse"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        # A cluster has Spark's own number, of which it puts small ones together.
        **({} if plan.cores is None else {"spark.sql.shuffle.partitions": str(max(2, plan.cores))}),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        # Spark 3.5 and 4.0 show a catalog's credential.
        "spark.redaction.regex": f"(?i){SECRET.pattern}|access.?key",
        "spark.ui.showConsoleProgress": "false",
        **LISTING_CONF,
        **plan.conf,
        "spark.driver.extraJavaOptions": join_options(options, plan.conf.get("spark.driver.extraJavaOptions", "")),
        "spark.executor.extraJavaOptions": join_options((), plan.conf.get("spark.executor.extraJavaOptions", "")),
        # Jars that are given are added to those that every session needs.
        "spark.jars": ",".join([*map(str, jars), *filter(None, [plan.conf.get("spark.jars")])]),
        **FIXED_CONF,
    }


def _build(settings: Mapping[str, str]) -> SparkSession:
    settings, builder = dict(settings), SparkSession.builder
    # PySpark has a handler of Ctrl-C of its own, which breaks what Java was asked for, and puts it up in no thread but the main one.
    began = Future[dict[str, str]]()
    Thread(target=_begin, args=(settings, began), daemon=True).start()
    for key, setting in began.result().items():
        builder = builder.config(key, setting)
    return builder.getOrCreate()


def _begin(settings: dict[str, str], began: Future[dict[str, str]]) -> None:
    """Begin Spark's context; the future has the settings that are left for the session."""
    context: Any = SparkContext
    try:
        if settings.get("spark.jars.packages"):
            context._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
            # By now Spark has added the packages to these, for executors too; a list of ours would take their place.
            del settings["spark.jars"]
        context.getOrCreate(SparkConf().setAll(list(settings.items())))
    except Exception as error:  # noqa: BLE001  the waiting thread raises it
        began.set_exception(error)
    else:
        began.set_result(settings)


def _stop(session: SparkSession) -> None:
    # PySpark keeps its Java process for a next session and has no public way to end it.
    context: Any = SparkContext
    # A Java that is gone already is no reason to fail.
    with contextlib.suppress(Py4JError, OSError):
        session.stop()
    if context._gateway is None:
        return
    process: subprocess.Popen[bytes] = context._gateway.proc
    with contextlib.suppress(Py4JError, OSError):
        context._gateway.shutdown()
    # Java ends when the pipe to its standard input does.
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    end_process(process, _SECONDS_TO_STOP)
    context._gateway = None
    context._jvm = None


def end_process(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for a process's own end, and no longer than that."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _environment(environ: MutableMapping[str, str], changes: Mapping[str, str | None]) -> Generator[None]:
    before = {name: environ.get(name) for name in changes}
    _change(environ, changes)
    try:
        yield
    finally:
        _change(environ, before)


def _change(environ: MutableMapping[str, str], changes: Mapping[str, str | None]) -> None:
    for name, setting in changes.items():
        if setting is None:
            environ.pop(name, None)
        else:
            environ[name] = setting


@dataclass(frozen=True, slots=True)
class JobContext:
    """A Spark session, the catalog in it and over REST, and the listener that hears of each step before it is taken."""

    spark: SparkSession
    catalog: str
    connect: Callable[[], Rest]
    progress: Progress

    def name(self, ident: TableIdent) -> str:
        """Return a table in Spark's SQL."""
        return quote_ident(self.catalog, ident)


@dataclass(slots=True)
class LazySpark:
    """A session that is opened when it is first needed, and again after it broke."""

    opening: Callable[[], contextlib.AbstractContextManager[SparkSession]]
    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    session: SparkSession | None = None

    def get(self) -> SparkSession:
        """Return the session."""
        if self.session is None:
            self.session = self.opened.enter_context(self.opening())
        return self.session

    def close(self) -> None:
        """End it, if there is one."""
        self.session = None
        self.opened.close()
