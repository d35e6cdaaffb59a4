"""Messages for errors of Postgres and DuckDB, without passwords.

Every command imports this for its error messages, so it needs no library of Spark's.
"""

import re

import duckdb
import psycopg

HIDDEN = "…"
_PASSWORD = re.compile(
    r"""([?&]password=)[^&\s"]*                                                              # a parameter of a URI
    |(\bpassword\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:\\.|[^\s'\\])*?(?="?:?(?:\s|\Z)))        # libpq's NAME=VALUE
    |(://[^\s:/@"]*:)[^\s@"]*(?=@)                                                          # a URI's user""",
    re.IGNORECASE | re.VERBOSE,
)
_GONE = ("08", "57P")
"""SQLSTATEs of connections that broke, and of a Postgres that stops or starts."""


def hide_passwords(text: str) -> str:
    """Return the text without the passwords of connection strings, which DuckDB shows when it cannot reach Postgres."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", text)


def explain_duckdb(error: duckdb.Error | Exception) -> str:
    """Return what DuckDB says is wrong, in a line."""
    return f"DuckDB: {''.join(hide_passwords(str(error)).strip().splitlines()[:1])}"


def explain_postgres(error: psycopg.Error) -> str:
    """Return what Postgres says is wrong, in a line."""
    said = "".join(str(error).strip().splitlines()[:1])
    is_gone = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_GONE)
    return f"the lake's Postgres does not answer: {said}" if is_gone else f"Postgres: {said}"
