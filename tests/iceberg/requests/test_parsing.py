import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.requests import updates as actions
from duckicelake.iceberg.requests.updates import parse_table_updates, parse_view_updates
from duckicelake.iceberg.snapshots import SnapshotRef
from tests.iceberg.support.updates import NAMES, TABLE_UPDATES, UUID, format_update, snapshot
from tests.iceberg.support.views import VIEW_UPDATES

SNAPSHOT = {"snapshot-id": 3, "timestamp-ms": 1, "manifest-list": "s3://b/l.avro", "summary": {"operation": "append"}}
STATISTICS = {"snapshot-id": 3, "statistics-path": "s", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
SCHEMA = {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}]}


@given(st.lists(TABLE_UPDATES, max_size=4))
def test_table_updates_come_back(updates):
    """parse(format(x)) = x, in the order sent."""
    assert parse_table_updates(json.loads(json.dumps([format_update(item) for item in updates]))) == tuple(updates)


@given(st.lists(VIEW_UPDATES, max_size=4))
def test_view_updates_come_back(updates):
    """parse(format(x)) = x for views."""
    assert parse_view_updates(json.loads(json.dumps([format_update(item) for item in updates]))) == tuple(updates)


def test_every_action_has_a_reader():
    """The tests know every update, and each is read for tables, for views, or for both."""
    tables, views = actions.TableUpdate.__args__, actions.ViewUpdate.__args__
    assert set(NAMES) == {*tables, *views}
    assert len(NAMES) == 23


def test_a_ref_is_read_whole():
    """Retention fields stand beside the name, not below it."""
    node = {
        "action": "set-snapshot-ref",
        "ref-name": "audit",
        "type": "Branch",
        "snapshot-id": 3,
        "min-snapshots-to-keep": 2,
        "max-ref-age-ms": 9,
    }
    assert parse_table_updates([node]) == (actions.SetSnapshotRef("audit", SnapshotRef(3, "branch", 9, None, 2)),)


def test_fields_of_a_spec_may_have_no_ids():
    """The server numbers the fields that a client leaves open."""
    node = {"action": "add-spec", "spec": {"fields": [{"name": "d", "transform": "day", "source-id": 2}]}}
    assert parse_table_updates([node]) == (actions.AddSpec(PartitionSpec(0, (PartitionField(2, -1, "d", "day"),))),)


def test_what_is_not_known_is_ignored():
    """Keys that the specification has no use for are no error; the deprecated ones are checked."""
    node = {"action": "add-snapshot", "snapshot": SNAPSHOT | {"new": 1}, "newer": [2]}
    expected = replace(snapshot(3), timestamp_ms=1, manifest_list="s3://b/l.avro", sequence_number=0, schema_id=None)
    assert parse_table_updates([node]) == (actions.AddSnapshot(expected),)
    assert parse_table_updates([{"action": "set-statistics", "snapshot-id": 3, "statistics": STATISTICS}])


