"""The result types of macros, found by DuckDB's binder, which runs in a process of its own. The latest answers are kept.

`catalog.functions` calls this outside of transactions, on a worker thread or in a command, and waits until the process ends. For each lake
one process runs at a time; it gets the lake's definitions on its standard input, and opens no lake, file or connection.
"""

import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import Any

from duckicelake.errors import ServiceUnavailable
from duckicelake.translate import function_binder
from duckicelake.translate.function_binder import CPU_SECONDS

MAX_SECONDS = 120
"""For which the process may wait for a processor; it uses at most `CPU_SECONDS` of one."""
MAX_WAITING = 4
"""Threads of the server that may wait for the binder; requests beyond are refused at once, so that other requests find a thread."""
MAX_ANSWERS = 1_000
PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""What the process gets of the server's environment, which holds secrets."""
BUSY = "The function's result type could not be found out, because the server is busy; try again."
REFUSED = {"error": f"DuckDB needs more than {CPU_SECONDS} seconds to find out what it returns"}

Answers = list[dict[str, Any]]
"""For each question `{"columns": [[name, type], …]}` or `{"error": text}`: see the binder."""


@dataclass(frozen=True, slots=True)
class FunctionBinder:
    """The binder and its latest answers. Safe to share between threads; one process runs at a time."""

    _answers: OrderedDict[bytes, Answers] = field(default_factory=OrderedDict[bytes, Answers])
    _lock: Lock = field(default_factory=Lock)
    _waiting: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MAX_WAITING))

    def bind(self, catalog: str, statements: Sequence[str], questions: Sequence[Sequence[str]]) -> Answers:
        """Return the answer for each question over the tables, views and macros that the statements create.

        A question is a list of queries, of which the first one that DuckDB accepts is answered.

        Raises: ServiceUnavailable: the machine is too busy, or ended the process
        """
        if not questions:
            return []
        if not self._waiting.acquire(blocking=False):
            raise ServiceUnavailable(BUSY)
        try:
            return self._find(catalog, statements, questions)
        finally:
            self._waiting.release()

    def _find(self, catalog: str, statements: Sequence[str], questions: Sequence[Sequence[str]]) -> Answers:
        question = json.dumps({"catalog": catalog, "statements": statements, "questions": questions}).encode()
        with self._lock:
            found = self._answers.pop(question, None)
            if found is None:
                found = _ask(question) or [REFUSED] * len(questions)
            self._answers[question] = found
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            return found


def _ask(question: bytes) -> Answers | None:
    """Return the binder's answers, or None if it used up its time.

    Raises: ServiceUnavailable: it ended for a reason that may not last
    """
    # -P: Python imports nothing from the folder that the server was started in
    command = [sys.executable, "-P", "-m", function_binder.__name__]
    environment = {name: text for name, text in os.environ.items() if name in PASSED_ON}
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=MAX_SECONDS, env=environment, cwd="/", check=False)
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailable(BUSY) from error
    if done.returncode == -signal.SIGXCPU:
        return None
    if done.returncode != 0:
        raise ServiceUnavailable("The process that finds out what functions return has failed; try again.")
    return json.loads(done.stdout)
