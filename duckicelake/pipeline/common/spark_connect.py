"""Sessions that differ from Spark 4.1 in this process: older releases, and Spark Connect servers, which need no Java here.

Features that 3.5 and 4.0 lack are each used by the newest way that the installed release knows. A server is checked for the libraries and
settings that jobs need. `spark_session` opens sessions with it, and jobs call its other functions in the driver.
"""

import contextlib
import json
import logging
import socket
import warnings
from collections.abc import Generator, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JNetworkError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType
from pyspark.sql.utils import is_remote

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.iceberg.requests.bodies import SUMMARY_HEADER
from duckicelake.pipeline.common.java import Jar
from duckicelake.pipeline.common.reports import Progress

_RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

SUMMARIZES_MERGES = _RELEASE >= (4, 1)
"""Whether the summary of a MERGE says how many rows it touched."""


EXPOSES_DEFAULTS = _RELEASE >= (4, 0)
"""Whether Spark's columns of an Iceberg table say what their defaults are."""


KEEPS_READS = _RELEASE >= (4, 0)
"""Whether rows of a snapshot that were asked for before the table's columns changed can still be read afterwards."""


READS_VARIANTS = _RELEASE >= (4, 1)
"""Whether Spark reads and writes the variants of Iceberg tables with the library that the jobs use."""


IS_ANSI = _RELEASE >= (4, 0)
"""Whether Spark refuses by itself to make NULL of what it cannot compute; jobs on 3.5 go by what it has there."""


def block_pushdown(moment: Column, form: DataType) -> Column:
    """A column to be compared. Spark 3.5 hands a comparison of timestamps without a zone to the database without quotes, if it can."""
    is_handed = _RELEASE < (4, 0) and isinstance(form, T.TimestampNTZType)
    return moment + F.expr("INTERVAL '0' SECOND") if is_handed else moment


def to_arrow(rows: DataFrame) -> pa.Table:
    """Return the rows of a data frame, all at once."""
    if _RELEASE >= (4, 0):
        return rows.toArrow()
    collect: Any = getattr(rows, "_collect_as_arrow")  # noqa: B009  private, and all that Spark 3.5 has
    batches = collect()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(rows.schema).empty_table()


def from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a data frame."""
    # Without rows Spark takes no columns that are in no chunks, and none at all over Connect.
    if _RELEASE >= (4, 0) and table.num_rows:
        return spark.createDataFrame(table)
    rows: Any = table.to_pylist()
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


def parse_ddl(text: str) -> DataType:
    """Return a type, or a list of columns. Raises: PySparkException: it is neither"""
    if _RELEASE >= (4, 0):
        return T.DataType.fromDDL(text)
    parse: Any = getattr(T, "_parse_datatype_string")  # noqa: B009  private, and all that Spark 3.5 has
    return parse(text)


def get_condition(error: PySparkException) -> str | None:
    """Return the name that Spark gives to what went wrong."""
    older: Any = error
    return error.getCondition() if _RELEASE >= (4, 0) else older.getErrorClass()


def checkpoint_rows(rows: DataFrame) -> DataFrame:
    """Return the rows, read once and kept on disk; by Spark 3.5 in memory too, as long as there is room."""
    if _RELEASE >= (4, 0):
        return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    return rows.localCheckpoint(eager=True)


def is_valid_utf8(text: Column) -> Column:
    """Return whether a text's octets are UTF-8. In Spark 3.5, decoding replaces wrong octets, so the result is compared."""
    if _RELEASE >= (4, 0):
        return F.is_valid_utf8(text)
    octets = text.cast("binary")
    return F.encode(F.decode(octets, "UTF-8"), "UTF-8") == octets


SCHEME = "sc://"
DEFAULT_PORT = 15002
CONNECT_SECONDS = 10
RETRIES = 6
"""Takes half a minute; by Spark's own setting a job would wait ten minutes for a server that is gone."""

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
FIXED_CONF = {
    "spark.sql.session.timeZone": "UTC",
    **({"spark.sql.ansi.enabled": "true"} if IS_ANSI else {}),
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Names and texts are what they are: `${env:…}` in a file's column would name a secret to everybody.
    "spark.sql.variable.substitute": "false",
}
"""Settings that rows depend on, fixed in every session of a job; no setting of Spark, the server or the user changes them."""
LISTING_CONF = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "32"}
"""How many tasks look files up that are named one by one: Spark would take one for each of up to 10,000."""

