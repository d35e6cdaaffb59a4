"""What a commit writes into our notes alone; see `lake.writing.rows`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftLocation:
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


NoteRow = LeftLocation | MarkedSchema | MarkedSpec
