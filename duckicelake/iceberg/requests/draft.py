"""A table's metadata while the updates of one request are applied to it, and what must be remembered between them."""

from dataclasses import dataclass
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.updates import LAST_ADDED
from duckicelake.values import replace


@dataclass(frozen=True, slots=True)
class TableDraft:
    """The metadata so far. `last_…` is what LAST_ADDED means; the sets hold what this request added or removed."""

    metadata: TableMetadata
    now_ms: int
    last_schema_id: int | None = None
    last_spec_id: int | None = None
    last_order_id: int | None = None
    added_snapshot_ids: frozenset[int] = frozenset()
    removed_snapshot_ids: frozenset[int] = frozenset()
    removed_schema_ids: frozenset[int] = frozenset()


def change_metadata(draft: TableDraft, **changes: Any) -> TableDraft:
    """The draft with those fields of its metadata replaced."""
    return replace(draft, metadata=replace(draft.metadata, **changes))


def resolve_last_added(wanted: int, last_added: int | None, what: str) -> int:
    """The id that is meant.

    Raises: BadRequest — LAST_ADDED before anything was added
    """
    if wanted != LAST_ADDED:
        return wanted
    if last_added is None:
        raise BadRequest(f"Cannot set last added {what}: no {what} has been added")
    return last_added