CLASSES = {
    "iceberg-spark-runtime": "org.apache.iceberg.spark.SparkCatalog",
    "iceberg-aws-bundle": "software.amazon.awssdk.services.s3.S3Client",
    "hadoop-aws": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "s3-transfer-manager": "software.amazon.awssdk.transfer.s3.S3TransferManager",
    "postgresql": "org.postgresql.Driver",
    "sqlite-jdbc": "org.sqlite.JDBC",
}
"""A class of each library by which it is known; Avro's is missed by Spark itself, in so many words, when a file needs it."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark writes every error of a server, its Java's trace and all, before the job handles it."""
_MISSING_CLASS = "DATATYPE_MISMATCH.UNEXPECTED_CLASS_TYPE"
_GONE = ("INVALID_HANDLE.SESSION_CHANGED", "INVALID_HANDLE.SESSION_CLOSED", "INVALID_HANDLE.SESSION_NOT_FOUND")
_UTC = ("UTC", "Etc/UTC", "UCT", "Etc/UCT", "GMT", "Etc/GMT", "Z", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal")


def check_conf(conf: Mapping[str, str]) -> None:
    """Raises: BadRequest: a setting says otherwise than what rows depend on"""
    for name, text in FIXED_CONF.items():
        if conf.get(name, text).strip().casefold() != text.casefold():
            raise BadRequest(f"--conf {name}={conf[name]} would change what rows are read and written: jobs need {text}, so leave it out")


def get_host_port(url: str) -> str:
    """Return where a connection string leads, without what else it says: that may be secret."""
    place = url.removeprefix(SCHEME).partition("/")[0].partition(";")[0].rpartition("@")[2]
    return place if ":" in place.rpartition("]")[2] else f"{place}:{DEFAULT_PORT}"


@contextlib.contextmanager
def connect_session(url: str, conf: Mapping[str, str], jars: Iterable[Jar], progress: Progress) -> Generator[SparkSession]:
    """A session of its own on the server, ended with the block. The environment has to say that functions are made for Connect.

    `jars` are what the server needs. Raises: BadRequest: the string or a setting is wrong, or the server lacks something;
        ServiceUnavailable: no server answers
    """
    place = get_host_port(url)
    progress(f"connecting to Spark at {place}")
    with warnings.catch_warnings():
        # The job reports the outcome itself.
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        session = _open(url, place)
        try:
            try:
                check_server(session, place, jars)
                _apply(session, conf)
            except PySparkException as error:
                raise _build_refusal(place, error) from None
            yield session
        finally:
            session.stop()


def _open(url: str, place: str) -> SparkSession:
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 0):
        raise BadRequest(f"Spark Connect is used from Spark 4.0 on, and pyspark {pyspark.__version__} is installed")
    try:
        # They are an extra, and loading them takes a second.
        from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
        from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415
    except ImportError as error:
        missing = str(error).strip().splitlines()[0]
        raise BadRequest(f"Spark Connect needs more of Python ({missing}): .venv/bin/pip install -e '.[spark,connect]'") from None

    try:
        builder = DefaultChannelBuilder(url)
    except (PySparkException, ValueError):
        # Its own message may show a part of the string that is secret.
        shape = "write sc://HOST:PORT/;NAME=VALUE;…, where = and ; in a value are %3D and %3B"
        raise BadRequest(f"the connection string for {place} cannot be read: {shape}") from None
    _check_answers(place)
    session: Any = ConnectSession.builder.channelBuilder(builder).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=10_000)])
    return session


def _check_answers(place: str) -> None:
    """Raises: ServiceUnavailable: no server listens; Spark's client would try for minutes."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceUnavailable(f"no Spark Connect server answers at {place}: {error.strerror or error}") from None


def _build_refusal(place: str, error: PySparkException) -> BadRequest | ServiceUnavailable:
    first = str(error).strip().splitlines()[0]
    if is_gone(error):
        return ServiceUnavailable(f"{place}: {explain_gone(error)}")
    return BadRequest(f"the Spark Connect server at {place} refuses: {first}")


def check_server(session: SparkSession, place: str, jars: Iterable[Jar]) -> None:
    """Raises: BadRequest: the server is of another release, or lacks what jobs need; the message says how to start one that has it."""
    ours = pyspark.__version__
    if session.version.split(".")[:2] != ours.split(".")[:2]:
        raise BadRequest(f"the server at {place} is Spark {session.version} and pyspark here {ours}: install pyspark=={session.version}")
    needed = list(jars)
    lacks = [jar.file_name for jar in needed if not _has_class(session, _get_class(jar))]
    if EXTENSIONS not in (session.conf.get("spark.sql.extensions", "") or ""):
        lacks.append("Iceberg's extensions in spark.sql.extensions")
    zone = _read_java_zone(session)
    if zone not in _UTC:
        lacks.append(f"UTC as Java's time zone (it has {zone})")
    if lacks:
        packages = ",".join(f"{jar.group}:{jar.artifact}:{jar.version}" for jar in needed)
        java = " ".join(f"--conf spark.{role}.extraJavaOptions=-Duser.timezone=UTC" for role in ("driver", "executor"))
        how = f"--packages {packages} --conf spark.sql.extensions={EXTENSIONS} {java}"
        raise BadRequest(f"the Spark Connect server at {place} lacks {', '.join(lacks)}. Start it with {how}")


def _get_class(jar: Jar) -> str:
    return next((name for start, name in CLASSES.items() if jar.artifact.startswith(start)), "")


def _has_class(session: SparkSession, name: str) -> bool:
    """Return True if the server's Java knows a class, which Spark says when it looks at a call of it; nothing is called."""
    if not name:
        return True
    try:
        _ = session.sql(f"SELECT reflect('{name}', 'duckicelake')").schema
    except PySparkException as error:
        if is_gone(error):
            raise
        return get_condition(error) != _MISSING_CLASS
    return True


