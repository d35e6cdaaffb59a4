import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import encode_metadata, format_metadata, parse_metadata
from duckicelake.iceberg.partition import UNPARTITIONED, UNSORTED
from duckicelake.iceberg.requests.table_changes import apply_updates, get_previous_versions_max
from duckicelake.iceberg.requests.updates import (
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    AssignUuid,
    RemoveProperties,
    RemoveSnapshotRef,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    SetSnapshotRef,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.snapshots import SnapshotRef
from tests.iceberg.support.updates import NOW_MS, ORDERS, SCHEMAS, SPECS, TABLE_UPDATES, UUID, likely_requests, snapshot, table

OTHER = "00000000-0000-0000-0000-000000000000"


def apply(base, *updates, now_ms=NOW_MS):
    return apply_updates(base, updates, now_ms)


@given(st.sampled_from([1, 2, 3]), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_request_gives_valid_metadata_or_changes_nothing(version, data):
    """Whatever is asked: the answer is refused, or it is metadata that we and PyIceberg can read back whole."""
    base = table(version)
    for _ in range(data.draw(st.integers(1, 3))):
        before = encode_metadata(base)
        updates = data.draw(likely_requests(base) | st.lists(TABLE_UPDATES, max_size=3).map(tuple))
        try:
            changed = apply(base, *updates)
        except (BadRequest, CommitFailed):
            assert encode_metadata(base) == before
            continue
        assert parse_metadata(json.loads(encode_metadata(changed))) == changed
        TableMetadataUtil.parse_obj(format_metadata(changed))
        assert changed.last_column_id >= base.last_column_id
        assert changed.last_partition_id >= base.last_partition_id
        assert changed.last_sequence_number >= base.last_sequence_number
        assert changed.format_version >= base.format_version
        base = changed


@given(st.sampled_from([1, 2, 3]), st.data())
def test_a_request_in_two_halves_gives_the_same(version, data):
    """Updates apply in order: what comes first is there for what comes after, -1 aside, which means this request's own."""
    base = table(version)
    updates = data.draw(likely_requests(base))
    try:
        whole = apply(base, *updates)
    except (BadRequest, CommitFailed):
        return
    half = len(updates) // 2
    if any(getattr(item, name, 0) == -1 for item in updates for name in ("schema_id", "spec_id", "order_id")):
        return
    parted = apply(apply(base, *updates[:half]), *updates[half:])
    assert replace(parted, snapshot_log=()) == replace(whole, snapshot_log=())


def test_nothing_asked_changes_nothing():
    """No update, or only ones that say what is so already, give the very same metadata: no new version is written."""
    base = table(snapshots=(snapshot(1),), current_snapshot_id=1, refs={"main": SnapshotRef(1, "branch")}, last_sequence_number=1)
    assert apply(base) is base
    same = (
        AssignUuid(UUID.upper()),
        UpgradeFormatVersion(2),
        AddSchema(replace(SCHEMAS[0], schema_id=8)),
        SetCurrentSchema(-1),
        AddSpec(UNPARTITIONED),
        SetDefaultSpec(-1),
        AddSortOrder(UNSORTED),
        SetDefaultSortOrder(-1),
        SetSnapshotRef("main", SnapshotRef(1, "branch")),
        RemoveSnapshotRef("none"),
        SetLocation(base.location),
        SetProperties({"owner": "alice"}),
        RemoveProperties(("none",)),
    )
    assert apply(base, *same) is base


def test_properties_are_added_replaced_and_removed():
    """An upsert; removing what is not there is no error."""
    changed = apply(table(), SetProperties({"a": "1", "owner": "bob"}), RemoveProperties(("a", "none")), SetProperties({"b": ""}))
    assert changed.properties == {"owner": "bob", "b": ""}
    assert changed.last_updated_ms == NOW_MS


def test_reserved_properties_are_not_stored():
    """What Iceberg derives is no property; `format-version` upgrades instead."""
    changed = apply(table(2), SetProperties({"format-version": "3", "uuid": OTHER, "current-snapshot-id": "7", "a": "b"}))
    assert changed.properties == {"owner": "alice", "a": "b"}
    assert (changed.format_version, changed.table_uuid, changed.next_row_id) == (3, UUID, 0)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (UpgradeFormatVersion(1), "Cannot downgrade v2 table to v1"),
        (UpgradeFormatVersion(4), "Cannot upgrade table to unsupported format version: v4 (supported: v3)"),
        (SetProperties({"format-version": "1"}), "Cannot downgrade v2 table to v1"),
        (SetProperties({"format-version": "two"}), "Invalid table property format-version: 'two' is no number; send 1, 2 or 3"),
        (AssignUuid(OTHER), f"Cannot reassign uuid: the table has {UUID}, not {OTHER}"),
    ],
    ids=str,
)
def test_what_never_changes_is_refused(update, message):
    """A format version goes up only, a uuid is given once."""
    with pytest.raises(BadRequest) as refusal:
        apply(table(), SetLocation("s3://b/elsewhere"), update)
    assert refusal.value.message == message


def test_time_never_goes_back():
    """A server whose clock is behind still gives readers a chronological history."""
    base = table(last_updated_ms=NOW_MS + 5)
    assert apply(base, SetLocation("s3://b/u")).last_updated_ms == NOW_MS + 5
    late = apply(table(), AddSnapshot(snapshot(1, timestamp_ms=NOW_MS + 70_000)), SetSnapshotRef("main", SnapshotRef(1, "branch")))
    assert late.last_updated_ms == NOW_MS + 70_000


