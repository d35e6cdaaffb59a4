"""What a snapshot may have grown from when a branch is put on it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from duckicelake.errors import CommitFailed
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.updates import AddSnapshot, RemoveSnapshotRef, SetSnapshotRef, TableUpdate
from duckicelake.iceberg.snapshots import SnapshotRef
from duckicelake.translate.to_ducklake.commits import check_parents
from tests.iceberg.support.updates import NOW_MS, snapshot, table


def add(snapshot_id: int, parent: int | None, number: int = 10) -> AddSnapshot:
    """A snapshot that grew from another."""
    return AddSnapshot(replace(snapshot(snapshot_id, parent, number)))


def put(name: str, snapshot_id: int, kind: str = "branch") -> SetSnapshotRef:
    """A ref put there."""
    return SetSnapshotRef(name, SnapshotRef(snapshot_id, kind))


def history(*refs: SetSnapshotRef) -> Any:
    """Snapshots 1 ← 2 ← 3, main at 3 unless the refs say another."""
    made = [add(1, None, 1), put("main", 1), add(2, 1, 2), put("main", 2), add(3, 2, 3), put("main", 3)]
    return apply_updates(table(2), [*made, *refs], NOW_MS)


@pytest.mark.parametrize(
    ("refs", "updates"),
    [
        pytest.param([], [add(4, 3), put("main", 4)], id="from main"),
        pytest.param([], [add(4, 3), add(5, 4), put("main", 5)], id="a chain"),
        pytest.param([], [add(4, 3), put("main", 4), add(5, 4), put("main", 5)], id="a chain, put one by one"),
        pytest.param([], [add(4, 3), add(5, 3), put("main", 5)], id="one beside main"),
        pytest.param([], [add(4, 1)], id="staged"),
        pytest.param([], [add(4, 1), put("fresh", 4)], id="a new branch"),
        pytest.param([], [add(4, 1), put("old", 4, "tag")], id="a tag"),
        pytest.param([], [add(4, 1), put("old", 4, "tag"), add(5, 1), put("old", 5, "tag")], id="a tag put twice"),
        pytest.param([], [add(4, 3), put("main", 4), put("main", 4)], id="put twice"),
        pytest.param([], [put("main", 1), add(4, 1), put("main", 4)], id="after going back"),
        pytest.param([], [RemoveSnapshotRef("main"), add(4, None), put("main", 4)], id="a replacement"),
        pytest.param([put("dev", 2)], [add(4, 2), put("dev", 4)], id="from a branch"),
        pytest.param([put("dev", 2)], [add(4, 3), put("main", 4), put("dev", 4)], id="a branch that follows main"),
        pytest.param([put("dev", 3)], [put("dev", 1), add(4, 1), put("dev", 4)], id="a branch begun again"),
        pytest.param([], [put("main", 2)], id="a rollback"),
    ],
)
def test_what_loses_nothing_is_taken(refs: Sequence[SetSnapshotRef], updates: Sequence[TableUpdate]) -> None:
    """A branch goes on from where it is, or to where one goes on that grew from it; what is no branch's goes anywhere."""
    check_parents(history(*refs), updates)


@pytest.mark.parametrize(
    ("refs", "updates", "said"),
    [
        pytest.param([], [add(4, 2, 3), put("main", 4)], "sequence number 3 older than last sequence number 3", id="late"),
        pytest.param([], [add(4, 2), put("main", 4)], "its parent is 2, and main is at 3", id="late, with a new number"),
        pytest.param([], [add(4, None), put("main", 4)], "its parent is None", id="a first one"),
        pytest.param([], [add(4, 77), put("main", 4)], "its parent is 77", id="from nothing"),
        pytest.param([], [add(4, 3), put("main", 4), add(5, 3), put("main", 5)], "main is at 4", id="two of one parent"),
        pytest.param([], [add(4, 2), add(5, 4), put("main", 5)], "its parent is 2", id="a late chain"),
        pytest.param([], [add(4, 5), add(5, 4), put("main", 5)], "main is at 3", id="a ring"),
        pytest.param([], [RemoveSnapshotRef("main"), add(4, 3), put("main", 4)], "main is at None", id="a replacement of what it replaces"),
        pytest.param([put("main", 2)], [add(4, 3), put("main", 4)], "main is at 2", id="what was taken back"),
        pytest.param([put("main", 2), put("dev", 3)], [add(4, 3), put("main", 4)], "main is at 2", id="main after another branch"),
        pytest.param([put("dev", 1)], [add(4, 2), put("v", 4, "tag"), put("dev", 4)], "dev is at 1", id="a branch after a tag"),
        pytest.param([put("dev", 2)], [add(4, 1), put("dev", 4)], "dev is at 2", id="a late one of a branch"),
        pytest.param([put("dev", 2), put("old", 1)], [add(4, 1), put("dev", 4)], "dev is at 2", id="from another branch, behind"),
    ],
)
def test_what_would_lose_something_is_not(refs: Sequence[SetSnapshotRef], updates: Sequence[TableUpdate], said: str) -> None:
    """What came to the branch meanwhile would be gone from it, or what went would be back."""
    with pytest.raises(CommitFailed, match=said):
        check_parents(history(*refs), updates)


def test_a_new_table_has_nothing_to_lose() -> None:
    """Whatever parent its snapshots name."""
    check_parents(None, [add(4, 3), put("main", 4)])
