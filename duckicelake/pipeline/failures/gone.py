"""What is said when something that a job needs is gone: Postgres, the catalog, or the store."""

import re
from collections.abc import Callable

import duckdb
import psycopg

from duckicelake.errors import CatalogError, ServiceUnavailable

HIDDEN = "…"
_PASSWORD = re.compile(
    r"""([?&]password=)[^&\s"]*                                                              # a parameter of a URI
    |(\bpassword\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:\\.|[^\s'\\])*?(?="?:?(?:\s|\Z)))        # libpq's NAME=VALUE
    |(://[^\s:/@"]*:)[^\s@"]*(?=@)                                                          # a URI's user""",
    re.IGNORECASE | re.VERBOSE,
)
_GONE = ("08", "57P")
"""SQLSTATEs of connections that broke, and of a Postgres that stops or starts."""
_NO_STORE = re.compile(
    r"\bsoftware\.amazon\.awssdk\.core\.exception\.SdkClientException: Unable to execute HTTP request: "
    r"(.*?)(?: \(SDK Attempt Count: \d+\))?$",
    re.MULTILINE,
)
"""What Java's client of S3 raises when nobody answers it, and why."""


_NO_FILE = re.compile(r"\borg\.apache\.iceberg\.exceptions\.NotFoundException: .*?: ((?:s3[an]?://|file:/).*)$", re.MULTILINE)
"""What Iceberg raises of a file that is not there, and which it is."""


def hide_passwords(text: str) -> str:
    """The text without the passwords of connection strings, which DuckDB shows when it cannot reach Postgres."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", text)


def explain_duckdb(error: duckdb.Error | Exception) -> str:
    """What DuckDB says is wrong, in a line."""
    return f"DuckDB: {''.join(hide_passwords(str(error)).strip().splitlines()[:1])}"


def explain_postgres(error: psycopg.Error) -> str:
    """What Postgres says is wrong, in a line."""
    said = "".join(str(error).strip().splitlines()[:1])
    is_gone = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_GONE)
    return f"the lake's Postgres does not answer: {said}" if is_gone else f"Postgres: {said}"


def explain_store(said: str) -> str:
    """What is to be said of an S3 that does not answer Spark, from the classes in the trace; "" when it is something else."""
    found = _NO_STORE.search(said)
    return f"the store (S3) does not answer: {found[1]}" if found else ""


def explain_missing(said: str) -> str:
    """Which file is missing, from the classes in the trace; "" when that is not what is wrong."""
    found = _NO_FILE.search(said)
    return f"{found[1]} is missing" if found else ""


def explain_outage(connect: Callable[[], object]) -> str:
    """What is to be said of a catalog that does not answer; "" when it does."""
    try:
        connect()
    except ServiceUnavailable as error:
        return error.message
    except (CatalogError, OSError):
        # What was to be explained tells more.
        return ""
    return ""
