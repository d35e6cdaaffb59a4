import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.avro.manifest_encoding import build_manifest_list_schema
from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import (
    UNKNOWN_COUNT,
    FieldSummary,
    ManifestFile,
    ManifestListHeader,
    WrittenManifest,
    build_manifest_file,
    encode_manifest_list,
    inherit_from_list,
    summarise_partitions,
)
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import decode_value, encode_value
from duckicelake.iceberg.types import NestedField, PrimitiveType
from tests.iceberg.support.oracles import duckdb_rows, fastavro_metadata, fastavro_rows, pyiceberg_manifests
from tests.iceberg.support.strategies import COUNTS, types_and_values

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])
INT32 = st.integers(0, 2**31 - 1)
FILE = ManifestFile("s3://b/m0.avro", 4321, 2, 0, 5, 3, 77, 1, 2, 3, 10, 20, 30, (FieldSummary(True, False, b"\x01", b"\x09"),))
SCHEMA = Schema(0, (NestedField(1, "id", PrimitiveType("int"), False),))
SPEC = PartitionSpec(4, (PartitionField(1, 1000, "id", "identity"),))


def manifest_files(version):
    later = version > 1
    return st.builds(
        ManifestFile,
        manifest_path=st.text(min_size=1),
        manifest_length=COUNTS,
        partition_spec_id=INT32,
        content=st.integers(0, 1) if later else st.just(0),
        sequence_number=COUNTS if later else st.just(0),
        min_sequence_number=COUNTS if later else st.just(0),
        added_snapshot_id=COUNTS,
        **{f"{kind}_files_count": INT32 if later else INT32 | st.just(UNKNOWN_COUNT) for kind in ("added", "existing", "deleted")},
        **{f"{kind}_rows_count": COUNTS if later else COUNTS | st.just(UNKNOWN_COUNT) for kind in ("added", "existing", "deleted")},
        partitions=st.lists(
            st.builds(FieldSummary, st.booleans(), st.none() | st.booleans(), st.none() | st.binary(), st.none() | st.binary()), max_size=3
        ).map(tuple),
        first_row_id=st.none() | COUNTS if version > 2 else st.none(),
    )


def list_header(version):
    return ManifestListHeader(77, 70, 0 if version == 1 else 5, version, 1000 if version > 2 else None)


def entry(status: int, value: Any = 1, rows=10, number=None, first_row_id=None):
    file = DataFile(0, f"s3://b/{value}.parquet", "PARQUET", (value,), rows, 100, first_row_id=first_row_id)
    return ManifestEntry(status, None, number, number, file)


def decoded(type: PrimitiveType, bound: bytes | None) -> Any:
    assert bound is not None
    return decode_value(type, bound)


@VERSIONS
@given(data=st.data())
def test_manifest_lists_come_back(version, data):
    """decode_manifest_list(encode_manifest_list(x)) = x, and a foreign Avro reader finds a valid file."""
    files = data.draw(st.lists(manifest_files(version), max_size=3))
    content = encode_manifest_list(list_header(version), files)
    # delete manifests have no row ids, whatever is written there
    assert decode_manifest_list(content) == [replace(file, first_row_id=None) if file.content else file for file in files]
    assert [row["manifest_path"] for row in fastavro_rows(content)] == [file.manifest_path for file in files]


@VERSIONS
def test_pyiceberg_reads_our_lists(version, tmp_path):
    """PyIceberg finds every field."""
    path = tmp_path / "list.avro"
    path.write_bytes(encode_manifest_list(list_header(version), [FILE, replace(FILE, partitions=(), content=int(version > 1))]))
    first, second = pyiceberg_manifests(path)
    assert (first.manifest_path, first.manifest_length, first.partition_spec_id, first.added_snapshot_id) == ("s3://b/m0.avro", 4321, 2, 77)
    assert (first.added_files_count, first.existing_files_count, first.deleted_files_count) == (1, 2, 3)
    assert (first.added_rows_count, first.existing_rows_count, first.deleted_rows_count) == (10, 20, 30)
    assert (first.sequence_number, first.min_sequence_number) == ((0, 0) if version == 1 else (5, 3))
    summary = first.partitions[0]
    assert (summary.contains_null, summary.contains_nan, summary.lower_bound, summary.upper_bound) == (True, False, b"\x01", b"\x09")
    assert (second.partitions, second.content) == ([], int(version > 1))


@VERSIONS
def test_duckdb_reads_our_lists(version, tmp_path):
    """DuckDB's Avro reader finds every field, the first row id of v3 too."""
    path = tmp_path / "list.avro"
    path.write_bytes(encode_manifest_list(list_header(version), [replace(FILE, first_row_id=9)]))
    (row,) = duckdb_rows(path)
    assert (row["manifest_path"], row["added_rows_count"], row["partitions"][0]["contains_null"]) == ("s3://b/m0.avro", 10, True)
    assert version < 3 or row["first_row_id"] == 9


