from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.requests.requirements import (
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUuid,
    AssertViewUuid,
    check_requirements,
    check_view_requirements,
    is_create,
    parse_requirements,
)
from duckicelake.iceberg.snapshots import SnapshotRef
from tests.iceberg.support.updates import UUID, snapshot, table
from tests.iceberg.support.views import view

OTHER = "00000000-0000-0000-0000-000000000000"
TABLE = table(
    snapshots=(snapshot(1), snapshot(2)),
    current_snapshot_id=1,
    refs={"main": SnapshotRef(1, "branch"), "old": SnapshotRef(2, "tag")},
)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"type": "assert-create"}, AssertCreate()),
        ({"type": "assert-table-uuid", "uuid": UUID}, AssertTableUuid(UUID)),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}, AssertRefSnapshotId("main", 7)),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}, AssertRefSnapshotId("main", None)),
        ({"type": "assert-ref-snapshot-id", "ref": "main"}, AssertRefSnapshotId("main", None)),
        ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}, AssertLastAssignedFieldId(2)),
        ({"type": "assert-current-schema-id", "current-schema-id": 0}, AssertCurrentSchemaId(0)),
        ({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999}, AssertLastAssignedPartitionId(999)),
        ({"type": "assert-default-spec-id", "default-spec-id": 0}, AssertDefaultSpecId(0)),
        ({"type": "Assert-Default-Sort-Order-Id", "default-sort-order-id": 0}, AssertDefaultSortOrderId(0)),
        ({"type": "assert-view-uuid", "uuid": UUID}, AssertViewUuid(UUID)),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_each_requirement_is_read(node, expected):
    """One frozen value per type of the specification."""
    assert parse_requirements([node]) == (expected,)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param({}, "requirements: it is not a JSON array", id="no-array"),
        pytest.param([{"type": "assert-create"}, 1], r"requirements\[1\]: it is not a JSON object", id="no-object"),
        pytest.param(
            [{"type": "assert-luck"}], r"requirements\[0\]: type 'assert-luck' is unknown; send one of assert-create, ", id="unknown"
        ),
        pytest.param([{"type": "assert-table-uuid"}], r"requirements\[0\]: 'uuid' is missing", id="no-uuid"),
        pytest.param([{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "1"}], r"'snapshot-id'", id="text-for-number"),
    ],
)
def test_a_malformed_requirement_names_its_place(value, problem):
    """What no reader knows is refused, never skipped."""
    with pytest.raises(BadRequest, match=problem):
        parse_requirements(value)


def test_no_requirements_are_none():
    """A body may leave them out."""
    assert parse_requirements(None) == parse_requirements([]) == ()


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        (AssertCreate(), "table already exists"),
        (AssertTableUuid(OTHER), f"UUID does not match: expected {UUID} != {OTHER}"),
        (AssertRefSnapshotId("main", None), "branch main was created concurrently"),
        (AssertRefSnapshotId("old", None), "tag old was created concurrently"),
        (AssertRefSnapshotId("main", 2), "branch main has changed: expected id 2 != 1"),
        (AssertRefSnapshotId("old", 1), "tag old has changed: expected id 1 != 2"),
        (AssertRefSnapshotId("new", 1), "branch or tag new is missing, expected 1"),
        (AssertLastAssignedFieldId(9), "last assigned field id changed: expected id 9 != 2"),
        (AssertCurrentSchemaId(9), "current schema changed: expected id 9 != 0"),
        (AssertLastAssignedPartitionId(9), "last assigned partition id changed: expected id 9 != 999"),
        (AssertDefaultSpecId(9), "default partition spec changed: expected id 9 != 0"),
        (AssertDefaultSortOrderId(9), "default sort order changed: expected id 9 != 0"),
    ],
    ids=str,
)
def test_a_broken_requirement_says_so_in_javas_words(requirement, message):
    """Clients and the compatibility kit compare these texts (Iceberg 1.11 `UpdateRequirement`)."""
    with pytest.raises(CommitFailed) as refusal:
        check_requirements(TABLE, [AssertTableUuid(UUID), requirement])
    assert refusal.value.message == f"Requirement failed: {message}"


@given(st.data())
def test_what_the_state_says_of_itself_holds(data):
    """Requirements made from a state hold for that state, whatever the case of its uuid."""
    metadata = replace(TABLE, last_column_id=data.draw(st.integers(2, 9)), current_schema_id=data.draw(st.integers(0, 9)))
    own = [
        AssertTableUuid(data.draw(st.sampled_from([UUID, UUID.upper()]))),
        AssertRefSnapshotId("main", 1),
        AssertRefSnapshotId("old", 2),
        AssertRefSnapshotId("none", None),
        AssertLastAssignedFieldId(metadata.last_column_id),
        AssertCurrentSchemaId(metadata.current_schema_id),
        AssertLastAssignedPartitionId(999),
        AssertDefaultSpecId(0),
        AssertDefaultSortOrderId(0),
    ]
    check_requirements(metadata, data.draw(st.permutations(own)))


def test_a_missing_table_meets_only_assert_create():
    """Nothing can be relied on of a table that is not there."""
    check_requirements(None, [AssertCreate()])
    with pytest.raises(CommitFailed, match="current table metadata is missing"):
        check_requirements(None, [AssertTableUuid(UUID)])


def test_assert_create_stands_alone():
    """A request that creates relies on nothing else; one that relies on nothing creates nothing."""
    assert is_create([AssertCreate()])
    assert not is_create([])
    assert not is_create([AssertTableUuid(UUID)])
    with pytest.raises(BadRequest, match=r"Invalid create requirements: \['AssertTableUuid'\]"):
        is_create([AssertTableUuid(UUID), AssertCreate()])


def test_views_have_a_requirement_of_their_own():
    """A view's uuid is asserted of views, and nothing else is."""
    check_view_requirements(view(), [AssertViewUuid(UUID.upper())])
    with pytest.raises(CommitFailed) as refusal:
        check_view_requirements(view(), [AssertViewUuid(OTHER)])
    assert refusal.value.message == f"Requirement failed: view UUID does not match: expected {UUID} != {OTHER}"
    with pytest.raises(BadRequest, match="against a view"):
        check_view_requirements(view(), [AssertTableUuid(UUID)])
    with pytest.raises(BadRequest, match="against a table"):
        check_requirements(TABLE, [AssertViewUuid(UUID)])
