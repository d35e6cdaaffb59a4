"""`ducklake_view` and its notes, as they are read and as a commit writes them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class LiveView:
    """A live `ducklake_view` joined with its `ducklake_schema` and its comment.

    `begun_at` is the time of the lake snapshot that it begins at, None once that has expired; `head_at` that of the newest.
    """

    view_id: int
    view_uuid: UUID
    schema_id: int
    schema_name: str
    view_name: str
    sql: str
    column_aliases: str
    begun_at: datetime | None
    head_at: datetime
    comment: str | None


@dataclass(frozen=True, slots=True)
class ViewNote:
    """`iceberg_view`: written anew under the same id whenever the metadata changes. `metadata` is JSON."""

    view_id: int
    metadata_version: int
    metadata_location: str
    metadata: str
    sql: str
    column_aliases: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class NewView:
    """`ducklake_view`: a new view, or an old one under a new name."""

    view_id: int
    view_uuid: UUID
    schema_id: int
    view_name: str
    sql: str
    column_aliases: str


@dataclass(frozen=True, slots=True)
class EndedView:
    """The live `ducklake_view` row of a view that goes on under another name."""

    view_id: int


@dataclass(frozen=True, slots=True)
class DroppedView:
    """A view that ends with its comment and its note."""

    view_id: int


ViewRow = NewView | EndedView | DroppedView | ViewNote
"""What a commit writes of views."""
