"""What may stop one step of a job, and no other one."""

from collections.abc import Callable

import duckdb
import psycopg

from duckicelake.errors import CatalogError
from duckicelake.pipeline.failures.gone import explain_duckdb, explain_outage, explain_postgres
from duckicelake.pipeline.ingest.job import SPARK_FAILURES, explain_spark
from duckicelake.pipeline.jars import JarUnavailable
from duckicelake.pipeline.java import NoJava
from duckicelake.pipeline.rest import Rest

FAILURES = (CatalogError, duckdb.Error, psycopg.Error, NoJava, JarUnavailable, *SPARK_FAILURES)


def explain_failure(error: Exception, connect: Callable[[], Rest]) -> str:
    """What is wrong, in a few words. Of what Spark could not do: whether the catalog is there."""
    if isinstance(error, CatalogError):
        return error.message
    if isinstance(error, duckdb.Error):
        return explain_duckdb(error)
    if isinstance(error, psycopg.Error):
        return explain_postgres(error)
    return explain_outage(connect) or explain_spark(error)
