"""One Spark session for the whole test run; each test adds the catalog it reads."""

import gc
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from duckicelake.pipeline.common.java import Jar, fetch_jars, get_java_home, source_jars
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.common.spark_connect import to_arrow
from duckicelake.pipeline.common.spark_session import SparkPlan, add_catalog, spark_session
from tests.support.java import calm_java, jar_cache

_LOG = logging.getLogger("spark")

CALM = {"spark.driver.defaultJavaOptions": calm_java()}

MEMORY = "3g"
"""Of the one session for all tests: each catalog that one of them adds stays in it, a thousand of them fill 1 GiB."""

CALM_OPTIONS = tuple(part for name, text in CALM.items() for part in ("--conf", f"{name}={text}"))
"""The same for a job's command."""


JARS = tuple(dict.fromkeys(jar for source in ("s3://", "jdbc:postgresql:", "jdbc:sqlite:") for jar in source_jars(source)))
"""What any source of `ingest` needs."""


OLDER_ICEBERG: Mapping[str, tuple[Jar, ...]] = {
    "1.11.0": (
        Jar(
            *("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0"),
            "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242",
        ),
        Jar(
            *("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),
            "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
        ),
    )
}
"""Iceberg for the installed Spark, by releases that are older than the one that the jobs fetch."""


class SparkRefused(AssertionError):
    """Spark did not answer a query."""


@dataclass(frozen=True, slots=True)
class Spark:
    """The shared session, and names for catalogs that no other test uses."""

    session: SparkSession
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, catalog: RestCatalog) -> str:
        """Make a catalog known to Spark; returns the name to use in SQL."""
        name = f"lake{next(self._numbers)}"
        add_catalog(self.session, name, catalog)
        return name

    def arrow(self, sql: str) -> pa.Table:
        """The rows of a query."""
        return self.collect(self.session.sql, sql)

    def collect(self, ask: Callable[..., DataFrame], *arguments: str) -> pa.Table:
        """The rows of the data frame that a call makes.

        Raises: SparkRefused: Spark cannot answer; the message has Java's causes, which its own exception hides in a trace
        """
        with letting_go():
            try:
                return to_arrow(ask(*arguments))
            except (PySparkException, Py4JJavaError) as error:
                raise SparkRefused(find_causes(error)) from None


@contextmanager
def letting_go() -> Generator[None]:
    """Inside, Spark may hand rows to Python."""
    # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


def find_causes(error: Exception) -> str:
    """The lines of a Java trace that say what is wrong."""
    lines = str(error).splitlines()
    said = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("at ", "..."))]
    return "\n".join(said[:20])


@contextmanager
def start_spark(scratch: Path, iceberg: str | None = None) -> Generator[Spark]:
    """The session, until the end of the block; its Java process ends with it. `iceberg`: a key of `OLDER_ICEBERG`, or the jobs' own."""
    conf = CALM if iceberg is None else CALM | {"spark.jars": ",".join(map(str, fetch_older_iceberg(iceberg)))}
    with spark_session(SparkPlan(jar_cache(), scratch, driver_memory=MEMORY, conf=conf, jars=JARS), os.environ, _LOG.warning) as session:
        yield Spark(session)


def fetch_older_iceberg(version: str) -> list[Path]:
    """Return the libraries of an older Iceberg as files."""
    java = str(get_java_home(os.environ, jar_cache()) / "bin" / "java")
    return fetch_jars(OLDER_ICEBERG[version], jar_cache() / "jars", [java], _LOG.warning)
