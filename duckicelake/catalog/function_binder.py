"""The types that DuckDB's binder tells of macros, each asked once. DuckDB binds in a process of its own, which ends with its answer."""

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from duckicelake.errors import ServiceUnavailable
from duckicelake.translate.functions import binder
from duckicelake.translate.functions.binder import CPU_SECONDS

MAX_SECONDS = 120
"""For which the process may wait for a processor; it uses at most `CPU_SECONDS` of one."""
MAX_ANSWERS = 1_000
REFUSED = {"error": f"DuckDB needs more than {CPU_SECONDS} seconds, or too much memory, to find out what it returns"}

Answers = list[dict[str, Any]]
"""For each question `{"columns": [[name, type], …]}` or `{"error": text}`: see the binder."""


@dataclass(frozen=True, slots=True)
class FunctionBinder:
    """The binder and its latest answers. Safe to share between threads; one process runs at a time."""

    _answers: OrderedDict[bytes, Answers] = field(default_factory=OrderedDict[bytes, Answers])
    _lock: Lock = field(default_factory=Lock)

    def bind(self, catalog: str, statements: Sequence[str], questions: Sequence[Sequence[str]]) -> Answers:
        """Return the answer for each question over the tables, views and macros that the statements create.

        A question is a list of queries, of which the first one that DuckDB accepts is answered.

        Raises: ServiceUnavailable: the machine is too busy
        """
        if not questions:
            return []
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
    """Return the binder's answers, or None if the process ended without."""
    command = [sys.executable, "-m", binder.__name__]
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailable("The function's result type could not be found out, because the server is busy; try again.") from error
    return json.loads(done.stdout) if done.returncode == 0 else None
