import json
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import (
    EncodedHistory,
    EncodedList,
    TableMetadata,
    add_encoded_snapshots,
    check_metadata,
    digest_metadata,
    encode_metadata,
    encode_with_digest,
    find_snapshot,
    format_metadata,
    get_current_schema,
    get_default_spec,
    parse_metadata,
)
from duckicelake.iceberg.partition import UNPARTITIONED, UNSORTED, PartitionField, PartitionSpec, SortField, SortOrder
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import (
    BlobMetadata,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
)
from duckicelake.iceberg.types import NestedField, PrimitiveType

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
SCHEMAS = (
    Schema(0, (NestedField(1, "id", PrimitiveType("long"), True),)),
    Schema(1, (NestedField(1, "id", PrimitiveType("long"), True), NestedField(2, "at", PrimitiveType("date"), False, "wann — 何時")), (1,)),
)
SPEC = PartitionSpec(1, (PartitionField(2, 1000, "at_year", "year"),))
V1_KEYS = (
    "format-version table-uuid location last-updated-ms last-column-id schema schemas current-schema-id partition-spec"
    " partition-specs default-spec-id last-partition-id properties current-snapshot-id snapshots snapshot-log metadata-log"
    " sort-orders default-sort-order-id refs statistics partition-statistics"
).split()
V2_KEYS = [key for key in V1_KEYS if key not in ("schema", "partition-spec")]
V2_KEYS.insert(3, "last-sequence-number")
KEYS = {1: V1_KEYS, 2: V2_KEYS, 3: [*V2_KEYS, "next-row-id"]}
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


def snapshot(version, snapshot_id, parent=None):
    summary = {"operation": "append", "ducklake.snapshot-id": str(snapshot_id)}
    number = snapshot_id if version > 1 else 0
    found = Snapshot(snapshot_id, parent, number, 1000 + snapshot_id, f"s3://b/t/metadata/snap-{snapshot_id}.avro", summary, 1)
    return replace(found, first_row_id=0, added_rows=10) if version > 2 else found


def full(version):
    """A table with something in every field."""
    return TableMetadata(
        format_version=version,
        table_uuid=UUID,
        location="s3://b/t",
        last_sequence_number=0 if version == 1 else 9,
        last_updated_ms=2000,
        last_column_id=2,
        schemas=SCHEMAS,
        current_schema_id=1,
        partition_specs=(UNPARTITIONED, SPEC),
        default_spec_id=1,
        last_partition_id=1000,
        sort_orders=(UNSORTED, SortOrder(1, (SortField(2, "identity", "desc", "nulls-last"),))),
        default_sort_order_id=1,
        properties={"comment": "«ü»", "write.format.default": "parquet"},
        current_snapshot_id=9,
        snapshots=(snapshot(version, 8), snapshot(version, 9, 8)),
        snapshot_log=((1008, 8), (1009, 9)),
        metadata_log=((1500, "s3://b/t/metadata/v1.metadata.json"),),
        refs={"main": SnapshotRef(9, "branch", None, 5, 1), "old": SnapshotRef(8, "tag", 86_400_000)},
        statistics=(StatisticsFile(9, "s3://b/s.puffin", 9, 4, (BlobMetadata("apache-datasketches-theta-v1", 9, 9, (1,), {"ndv": "1"}),)),),
        partition_statistics=(PartitionStatisticsFile(9, "s3://b/p.parquet", 9),),
        next_row_id=10 if version > 2 else 0,
    )


def empty(version):
    """A table just created."""
    return TableMetadata(version, UUID, "s3://b/t", 0, 2000, 1, SCHEMAS[:1], 0, (UNPARTITIONED,), 0, 999)


@VERSIONS
@pytest.mark.parametrize("build", [full, empty])
def test_metadata_comes_back_from_its_json(version, build):
    """parse_metadata(format_metadata(x)) = x, and the bytes say the same."""
    metadata = build(version)
    assert parse_metadata(format_metadata(metadata)) == metadata
    assert parse_metadata(json.loads(encode_metadata(metadata))) == metadata
    assert list(json.loads(encode_metadata(metadata))) == list(format_metadata(metadata))


@VERSIONS
def test_keys_follow_the_specification(version):
    """Keys come in the specification's order, and each version has its own; without a snapshot there is no current one."""
    assert list(format_metadata(full(version))) == KEYS[version]
    assert list(format_metadata(empty(version))) == [key for key in KEYS[version] if key != "current-snapshot-id"]


def test_v1_repeats_the_current_schema_and_spec():
    """Readers of old look only at `schema` and `partition-spec`."""
    node: Any = format_metadata(full(1))
    assert node["schema"] == node["schemas"][1]
    assert node["partition-spec"] == node["partition-specs"][1]["fields"]


