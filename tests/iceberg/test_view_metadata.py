import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.view.metadata import ViewMetadata as OracleView

from duckicelake.errors import BadRequest
from duckicelake.iceberg.view_metadata import (
    SqlRepresentation,
    ViewMetadata,
    ViewVersion,
    encode_view,
    format_version,
    format_view,
    get_current_version,
    parse_version,
    parse_view,
)
from tests.iceberg.support.views import SCHEMAS, version, view

# The view of the specification's appendix «An Example», its second version.
EXAMPLE = {
    "view-uuid": "fa6506c3-7681-40c8-86dc-e36561f83385",
    "format-version": 1,
    "location": "s3://bucket/warehouse/default.db/event_agg",
    "current-version-id": 2,
    "properties": {"comment": "Daily event counts"},
    "versions": [
        {
            "version-id": 1,
            "timestamp-ms": 1573518431292,
            "schema-id": 1,
            "default-catalog": "prod",
            "default-namespace": ["default"],
            "summary": {"engine-name": "Spark", "engineVersion": "3.3.2"},
            "representations": [
                {"type": "sql", "sql": "SELECT\n    COUNT(1), CAST(event_ts AS DATE)\nFROM events\nGROUP BY 2", "dialect": "spark"}
            ],
        },
        {
            "version-id": 2,
            "timestamp-ms": 1573518981593,
            "schema-id": 1,
            "default-catalog": "prod",
            "default-namespace": ["default"],
            "summary": {"engine-name": "Spark", "engineVersion": "3.3.2"},
            "representations": [
                {"type": "sql", "sql": "SELECT 1", "dialect": "spark"},
                {"type": "sql", "sql": "SELECT 2", "dialect": "trino"},
            ],
        },
    ],
    "schemas": [
        {
            "schema-id": 1,
            "type": "struct",
            "fields": [
                {"id": 1, "name": "event_count", "required": False, "type": "int", "doc": "Count of events"},
                {"id": 2, "name": "event_date", "required": False, "type": "date"},
            ],
        }
    ],
    "version-log": [{"timestamp-ms": 1573518431292, "version-id": 1}, {"timestamp-ms": 1573518981593, "version-id": 2}],
}

TEXTS = st.text(max_size=4)
REPRESENTATIONS = st.lists(
    st.builds(SqlRepresentation, TEXTS, st.sampled_from(["spark", "trino", "duckdb"])),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item.dialect,
)
VERSIONS = st.builds(
    ViewVersion,
    st.integers(1, 2**31 - 1),
    st.sampled_from([0, 4]),
    st.integers(0, 2**62),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    REPRESENTATIONS.map(tuple),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.none() | TEXTS,
)


@st.composite
def views(draw):
    """Views with everything the specification knows."""
    versions = draw(st.lists(VERSIONS, min_size=1, max_size=3, unique_by=lambda item: item.version_id))
    return ViewMetadata(
        view_uuid=draw(TEXTS),
        format_version=1,
        location=draw(TEXTS),
        schemas=tuple(SCHEMAS),
        current_version_id=draw(st.sampled_from(versions)).version_id,
        versions=tuple(versions),
        version_log=tuple((draw(st.integers(0, 2**62)), item.version_id) for item in versions),
        properties=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
    )


@given(views())
def test_views_come_back(found):
    """parse(encode(x)) = x, with the same bytes every time."""
    assert parse_view(json.loads(encode_view(found))) == found
    assert encode_view(parse_view(json.loads(encode_view(found)))) == encode_view(found)


@given(VERSIONS)
def test_versions_come_back(found):
    """parse(format(x)) = x."""
    assert parse_version(format_version(found)) == found


def test_the_specifications_example_is_read():
    """And written with the same content."""
    found = parse_view(EXAMPLE)
    assert format_view(found) == EXAMPLE
    assert get_current_version(found).representations[1] == SqlRepresentation("SELECT 2", "trino")


def test_pyiceberg_reads_our_views():
    """A foreign reader finds the same."""
    oracle = OracleView.model_validate(format_view(view(version(1), version(2, "SELECT 2", ("spark", "trino")), properties={"a": "b"})))
    assert (oracle.current_version_id, oracle.properties) == (2, {"a": "b"})
    assert [item.root.dialect for item in oracle.versions[1].representations] == ["spark", "trino"]


def changed(path, value):
    """The example with one value changed; None removes it."""
    node = json.loads(json.dumps(EXAMPLE))
    place = node
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return node


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        pytest.param(["format-version"], 2, "format version 2 is not supported", id="newer"),
        pytest.param(["view-uuid"], None, "'view-uuid' is missing", id="no-uuid"),
        pytest.param(["current-version-id"], 3, "current-version-id 3 is not in versions", id="no-current"),
        pytest.param(["versions", 1, "schema-id"], 9, r"versions \[2\] have a schema-id", id="no-schema"),
        pytest.param(["versions", 1, "version-id"], 1, "current-version-id 2", id="version-gone"),
        pytest.param(["versions", 0, "version-id"], 2, "a version id occurs twice", id="twice"),
        pytest.param(["versions", 0, "representations"], [], "it has no query", id="no-query"),
        pytest.param(
            ["versions", 0, "representations", 0, "type"], "relational", r"unsupported view representations: \[relational\]", id="type"
        ),
        pytest.param(["versions", 1, "representations", 1, "dialect"], "SPARK", "multiple queries for dialect spark", id="dialect-twice"),
        pytest.param(["versions", 0, "default-namespace"], [1], "'default-namespace'", id="number-in-namespace"),
        pytest.param(["versions", 0, "default-namespace"], None, "'default-namespace'", id="no-namespace"),
        pytest.param(["versions", 0, "representations", 0, "sql"], 1, "'sql'", id="no-text"),
        pytest.param(["version-log", 0], 1, "version-log", id="log"),
    ],
)
def test_what_is_no_view_is_refused(path, value, problem):
    """A message says what is wrong, and never anything but BadRequest."""
    with pytest.raises(BadRequest, match=problem):
        parse_view(changed(path, value))
