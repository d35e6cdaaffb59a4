"""Options of `ingest`, as values and as words of the command line, and the report of a run.

`commands.jobs.ingest` reads the options, and the job fills the report. No I/O but a file of properties.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import SECRET, read_pairs, read_properties, read_word
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.common.spark_sql import PartitionTerm, SortTerm, parse_order, parse_partitions

FORMATS = {
    **{".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"},
    **{".parquet": "parquet", ".orc": "orc", ".avro": "avro"},
}
DATABASE = "jdbc:"
VARIABLES = {"JDBC_USER": "user", "JDBC_PASSWORD": "password"}
"""Who asks a database, where the environment says it."""

_SECRET_IN_URL = re.compile(
    r"//[^/?]*:[^/?]*@|thin:[^@]*/[^@]*@|[?;&:(,][^=;&,()]*(passw|pwd|secret|credential|token|private.?key|api.?key)[^=;&,()]*=",
    re.IGNORECASE,
)
_SECRET_IN_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:]*:(?![0-9]+/)[^@]*@", re.IGNORECASE)
_SECRET_PLACES = "put it into the file of --properties, or into the variables JDBC_USER and JDBC_PASSWORD"
PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")


class Format(StrEnum):
    """The format of the files; `auto` goes by the end of their names."""

    auto = "auto"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    orc = "orc"
    avro = "avro"
    jdbc = "jdbc"

    @property
    def is_text(self) -> bool:
        """Return True if the files do not say of what types their values are."""
        return self in (Format.csv, Format.json)


class IngestMode(StrEnum):
    """The treatment of rows that the table already has."""

    append = "append"
    overwrite_partitions = "overwrite-partitions"
    upsert = "upsert"
    scd2 = "scd2"


class Evolve(StrEnum):
    """The changes of the table's columns that are allowed."""

    fail = "fail"
    add = "add"
    widen = "widen"


class Changed(StrEnum):
    """The treatment of a file that was taken before and has changed since."""

    refuse = "refuse"
    skip = "skip"
    take = "take"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a run that follows its source: which run's, its number, how many files it takes, and when they last changed at most."""

    follow_id: str
    number: int
    files: int
    settled_ms: int

    @property
    def properties(self) -> dict[str, str]:
        """Return what the snapshots of the batch say of it."""
        return {"duckicelake.follow-id": self.follow_id, "duckicelake.batch": str(self.number)}


_NO_BATCHES = "run --mode overwrite-partitions without it"


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """One call of the job. `batch` None: every file that is there."""

    source: str
    table: TableIdent
    form: Format = Format.auto
    mode: IngestMode = IngestMode.append
    evolve: Evolve = Evolve.fail
    changed: Changed = Changed.refuse
    schema: str | None = None
    partition_by: tuple[PartitionTerm, ...] = ()
    sort_by: tuple[SortTerm, ...] = ()
    key: tuple[str, ...] = ()
    order_by: str | None = None
    max_quarantined: int | None = None
    attempts: int = 5
    reading: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    incremental_by: str | None = None
    batch: Batch | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.mode in (IngestMode.upsert, IngestMode.scd2) and not self.key:
            raise BadRequest(f"{self.mode} needs --key: the columns by which a row is known")
        if self.mode is IngestMode.scd2 and self.order_by is None:
            raise BadRequest("scd2 needs --order-by: the column that says from when on a row holds")
        if self.mode not in (IngestMode.upsert, IngestMode.scd2) and (self.key or self.order_by):
            raise BadRequest("--key and --order-by belong to --mode upsert and scd2")
        if (self.form is Format.jdbc) != self.is_database and (self.form is Format.jdbc or self.form is not Format.auto):
            raise BadRequest("a database is named by a URL jdbc:…, and --format is that of files")
        if self.incremental_by is not None and not self.is_database:
            raise BadRequest("--incremental-by belongs to databases (jdbc:…)")
        if self.batch is not None and self.is_database and self.incremental_by is None:
            raise BadRequest("--follow takes new rows of a database: --incremental-by says which they are")
        if self.batch is not None and self.mode is IngestMode.overwrite_partitions:
            raise BadRequest(f"--follow takes files in batches, and each would overwrite what the ones before brought: {_NO_BATCHES}")
        if self.max_quarantined is not None and self.max_quarantined < 0:
            raise BadRequest("--max-quarantined begins at 0")
        if self.attempts < 1:
            raise BadRequest("attempts begin at 1")

    @property
    def is_database(self) -> bool:
        """Return True if rows come from a database, and not from files."""
        return self.source.lower().startswith(DATABASE)

    def hide(self, text: str) -> str:
        """Return a text without the secrets of the source."""
        for secret in (value for name, value in self.reading.items() if value and SECRET.search(name)):
            text = text.replace(secret, "***")
        return text


