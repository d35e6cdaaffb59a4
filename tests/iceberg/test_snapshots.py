import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.refs import SnapshotRef as OracleRef
from pyiceberg.table.snapshots import Snapshot as OracleSnapshot

from duckicelake.errors import BadRequest
from duckicelake.iceberg.snapshots import (
    BlobMetadata,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    Snapshots,
    StatisticsFile,
    encode_snapshot,
    format_partition_statistics,
    format_ref,
    format_snapshot,
    format_statistics,
    may_contain,
    parse_partition_statistics,
    parse_ref,
    parse_snapshot,
    parse_statistics,
)
from tests.iceberg.support.strategies import COUNTS, INTS

SNAPSHOT = {"snapshot-id": 7, "timestamp-ms": 5, "manifest-list": "s3://b/l.avro", "summary": {"operation": "append"}}
SNAPSHOTS = st.builds(
    Snapshot,
    snapshot_id=COUNTS,
    parent_snapshot_id=st.none() | COUNTS,
    sequence_number=COUNTS,
    timestamp_ms=COUNTS,
    manifest_list=st.text(min_size=1),
    summary=st.dictionaries(st.text(), st.text(), max_size=3),
    schema_id=st.none() | INTS,
    first_row_id=st.none() | COUNTS,
    added_rows=st.none() | COUNTS,
    key_id=st.none() | st.text(),
)
AGES = st.none() | st.integers(1, 2**63 - 1)
REFS = st.builds(SnapshotRef, COUNTS, st.just("branch"), AGES, AGES, st.none() | st.integers(1, 2**31 - 1)) | st.builds(
    SnapshotRef, COUNTS, st.just("tag"), AGES
)


@given(SNAPSHOTS)
def test_snapshots_come_back_from_their_json(snapshot):
    """parse_snapshot(format_snapshot(x)) = x, and the encoded fragment says the same."""
    assert parse_snapshot(format_snapshot(snapshot)) == snapshot
    assert json.loads(encode_snapshot(snapshot)) == format_snapshot(snapshot)


@given(REFS)
def test_refs_come_back_from_their_json(ref):
    """parse_ref(format_ref(x)) = x, and PyIceberg reads the same."""
    assert parse_ref(format_ref(ref)) == ref
    theirs = OracleRef.model_validate(format_ref(ref))
    assert (theirs.snapshot_id, theirs.snapshot_ref_type, theirs.max_ref_age_ms) == (ref.snapshot_id, ref.type, ref.max_ref_age_ms)


def test_operation_comes_first():
    """Readers look for the operation; the rest of the summary keeps its order."""
    snapshot = parse_snapshot(SNAPSHOT | {"summary": {"b": "1", "operation": "delete", "a": "2"}})
    assert list(cast("dict[str, str]", format_snapshot(snapshot)["summary"])) == ["operation", "b", "a"]


def test_pyiceberg_reads_our_snapshots():
    """PyIceberg finds every field where it looks for it."""
    node = SNAPSHOT | {"parent-snapshot-id": 3, "sequence-number": 4, "schema-id": 1, "first-row-id": 10, "added-rows": 5}
    theirs: Any = OracleSnapshot.model_validate(format_snapshot(parse_snapshot(node)))
    assert (theirs.snapshot_id, theirs.parent_snapshot_id, theirs.sequence_number, theirs.schema_id) == (7, 3, 4, 1)
    assert (theirs.summary.operation.value, theirs.manifest_list) == ("append", "s3://b/l.avro")


def test_absent_parents_stay_absent():
    """-1 and null mean no parent; sequence number 0 is v1's and left out."""
    for parent in (None, -1):
        node = format_snapshot(parse_snapshot(SNAPSHOT | {"parent-snapshot-id": parent, "sequence-number": 0}))
        assert node == SNAPSHOT


