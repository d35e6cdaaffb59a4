import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.requests.bodies import CreateView
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.updates import (
    AddSchema,
    AddViewVersion,
    AssignUuid,
    RemoveProperties,
    SetCurrentViewVersion,
    SetLocation,
    SetProperties,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.requests.view_changes import apply_view_updates, build_new_view
from duckicelake.iceberg.view_metadata import encode_view, get_current_version, parse_view
from tests.iceberg.support.updates import NOW_MS, UUID
from tests.iceberg.support.views import SCHEMAS, VIEW_UPDATES, version, view


def apply(base, *updates):
    return apply_view_updates(base, updates, NOW_MS)


def replaced(base, found):
    return apply(base, AddViewVersion(found), SetCurrentViewVersion(-1))


@given(st.lists(VIEW_UPDATES, max_size=5))
def test_a_request_gives_a_valid_view_or_changes_nothing(updates):
    """Whatever is asked: refused, or a view that reads back whole."""
    base = view(version(1), version(2, "SELECT 2"))
    before = encode_view(base)
    try:
        found = apply(base, *updates)
    except BadRequest:
        assert encode_view(base) == before
        return
    assert parse_view(json.loads(encode_view(found))) == found


def test_a_new_view_has_first_ids():
    """Schema 0 and version 1, whatever the client numbered; the log starts with it."""
    found = build_new_view(CreateView("v", SCHEMAS[1], version(7, schema_id=4), {"a": "b"}), NewIdentity(UUID, "s3://b/v", NOW_MS))
    expected = view(version(1, timestamp_ms=version(7).timestamp_ms), schemas=(replace(SCHEMAS[1], schema_id=0),), properties={"a": "b"})
    assert found == expected


def test_a_version_gets_the_next_id():
    """Two clients that both propose version 2 get 2 and 3; the log notes each version's own time."""
    second = replaced(view(), version(2, "SELECT 2"))
    third = replaced(second, version(2, "SELECT 3"))
    assert [item.version_id for item in third.versions] == [1, 2, 3]
    assert (third.current_version_id, third.version_log[-1]) == (3, (version(2).timestamp_ms, 3))


def test_the_same_definition_is_the_same_version():
    """Only id and time differ: nothing is added."""
    base = view(version(1), version(2, "SELECT 2"))
    assert replaced(base, version(9, "SELECT 2", timestamp_ms=5)) is base


def test_going_back_is_logged_with_its_own_time():
    """An old version becomes current now."""
    found = apply(view(version(1), version(2, "SELECT 2")), SetCurrentViewVersion(1))
    assert (found.current_version_id, found.version_log[-1]) == (1, (NOW_MS, 1))


def test_a_version_may_come_with_its_schema():
    """-1 is the schema added before it; the same columns keep their schema's id."""
    found = apply(view(), AddSchema(SCHEMAS[1]), AddViewVersion(version(2, "SELECT 2", schema_id=-1)), SetCurrentViewVersion(-1))
    assert [item.schema_id for item in found.schemas] == [0, 1]
    assert get_current_version(found).schema_id == 1
    again = apply(found, AddSchema(SCHEMAS[0]), AddViewVersion(version(3, "SELECT 3", schema_id=-1)), SetCurrentViewVersion(-1))
    assert (len(again.schemas), get_current_version(again).schema_id) == (2, 0)


def test_a_dialect_is_not_lost_by_accident():
    """Engines that read the lost dialect would fail; a property allows it. Dialects are compared without case."""
    base = view(version(dialects=("spark", "trino")))
    with pytest.raises(BadRequest) as refusal:
        replaced(base, version(2, "SELECT 2"))
    assert refusal.value.message == (
        "Cannot replace view due to loss of view dialects (replace.drop-dialect.allowed=false):\n"
        "Previous dialects: [spark, trino]\nNew dialects: [spark]"
    )
    allowed = SetProperties({"replace.drop-dialect.allowed": "true"})
    assert apply(base, allowed, AddViewVersion(version(2, "SELECT 2")), SetCurrentViewVersion(-1)).current_version_id == 2
    assert replaced(base, version(2, "SELECT 2", ("Trino", "SPARK", "duckdb"))).current_version_id == 2


def with_history(count, size):
    base = view(properties={} if size is None else {"version.history.num-entries": size})
    for i in range(2, count + 1):
        base = replaced(base, version(i, f"SELECT {i}"))
    return base


@pytest.mark.parametrize(("size", "kept"), [(None, list(range(3, 13))), ("3", [10, 11, 12]), ("1", [12])])
def test_old_versions_are_forgotten(size, kept):
    """As many as the property says, ten by default, and the log of just those."""
    found = with_history(12, size)
    assert [item.version_id for item in found.versions] == kept
    assert [item for _, item in found.version_log] == kept


def test_the_current_version_is_never_forgotten():
    """An old one that is current stays, with the newest others; the log has no gap."""
    found = apply(with_history(5, None), SetCurrentViewVersion(1), SetProperties({"version.history.num-entries": "2"}))
    assert [item.version_id for item in found.versions] == [1, 5]
    assert [item for _, item in found.version_log] == [5, 1]


def test_versions_just_added_are_kept():
    """One request's versions stay together, however short the history."""
    base = view(properties={"version.history.num-entries": "1"})
    found = apply(base, AddViewVersion(version(2, "SELECT 2")), AddViewVersion(version(3, "SELECT 3")), SetCurrentViewVersion(-1))
    assert [item.version_id for item in found.versions] == [2, 3]


def test_properties_and_location_change():
    """An upsert; the view's own uuid and version may be named."""
    base = view(properties={"a": "1", "b": "2"})
    updates = (
        AssignUuid(UUID.upper()),
        UpgradeFormatVersion(1),
        SetProperties({"a": "3"}),
        RemoveProperties(("b", "c")),
        SetLocation("s3://b/w"),
    )
    found = apply(base, *updates)
    assert (found.properties, found.location, found.view_uuid) == ({"a": "3"}, "s3://b/w", UUID)
    assert apply(found, *updates) is found


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (AssignUuid("00000000-0000-0000-0000-000000000000"), "Cannot reassign uuid"),
        (UpgradeFormatVersion(0), "Cannot downgrade v1 view to v0"),
        (UpgradeFormatVersion(2), "Unsupported format version: 2"),
        (SetCurrentViewVersion(-1), "Cannot set last version id: no current version id has been set"),
        (SetCurrentViewVersion(5), "Cannot set current version to unknown version: 5"),
        (AddViewVersion(version(2, "SELECT 2", schema_id=-1)), "Cannot set last added schema: no schema has been added"),
        (AddViewVersion(version(2, "SELECT 2", schema_id=3)), "Cannot add version with unknown schema: 3"),
        (SetProperties({"version.history.num-entries": "0"}), "version.history.num-entries must be positive but was 0"),
        (SetProperties({"version.history.num-entries": "ten"}), "version.history.num-entries must be positive but was ten"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_view_cannot_be_is_refused(update, message):
    """Java's words where it has some."""
    with pytest.raises(BadRequest) as refusal:
        apply(view(), update)
    assert refusal.value.message == message
