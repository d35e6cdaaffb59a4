"""Which of a request's snapshots are for main, and where main is to go."""

from typing import Any

import pytest

from duckicelake.iceberg.requests.updates import AddSnapshot, SetSnapshotRef, TableUpdate
from duckicelake.iceberg.snapshots import Snapshot, SnapshotRef
from duckicelake.translate.to_ducklake.commits import find_main_target, list_off_main


def add(snapshot_id: int, parent: int | None = None) -> AddSnapshot:
    """A snapshot that is added."""
    return AddSnapshot(Snapshot(snapshot_id, parent, 1, 1, "l", {"operation": "append"}, 0))


def point(name: str, snapshot_id: int) -> SetSnapshotRef:
    """A branch that is put somewhere."""
    return SetSnapshotRef(name, SnapshotRef(snapshot_id, "branch"))


@pytest.mark.parametrize(
    ("updates", "beside", "target"),
    [
        pytest.param([add(7, 1), point("main", 7)], set(), None, id="append"),
        pytest.param([add(7, 1), add(8, 7), point("main", 8)], set(), None, id="two at once"),
        pytest.param([add(7, 1), point("main", 7), add(8, 7), point("main", 8)], set(), None, id="one after the other"),
        pytest.param([add(7, 1)], {7}, None, id="staged"),
        pytest.param([add(7, 1), point("dev", 7)], {7}, None, id="branch"),
        pytest.param([add(7, 1), point("dev", 7), add(8, 1), point("main", 8)], {7}, None, id="both"),
        pytest.param([point("main", 5)], set(), 5, id="move"),
        pytest.param([add(7, 1), point("dev", 7), point("main", 5)], {7}, 5, id="branch and move"),
        pytest.param([point("main", 5), add(7, 5), point("main", 7)], set(), None, id="back and append"),
        pytest.param([point("dev", 5)], set(), None, id="a branch alone"),
    ],
)
def test_snapshots_are_for_main_or_beside_it(updates: list[TableUpdate], beside: Any, target: int | None) -> None:
    """What main, or a child of it on main, never is, is beside; a target that the request adds is no move."""
    assert list_off_main(updates) == beside
    assert find_main_target(updates) == target