CREATE = (
    AssignUuid(UUID),
    UpgradeFormatVersion(2),
    AddSchema(SCHEMAS[0]),
    SetCurrentSchema(-1),
    AddSpec(SPECS[1]),
    SetDefaultSpec(-1),
    AddSortOrder(ORDERS[1]),
    SetDefaultSortOrder(-1),
    SetLocation("s3://b/t"),
    SetProperties({"owner": "alice"}),
)


def test_a_create_transaction_starts_from_nothing():
    """The order Java and PyIceberg send: everything named -1."""
    made = apply(None, *CREATE)
    expected = table(
        partition_specs=(SPECS[1],), last_partition_id=1000, sort_orders=(ORDERS[1],), default_sort_order_id=1, last_updated_ms=NOW_MS
    )
    assert made == expected


def test_a_create_transaction_may_set_the_schema_last():
    """DuckDB's order: ids are spelled out, and the current schema comes after what depends on it."""
    order = (
        AssignUuid(UUID),
        UpgradeFormatVersion(3),
        AddSchema(SCHEMAS[0]),
        AddSpec(UNPARTITIONED),
        SetDefaultSpec(0),
        AddSortOrder(UNSORTED),
        SetDefaultSortOrder(0),
        SetLocation("s3://b/t"),
        SetProperties({}),
        SetCurrentSchema(0),
    )
    assert apply(None, *order) == table(3, properties={}, last_updated_ms=NOW_MS)


def test_a_create_transaction_may_hold_several_snapshots():
    """Each has the schema that was current when it was added; ids count from 0, and orders from 1."""
    ref = SetSnapshotRef("main", SnapshotRef(1, "branch"))
    steps = (
        *CREATE,
        AddSnapshot(snapshot(1)),
        ref,
        AddSchema(SCHEMAS[1]),
        SetCurrentSchema(-1),
        AddSnapshot(snapshot(2, 1, 2, schema_id=1)),
        replace(ref, ref=SnapshotRef(2, "branch")),
    )
    made = apply(None, *steps)
    assert [item.schema_id for item in made.snapshots] == [0, 1]
    assert (made.current_snapshot_id, made.last_sequence_number, made.last_column_id) == (2, 2, 3)
    assert made.snapshot_log == ((snapshot(2).timestamp_ms, 2),)


def test_what_a_create_transaction_leaves_out_is_plain():
    """No spec is unpartitioned, no order unsorted, no version 2; uuid and location are the catalog's to give."""
    made = apply(None, AddSchema(SCHEMAS[0]))
    assert made == table(table_uuid="", location="", properties={}, last_updated_ms=NOW_MS)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        pytest.param((), "the updates give it no schema", id="nothing"),
        pytest.param((SetLocation("s3://b/t"),), "the updates give it no schema", id="no-schema"),
        pytest.param((AddSpec(SPECS[1]),), "Cannot add a partition spec before a schema is added", id="spec-first"),
        pytest.param((AddSortOrder(ORDERS[1]),), "Cannot add a sort order before a schema is added", id="order-first"),
        pytest.param((SetCurrentSchema(0),), "Cannot set current schema to unknown schema: 0", id="schema-never-added"),
        pytest.param((UpgradeFormatVersion(4),), r"Unsupported format version: v4 \(supported: v3\)", id="version-4"),
        pytest.param((UpgradeFormatVersion(0),), "Unsupported format version: v0", id="version-0"),
        pytest.param((AddSnapshot(snapshot(1)),), "Attempting to add a snapshot before a schema is added", id="snapshot-first"),
    ],
)
def test_a_table_cannot_be_made_of_less(updates, message):
    """A new table needs a schema before anything that names its columns."""
    with pytest.raises(BadRequest, match=message):
        apply(None, *updates)


def test_a_replace_transaction_keeps_the_history():
    """Main is removed, the new shape added, and a snapshot without parent put in its place: ids and log go on."""
    first = apply(None, *CREATE, AddSnapshot(snapshot(1)), SetSnapshotRef("main", SnapshotRef(1, "branch")))
    second = apply(
        first,
        RemoveSnapshotRef("main"),
        AddSchema(SCHEMAS[4]),
        SetCurrentSchema(-1),
        AddSpec(UNPARTITIONED),
        SetDefaultSpec(-1),
        AddSortOrder(UNSORTED),
        SetDefaultSortOrder(-1),
        AddSnapshot(snapshot(2, None, 2, schema_id=1)),
        SetSnapshotRef("main", SnapshotRef(2, "branch")),
    )
    assert (second.current_schema_id, second.default_spec_id, second.default_sort_order_id) == (1, 1, 0)
    assert [item for _, item in second.snapshot_log] == [1, 2]
    assert (second.last_column_id, second.last_partition_id) == (2, 1000)
    assert [item.snapshot_id for item in second.snapshots] == [1, 2]


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        pytest.param({}, 100, id="default"),
        pytest.param({"write.metadata.previous-versions-max": "2"}, 2, id="set"),
        pytest.param({"write.metadata.previous-versions-max": "0"}, 1, id="never-none"),
        pytest.param({"write.metadata.previous-versions-max": "many"}, 100, id="no-number"),
    ],
)
def test_the_log_names_as_many_metadata_files_as_the_property_says(properties, kept):
    """At least one, and 100 if the property is no number."""
    assert get_previous_versions_max(properties) == kept
