"""Snapshot summaries: operation, changes and totals as strings, with the keys of Java's writer. No I/O.

`catalog.manifests` writes summaries with it; `FileTally` is filled in Spark executors, too, and added up in the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from duckicelake.iceberg.manifest import AnyFile
from duckicelake.translate.manifests import ADDED, DELETED, EXISTING, SnapshotPlan
from duckicelake.translate.visibility import SnapshotStep

SNAPSHOT_ID_PROPERTY = "ducklake.snapshot-id"


@dataclass(frozen=True, slots=True)
class Totals:
    """The content of a table after a snapshot. Position deletes count rows; deletion vectors are included in the delete files.

    `next_row_id` is above the row id of every file that the table has ever had (v3).
    """

    records: int = 0
    data_files: int = 0
    delete_files: int = 0
    vectors: int = 0
    position_deletes: int = 0
    files_size: int = 0
    next_row_id: int = 0

    def moved(self, added: "Totals", removed: "Totals") -> "Totals":
        """Return the totals plus the added ones minus the removed ones."""
        return Totals(
            records=self.records + added.records - removed.records,
            data_files=self.data_files + added.data_files - removed.data_files,
            delete_files=self.delete_files + added.delete_files - removed.delete_files,
            vectors=self.vectors + added.vectors - removed.vectors,
            position_deletes=self.position_deletes + added.position_deletes - removed.position_deletes,
            files_size=self.files_size + added.files_size - removed.files_size,
            next_row_id=max(self.next_row_id, added.next_row_id),
        )


class FileTally:
    """Counts of what one snapshot added and deleted, collected file by file, because there may be a million files."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int, str], list[int]] = {}
        self._next_row_id = 0

    def count(self, status: int, file: AnyFile) -> None:
        """Count an added (status 1) or deleted (2) file."""
        sums = self._sums.setdefault((status, file.content, file.file_format), [0, 0, 0])
        sums[0] += 1
        sums[1] += file.record_count
        sums[2] += file.file_size_in_bytes
        if status == ADDED and file.content == 0:
            self._next_row_id = max(self._next_row_id, (file.first_row_id or 0) + file.record_count)

    def take(self, other: "FileTally") -> None:
        """Add the counts of another tally."""
        for key, counted in other._sums.items():
            sums = self._sums.setdefault(key, [0, 0, 0])
            for index, count in enumerate(counted):
                sums[index] += count
        self._next_row_id = max(self._next_row_id, other._next_row_id)

    def count_data(self, status: int, counted: Sequence[int], next_row_id: int = 0) -> None:
        """Count added or deleted data files by their sums of files, rows and bytes; `next_row_id` is above the ids of all added rows."""
        if counted[0]:
            sums = self._sums.setdefault((status, 0, "PARQUET"), [0, 0, 0])
            for index, count in enumerate(counted):
                sums[index] += count
        self._next_row_id = max(self._next_row_id, next_row_id)

    def added(self) -> Totals:
        """Return the totals of the added files."""
        return replace(self._total(ADDED), next_row_id=self._next_row_id)

    def removed(self) -> Totals:
        """Return the totals of the deleted files."""
        return self._total(DELETED)

    def _total(self, wanted: int) -> Totals:
        total = Totals()
        for (status, content, file_format), (files, rows, size) in self._sums.items():
            if status == wanted and content == 0:
                total = total.moved(Totals(records=rows, data_files=files, files_size=size), Totals())
            elif status == wanted:
                vectors = files if file_format == "PUFFIN" else 0
                total = total.moved(Totals(delete_files=files, vectors=vectors, position_deletes=rows, files_size=size), Totals())
        return total


def summarize(step: SnapshotStep, tally: FileTally, before: Totals) -> tuple[dict[str, str], Totals]:
    """Return the summary of a snapshot with these counts, and the totals after it."""
    added, removed = tally.added(), tally.removed()
    after = before.moved(added, removed)
    summary = {"operation": get_operation(step, added, removed), SNAPSHOT_ID_PROPERTY: str(step.snapshot_id)}
    return summary | _format_changes(added, removed) | _format_totals(after), after


def count_manifests(plan: SnapshotPlan) -> dict[str, str]:
    """Return the counts of manifests as in Java's summaries: created, kept from the parent, and replaced."""
    own = [manifest for manifest in plan.manifests if manifest.snapshot_id == plan.step.snapshot_id]
    counts = {
        "manifests-created": len(own),
        "manifests-kept": len(plan.manifests) - len(own),
        "manifests-replaced": plan.replaced_count,
        "entries-processed": sum(entry.status == EXISTING for manifest in own for entry in manifest.entries) if plan.replaced_count else 0,
    }
    return {key: str(count) for key, count in counts.items()}


def get_operation(step: SnapshotStep, added: Totals, removed: Totals) -> str:
    """Return Iceberg's operation: `replace` for rewrites, otherwise the one for what was added and removed."""
    if step.is_rewrite:
        return "replace"
    adds_rows = added.data_files > 0
    drops_rows = removed.data_files > 0 or added.delete_files > 0
    if removed.delete_files > 0 and added.position_deletes < removed.position_deletes and not removed.data_files:
        # Rows that a rewritten file hid from older snapshots become visible.
        return "overwrite"
    if adds_rows:
        return "overwrite" if drops_rows else "append"
    return "delete" if drops_rows or step.is_root else "replace"


def _format_changes(added: Totals, removed: Totals) -> dict[str, str]:
    counts = {
        "added-data-files": added.data_files,
        "deleted-data-files": removed.data_files,
        "added-records": added.records,
        "deleted-records": removed.records,
        "added-delete-files": added.delete_files,
        "added-position-delete-files": added.delete_files - added.vectors,
        "added-dvs": added.vectors,
        "removed-delete-files": removed.delete_files,
        "removed-position-delete-files": removed.delete_files - removed.vectors,
        "removed-dvs": removed.vectors,
        "added-position-deletes": added.position_deletes,
        "removed-position-deletes": removed.position_deletes,
        "added-files-size": added.files_size,
        "removed-files-size": removed.files_size,
    }
    return {key: str(count) for key, count in counts.items() if count}


def _format_totals(after: Totals) -> dict[str, str]:
    return {
        "total-records": str(after.records),
        "total-files-size": str(after.files_size),
        "total-data-files": str(after.data_files),
        "total-delete-files": str(after.delete_files),
        "total-position-deletes": str(after.position_deletes),
        "total-equality-deletes": "0",
    }
