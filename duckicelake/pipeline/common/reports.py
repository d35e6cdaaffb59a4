"""Options and reports that commands share: properties, words of an enumeration; verdicts, exit status, JSON; messages without passwords.

Every command imports this for the messages of Postgres and DuckDB, so it needs no library of Spark's; Spark executors of
`publish` call `explain_postgres`.
Secrets come from a file or the environment only, because other users of the machine see the arguments of commands.
"""

import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import duckdb
import psycopg

from duckicelake.errors import BadRequest, CatalogError

SECRET = re.compile("passw|pwd|secret|credential|token|authorization|cookie|(?:private|api|shared|account|sse).?key", re.IGNORECASE)
"""Matches names of properties that hold secrets."""


def read_properties(path: Path | None) -> dict[str, str]:
    """Return the properties of a TOML file; none without one. Raises: BadRequest: it cannot be read, or one is no text."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"--properties {path} cannot be read: {error}") from error
    wrong = next((name for name, text in found.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise BadRequest(f'--properties {path}: {wrong} must be a text; write names with dots in quotes: "s3.endpoint" = "…"')
    return found


Word = TypeVar("Word", bound=StrEnum)


def read_pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `name=value` texts as a mapping. Raises: BadRequest: one has no `=`."""
    pairs = [text.partition("=") for text in texts or ()]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise BadRequest(f"{wrong!r} is no NAME=VALUE")
    return {name: value for name, _, value in pairs}


def read_word(words: type[Word], option: str, text: str) -> Word:
    try:
        return words(text)
    except ValueError as error:
        raise BadRequest(f"--{option} {text} is none of {', '.join(words)}") from error


JOB, RUN_ID = "duckicelake.job", "duckicelake.run-id"
"""What snapshots say of the run that made them."""
PUBLISHED = "published"
"""The step that is announced after the commit."""


def read_versions(*others: str) -> dict[str, str]:
    """Return the versions of what a job is made of, by package: ours, PySpark's, and those of others."""
    return {name: version(name) for name in ("duckicelake", "pyspark", *others)}


def format_run_properties(job: str, run_id: str, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the properties by which a snapshot says which run made it."""
    return {JOB: job, RUN_ID: run_id, **{f"duckicelake.version.{name}": text for name, text in versions.items()}}


class Interrupted(CatalogError):
    """The user asked the job to stop, so a step was not begun."""


class Verdict(StrEnum):
    """The outcome of a step, a table or a run."""

    planned = "planned"
    done = "done"
    there = "already-there"
    nothing = "nothing-to-do"
    skipped = "skipped"
    failed = "failed"


class ReportPart(Protocol):
    """The result for a table, or for a step."""

    @property
    def verdict(self) -> Verdict:
        """Return how it ended."""
        ...

    def describe(self) -> str:
        """Return it in one line."""
        ...


PartT = TypeVar("PartT", bound=ReportPart)


class Report(ABC):
    """One run, a dataclass with these fields; `message` is set when it could not even begin."""

    __slots__ = ()
    job: str
    message: str

    @property
    @abstractmethod
    def parts(self) -> Sequence[ReportPart]:
        """The parts that the run is made of."""

    @property
    def verdict(self) -> Verdict:
        """The worst of all parts."""
        found = {part.verdict for part in self.parts}
        if self.message or Verdict.failed in found:
            return Verdict.failed
        return next((one for one in (Verdict.planned, Verdict.done) if one in found), Verdict.nothing)

    @property
    def status(self) -> int:
        """The status for the shell: 0 done, or nothing to do; 1 something could not be done."""
        return int(self.verdict is Verdict.failed)

    def format_json(self) -> str:
        """Return the report for machines."""
        return format_report(self.job, self.verdict, self)


@dataclass(frozen=True, slots=True)
class TablesReport(Report, Generic[PartT]):
    """One run over tables."""

    run_id: str = ""
    at: str = ""
    tables: tuple[PartT, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def parts(self) -> Sequence[PartT]:
        """The tables."""
        return self.tables

    def describe(self) -> list[str]:
        """Return the report for people."""
        return [*(table.describe() for table in self.tables), f"{len(self.tables)} tables: {self.verdict} (run {self.run_id})"]


def format_report(job: str, status: str, report: Any) -> str:
    """Return a report, which is a dataclass, for machines."""
    fields: dict[str, Any] = {"job": job, "status": status, **asdict(report)}
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Hears of each step before it is taken, passes the word on, and knows how long each one took."""

    listener: Progress
    marks: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def start_step(self, step: str) -> None:
        """A step begins, and the one before it ends, unless the listener raises."""
        begins = monotonic()
        self.listener(step)
        self.marks.append((step, begins))

    def read(self) -> dict[str, float]:
        """Return the seconds of each step until now; of one that was taken again, all of them."""
        ends = [*(began for _, began in self.marks[1:]), monotonic()]
        seconds: dict[str, float] = {}
        # There is one end too many when no step was announced.
        for (step, began), end in zip(self.marks, ends, strict=False):
            seconds[step] = round(seconds.get(step, 0.0) + end - began, 3)
        return seconds


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
