"""Java's own library as the judge of updates: what it makes of a request, and in which words it refuses."""

import json
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import TableMetadata, format_metadata, parse_metadata
from duckicelake.iceberg.partition import UNASSIGNED
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.updates import (
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    AddViewVersion,
    AssignUuid,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.requests.view_changes import apply_view_updates
from duckicelake.iceberg.view_metadata import format_view, parse_view
from tests.iceberg.support.updates import (
    NOW_MS,
    ORDERS,
    SCHEMAS,
    SPECS,
    TABLE_UPDATES,
    UUID,
    format_update,
    likely_requests,
    snapshot,
    table,
)
from tests.iceberg.support.views import VIEW_UPDATES, version, view
from tests.support.examples import examples

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PATIENT = settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))

# Where we say otherwise on purpose: what Java refuses for no need, or takes and cannot read any more.
JAVA_ALONE_REFUSES = (
    "Cannot set last added",
    "Sequence number must be 0 in v1",
    "arraySize cannot be negative",
    "greater than last sequence number",
    "is null",
    "NullPointerException",
    "Expected sorted snapshot log entries",
)
WE_ALONE_REFUSE = (
    "to unsupported format version: v4",
    "Conflicting partition fields",
    "to unknown spec",
    "to unknown sort order",
    "to unknown schema",
    "before a schema is added",
    "its schema",
    "was written with it",
    "to a tag",
    "operation",
    "is its own parent",
    "Unsupported format version: 2",
)


class Java:
    """Iceberg's Java library in the Spark session."""

    def __init__(self, jvm):
        self.iceberg = jvm.org.apache.iceberg

    def apply(self, base, updates):
        """The metadata as JSON, or why not."""
        try:
            builder = self._builder(base, updates)
            for item in updates:
                self.iceberg.MetadataUpdateParser.fromJson(json.dumps(format_update(item))).applyTo(builder)
            found = builder.build()
            parser = (
                self.iceberg.TableMetadataParser
                if base is None or isinstance(base, TableMetadata)
                else self.iceberg.view.ViewMetadataParser
            )
            return json.loads(parser.toJson(found))
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage() or error.java_exception)
        except PySparkException as error:  # PySpark translates the exceptions that it knows
            return str(error).split("\n\nJVM stacktrace")[0]

    def _builder(self, base, updates):
        tables = self.iceberg.TableMetadata
        if base is None:
            versions = [item.format_version for item in updates if isinstance(item, UpgradeFormatVersion)]
            return tables.buildFromEmpty((versions or [2])[0])
        if isinstance(base, TableMetadata):
            return tables.buildFrom(self.iceberg.TableMetadataParser.fromJson("s3://b/v1.json", json.dumps(format_metadata(base))))
        return self.iceberg.view.ViewMetadata.buildFrom(self.iceberg.view.ViewMetadataParser.fromJson(json.dumps(format_view(base))))


@pytest.fixture(scope="module")
def java(spark):
    """Java, ready to be asked."""
    return Java(spark.session._jvm)


def ours(apply, base, updates):
    """Our metadata, or why not."""
    try:
        return apply(base, updates, NOW_MS)
    except (BadRequest, CommitFailed) as error:
        return error.message


def comparable(metadata):
    """Without what depends on the clock, on whose files were current and on the order of maps."""
    return replace(
        metadata,
        table_uuid="",
        last_updated_ms=0,
        metadata_log=(),
        snapshot_log=without_repeats(metadata.snapshot_log),
        statistics=frozenset(metadata.statistics),
        partition_statistics=frozenset(metadata.partition_statistics),
    )


def without_repeats(log):
    """The ids of a log. Java repeats one when only main's retention changes, or a view goes and comes back."""
    return [item for item, _ in groupby(item for _, item in log)]


def find_readable(javas, read):
    """What Java made, unless it names a schema or spec that it removed in the same request."""
    try:
        return read(javas)
    except BadRequest:
        return None


def check_alike(mine, javas, read, differences=comparable):
    """Both refuse, or both make the same of it, except where we mean to differ."""
    if isinstance(mine, str) and isinstance(javas, str):
        return
    if isinstance(javas, str):
        assert any(words in javas for words in JAVA_ALONE_REFUSES), javas
    elif isinstance(mine, str):
        assert any(words in mine for words in WE_ALONE_REFUSE), mine
    elif (found := find_readable(javas, read)) is not None:
        assert differences(mine) == differences(found)


def is_open(update):
    """True for a spec whose fields have no ids: Java gives 1000 again in each, which readers of all specs cannot tell apart."""
    return isinstance(update, AddSpec) and any(item.field_id == UNASSIGNED for item in update.spec.fields)


