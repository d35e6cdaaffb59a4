"""A table's state as table metadata."""

import json
from dataclasses import replace

import pytest

from duckicelake.iceberg.metadata import digest_metadata, encode_metadata, parse_metadata
from duckicelake.iceberg.partition import UNSORTED
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.lake.rows import JsonNote, MetadataLogRow, TagRow
from duckicelake.translate.name_mapping import NameMapping
from duckicelake.translate.partitions import UNPARTITIONED, Partitioning, PartitionKey, PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.sort_orders import SortOrders
from duckicelake.translate.to_iceberg import VECTORIZED, TableShape, only_refs, to_metadata, to_properties, with_version
from tests.translate.support.states import make_state

NO_NAMES = NameMapping({}, {}, {}, frozenset())
SCHEMA = Schema(3, (NestedField(1, "i", PrimitiveType("int"), True), NestedField(5, "d", PrimitiveType("date"), False)))
BY_DAY = PublishedSpec(2, (1004,), (PartitionKey(5, "day", (0, 1, 2)),))
LOCATION = "s3://b/iceberg/main/t"


def shape(specs: tuple[PublishedSpec, ...] = (UNPARTITIONED,), default_spec_id: int = 0) -> TableShape:
    """A table of two columns."""
    schemas = Schemas(((1, SCHEMA),), (JsonNote(3, "s"),), 5, 2, frozenset(), breaks_vectors=False)
    partitioning = Partitioning(specs, {}, default_spec_id, (JsonNote(2, "p"),))
    return TableShape(schemas, partitioning, SortOrders((UNSORTED,), UNSORTED, (JsonNote(1, "o"),)), NO_NAMES)


def snapshots(count: int) -> list[Snapshot]:
    """Snapshots with ids of their own, each the child of the one before."""
    return [
        Snapshot(i * 10, (i - 1) * 10 or None, i * 10, 1000 + i, f"{LOCATION}/metadata/snap-{i}.avro", {"operation": "append"}, 3)
        for i in range(1, count + 1)
    ]


def test_an_empty_table() -> None:
    """No snapshot, no ref, sequence number 0; its properties say nothing of a lake snapshot."""
    metadata = to_metadata(make_state([]), LOCATION, shape(), [])
    assert (metadata.current_snapshot_id, metadata.last_sequence_number, metadata.refs, metadata.snapshot_log) == (None, 0, {}, ())
    assert (metadata.current_schema_id, metadata.last_column_id, metadata.last_partition_id) == (3, 5, 999)
    assert metadata.properties == {"gc.enabled": "false"}
    assert metadata.table_uuid == "00000000-0000-0000-0000-000000000001"


def test_the_newest_snapshot_is_main() -> None:
    """The log names all snapshots in order, the reserved property the lake snapshot."""
    metadata = to_metadata(make_state([]), LOCATION, shape((UNPARTITIONED, BY_DAY), 2), snapshots(3))
    assert {name: ref.snapshot_id for name, ref in metadata.refs.items()} == {"main": 30}
    assert (metadata.current_snapshot_id, metadata.last_sequence_number) == (30, 30)
    assert metadata.snapshot_log == ((1001, 10), (1002, 20), (1003, 30))
    assert metadata.properties["ducklake.snapshot-id"] == "30"
    assert (metadata.default_spec_id, metadata.last_partition_id) == (2, 1004)
    assert [(spec.spec_id, [f.name for f in spec.fields]) for spec in metadata.partition_specs] == [(0, []), (2, ["d_day"])]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([TagRow("comment", "c"), TagRow("owner", "me")], {"comment": "c", "owner": "me"}, id="as they are"),
        pytest.param([TagRow("comment", None)], {}, id="removed"),
        pytest.param([TagRow("gc.enabled", "true")], {"gc.enabled": "true"}, id="explicit"),
        pytest.param([TagRow("ducklake.snapshot-id", "99")], {}, id="reserved"),
    ],
)
def test_properties_are_tags(tags: list[TagRow], expected: dict[str, str]) -> None:
    """Clients may not delete files unless told otherwise; the reserved property is ours."""
    assert to_properties(tags, NO_NAMES, None) == {"gc.enabled": "false"} | expected
    assert to_properties(tags, NO_NAMES, 7) == {"gc.enabled": "false"} | expected | {"ducklake.snapshot-id": "7"}


def test_a_table_that_breaks_vectors_is_not_read_by_them() -> None:
    """Spark is kept off its vectorised reader; who sets the property otherwise has the word."""
    assert to_properties((), NO_NAMES, None, breaks_vectors=True)[VECTORIZED] == "false"
    tag = TagRow(VECTORIZED, "true")
    assert to_properties((tag,), NO_NAMES, None, breaks_vectors=True)[VECTORIZED] == "true"


def test_metadata_reads_back() -> None:
    """What is published is what a reader parses."""
    metadata = to_metadata(make_state([]), LOCATION, shape((UNPARTITIONED, BY_DAY)), snapshots(2))
    numbered = with_version(metadata, [MetadataLogRow(1, 500), MetadataLogRow(2, 900)])
    text = encode_metadata(numbered)
    assert parse_metadata(json.loads(text)) == numbered
    assert text == encode_metadata(numbered)


def test_a_version_has_its_time_and_those_before_it() -> None:
    """The newest row of the log is the metadata itself, the others are its past."""
    metadata = to_metadata(make_state([]), LOCATION, shape(), [])
    log = [MetadataLogRow(4, 500), MetadataLogRow(5, 600), MetadataLogRow(6, 900)]
    numbered = with_version(metadata, log)
    assert numbered.last_updated_ms == 900
    assert numbered.metadata_log == ((500, f"{LOCATION}/metadata/v4.metadata.json"), (600, f"{LOCATION}/metadata/v5.metadata.json"))
    assert with_version(metadata, log[:1]).metadata_log == ()


def test_the_token_tells_states_apart_and_knows_no_version() -> None:
    """Any difference a client could see is another state; versions and their times are none."""
    metadata = to_metadata(make_state([]), LOCATION, shape(), snapshots(2))
    token = digest_metadata(metadata)
    assert token == digest_metadata(to_metadata(make_state([]), LOCATION, shape(), snapshots(2)))
    others = [
        to_metadata(make_state([]), LOCATION, shape(), snapshots(3)),
        to_metadata(make_state([], tags=[TagRow("comment", "c")]), LOCATION, shape(), snapshots(2)),
        to_metadata(make_state([]), LOCATION, shape((UNPARTITIONED, BY_DAY)), snapshots(2)),
        replace(metadata, current_schema_id=4),
    ]
    assert len({token, *(digest_metadata(other) for other in others)}) == 5


def test_only_the_named_snapshots() -> None:
    """`snapshots=refs` leaves out what no ref names; everything else stays."""
    metadata = to_metadata(make_state([]), LOCATION, shape(), snapshots(3))
    short = only_refs(metadata)
    assert [snapshot.snapshot_id for snapshot in short.snapshots] == [30]
    assert replace(short, snapshots=metadata.snapshots) == metadata


def test_what_is_new_is_to_be_noted() -> None:
    """Schemas, specs and sort orders, each with the ids they got."""
    assert [[note.id for note in notes] for notes in shape().new_notes()] == [[3], [2], [1]]