@VERSIONS
@pytest.mark.parametrize("build", [full, empty])
def test_pyiceberg_reads_what_we_write(version, build):
    """PyIceberg's metadata says what ours says, and reads back as ours from PyIceberg's own JSON."""
    metadata = build(version)
    theirs = TableMetadataUtil.parse_raw(encode_metadata(metadata).decode())
    assert theirs.format_version == version
    assert str(theirs.table_uuid) == UUID
    assert theirs.current_snapshot_id == metadata.current_snapshot_id
    assert theirs.schema().schema_id == metadata.current_schema_id
    assert theirs.spec().spec_id == metadata.default_spec_id
    assert theirs.sort_order().order_id == metadata.default_sort_order_id
    assert theirs.properties == metadata.properties
    assert [(entry.timestamp_ms, entry.snapshot_id) for entry in theirs.snapshot_log] == list(metadata.snapshot_log)
    assert parse_metadata(theirs.model_dump(mode="json", by_alias=True, exclude_none=True)) == metadata


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda good: replace(good, refs={**good.refs, "new": SnapshotRef(404, "tag")}), id="a ref that came"),
        pytest.param(lambda good: replace(good, refs={"main": SnapshotRef(404, "branch")}, current_snapshot_id=404), id="main"),
        pytest.param(lambda good: replace(good, snapshots=good.snapshots[1:]), id="a snapshot that went"),
    ],
)
def test_a_ref_to_no_snapshot_is_found_in_what_updates_made(lose):
    """Also where the snapshots and refs that stayed are not looked for again."""
    good = full(2)
    check_metadata(good, good)
    with pytest.raises(BadRequest, match="point to no snapshot"):
        check_metadata(lose(good), good)


def grown(metadata, count):
    """The metadata as it was with so many snapshots."""
    return replace(metadata, snapshots=metadata.snapshots[:count], snapshot_log=metadata.snapshot_log[:count])


def test_a_history_that_is_kept_gives_the_same_bytes():
    """Growing, shrinking and unchanged: what was encoded before never shows, in bytes or digest."""
    metadata, history = full(2), EncodedHistory()
    for count in (0, 1, 2, 2, 1, 0, 2):
        known = grown(metadata, count)
        assert encode_metadata(known, history) == encode_metadata(known)
        assert digest_metadata(known, history) == digest_metadata(known)
        assert encode_with_digest(known, history) == encode_with_digest(known, EncodedHistory())
    assert len({encode_with_digest(grown(metadata, count), history)[1] for count in (0, 1, 2)}) == 3
    assert len({digest_metadata(grown(metadata, count)) for count in (0, 1, 2)}) == 3


def test_a_changed_past_is_encoded_again():
    """A snapshot that has become another one is no part of the kept history."""
    metadata, history = full(2), EncodedHistory()
    encode_metadata(metadata, history)
    changed = replace(metadata, snapshots=(replace(metadata.snapshots[0], manifest_list="s3://b/other.avro"), *metadata.snapshots[1:]))
    assert encode_metadata(changed, history) == encode_metadata(changed) != encode_metadata(metadata)
    assert digest_metadata(changed, history) == digest_metadata(changed) != digest_metadata(metadata)


def test_every_item_is_encoded_once():
    """A history of thousands of snapshots costs only what is new of it."""
    asked: list[int] = []

    def encode(item: int) -> bytes:
        asked.append(item)
        return b"%d" % item

    growing = EncodedList(encode)
    assert [bytes(growing.follow(items)) for items in ((1,), (1, 2), (1, 2, 3), (7, 8))] == [b"1", b"1,2", b"1,2,3", b"7,8"]
    assert asked == [1, 2, 3, 7, 8]
    assert growing.digest((1, 2)) != growing.digest((1, 2, 3)) != growing.digest((1, 3, 2))


@VERSIONS
@pytest.mark.parametrize("build", [full, empty])
def test_snapshots_are_added_to_encoded_metadata(version, build):
    """The bytes are those of the metadata with the snapshots at the end of its list, whatever its texts contain."""
    hostile = '],"snapshot-log":['
    metadata = replace(build(version), properties={hostile: hostile, "comment": f'"{hostile}"'})
    for added in ((snapshot(version, 70),), (snapshot(version, 70), snapshot(version, 71, 70))):
        longer = replace(metadata, snapshots=metadata.snapshots + added)
        assert add_encoded_snapshots(encode_metadata(metadata), added) == encode_metadata(longer)


def test_non_ascii_text_is_utf8():
    """Comments keep their characters, unescaped."""
    assert "wann — 何時".encode() in encode_metadata(full(2))


def test_look_ups():
    """Current schema, default spec and snapshots are found by their ids."""
    metadata = full(3)
    assert get_current_schema(metadata) == SCHEMAS[1]
    assert get_default_spec(metadata) == SPEC
    assert find_snapshot(metadata, 8) == metadata.snapshots[0]
    assert find_snapshot(metadata, 1) is None
    assert find_snapshot(metadata, None) is None


