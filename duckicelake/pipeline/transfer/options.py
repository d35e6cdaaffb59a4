"""Options of `import` and `export`, and their report.

`commands.jobs.transfer` reads the options, and the job makes the report. No I/O but a file of properties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import SECRET, Report, Verdict, read_pairs, read_properties, read_word
from duckicelake.pipeline.common.rest import TableIdent, split_names
from duckicelake.pipeline.transfer.catalogs import EntryKind


class Form(StrEnum):
    """The kind of the other catalog."""

    hadoop = "hadoop"
    jdbc = "jdbc"
    rest = "rest"
    hive = "hive"
    delta = "delta"


FOLDERS = (Form.hive, Form.delta)
"""Folders of files, which are read and never written."""


class TransferMode(StrEnum):
    """The way a table is brought: registered where it is, with its history, or copied by its present rows."""

    register = "register"
    copy = "copy"


GRACE_HOURS = 72

SCHEMES = {"http": Form.rest, "https": Form.rest, "postgresql": Form.jdbc, "postgres": Form.jdbc, "sqlite": Form.jdbc}
"""All others are folders."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """One call of a job. No tables: all of them, and the views.

    `place` is the other catalog, `properties` are its own; `into` goes before the namespaces of the source. `grace`: how long a run may
    be silent before what it wrote is a dead one's.
    """

    place: str
    form: Form
    tables: tuple[TableIdent, ...] = ()
    mode: TransferMode = TransferMode.copy
    into: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    is_verified: bool = True
    grace: timedelta = timedelta(hours=GRACE_HOURS)


def read_options(given: Mapping[str, Any]) -> TransferOptions:
    """Return the command's arguments as options. Raises: BadRequest: they contradict each other, or one cannot be read."""
    place, mode = given["place"], read_word(TransferMode, "mode", given.get("mode") or "copy")
    found = _read_form(place)
    form = found if given["form"] == "auto" else read_word(Form, "format", given["form"])
    if given.get("history") and form in FOLDERS:
        raise BadRequest(f"--history: what --format {form} brings has the present rows alone: import it without it")
    if given.get("history") and mode is TransferMode.copy:
        raise BadRequest("--history: a copy has the present rows alone; --mode register keeps a table's history")
    into = _read_namespace(given["into"]) if given.get("into") else ()
    tables = tuple(map(_read_name, given["tables"] or ()))
    grace = timedelta(hours=given.get("grace", GRACE_HOURS))
    return TransferOptions(place, form, tables, mode, into, _read_properties(given), not given["no_verify"], grace)


def name_place(uri: str) -> str:
    """Return where a catalog is, and neither who asks there nor how."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_form(place: str) -> Form:
    """Return what is at a place, by how it is written. Raises: BadRequest: it is no URL, or has a secret in it."""
    try:
        parts = urlsplit(place)
        form = SCHEMES.get(parts.scheme, Form.hadoop)
        names = [] if form is Form.hadoop else [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        if form is Form.jdbc and parts.scheme != "sqlite":
            names = list(conninfo_to_dict(place))
    except (ValueError, psycopg.Error) as error:
        # What these say may quote it.
        raise BadRequest("PLACE is no URL that can be read: write scheme://host:port/path") from error
    if parts.password is not None or any(map(SECRET.search, names)):
        raise BadRequest("a password in PLACE can be seen by others on the machine: put it into the file of --properties")
    return form


def _read_name(text: str) -> TableIdent:
    """Return a table's name in the source, where it may have no namespace."""
    *namespace, name = split_names(text)
    return TableIdent(tuple(namespace), name)


def _read_namespace(text: str) -> tuple[str, ...]:
    try:
        return tuple(split_names(text))
    except BadRequest as error:
        raise BadRequest(
            f"--into {text!r} is no namespace: write its names with a dot between them, one with a dot in it in quotes"
        ) from error


def _read_properties(given: Mapping[str, Any]) -> dict[str, str]:
    pairs = read_pairs(given["property"])
    secret = next((name for name, text in pairs.items() if SECRET.search(name) or _holds_secret(text)), None)
    if secret is not None:
        raise BadRequest(f"--property {secret}: others on the machine can see it: put it into the file of --properties")
    return read_properties(given["properties"]) | pairs


def _holds_secret(text: str) -> bool:
    """Return True if a text is a URL with a password in it, or one that cannot be looked through."""
    if "://" not in text:
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return True
    return parts.password is not None or any(SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True))


def spell_tables(found: Sequence[TableIdent], asked: Sequence[TableIdent]) -> tuple[TableIdent, ...]:
    """Return what was asked for of the lake, as that spells it: to DuckDB capitals are no others."""
    known = {ident.folded: ident for ident in found}
    return tuple(ident if ident in found else known.get(ident.folded, ident) for ident in asked)


def check_tables(found: Sequence[TableIdent], asked: Sequence[TableIdent]) -> list[TableIdent]:
    """Return those that were asked for and are not there."""
    return [ident for ident in asked if ident not in set(found)]


class ComparedAspect(StrEnum):
    """The parts of a table that are compared with the source's."""

    snapshots = "snapshots"
    rows = "rows"
    checksums = "checksums"


@dataclass(frozen=True, slots=True)
class TransferResult:
    """A table or a view, under its name in the target, and what became of it.

    `rows` are the source's, `target_rows` those found in the target; None: they were not counted. `snapshots`: how many came along.
    `checked`: what was compared, the same or not. `message` says why it was not done, not compared, or is not the same.
    """

    subject: str
    kind: EntryKind
    verdict: Verdict
    how: str = ""
    rows: int | None = None
    snapshots: int = 0
    target_rows: int | None = None
    checked: tuple[ComparedAspect, ...] = ()
    source_checksum: str = ""
    target_checksum: str = ""
    message: str = ""

    def describe(self) -> str:
        """Return what became of it, in a line."""
        if self.verdict is Verdict.failed:
            return f"{self.subject}: {self.verdict}: {self.message}"
        counted = "" if self.rows is None else f", {self.rows} rows"
        counted += f", {self.snapshots} snapshots" if self.snapshots else ""
        message = f": {self.message}" if self.message else ""
        what = {Verdict.planned: f"would {self.how}", Verdict.done: f"{self.how}: done", Verdict.there: "there already"}
        return f"{self.subject}: {what.get(self.verdict, self.verdict)}{counted}{message}"


@dataclass(frozen=True, slots=True)
class TransferReport(Report):
    """One run. `message` is set when it could not even be begun."""

    job: str
    run_id: str = ""
    source: str = ""
    target: str = ""
    moved: tuple[TransferResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def parts(self) -> Sequence[TransferResult]:
        """The tables and views."""
        return self.moved

    def describe(self) -> list[str]:
        """Return the report for people."""
        counts = {verdict: sum(one.verdict is verdict for one in self.moved) for verdict in Verdict}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing there"
        return [*(one.describe() for one in self.moved), f"{self.job}: {said} (run {self.run_id})"]