@VERSIONS
def test_field_ids_are_the_specifications(version):
    """Every field carries the id that readers look for; counts are required from v2 on."""
    schema = json.loads(build_manifest_list_schema(version))
    assert schema["name"] == "manifest_file"
    ids = [item["field-id"] for item in schema["fields"]]
    later = [517, 515, 516]
    assert ids == [
        500,
        501,
        502,
        *(later if version > 1 else []),
        503,
        504,
        505,
        506,
        512,
        513,
        514,
        507,
        519,
        *([520] if version > 2 else []),
    ]
    counts = next(item for item in schema["fields"] if item["field-id"] == 512)
    assert counts["type"] == (["null", "long"] if version == 1 else "long")
    summaries = next(item for item in schema["fields"] if item["field-id"] == 507)["type"][1]
    assert summaries["element-id"] == 508
    assert [item["field-id"] for item in summaries["items"]["fields"]] == [509, 518, 510, 511]


@VERSIONS
def test_header_says_whose_list_it_is(version):
    """The file's metadata name the snapshot, and in v3 its first row id."""
    found = fastavro_metadata(encode_manifest_list(replace(list_header(version), parent_snapshot_id=None), []))
    expected = {"snapshot-id": "77", "parent-snapshot-id": "null", "format-version": str(version)}
    expected |= {"sequence-number": "5"} if version > 1 else {}
    expected |= {"first-row-id": "1000"} if version > 2 else {}
    assert {key: value for key, value in found.items() if not key.startswith("avro.")} == expected


def test_a_manifest_is_described_by_its_entries():
    """Counts by status, the least sequence number of live files, and what the partitions hold."""
    entries = [entry(1, 7), entry(0, 3, 20, 2), entry(2, None, 40, 1), entry(1, 5)]
    found = build_manifest_file(ManifestHeader(SCHEMA, SPEC, 2, 0), entries, WrittenManifest("s3://b/m", 99, 77, 5))
    assert found == ManifestFile(
        "s3://b/m", 99, 4, 0, 5, 2, 77, 2, 1, 1, 20, 20, 40, (FieldSummary(True, False, b"\x03\0\0\0", b"\x07\0\0\0"),)
    )


def test_a_manifest_of_deletions_has_its_own_sequence_number():
    """Where no file is live, the least sequence number is the commit's."""
    found = build_manifest_file(ManifestHeader(SCHEMA, SPEC, 2, 0), [entry(2, 1, number=1)], WrittenManifest("s3://b/m", 99, 77, 5))
    assert found.min_sequence_number == 5


@given(types_and_values(count=3))
def test_summaries_enclose_every_value(typed):
    """lower ≤ every value ≤ upper, for every partition type."""
    type, values = typed
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", "identity"),))
    (summary,) = summarise_partitions(spec, (type,), [entry(1, value) for value in values])
    lower, upper = decoded(type, summary.lower_bound), decoded(type, summary.upper_bound)
    assert all(lower <= value <= upper for value in values)
    if type.name not in ("float", "double"):
        assert (lower, upper) == (min(values), max(values))
    assert (summary.contains_null, summary.contains_nan) == (False, False)


def test_summaries_tell_null_and_nan():
    """NaN and null are no values to bound; zero is bounded on both sides of its sign."""
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", "identity"),))
    double = PrimitiveType("double")
    (nothing,) = summarise_partitions(spec, (double,), [entry(1, None), entry(1, math.nan)])
    assert nothing == FieldSummary(True, True, None, None)
    (zero,) = summarise_partitions(spec, (double,), [entry(1, 0.0)])
    assert zero == FieldSummary(False, False, encode_value(double, -0.0), encode_value(double, 0.0))
    assert summarise_partitions(UNPARTITIONED, (), [entry(1)]) == ()


def test_entries_inherit_from_the_list():
    """Added files take the manifest's numbers, existing ones keep theirs; first row ids run on."""
    entries = [entry(1), entry(0, 2, 20, 3), entry(2, 3, 30, 2), entry(1, 4, 5, None, 700), entry(1, 5)]
    found = inherit_from_list(entries, replace(FILE, first_row_id=1000))
    assert [item.snapshot_id for item in found] == [77] * 5
    assert [item.sequence_number for item in found] == [5, 3, 2, 5, 5]
    assert [item.file_sequence_number for item in found] == [5, 3, 2, 5, 5]
    assert [item.data_file.first_row_id for item in found] == [1000, 1010, None, 700, 1030]
    assert [item.sequence_number for item in inherit_from_list([entry(0)], replace(FILE, sequence_number=0))] == [0]
    assert inherit_from_list([replace(entry(1), snapshot_id=9)], FILE)[0].snapshot_id == 9


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: encode_manifest_list(list_header(1), [replace(FILE, content=1)]), id="deletes-in-v1"),
        pytest.param(lambda: encode_manifest_list(list_header(2), [replace(FILE, added_rows_count=UNKNOWN_COUNT)]), id="unknown-count"),
        pytest.param(lambda: decode_manifest_list(b""), id="empty"),
        pytest.param(lambda: decode_manifest_list(encode_manifest_list(list_header(2), [FILE])[:-20]), id="cut"),
    ],
)
def test_what_is_no_list_is_a_bad_request(build):
    """What readers would refuse is not written, and damage is refused."""
    with pytest.raises(BadRequest):
        build()
