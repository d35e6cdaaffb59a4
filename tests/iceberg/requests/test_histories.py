from dataclasses import replace

import pytest

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.updates import (
    AddSnapshot,
    RemovePartitionStatistics,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    SetPartitionStatistics,
    SetSnapshotRef,
    SetStatistics,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.snapshots import PartitionStatisticsFile, SnapshotRef, StatisticsFile
from tests.iceberg.support.updates import NOW_MS, snapshot, table

LATER_MS = NOW_MS + 90_000


def apply(base, *updates, now_ms=NOW_MS):
    return apply_updates(base, updates, now_ms)


def main(snapshot_id, **more):
    return SetSnapshotRef("main", SnapshotRef(snapshot_id, "branch", **more))


def branch(name, snapshot_id):
    return SetSnapshotRef(name, SnapshotRef(snapshot_id, "branch"))


def tag(name, snapshot_id):
    return SetSnapshotRef(name, SnapshotRef(snapshot_id, "tag"))


def commit(snapshot_id, parent=None, **more):
    return AddSnapshot(snapshot(snapshot_id, parent, snapshot_id, **more)), main(snapshot_id)


def history(count=3, version=2):
    base = table(version)
    for snapshot_id in range(1, count + 1):
        base = apply(base, *commit(snapshot_id, snapshot_id - 1 or None))
    return base


def test_a_snapshot_alone_is_staged():
    """Until a ref is set, it is in the history and nobody's state."""
    found = apply(history(1), AddSnapshot(snapshot(2, 1, 2)))
    assert [item.snapshot_id for item in found.snapshots] == [1, 2]
    assert (found.current_snapshot_id, found.last_sequence_number) == (1, 2)
    assert found.snapshot_log == history(1).snapshot_log


def test_main_is_the_current_snapshot():
    """Setting it moves the table, and the log says since when: a new snapshot's own time."""
    found = history(2)
    assert (found.current_snapshot_id, found.refs) == (2, {"main": SnapshotRef(2, "branch")})
    assert found.snapshot_log == ((snapshot(1).timestamp_ms, 1), (snapshot(2).timestamp_ms, 2))


def test_a_rollback_is_logged_with_its_own_time():
    """A snapshot from before becomes current now, not when it was made."""
    found = apply(history(2), main(1), now_ms=LATER_MS)
    assert found.snapshot_log[-1] == (LATER_MS, 1)
    assert (found.current_snapshot_id, found.last_updated_ms) == (1, LATER_MS)


def test_what_only_passed_through_is_not_logged():
    """Of several snapshots in one request only the last was ever current."""
    found = apply(history(1), *commit(2, 1), *commit(3, 2))
    assert [item for _, item in found.snapshot_log] == [1, 3]
    assert [item.snapshot_id for item in found.snapshots] == [1, 2, 3]


def test_the_log_is_in_order_of_time():
    """A client whose clock is behind cannot make a history that readers refuse."""
    found = apply(history(1), AddSnapshot(snapshot(2, 1, 2, timestamp_ms=5)), main(2))
    assert found.snapshot_log[-1] == (snapshot(1).timestamp_ms, 2)
    assert found.snapshots[-1].timestamp_ms == 5


def test_retention_alone_is_no_change_of_state():
    """Main keeps its snapshot: the ref changes and the log does not."""
    base = history(1)
    found = apply(base, main(1, min_snapshots_to_keep=5))
    assert found.refs["main"].min_snapshots_to_keep == 5
    assert found.snapshot_log == base.snapshot_log


def test_branches_and_tags_move_alone():
    """Other refs leave the table's state and its log as they are; a ref may become of the other kind."""
    found = apply(history(2), tag("old", 1), branch("audit", 1), branch("old", 2))
    assert found.refs == {"main": SnapshotRef(2, "branch"), "audit": SnapshotRef(1, "branch"), "old": SnapshotRef(2, "branch")}
    assert found.current_snapshot_id == 2
    assert apply(found, RemoveSnapshotRef("audit")).refs.keys() == {"main", "old"}


def test_without_main_there_is_no_current_snapshot():
    """The history and its log stay, as a replace transaction needs them."""
    found = apply(history(2), RemoveSnapshotRef("main"))
    assert (found.current_snapshot_id, found.refs, len(found.snapshots)) == (None, {}, 2)
    assert found.snapshot_log == history(2).snapshot_log


def test_removed_snapshots_take_their_refs_and_statistics_along():
    """Nothing names what is not there; other ids are no error."""
    base = apply(
        history(3),
        tag("first", 1),
        SetStatistics(StatisticsFile(1, "s", 1, 1, ())),
        SetStatistics(StatisticsFile(3, "s", 1, 1, ())),
        SetPartitionStatistics(PartitionStatisticsFile(1, "p", 1)),
    )
    found = apply(base, RemoveSnapshots((1, 77)))
    assert [item.snapshot_id for item in found.snapshots] == [2, 3]
    assert found.refs.keys() == {"main"}
    assert [item.snapshot_id for item in found.statistics] == [3]
    assert found.partition_statistics == ()


def test_the_log_has_no_gap():
    """What was current before a removed snapshot would seem to have stayed so: the log starts after it."""
    assert [item for _, item in apply(history(4), RemoveSnapshots((2,))).snapshot_log] == [3, 4]
    assert [item for _, item in apply(history(4), RemoveSnapshots((1,))).snapshot_log] == [2, 3, 4]


def test_removing_the_current_snapshot_empties_the_table():
    """Main goes with the snapshot it points to."""
    found = apply(history(2), RemoveSnapshots((2,)))
    assert (found.current_snapshot_id, found.refs, found.snapshot_log) == (None, {}, ())


@pytest.mark.parametrize(
    ("update", "message"),
    [
        pytest.param(AddSnapshot(snapshot(2, 1, 9)), "Snapshot already exists for id: 2", id="twice"),
        pytest.param(AddSnapshot(snapshot(9, 9, 9)), "it is its own parent", id="own-parent"),
        pytest.param(AddSnapshot(snapshot(9, 2, -1)), "sequence number -1 is negative", id="negative-number"),
        pytest.param(AddSnapshot(snapshot(9, 2, 9, manifest_list="", manifests=("m",))), "it has no manifest-list", id="v1-manifests"),
        pytest.param(AddSnapshot(snapshot(9, 2, 9, key_id="k")), "it is encrypted", id="encrypted"),
        pytest.param(AddSnapshot(snapshot(9, 2, 9, summary={})), "operation None of its summary is unknown", id="no-operation"),
        pytest.param(AddSnapshot(snapshot(9, 2, 9, summary={"operation": "guess"})), "operation 'guess'", id="unknown-operation"),
        pytest.param(AddSnapshot(snapshot(9, 2, 9, schema_id=4)), "Cannot add snapshot 9: its schema 4 is unknown", id="unknown-schema"),
        pytest.param(main(9), "Cannot set main to unknown snapshot: 9", id="unknown-snapshot"),
        pytest.param(tag("main", 1), "Cannot set main to a tag, it must be a branch", id="main-tag"),
    ],
)
def test_snapshots_that_cannot_be_are_refused(update, message):
    """Java's words where it has some."""
    with pytest.raises(BadRequest, match=message):
        apply(history(2), update)


def test_a_stale_sequence_number_is_a_conflict():
    """Somebody committed meanwhile: the client may try again. A snapshot without parent replaces, whatever its number."""
    with pytest.raises(CommitFailed) as refusal:
        apply(history(2), AddSnapshot(snapshot(9, 1, 2)))
    assert refusal.value.message.endswith("Cannot add snapshot with sequence number 2 older than last sequence number 2")
    assert apply(history(2), AddSnapshot(snapshot(9, None, 1))).last_sequence_number == 2


def test_version_1_has_no_sequence_numbers():
    """They are all 0, whatever a client says."""
    found = history(2, version=1)
    assert [item.sequence_number for item in found.snapshots] == [0, 0]
    assert found.last_sequence_number == 0


def test_version_1_asks_less_of_a_snapshot():
    """Manifests may be listed in it, and its summary may be empty."""
    assert len(apply(table(1), AddSnapshot(snapshot(1, summary={}, manifest_list="", manifests=("m",)))).snapshots) == 1


def rows(snapshot_id, first_row_id, added_rows):
    return AddSnapshot(snapshot(snapshot_id, None, snapshot_id, first_row_id=first_row_id, added_rows=added_rows))


def test_row_ids_follow_each_other():
    """Each snapshot of version 3 takes the row ids it adds."""
    found = apply(table(3), rows(1, 0, 10), rows(2, 10, 0), rows(3, 12, 3))
    assert found.next_row_id == 15


@pytest.mark.parametrize(
    ("update", "kind", "message"),
    [
        pytest.param(rows(9, None, None), BadRequest, "Cannot add a snapshot: first-row-id is null", id="none"),
        pytest.param(rows(9, 10, None), BadRequest, "Invalid added-rows", id="no-count"),
        pytest.param(rows(9, 2**63 - 1, 1), BadRequest, "row ids do not fit 64 bits", id="too-many"),
        pytest.param(rows(9, 9, 1), CommitFailed, "first-row-id is behind table next-row-id: 9 < 10", id="stale"),
    ],
)
def test_row_ids_given_out_meanwhile_are_a_conflict(update, kind, message):
    """Missing ones are malformed, stale ones may be tried again."""
    with pytest.raises(kind, match=message):
        apply(apply(table(3), rows(1, 0, 10)), update)


def test_rows_have_ids_only_from_version_3():
    """Before, they are left out; after the upgrade they start at 0."""
    early = apply(table(2), rows(1, 5, 5), UpgradeFormatVersion(3), rows(2, 0, 4))
    assert (early.snapshots[0].first_row_id, early.snapshots[0].added_rows) == (None, None)
    assert early.next_row_id == 4


def test_a_snapshot_has_one_statistics_file():
    """Setting replaces, removing what is not there is no error."""
    one, two = StatisticsFile(1, "a", 1, 1, ()), StatisticsFile(1, "b", 2, 1, ())
    part = PartitionStatisticsFile(1, "p", 1)
    base = apply(
        history(1),
        SetStatistics(one),
        SetStatistics(two),
        SetPartitionStatistics(part),
        SetPartitionStatistics(replace(part, file_size_in_bytes=2)),
    )
    assert base.statistics == (two,)
    assert [item.file_size_in_bytes for item in base.partition_statistics] == [2]
    bare = apply(base, RemoveStatistics(1), RemovePartitionStatistics(1), RemoveStatistics(5), RemovePartitionStatistics(5))
    assert (bare.statistics, bare.partition_statistics) == ((), ())
