"""Differences with rows, which DuckDB reads in a process of its own: one at a time for each lake of this server process.

`rest.routes.repositories` awaits it on the event loop. The process gets the lake's secrets on its standard input, and ends with the
request.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from duckicelake.errors import BadRequest, CatalogError, Forbidden, NoSuchRef, NotFound, PostgresRefused, ServiceUnavailable, Unsupported

MAX_SECONDS = 60.0
MAX_BYTES = 32 * 1024**2
CHUNK_BYTES = 1024**2
REFUSED = 3
"""The exit code of a process that wrote an error instead of a difference."""
PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""What the process gets of the server's environment, which holds secrets, beside what is set there for libpq (`PG…`)."""
REFUSALS = {each.__name__: each for each in (BadRequest, Forbidden, NoSuchRef, NotFound, PostgresRefused, Unsupported)}


@dataclass(frozen=True, slots=True)
class DiffProcess:
    """Reads differences of one lake. `module`: what the process runs; `lake`: the settings of the lake, with its secrets."""

    module: str
    lake: Mapping[str, Any] = field(repr=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def read(self, refs: tuple[str, str], rows: int) -> bytes:
        """Return the difference of two refs with at most so many rows of each table, as JSON.

        Raises: BadRequest: the rows have too many bytes. ServiceUnavailable: another request is reading, or it takes too long
        """
        if self._lock.locked():
            raise ServiceUnavailable("The rows of another difference of this lake are being read; try again later.")
        async with self._lock:
            question = json.dumps({"lake": self.lake, "refs": refs, "rows": rows}).encode() + b"\n"
            environment = {name: text for name, text in os.environ.items() if name in PASSED_ON or name.startswith("PG")}
            # -P: Python imports nothing from the folder that the server was started in
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self.module), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, cwd="/"
            )
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    return _decode(*await _ask(process, question))
            except TimeoutError as error:
                raise ServiceUnavailable(
                    f"Comparing the rows takes more than {MAX_SECONDS:g} seconds; `duckicelake branch diff --rows` may take longer."
                ) from error
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def _ask(process: Process, question: bytes) -> tuple[int, bytes]:
    """Return the exit code of the process and what it wrote. Its input stays open, so that it sees the end of this server."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(question)
    parts, size = list[bytes](), 0
    while part := await process.stdout.read(CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise BadRequest(f"The rows have more than {MAX_BYTES // 1024**2} MiB; ask for fewer with `rows`.")
    return await process.wait(), b"".join(parts)


def _decode(code: int, written: bytes) -> bytes:
    if code == REFUSED:
        refusal = json.loads(written)
        kind: type[CatalogError] = REFUSALS.get(refusal["error"], ServiceUnavailable)
        raise kind(refusal["message"])
    if code != 0:
        raise ServiceUnavailable("The process that compares the rows has failed; try again.")
    return written


async def read_unless_left(request: Request, reading: Coroutine[Any, Any, bytes]) -> bytes:
    """Return what is read; stop reading when the client closes its connection."""
    tasks = asyncio.ensure_future(reading), asyncio.ensure_future(_wait_until_left(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ServiceUnavailable("The client has closed its connection.")
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