def test_old_v1_metadata_is_completed():
    """v1 may know only `schema` and `partition-spec`, without uuid, field ids, sort orders or refs."""
    node = {
        "format-version": 1,
        "location": "s3://b/t",
        "last-updated-ms": 5,
        "last-column-id": 1,
        "schema": {"type": "struct", "fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]},
        "partition-spec": [{"name": "id", "transform": "identity", "source-id": 1}],
        "current-snapshot-id": 7,
        "snapshots": [{"snapshot-id": 7, "timestamp-ms": 5, "manifests": ["s3://b/m.avro"]}],
    }
    metadata = parse_metadata(node)
    assert metadata.table_uuid == ""
    assert metadata.partition_specs == (PartitionSpec(0, (PartitionField(1, 1000, "id", "identity"),)),)
    assert metadata.last_partition_id == 1000
    assert metadata.sort_orders == (UNSORTED,)
    assert metadata.refs == {"main": SnapshotRef(7, "branch")}


def test_minus_one_is_no_snapshot():
    """Java writes -1 and null where v1, v2 and v3 have no current snapshot."""
    for value in (-1, None):
        assert parse_metadata(format_metadata(empty(2)) | {"current-snapshot-id": value}) == empty(2)


def test_encryption_keys_are_kept():
    """Keys of encrypted tables survive as they came."""
    keys = ({"key-id": "5f819b", "encrypted-key-metadata": "aWNlYmVyZwo="},)
    metadata = replace(full(3), encryption_keys=keys)
    assert parse_metadata(json.loads(encode_metadata(metadata))) == metadata


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name)
        for name, changes in {
            "version-0": {"format-version": 0},
            "version-4": {"format-version": 4},
            "version-text": {"format-version": "2"},
            "no-uuid": {"table-uuid": None},
            "no-location": {"location": None},
            "no-sequence-number": {"last-sequence-number": None},
            "no-schemas": {"schemas": None},
            "current-schema-missing": {"current-schema-id": 7},
            "default-spec-missing": {"default-spec-id": 7},
            "default-order-missing": {"default-sort-order-id": 7},
            "dangling-ref": {"refs": {"main": {"snapshot-id": 9, "type": "branch"}, "x": {"snapshot-id": 1, "type": "tag"}}},
            "main-elsewhere": {"refs": {"main": {"snapshot-id": 8, "type": "branch"}}},
            "current-missing": {"current-snapshot-id": 1, "refs": {}},
            "main-without-current": {"current-snapshot-id": None},
            "number-property": {"properties": {"a": 1}},
            "log-entry": {"snapshot-log": [{"timestamp-ms": 1}]},
            "refs-array": {"refs": [1]},
            "snapshots-object": {"snapshots": {"a": 1}},
            "no-next-row-id": {"next-row-id": None},
        }.items()
    ],
)
def test_malformed_metadata_is_a_bad_request(changes):
    """Metadata that contradicts itself is refused, never half read."""
    with pytest.raises(BadRequest):
        parse_metadata(format_metadata(full(3)) | changes)


def test_a_snapshot_id_occurs_once():
    """Two snapshots of one id are no table."""
    with pytest.raises(BadRequest, match="occurs twice"):
        parse_metadata(format_metadata(replace(full(2), snapshots=full(2).snapshots + full(2).snapshots[:1])))


@VERSIONS
def test_the_parts_kept_between_encodings_are_those_of_the_metadata(version):
    """Whatever changes from one to the next, the bytes are the JSON of what `format_metadata` says."""
    whole, history = full(version), EncodedHistory()
    plain = replace(whole, statistics=(), partition_statistics=(), encryption_keys=())
    same_but_written_otherwise = (
        (NestedField(1, "n", PrimitiveType("double"), False, None, 1, 1),),
        (NestedField(1, "n", PrimitiveType("double"), False, None, 1.0, 1.0),),
    )
    ours = [Schema(plain.current_schema_id, fields) for fields in same_but_written_otherwise]
    variants = [
        whole,
        plain,
        replace(plain, properties={"a": 'ü"\\'}, last_updated_ms=9, last_sequence_number=7 if version > 1 else 0),
        replace(plain, schemas=(ours[0],)),
        replace(plain, schemas=(ours[1],)),
        replace(plain, schemas=(*SCHEMAS, replace(SCHEMAS[1], schema_id=2))),
        replace(plain, partition_specs=(UNPARTITIONED,), default_spec_id=0),
        replace(plain, sort_orders=(UNSORTED,), default_sort_order_id=0),
        replace(plain, metadata_log=tuple((at, f"s3://b/t/metadata/v{at}.ü.json") for at in range(400))),
        replace(plain, metadata_log=(), refs={}, current_snapshot_id=None),
        plain,
        whole,
    ]
    for variant in variants:
        told = json.dumps(format_metadata(variant), ensure_ascii=False, separators=(",", ":")).encode()
        assert encode_metadata(variant, history) == encode_metadata(variant) == told
        assert digest_metadata(variant, history) == digest_metadata(variant)
        assert encode_with_digest(variant, history) == encode_with_digest(variant, EncodedHistory())
    told = {encode_with_digest(variant, history) for variant in variants}
    assert len({encoded for encoded, _ in told}) == len({digest for _, digest in told}) == len(told)