def without_numbers(metadata):
    """Java keeps row ids in version 2, counts them without gaps in version 3, and lets a replaced table's numbers go down."""
    plain = tuple(replace(item, first_row_id=None, added_rows=None) for item in metadata.snapshots)
    return replace(comparable(metadata), snapshots=plain, next_row_id=0, last_sequence_number=0)


def without_any_number(metadata):
    """Java keeps the number of a snapshot that is put into version 1 by the request that makes it version 2; it is 0 here."""
    plain = without_numbers(metadata)
    return replace(plain, snapshots=tuple(replace(item, sequence_number=0) for item in plain.snapshots))


@given(st.sampled_from([1, 2, 3]), st.data())
@PATIENT
def test_requests_come_to_the_same(java, format_version, data):
    """Histories of requests: each result is Java's, or both refuse."""
    base = table(format_version)
    for _ in range(data.draw(st.integers(1, 3))):
        drawn = data.draw(likely_requests(base) | st.lists(TABLE_UPDATES, max_size=3))
        updates = tuple(item for item in drawn if not is_open(item))
        found = ours(apply_updates, base, updates)
        differences = without_any_number if base.format_version == 1 else without_numbers
        check_alike(found, java.apply(base, updates), parse_metadata, differences)
        base = base if isinstance(found, str) else found


@given(st.integers(1, 3), st.sampled_from(SCHEMAS[:5]), st.sampled_from(SPECS), st.sampled_from(ORDERS), st.data())
@PATIENT
def test_new_tables_come_to_the_same(java, format_version, schema, spec, order, data):
    """Create transactions, with an update too many, too few or out of place."""
    updates = [AssignUuid(UUID), UpgradeFormatVersion(format_version), AddSchema(schema), SetCurrentSchema(-1), AddSpec(spec)]
    updates += [SetDefaultSpec(-1), AddSortOrder(order), SetDefaultSortOrder(-1), SetLocation("s3://b/x")]
    place = data.draw(st.integers(0, len(updates) - 2))
    match data.draw(st.sampled_from(["whole", "more", "less", "moved"])):
        case "more":
            updates.insert(place, data.draw(TABLE_UPDATES.filter(lambda item: not isinstance(item, AddSnapshot))))
        case "less":
            del updates[place]
        case "moved":
            updates.insert(data.draw(st.integers(0, len(updates) - 2)), updates.pop(place))
        case _:
            pass
    check_alike(ours(apply_updates, None, updates), java.apply(None, updates), parse_metadata)


@given(st.lists(VIEW_UPDATES, min_size=1, max_size=5))
@PATIENT
def test_requests_of_views_come_to_the_same(java, updates):
    """Versions, schemas, properties and what is kept of the history."""
    base = view(version(1), version(2, "SELECT 2"))
    # Java's -1 after a schema that is there means the one added before it.
    updates = [item for item in updates if item != AddSchema(base.schemas[0])]
    # Java adds a version again that says -1 where the one before says the number.
    added = [item.version for item in updates if isinstance(item, AddViewVersion)]
    if any(item.schema_id == -1 for item in added):
        assume(len({replace(item, version_id=0, timestamp_ms=0, schema_id=0) for item in added}) == len(added))

    def comparable_view(found):
        return replace(found, versions=frozenset(found.versions), version_log=without_repeats(found.version_log))

    check_alike(ours(apply_view_updates, base, updates), java.apply(base, updates), parse_view, comparable_view)


@pytest.mark.parametrize(
    "updates",
    [
        (UpgradeFormatVersion(1),),
        (SetCurrentSchema(7),),
        (SetCurrentSchema(-1),),
        (SetDefaultSpec(-1),),
        (SetDefaultSortOrder(-1),),
        (AddSpec(SPECS[4]),),
        (AddSpec(SPECS[7]),),
        (AddSortOrder(ORDERS[3]),),
    ],
    ids=str,
)
def test_refusals_are_in_javas_words(java, updates):
    """Where Java has words of its own for clients, they are ours."""
    mine, javas = ours(apply_updates, table(), updates), java.apply(table(), updates)
    assert mine == javas


def test_late_snapshots_are_refused_in_javas_words(java):
    """One that grew from another has a number above all that were given out; the client hears that it may try again."""
    updates = (AddSnapshot(snapshot(1, None, 5)), AddSnapshot(snapshot(2, 1, 5)))
    mine, javas = ours(apply_updates, table(), updates), java.apply(table(), updates)
    assert "older than last sequence number 5" in javas
    assert mine == f"Validation failed, please retry: {javas}"
