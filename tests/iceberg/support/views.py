"""Views, and strategies that draw updates of them."""

from hypothesis import strategies as st

from duckicelake.iceberg.requests import updates as actions
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.view_metadata import SqlRepresentation, ViewMetadata, ViewVersion
from tests.iceberg.support.updates import NOW_MS, UUID, column

SCHEMAS = [Schema(0, (column(1, "a"),)), Schema(4, (column(1, "a"), column(2, "b", "string")))]


def version(version_id=1, sql="SELECT 1", dialects=("spark",), **changes):
    """A definition of a view."""
    values = {
        "schema_id": 0,
        "timestamp_ms": NOW_MS - 1000 + version_id,
        "summary": {"engine-name": "test"},
        "representations": tuple(SqlRepresentation(sql, dialect) for dialect in dialects),
        "default_namespace": ("ns",),
        "default_catalog": None,
    }
    return ViewVersion(version_id, **values | changes)


def view(*versions, **changes):
    """A view whose last version is the current one."""
    found = versions or (version(),)
    values = {
        "format_version": 1,
        "location": "s3://b/v",
        "schemas": (SCHEMAS[0],),
        "current_version_id": found[-1].version_id,
        "versions": tuple(found),
        "version_log": tuple((item.timestamp_ms, item.version_id) for item in found),
        "properties": {},
    }
    return ViewMetadata(UUID, **values | changes)


VERSIONS = st.builds(
    version,
    st.integers(1, 3),
    st.sampled_from(["SELECT 1", "SELECT 2"]),
    st.sampled_from([("spark",), ("spark", "trino"), ("DuckDB",)]),
    schema_id=st.integers(-1, 2),
    default_catalog=st.none() | st.just("cat"),
)
VIEW_UPDATES = st.one_of(
    st.builds(actions.AssignUuid, st.just(UUID)),
    st.builds(actions.UpgradeFormatVersion, st.integers(0, 2)),
    st.builds(actions.AddSchema, st.sampled_from(SCHEMAS)),
    st.builds(actions.SetLocation, st.sampled_from(["s3://b/v", "s3://b/w"])),
    st.builds(
        actions.SetProperties,
        st.dictionaries(st.sampled_from(["a", "version.history.num-entries"]), st.sampled_from(["1", "2"]), max_size=2),
    ),
    st.builds(actions.RemoveProperties, st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True).map(tuple)),
    st.builds(actions.AddViewVersion, VERSIONS),
    st.builds(actions.SetCurrentViewVersion, st.integers(-1, 3)),
)
