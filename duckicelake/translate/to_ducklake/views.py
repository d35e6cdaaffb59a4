"""Steps that create, replace, rename and drop views."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.lake.changes import Change
from duckicelake.lake.note_rows import DroppedView, EndedView, LiveView, NewView, ViewNote
from duckicelake.lake.writing.rows import LakeHead, LakeStep, NewRow, NewTag
from duckicelake.translate.to_ducklake.tables import TableTarget
from duckicelake.translate.views.conversion import COMMENT


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view to write. `note` names the DuckLake view it belongs to, unless a new one is created."""

    uuid: UUID
    view: ViewMetadata
    note: ViewNote


def create_view(head: LakeHead, target: TableTarget, planned: PlannedView) -> LakeStep:
    """Return the step that creates a view."""
    rows = _new_rows(head.next_catalog_id, target, planned)
    created = Change("created_view", target.quoted)
    return LakeStep((created,), tuple(rows), True, head.next_catalog_id + 1, head.next_file_id)


def replace_view(head: LakeHead, live: LiveView, planned: PlannedView) -> LakeStep:
    """Return the step that replaces a DuckLake view by a new one, as DuckDB does."""
    target = TableTarget(live.schema_id, live.schema_name, live.schema_names, live.view_name)
    rows = [DroppedView(live.view_id), *_new_rows(head.next_catalog_id, target, planned)]
    dropped = Change("dropped_view", str(live.view_id))
    created = Change("created_view", target.quoted)
    return LakeStep((dropped, created), tuple(rows), True, head.next_catalog_id + 1, head.next_file_id)


def _new_rows(view_id: int, target: TableTarget, planned: PlannedView) -> Sequence[NewRow]:
    note = planned.note
    row = NewView(view_id, planned.uuid, target.schema_id, target.table_name, note.sql, note.column_aliases)
    comment = planned.view.properties.get(COMMENT)
    tags = [] if comment is None else [NewTag(view_id, COMMENT, comment)]
    return [row, *tags, replace(note, view_id=view_id)]


def rename_view(head: LakeHead, live: LiveView, target: TableTarget, sql: str) -> LakeStep:
    """Return the step that renames a view, which stays the same view for DuckDB."""
    row = NewView(live.view_id, live.view_uuid, target.schema_id, target.table_name, sql, live.column_aliases)
    created = Change("created_view", target.quoted)
    altered = Change("altered_view", str(live.view_id))
    return LakeStep((created, altered), (EndedView(live.view_id), row), True, head.next_catalog_id, head.next_file_id)


def drop_view(head: LakeHead, live: LiveView) -> LakeStep:
    """Return the step that drops a view."""
    dropped = Change("dropped_view", str(live.view_id))
    return LakeStep((dropped,), (DroppedView(live.view_id),), True, head.next_catalog_id, head.next_file_id)


def comment_view(head: LakeHead, live: LiveView, rows: Sequence[NewRow]) -> LakeStep:
    """Return the step that changes a view's comment."""
    altered = Change("altered_view", str(live.view_id))
    return LakeStep((altered,), tuple(rows), True, head.next_catalog_id, head.next_file_id)
