"""Ids of rows that a commit makes, given out from the head's counters."""

from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.lake.writing.rows import LakeHead, LakeStep
from duckicelake.translate.to_ducklake.tables import TableStep


@dataclass(slots=True)
class IdAllocator:
    """The counters of one commit."""

    next_catalog_id: int
    next_file_id: int

    def take_catalog_id(self) -> int:
        """Return an id for a table or a sort order."""
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def take_file_ids(self, count: int) -> int:
        """Return the first of so many ids for data files, delete files, name mappings and pins."""
        self.next_file_id += count
        return self.next_file_id - count


def to_lake_steps(head: LakeHead, ids: IdAllocator, tables: Sequence[Sequence[TableStep]]) -> list[LakeStep]:
    """Return the lake snapshots of a commit: the first steps of all tables make the first one, and so on.

    DuckDB keeps statistics by `next_file_id`, so every step raises it.
    """
    steps: list[LakeStep] = []
    for number in range(max((len(steps) for steps in tables), default=0)):
        parts = [found[number] for found in tables if number < len(found)]
        changes = tuple(change for part in parts for change in part.changes)
        rows = tuple(row for part in parts for row in part.rows)
        next_file_id = max(ids.next_file_id, head.next_file_id + 1) + number
        catalog = any(part.changes_catalog for part in parts)
        steps.append(LakeStep(changes, rows, catalog, ids.next_catalog_id, next_file_id))
    return steps
