"""What a commit writes into our notes alone; see `lake.writing.rows`."""

from dataclasses import dataclass

from duckicelake.lake.registered.rows import RegisteredRow


@dataclass(frozen=True, slots=True)
class FormerLocation:
    """`iceberg_location`: where a table was up to its present metadata version."""

    table_id: int
    location: str


@dataclass(frozen=True, slots=True)
class MarkedSchema:
    """An `iceberg_schema` that a client removed, or uses again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class MarkedSpec:
    """An `iceberg_spec` that a client removed, or uses again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class NewStatistics:
    """`iceberg_statistics`: a file of one snapshot, in place of the one it had. `kind` is `table` or `partition`."""

    table_id: int
    kind: str
    snapshot_id: int
    json: str


@dataclass(frozen=True, slots=True)
class RemovedStatistics:
    """An `iceberg_statistics` that goes."""

    table_id: int
    kind: str
    snapshot_id: int


NoteRow = FormerLocation | MarkedSchema | MarkedSpec | NewStatistics | RemovedStatistics | RegisteredRow
