"""The process in which a server reads a difference with rows: DuckDB with little memory, one thread and no disk.

`app` names this module to `rest.diff_process`, which starts it for one request, and ends it if the request takes too long or its client
leaves. The process gets one line of JSON on its standard input, `{"lake": settings with secrets, "refs": [from, to], "rows": limit}`. It
writes the document of `duckicelake branch diff --rows`, or ends with `REFUSED` after `{"error": class, "message": text}`. When its
standard input ends, as that of a server that was killed, it ends too.
"""

import json
import os
import resource
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from duckdb import DuckDBPyConnection

from duckicelake.commands.branches import read_difference
from duckicelake.config import LakeSettings
from duckicelake.embedded.ducklake import connect_duckdb
from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.lake.branches.log import describe_diff

REFUSED = 3
MEMORY_LIMIT = "1GB"
ADDRESS_BYTES = 8 * 1024**3
"""Of address space, of which DuckDB reserves much more than it takes."""
BOUNDS = (
    f"SET memory_limit = '{MEMORY_LIMIT}'",
    "SET threads = 1",
    "SET temp_directory = ''",
    "SET secret_directory = '/dev/null/secrets'",
)


def main() -> None:
    """Answer the question on the standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    question = json.loads(sys.stdin.readline())
    Thread(target=_end_with_server, daemon=True).start()
    try:
        answer = _answer(question)
    except CatalogError as error:
        json.dump({"error": type(error).__name__, "message": error.message}, sys.stdout)
        sys.exit(REFUSED)
    json.dump(answer, sys.stdout)


def _end_with_server() -> None:
    # Not sys.stdin, whose lock Python needs at its end.
    os.read(0, 1)
    os._exit(1)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    old, new = question["refs"]
    try:
        return describe_diff(read_difference(LakeSettings(**question["lake"]), (old, new), (_open_bounded, question["rows"])))
    except MemoryError as error:
        raise ServiceUnavailable("Comparing the rows needs more memory than it may use; ask for fewer rows.") from error


def _open_bounded() -> DuckDBPyConnection:
    session = connect_duckdb(Path("/dev/null"))
    for statement in BOUNDS:
        session.execute(statement)
    return session


if __name__ == "__main__":
    main()
