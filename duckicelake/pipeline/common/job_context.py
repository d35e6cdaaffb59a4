"""The context of a job that works in one Spark session, and a session that is opened when it is first needed."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import Rest, TableIdent
from duckicelake.pipeline.common.spark_sql import quote_ident


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
