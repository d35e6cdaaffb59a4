"""What the command line says when a command raises: one line for a user, and for faults of our own a trace in a file."""

import tempfile
import traceback

import duckdb
import psycopg

from duckicelake.pipeline.failures.gone import explain_duckdb, explain_postgres, hide_passwords

STORE_LIBRARIES = ("boto3", "botocore", "obstore")
CLIENT_LIBRARIES = ("pyiceberg", "urllib3", "requests", "pyarrow")


def explain_failure(error: Exception) -> str:
    """Return what is wrong in one line, without passwords. A fault of ours keeps its traceback in a file that is named."""
    said = hide_passwords("".join(str(error).strip().splitlines()[:1]))
    library = type(error).__module__.partition(".")[0]
    match error:
        case duckdb.Error():
            return explain_duckdb(error)
        case psycopg.Error():
            return hide_passwords(explain_postgres(error))
        case UnicodeError():
            return f"A text is not UTF-8: {said}"
        case OSError():
            return said or type(error).__name__
        case _ if library in STORE_LIBRARIES:
            return f"The store (S3): {said or type(error).__name__}"
        case _ if library in CLIENT_LIBRARIES:
            return f"{library}: {type(error).__name__}: {said}"
        case _:
            return f"Unexpected {type(error).__name__}: {said}. Its traceback is in {_keep_trace(error)}; please report it."


def _keep_trace(error: Exception) -> str:
    """Return the name of a new file, readable by its owner only, that holds the traceback."""
    with tempfile.NamedTemporaryFile("w", prefix="duckicelake-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(hide_passwords("".join(traceback.format_exception(error))))
        return file.name
