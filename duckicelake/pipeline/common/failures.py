"""Messages for failures of Postgres, DuckDB, the catalog, the store and Spark: one or a few lines, without secrets and traces.

The jobs call it in the driver. `explain_outage` and `explain_failure` ask the catalog over REST if it answers, and `explain_spark` may open
a local file that Spark could not read.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import psycopg
from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import ArrowException, parquet
from pyspark.errors import PySparkException

from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.pipeline.common.java import JarUnavailable, NoJava
from duckicelake.pipeline.common.reports import explain_duckdb, explain_postgres
from duckicelake.pipeline.common.rest import Rest
from duckicelake.pipeline.common.spark_connect import explain_gone
from duckicelake.pipeline.common.storage import find_local_path

_NO_STORE = re.compile(
    r"\bsoftware\.amazon\.awssdk\.core\.exception\.SdkClientException: Unable to execute HTTP request: "
    r"(.*?)(?: \(SDK Attempt Count: \d+\))?$",
    re.MULTILINE,
)
"""The error of Java's S3 client when no server answers, with the reason."""


_NO_FILE = re.compile(r"\borg\.apache\.iceberg\.exceptions\.NotFoundException: .*?: ((?:s3[an]?://|file:/).*)$", re.MULTILINE)
"""What Iceberg raises of a file that is not there, and which it is."""


def explain_store(said: str) -> str:
    """Return what is to be said of an S3 that does not answer Spark, from the classes in the trace; "" when it is something else."""
    found = _NO_STORE.search(said)
    return f"the store (S3) does not answer: {found[1]}" if found else ""


def explain_missing(said: str) -> str:
    """Return which file is missing, from the classes in the trace; "" when that is not what is wrong."""
    found = _NO_FILE.search(said)
    return f"{found[1]} is missing" if found else ""


def explain_outage(connect: Callable[[], object]) -> str:
    """Return what is to be said of a catalog that does not answer; "" when it does."""
    try:
        connect()
    except ServiceUnavailable as error:
        return error.message
    except (CatalogError, OSError):
        # The error that is being explained says more.
        return ""
    return ""


EXPLAINED_LINES = 4


SPARK_FAILURES = (PySparkException, Py4JError, OSError)
"""What Spark raises, and what is raised when its Java is gone."""


class SparkFailed(CatalogError):
    """Spark could not read or write something; the message begins with its own words."""


_OF_TRACES = (
    "at ",
    "...",
    "JVM stacktrace",
    "An error occurred while calling ",
    "Suppressed: ",
    "An exception was thrown from the Python worker",
)
"""How lines begin that say nothing of what is wrong."""


_PYTHON_TRACE = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
"""All of a trace of Python but its end, which is what is wrong."""


_LOST = re.compile(r"^\S+: Job aborted due to stage failure: Task .*?: Lost task .*? \(TID \d+\) \(.*? executor \S+\): ")
"""What Spark says of the task before it comes to what went wrong in it."""


_AWAITED, _CAUSED = "SparkException: Exception thrown in awaitResult:", "Caused by: "


def explain_spark(error: Exception) -> str:
    """Return what Spark says is wrong: the first lines of its message and of the last cause, without the trace."""
    return explain_gone(error) or explain_store(str(error)) or explain_unreadable(error) or shorten(str(error))


def shorten(trace: str) -> str:
    """Return the lines of a trace, Java's or a worker's, that say what is wrong: some of the first, and that of the last cause."""
    lines = [_LOST.sub("", line.strip().removeprefix(": ")) for line in _PYTHON_TRACE.sub("", trace).splitlines()]
    said = [line for line in lines if line and not line.startswith(_OF_TRACES) and not line.endswith(_AWAITED)]
    causes = [line for line in said[EXPLAINED_LINES:] if line.startswith(_CAUSED) and line not in said[:EXPLAINED_LINES]]
    return "\n".join([*said[:EXPLAINED_LINES], *causes[-1:]]).removeprefix(_CAUSED)


_UNREADABLE = {"FAILED_READ_FILE": "path", "CANNOT_READ_FILE_FOOTER": "file", "_LEGACY_ERROR_TEMP_2064": "path"}
"""How the names of what Spark says of such a file begin, and where it says which one; the last two are of 3.5."""
_GZIP, _PACKED = b"\x1f\x8b", ".gz"


def explain_unreadable(error: Exception) -> str:
    """Return the message for a file that could not be read; "" for other errors, and for errors of another machine's Java."""
    causes = list(_list_causes(error))
    path = next((told for told in (_read_unreadable_path(cause) for cause in causes) if told), "")
    if not path:
        return ""
    here = find_local_path(unquote(path))
    if here is not None and _has_no_column(here):
        return f"{path} has no column: leave it out"
    why = _read_java_message(causes[-1])
    more = _explain_compression(here) if path.lower().endswith(_PACKED) else ""
    return f"{why if why.startswith(path) else f'{path} cannot be read: {why}'}{more}"


def _list_causes(error: Exception) -> Iterator[Any]:
    """Yield what Java raised, and what each of these was caused by, as long as there is a Java."""
    raised: Any = error
    found: Any = raised.java_exception if isinstance(error, Py4JJavaError) else getattr(raised, "_origin", None)
    try:
        while found is not None:
            yield found
            found = found.getCause()
    except (Py4JError, OSError):
        return


def _read_unreadable_path(java: Any) -> str:
    """Return the file that Spark says it could not read; "" when it is something else, or not Spark's."""
    try:
        said = str(java.getErrorClass())
        where = next((where for name, where in _UNREADABLE.items() if said.startswith(name)), None)
        told: dict[str, str] = {} if where is None else dict(java.getMessageParameters())
        return "" if where is None else told.get(where, "")
    except (Py4JError, OSError, TypeError):
        return ""


def _read_java_message(java: Any) -> str:
    """Return what it says, in a line."""
    try:
        return str(java.getMessage() or java.toString()).strip().partition("\n")[0]
    except (Py4JError, OSError):
        return "Java is gone"


def _has_no_column(path: Path) -> bool:
    """Return True if it is a Parquet file, and has none."""
    try:
        return parquet.read_metadata(path).num_columns == 0
    except (OSError, ArrowException):
        return False


def _explain_compression(path: Path | None) -> str:
    """Return what more there is to say of a file that is packed by its name; None: it is elsewhere."""
    if path is None:
        return ". It is not packed by gzip, as its name says, or was cut"
    with path.open("rb") as source:
        is_packed = source.read(len(_GZIP)) == _GZIP
    return ". It was cut, or is damaged: write it again" if is_packed else f". It is not packed by gzip: give it a name without {_PACKED}"


FAILURES = (CatalogError, duckdb.Error, psycopg.Error, NoJava, JarUnavailable, *SPARK_FAILURES)


def explain_failure(error: Exception, connect: Callable[[], Rest]) -> str:
    """Return what is wrong, in a few words. Of what Spark could not do: whether the catalog is there."""
    if isinstance(error, CatalogError):
        return error.message
    if isinstance(error, duckdb.Error):
        return explain_duckdb(error)
    if isinstance(error, psycopg.Error):
        return explain_postgres(error)
    return explain_outage(connect) or explain_spark(error)