def test_names_of_old_clients_are_read():
    """Java before 1.0 said `updated` and `removed`; the specified names win."""
    old = [{"action": "set-properties", "updated": {"a": "1"}}, {"action": "remove-properties", "removed": ["b"]}]
    both = [{"action": "set-properties", "updated": {"a": "1"}, "updates": {"a": "2"}}]
    assert parse_table_updates(old) == (actions.SetProperties({"a": "1"}), actions.RemoveProperties(("b",)))
    assert parse_table_updates(both) == (actions.SetProperties({"a": "2"}),)


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        pytest.param(7, r"Cannot read updates\[1\]: it is not a JSON object", id="no-object"),
        pytest.param({}, r"updates\[1\]: 'action' is missing", id="no-action"),
        pytest.param({"action": "explode"}, r"updates\[1\]: action 'explode' is unknown; send one of assign-uuid, ", id="unknown"),
        pytest.param({"action": "add-view-version"}, r"updates\[1\]: .* cannot change a table", id="of-views"),
        pytest.param({"action": "add-encryption-key", "encryption-key": {}}, r"needs table encryption", id="encryption"),
        pytest.param({"action": "assign-uuid", "uuid": "x"}, r"'uuid' is missing or malformed; send a UUID", id="no-uuid"),
        pytest.param({"action": "upgrade-format-version", "format-version": "3"}, r"updates\[1\]: 'format-version'", id="text-for-number"),
        pytest.param({"action": "upgrade-format-version", "format-version": True}, r"updates\[1\]: 'format-version'", id="flag-for-number"),
        pytest.param({"action": "set-current-schema", "schema-id": 2**31}, r"updates\[1\]: 'schema-id'.*32-bit", id="huge"),
        pytest.param({"action": "set-default-spec", "spec-id": 1.0}, r"updates\[1\]: 'spec-id'", id="fraction"),
        pytest.param({"action": "add-schema"}, r"updates\[1\]: 'schema' is missing", id="no-schema"),
        pytest.param(
            {"action": "add-schema", "schema": {"fields": [{"id": 1}]}}, r"updates\[1\]\.schema: Cannot read field", id="bad-field"
        ),
        pytest.param({"action": "add-schema", "schema": SCHEMA, "last-column-id": "1"}, r"'last-column-id'", id="bad-deprecated"),
        pytest.param({"action": "add-spec", "spec": {"fields": [{}]}}, r"updates\[1\]\.spec: Cannot read partition field", id="bad-spec"),
        pytest.param({"action": "add-sort-order", "sort-order": {"order-id": 0}}, r"updates\[1\]\.sort-order: ", id="bad-order"),
        pytest.param({"action": "add-snapshot", "snapshot": {"snapshot-id": -3}}, r"updates\[1\]\.snapshot: .*negative", id="negative-id"),
        pytest.param(
            {"action": "add-snapshot", "snapshot": SNAPSHOT | {"summary": {"a": 1}}}, r"'summary'.*strings", id="number-in-summary"
        ),
        pytest.param({"action": "set-snapshot-ref", "ref-name": "", "type": "tag", "snapshot-id": 1}, r"'ref-name'", id="no-name"),
        pytest.param(
            {"action": "set-snapshot-ref", "ref-name": "a", "type": "leaf", "snapshot-id": 1}, r"updates\[1\]: .*leaf", id="no-ref-type"
        ),
        pytest.param({"action": "remove-snapshots", "snapshot-ids": [1, "2"]}, r"'snapshot-ids'.*64-bit", id="text-in-ids"),
        pytest.param({"action": "remove-snapshots"}, r"'snapshot-ids' is missing", id="no-ids"),
        pytest.param({"action": "set-location", "location": ""}, r"'location'", id="no-location"),
        pytest.param({"action": "set-location", "location": "\ud800"}, r"'location'", id="half-a-surrogate"),
        pytest.param({"action": "set-properties", "updates": {"a": None}}, r"'updates'.*strings", id="null-property"),
        pytest.param({"action": "set-properties"}, r"'updates' is missing", id="no-properties"),
        pytest.param({"action": "remove-properties", "removals": "a"}, r"'removals' of updates\[1\]", id="text-for-array"),
        pytest.param({"action": "remove-properties", "removals": [1]}, r"'removals'.*array of strings", id="number-in-names"),
        pytest.param(
            {"action": "set-statistics", "snapshot-id": 4, "statistics": STATISTICS}, r"'snapshot-id' is not the one", id="two-snapshots"
        ),
        pytest.param({"action": "remove-partition-specs", "spec-ids": None}, r"'spec-ids' is missing", id="null-ids"),
        pytest.param({"action": "remove-schemas", "schema-ids": [2**40]}, r"'schema-ids'", id="huge-id"),
    ],
)
def test_a_malformed_update_names_its_place(node, problem):
    """The message says which update of the request it is, and what of it."""
    good = {"action": "assign-uuid", "uuid": UUID}
    with pytest.raises(BadRequest, match=problem):
        parse_table_updates([good, node])


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        pytest.param({"action": "add-spec"}, r"updates\[0\]: action 'add-spec' cannot change a view", id="of-tables"),
        pytest.param({"action": "add-view-version", "view-version": {"version-id": 1}}, r"updates\[0\]\.view-version: ", id="bad-version"),
        pytest.param({"action": "set-current-view-version"}, r"updates\[0\]: 'view-version-id'", id="no-version"),
    ],
)
def test_a_malformed_update_of_a_view_names_its_place(node, problem):
    """Views have updates of their own, and the same messages."""
    with pytest.raises(BadRequest, match=problem):
        parse_view_updates([node])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@st.composite
def broken_updates(draw):
    """An update as JSON with one value somewhere put in the place of another."""
    root = [json.loads(json.dumps(format_update(draw(TABLE_UPDATES | VIEW_UPDATES))))]
    node = root
    while True:
        key = draw(st.sampled_from(range(len(node)) if isinstance(node, list) else sorted(node)))
        if not isinstance(node[key], list | dict) or not node[key] or draw(st.booleans()):
            node[key] = draw(JSON)
            return root
        node = node[key]


@given(broken_updates(), st.sampled_from([parse_table_updates, parse_view_updates]))
def test_any_json_is_read_or_refused(value, parse):
    """No JSON raises anything but BadRequest."""
    try:
        parse(value)
    except BadRequest:
        pass