def test_old_snapshots_embed_their_manifests():
    """v1 once listed manifests in the snapshot itself; a manifest list takes precedence."""
    old = {key: value for key, value in SNAPSHOT.items() if key != "manifest-list"} | {"manifests": ["s3://b/a.avro"]}
    snapshot = parse_snapshot(old)
    assert (snapshot.manifest_list, snapshot.manifests) == ("", ("s3://b/a.avro",))
    assert format_snapshot(snapshot) == old
    assert parse_snapshot(SNAPSHOT | {"manifests": ["s3://b/a.avro"]}).manifests == ()


def test_statistics_come_back_from_their_json():
    """Both kinds of statistics files survive, blobs and all."""
    blob = BlobMetadata("apache-datasketches-theta-v1", 7, 4, (1, 2), {"ndv": "3"})
    statistics = StatisticsFile(7, "s3://b/s.puffin", 100, 10, (blob,), "a2V5")
    assert parse_statistics(format_statistics(statistics)) == statistics
    partition_statistics = PartitionStatisticsFile(7, "s3://b/p.parquet", 100)
    assert parse_partition_statistics(format_partition_statistics(partition_statistics)) == partition_statistics


@pytest.mark.parametrize(
    ("parse", "node"),
    [
        pytest.param(parse, node, id=f"{parse.__name__}-{name}")
        for parse, name, node in [
            (parse_snapshot, "array", []),
            (parse_snapshot, "empty", {}),
            (parse_snapshot, "text-id", SNAPSHOT | {"snapshot-id": "7"}),
            (parse_snapshot, "negative-id", SNAPSHOT | {"snapshot-id": -1}),
            (parse_snapshot, "float-id", SNAPSHOT | {"snapshot-id": 7.0}),
            (parse_snapshot, "huge-id", SNAPSHOT | {"snapshot-id": 2**63}),
            (parse_snapshot, "no-manifest-list", {"snapshot-id": 7, "timestamp-ms": 5}),
            (parse_snapshot, "number-in-summary", SNAPSHOT | {"summary": {"operation": "append", "n": 1}}),
            (parse_snapshot, "negative-rows", SNAPSHOT | {"added-rows": -1}),
            (parse_snapshot, "manifests-numbers", SNAPSHOT | {"manifests": [1]}),
            (parse_ref, "text", "main"),
            (parse_ref, "no-type", {"snapshot-id": 7}),
            (parse_ref, "unknown-type", {"snapshot-id": 7, "type": "head"}),
            (parse_ref, "tag-keeps-snapshots", {"snapshot-id": 7, "type": "tag", "min-snapshots-to-keep": 1}),
            (parse_ref, "zero-age", {"snapshot-id": 7, "type": "branch", "max-ref-age-ms": 0}),
            (parse_statistics, "empty", {}),
            (
                parse_statistics,
                "blobs",
                {"snapshot-id": 7, "statistics-path": "a", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": [1]},
            ),
            (parse_partition_statistics, "empty", {}),
        ]
    ],
)
def test_malformed_json_is_a_bad_request(parse, node):
    """A stranger's JSON never raises anything but BadRequest."""
    with pytest.raises(BadRequest):
        parse(node)


def a_snapshot(snapshot_id: int) -> Snapshot:
    """A snapshot of which only the id counts."""
    return Snapshot(snapshot_id, None, 1, 1, "s3://b/list.avro", {"operation": "append"}, 0)


@given(st.lists(st.lists(st.integers(1, 30), max_size=4), max_size=4), st.integers(0, 31))
def test_a_history_denies_no_snapshot_that_it_has(batches: list[list[int]], asked: int) -> None:
    """However it grew, it is the tuple of its snapshots."""
    history, ids = Snapshots(()), list[int]()
    for batch in batches:
        history, ids = history.with_added(list(map(a_snapshot, batch))), [*ids, *batch]
    assert history == tuple(map(a_snapshot, ids))
    for known in (history, Snapshots(history)):
        assert may_contain(known, asked) or asked not in ids
        assert may_contain(known, asked) == (asked <= max(ids, default=-1))
    assert may_contain(tuple(history), asked)