def _read_java_zone(session: SparkSession) -> str:
    # Databases and ORC give times by Java's own zone, not by the session's.
    (row,) = session.sql("SELECT reflect('java.time.ZoneId', 'systemDefault') AS zone").collect()
    return str(row["zone"])


def _apply(session: SparkSession, conf: Mapping[str, str]) -> None:
    for name, text in {**LISTING_CONF, **conf, **FIXED_CONF}.items():
        try:
            session.conf.set(name, text)
        except PySparkException as error:
            if not (get_condition(error) or "").startswith("CANNOT_MODIFY"):
                raise
            raise BadRequest(f"--conf {name} is the server's to set: a session of Spark Connect cannot") from None


@contextlib.contextmanager
def writes_with_properties(session: SparkSession, properties: Mapping[str, str]) -> Generator[None]:
    """Inside, the snapshots of this session's statements that write rows carry these in their summary; procedures' do not."""
    try:
        for name, value in properties.items():
            session.conf.set(f"{SNAPSHOT_PROPERTY}{name}", value)
        yield
    finally:
        # When the server is gone there is nothing to take back, and what ended the work counts.
        with contextlib.suppress(PySparkException):
            for name in properties:
                session.conf.unset(f"{SNAPSHOT_PROPERTY}{name}")


def check_executors(session: SparkSession) -> None:
    """Raises: BadRequest: executors of a server of Spark Connect cannot run our functions, which they load by their names."""
    if not is_remote():
        return
    ours = version("duckicelake")

    # A function within a function goes there as it is, and needs nothing of ours to be loaded.
    def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        try:
            found = version("duckicelake")
        except PackageNotFoundError:
            found = ""
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"version": [found]})

    rows: Any = session.range(0, 1, 1, 1).mapInArrow(look, "version string").collect()
    found = rows[0]["version"]
    if found != ours:
        has = f"duckicelake {found}" if found else "no duckicelake"
        raise BadRequest(
            f"the executors of the Spark Connect server have {has} in their Python, and need {ours}: install it "
            "there with the extra `spark`, and have PYSPARK_PYTHON name that Python when the server is started"
        )


def name_commits(session: SparkSession, catalog: str, properties: Mapping[str, str]) -> None:
    """Have every later commit of this session to a catalog carry these properties. The session must not have used the catalog before."""
    # Spark creates its client of a catalog when the catalog is first named, and each session has its own.
    session.conf.set(f"spark.sql.catalog.{catalog}.header.{SUMMARY_HEADER}", json.dumps(dict(properties)))


def is_gone(error: BaseException) -> bool:
    """Return True if what ran the session is gone: its Java, or the server of Spark Connect, or what that knew of the session."""
    if isinstance(error, Py4JNetworkError | OSError):
        return True
    # Errors of Spark Connect alone have one; their class is there with the extra alone.
    find_code: Any = getattr(error, "getGrpcStatusCode", None)
    if find_code is None or not isinstance(error, PySparkException):
        return False
    return getattr(find_code(), "name", "") == "UNAVAILABLE" or get_condition(error) in _GONE


def explain_gone(error: Exception) -> str:
    """Return the message for a Spark Connect server that is gone, without gRPC's own trace; "" for other errors."""
    if not isinstance(error, PySparkException) or not is_gone(error):
        return ""
    is_new = get_condition(error) in _GONE
    return f"the Spark Connect server {'was started again, and does not know this session' if is_new else 'is gone, or the way to it'}"
