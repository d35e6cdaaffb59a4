"""Messages for unexpected errors of a command. `cli.main` imports this module only when one is raised.

The traceback of a fault of this program goes to a new file in the temporary folder, without passwords.
"""

import tempfile
import traceback

import duckdb
import psycopg

from duckicelake.pipeline.common.reports import explain_duckdb, explain_postgres, hide_passwords

STORE_LIBRARIES = ("boto3", "botocore", "obstore")
CLIENT_LIBRARIES = ("pyiceberg", "urllib3", "requests", "pyarrow")


def explain_failure(error: Exception) -> str:
    """Return a message of one line without passwords. For a fault of this program it names a file with the traceback."""
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
    """Write the traceback to a new file that only its owner can read, and return its name."""
    with tempfile.NamedTemporaryFile("w", prefix="duckicelake-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(hide_passwords("".join(traceback.format_exception(error))))
        return file.name
