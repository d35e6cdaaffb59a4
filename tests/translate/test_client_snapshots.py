"""A snapshot's summary: what its client wrote, and what its rows show now."""

import json

import pytest

from duckicelake.lake.rows import SnapshotNote
from duckicelake.translate.client_snapshots import with_client_summary
from duckicelake.translate.visibility import TrackedFile, Visibility, build_history
from tests.translate.support.states import make_state, snapshot, visibility

OWN = {"flink.max-committed-checkpoint-id": "3", "kafka.connect.offsets.topic.0": "{}", "spark.sql.streaming.epochId": "7", "engine": "x"}
ROWS = {"operation": "overwrite", "added-records": "5", "total-records": "9", "ducklake.snapshot-id": "4"}


def note(operation: str | None) -> SnapshotNote:
    """What a client wrote of its snapshot, counts that are not the rows' among it."""
    said = {"operation": operation} if operation else {}
    return SnapshotNote(4, 77, 0, json.dumps({**said, "added-records": "1", "total-records": "1", "deleted-records": "8", **OWN}))


@pytest.mark.parametrize(
    ("client", "rows", "is_combined", "published"),
    [
        ("append", "append", False, "append"),
        ("append", "overwrite", False, "overwrite"),
        ("append", "delete", True, "delete"),
        ("append", "replace", False, "append"),
        ("overwrite", "append", False, "overwrite"),
        ("delete", "delete", True, "delete"),
        ("delete", "replace", False, "delete"),
        ("delete", "overwrite", True, "overwrite"),
        ("delete", "append", True, "append"),
        ("replace", "overwrite", False, "replace"),
        ("replace", "overwrite", True, "overwrite"),
        ("replace", "delete", True, "delete"),
        (None, "append", False, "append"),
    ],
)
def test_a_corrected_operation_leaves_what_the_client_wrote(client: str | None, rows: str, is_combined: bool, published: str) -> None:
    """Writers read their progress from the summary; only the operation and the counts are the rows'."""
    found = with_client_summary({**ROWS, "operation": rows}, note(client), {}, is_combined=is_combined)
    assert found == {**ROWS, **OWN, "operation": published}


def test_counts_of_manifests_are_those_of_what_is_published() -> None:
    """The server arranges manifests itself, whatever a client wrote; a client that counts none is left at that."""
    told = SnapshotNote(4, 77, 0, json.dumps({"operation": "replace", "manifests-replaced": "9", "manifests-created": "1"}))
    counts = {"manifests-replaced": "0", "manifests-created": "0", "manifests-kept": "9"}
    found = with_client_summary({**ROWS, "operation": "replace"}, told, counts)
    assert found == {**ROWS, "operation": "replace", "manifests-replaced": "0", "manifests-created": "0"}
    assert with_client_summary(ROWS, None, counts) == ROWS


def find_combined(files: list[TrackedFile], deletes: dict[int, Visibility]) -> list[bool]:
    """Of the snapshots 2, 5 and 8, which have changes of others too."""
    return [step.is_combined for step in build_history(make_state([snapshot(2), snapshot(5), snapshot(8)]), files, deletes).steps]


def test_a_snapshot_with_changes_of_expired_ones_is_combined() -> None:
    """Files that began or ended, and rows that were deleted, at a lake snapshot between two published ones."""
    lasting = TrackedFile(1, 2, None, 9)
    assert find_combined([lasting, TrackedFile(2, 5, 8, 9)], {1: visibility({}, {0: 5, 1: 8})}) == [False, False, False]
    assert find_combined([lasting, TrackedFile(2, 4, 8, 9)], {}) == [False, True, False]
    assert find_combined([lasting, TrackedFile(2, 5, 7, 9)], {}) == [False, False, True]
    assert find_combined([lasting], {1: visibility({}, {0: 3, 1: 5})}) == [False, True, False]
    assert find_combined([lasting, TrackedFile(2, 3, 4, 9)], {}) == [False, False, False]
    assert find_combined([TrackedFile(1, 1, None, 9)], {1: visibility({}, {0: 1})}) == [False, False, False]
