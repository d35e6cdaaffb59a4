"""What can be asked of `ingest`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.target import PartitionField, SortField
from duckicelake.pipeline.rest import Ident

FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".orc": "orc"}
PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")


class Format(StrEnum):
    """What the files are; `auto` goes by the end of their names."""

    auto = "auto"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    orc = "orc"

    @property
    def is_text(self) -> bool:
        """Whether the files do not say of what types their values are."""
        return self in (Format.csv, Format.json)


class Mode(StrEnum):
    """What becomes of rows that are there."""

    append = "append"
    overwrite_partitions = "overwrite-partitions"
    upsert = "upsert"


class Evolve(StrEnum):
    """What may change of the table's columns."""

    fail = "fail"
    add = "add"
    widen = "widen"


class Changed(StrEnum):
    """What to do with a file that was taken before and is another one now."""

    refuse = "refuse"
    skip = "skip"
    take = "take"


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """One call of the job."""

    source: str
    table: Ident
    form: Format = Format.auto
    mode: Mode = Mode.append
    evolve: Evolve = Evolve.fail
    changed: Changed = Changed.refuse
    schema: str | None = None
    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[SortField, ...] = ()
    key: tuple[str, ...] = ()
    order_by: str | None = None
    max_quarantined: int | None = None
    attempts: int = 5
    reading: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.mode is Mode.upsert and not self.key:
            raise BadRequest("upsert needs --key: the columns by which a row is known")
        if self.mode is not Mode.upsert and (self.key or self.order_by):
            raise BadRequest("--key and --order-by belong to --mode upsert")
        if self.attempts < 1:
            raise BadRequest("--attempts begins at 1")


def find_format(name: str) -> Format | None:
    """Return what a file is by the end of its name, None when that does not say."""
    name = name.lower()
    for packing in PACKED:
        name = name.removesuffix(packing)
    return next((Format(form) for end, form in FORMATS.items() if name.endswith(end)), None)