def find_format(name: str) -> Format | None:
    """Return what a file is by the end of its name, None when that does not say."""
    name = name.lower()
    for packing in PACKED:
        name = name.removesuffix(packing)
    return next((Format(form) for end, form in FORMATS.items() if name.endswith(end)), None)


def read_options(source: str, table: str, given: Mapping[str, Any]) -> IngestOptions:
    """Return the options; `given` has the command's parameters by name.

    Raises: BadRequest: a word or a part is none that the job knows
    """
    return IngestOptions(
        source=source,
        table=parse_ident(table),
        form=read_word(Format, "format", given["form"]),
        mode=read_word(IngestMode, "mode", given["mode"]),
        evolve=read_word(Evolve, "evolve", given["evolve"]),
        changed=read_word(Changed, "changed", given["changed"]),
        schema=given["schema"],
        partition_by=parse_partitions(given["partition_by"]) if given["partition_by"] else (),
        sort_by=parse_order(given["sort_by"]) if given["sort_by"] else (),
        key=tuple(name.strip() for name in given["key"].split(",") if name.strip()),
        order_by=given["order_by"],
        max_quarantined=given["max_quarantined"],
        reading=_read_reading(source, given),
        incremental_by=given.get("incremental_by"),
    )


def _read_reading(source: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The options of Spark's reader and of the store: those of the environment, of the file, and of the call, which has no secrets."""
    is_database = source.lower().startswith(DATABASE)
    if (_SECRET_IN_URL.search if is_database else _SECRET_IN_URI.match)(source):
        places = _SECRET_PLACES if is_database else "keys go into the file of --properties, or into variables"
        raise BadRequest(f"a password in SOURCE can be seen by others on the machine: {places}")
    pairs = read_pairs(given["option"])
    secret = next(filter(SECRET.search, pairs), None)
    if secret is not None:
        raise BadRequest(f"--option {secret}: others on the machine can see it: {_SECRET_PLACES}")
    environment: Mapping[str, str] = given.get("environment") or {}
    own = {name: environment[variable] for variable, name in VARIABLES.items() if variable in environment}
    return (own if is_database else {}) | read_properties(given.get("properties")) | pairs


class Status(StrEnum):
    """The outcome of a run."""

    planned = "planned"
    done = "done"
    nothing_new = "nothing-new"
    failed = "failed"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class IngestReport:
    """One run. `rows_in` = `rows_out` + `rows_quarantined` + `rows_superseded`, always."""

    run_id: str
    table: str
    source: str
    mode: str
    status: Status
    files: int = 0
    bytes: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_superseded: int = 0
    attempts: int = 0
    plan: tuple[str, ...] = ()
    snapshots: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    def format_json(self) -> str:
        """Return the report for machines."""
        fields: dict[str, Any] = {"job": "ingest", **asdict(self)}
        return json.dumps(fields, indent=2) + "\n"


@dataclass(slots=True)
class Run:
    """A run under way: its report as far as it is known, which is what is reported when it fails."""

    report: IngestReport

    def note(self, **known: Any) -> None:
        """More of it is known."""
        self.report = replace(self.report, **known)
