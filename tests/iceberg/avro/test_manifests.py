import io
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.avro.reader import AvroLimits
from duckicelake.iceberg.avro.writer import encode_container
from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, encode_manifest_list
from duckicelake.iceberg.partition import UNPARTITIONED
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Schema(0, (NestedField(1, "id", PrimitiveType("long"), False), NestedField(2, "at", PrimitiveType("date"), False)))
FILE = DataFile(0, "s3://b/t/data/a.parquet", "PARQUET", (), 7, 1000)
ENTRY = ManifestEntry(1, 77, None, None, FILE)
LISTED = ManifestFile("s3://b/t/m.avro", 10, 0, 0, 1, 1, 77, 1, 0, 0, 7, 0, 0, ())


def golden(name):
    return (GOLDEN / f"spark-4.1-iceberg-1.11.0-{name}.avro").read_bytes()


def manifest(*entries):
    return encode_manifest(ManifestHeader(SCHEMA, UNPARTITIONED, 2, 0), entries or [ENTRY])


def field(name, type, field_id):
    return {"name": name, "type": type, "field-id": field_id}


REQUIRED = [
    field("file_path", "string", 100),
    field("file_format", "string", 101),
    field("partition", {"type": "record", "name": "p", "fields": []}, 102),
    field("record_count", "long", 103),
    field("file_size_in_bytes", "long", 104),
]
VALUES = {"file_path": "s3://b/t/data/a.parquet", "file_format": "PARQUET", "partition": {}, "record_count": 7, "file_size_in_bytes": 1000}
METADATA = {"schema": json.dumps(format_schema(SCHEMA)), "partition-spec": "[]"}


def written(fields=(), values=(), entry=(), metadata=(), left_out=()):
    """A manifest that fastavro wrote: only what is required, changed as the test says."""
    names = {item["name"] for item in fields}
    kept = [item for item in REQUIRED if item["name"] not in {*names, *left_out}]
    data_file = {"type": "record", "name": "f", "fields": [*kept, *fields]}
    schema = {"type": "record", "name": "e", "fields": [field("status", "int", 0), field("data_file", data_file, 2)]}
    stream = io.BytesIO()
    row = {"status": 1, **dict(entry), "data_file": {**VALUES, **dict(values)}}
    headers = {key: value for key, value in {**METADATA, **dict(metadata)}.items() if value is not None}
    fastavro.writer(stream, schema, [row], metadata=headers)
    return stream.getvalue()


def test_what_is_left_out_is_as_in_version_1():
    """No version, content, ids or counts: what the first writers wrote."""
    header, entries = decode_manifest(written())
    assert header == ManifestHeader(SCHEMA, UNPARTITIONED, 1, 0)
    assert entries == [ManifestEntry(1, None, None, None, FILE)]


def test_a_silent_header_is_what_its_list_says():
    """Spec and content, where the header does not tell them; where it does, it stays as it is."""
    listed = replace(LISTED, partition_spec_id=3, content=1)
    assert decode_manifest(written(), listed)[0] == ManifestHeader(SCHEMA, replace(UNPARTITIONED, spec_id=3), 1, 1)
    told = written(metadata={"partition-spec-id": "2", "content": "data"})
    assert decode_manifest(told, listed)[0] == ManifestHeader(SCHEMA, replace(UNPARTITIONED, spec_id=2), 1, 0)


def test_fields_go_by_their_ids():
    """Other names, other order and more fields make no difference."""
    fields = [
        field("stranger", {"type": "map", "values": ["null", "string"]}, 9999),
        {"name": "nobody", "type": "double"},
        field("wo", "string", 100),
    ]
    content = written(fields, {"stranger": {"a": "b"}, "nobody": 0.5, "wo": "s3://b/t/data/b.parquet"}, left_out=["file_path"])
    assert decode_manifest(content)[1][0].data_file == replace(FILE, file_path="s3://b/t/data/b.parquet")


def partitioned(type, value, transform="identity", column="long", **changes):
    """A manifest of one partition value that fastavro wrote."""
    record = {"type": "record", "name": "p", "fields": [field("x", type, 1000)]}
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "c", "required": False, "type": column}]}
    spec = [{"name": "x", "transform": transform, "source-id": 1, "field-id": 1000, **changes}]
    metadata = {"schema": json.dumps(schema), "partition-spec": json.dumps(spec)}
    return written([field("partition", record, 102)], {"partition": {"x": value}}, metadata=metadata)


@pytest.mark.parametrize(
    ("type", "value", "column", "expected"),
    [
        pytest.param("int", 5, "long", 5, id="promoted-int"),
        pytest.param("float", 0.5, "double", 0.5, id="promoted-float"),
        pytest.param("bytes", b"\xff\x83", "decimal(9, 2)", Decimal("-1.25"), id="decimal-in-bytes"),
        pytest.param("string", "00010203-0405-0607-0809-0a0b0c0d0e0f", "uuid", bytes(range(16)), id="uuid-as-text"),
        pytest.param(["string", "null"], "a", "string", "a", id="null-last"),
        pytest.param("null", None, "string", None, id="always-null"),
    ],
)
def test_partition_values_may_be_written_otherwise(type, value, column, expected):
    """Narrower types, other forms: the value is the column's."""
    assert decode_manifest(partitioned(type, value, column=column))[1][0].data_file.partition == (expected,)


def test_values_of_dropped_columns_stay_as_they_are():
    """Nobody knows their type any more."""
    content = partitioned("string", "a", **{"source-id": 9})
    assert decode_manifest(content)[1][0].data_file.partition == ("a",)


@pytest.mark.parametrize(
    ("type", "value", "column", "transform"),
    [
        pytest.param("string", "a", "long", "identity", id="text-for-number"),
        pytest.param("long", 2**40, "int", "identity", id="out-of-range"),
        pytest.param("bytes", b"1234567890", "decimal(9, 2)", "identity", id="decimal-too-long"),
        pytest.param("string", "x", "uuid", "identity", id="no-uuid"),
        pytest.param("bytes", b"1", "uuid", "identity", id="short-uuid"),
        pytest.param("double", 1.0, "date", "day", id="double-for-day"),
        pytest.param({"type": "array", "items": "int"}, [1], "int", "identity", id="list"),
    ],
)
def test_partition_values_of_other_types_are_refused(type, value, column, transform):
    """A wrong value would put a file where nobody looks for it."""
    with pytest.raises(BadRequest, match=r"Cannot read m1: partition value .* of x is no "):
        decode_manifest(partitioned(type, value, transform, column), "m1")


SPEC_OF_ONE = json.dumps([{"name": "x", "transform": "identity", "source-id": 1, "field-id": 1000}])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "no valid Avro file", id="empty"),
        pytest.param(bytes(1000), "no valid Avro file", id="zeros"),
        pytest.param(manifest()[:-30], "no valid Avro file", id="cut"),
        pytest.param(
            encode_container(METADATA, '{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}', []),
            "no field 0",
            id="other-rows",
        ),
        pytest.param(encode_container(METADATA, '"int"', []), "has a int where a record belongs", id="no-record"),
        pytest.param(encode_manifest_list(ManifestListHeader(77, None, 1, 2), [LISTED]), "its header is malformed", id="a-list"),
        pytest.param(written(metadata={"schema": None}), "its header is malformed", id="no-schema"),
        pytest.param(written(metadata={"schema": "{"}), "its header is malformed", id="schema-no-json"),
        pytest.param(written(metadata={"schema": "[" * 100_000}), "its header is malformed", id="schema-deep"),
        pytest.param(written(metadata={"schema": '{"fields": 1}'}), "Cannot read m1: ", id="schema-no-schema"),
        pytest.param(written(metadata={"partition-spec": None}), "its header is malformed", id="no-spec"),
        pytest.param(written(metadata={"partition-spec-id": "x"}), "its header is malformed", id="spec-id-text"),
        pytest.param(written(metadata={"partition-spec-id": "-1"}), "spec id -1 is out of range", id="spec-id-negative"),
        pytest.param(written(metadata={"format-version": "4"}), "format version 4", id="version-4"),
        pytest.param(written(metadata={"content": "stuff"}), "its header is malformed", id="content"),
        pytest.param(written(metadata={"partition-spec": SPEC_OF_ONE}), "its partition tuples have no x", id="no-partition-field"),
        pytest.param(
            written([field("record_count", "string", 103)], {"record_count": "7"}), r"103 \(record_count\) .* is a string", id="text-count"
        ),
        pytest.param(written(left_out=["file_path"]), r"no field 100 \(file_path\)", id="no-path"),
        pytest.param(
            written([field("lower_bounds", {"type": "array", "items": "bytes"}, 125)], {"lower_bounds": []}), "field 125", id="bounds"
        ),
        pytest.param(
            written([field("split_offsets", {"type": "array", "items": "string"}, 132)], {"split_offsets": []}), "field 132", id="offsets"
        ),
        pytest.param(written([field("file_path", ["null", "string"], 100)], {"file_path": None}), "has no path", id="null-path"),
        pytest.param(
            written([field("record_count", ["null", "long"], 103)], {"record_count": None}), "missing or out of range", id="null-count"
        ),
        pytest.param(written(values={"file_path": ""}), "has no path", id="empty-path"),
        pytest.param(written(values={"record_count": -1}), "a.parquet has a count", id="negative-count"),
        pytest.param(written(values={"file_size_in_bytes": -1}), "a.parquet has a count", id="negative-size"),
        pytest.param(written(entry={"status": 3}), "has status 3 and content 0", id="status"),
        pytest.param(written([field("content", "int", 134)], {"content": 4}), "has status 1 and content 4", id="content-4"),
        pytest.param(written([field("sort_order_id", "long", 140)], {"sort_order_id": 2**40}), "out of range", id="order-id"),
        pytest.param(written([field("key_metadata", "bytes", 131)], {"key_metadata": b"k"}), "is encrypted", id="encrypted"),
    ],
)
def test_what_is_no_manifest_is_refused(content, problem):
    """Whatever it is, the message names the manifest and says what to mend."""
    with pytest.raises(BadRequest, match=problem) as refusal:
        decode_manifest(content, "m1")
    assert refusal.value.message.startswith("Cannot read m1: ")


def test_a_manifest_has_limits():
    """More entries or bytes than asked for are not read."""
    content = manifest(*[ENTRY] * 100)
    assert len(decode_manifest(content, limits=AvroLimits(rows=100))[1]) == 100
    with pytest.raises(BadRequest, match="Cannot read m1: it has 100 entries, more than 99; split it"):
        decode_manifest(content, "m1", AvroLimits(rows=99))
    with pytest.raises(BadRequest, match="Cannot read m1: it holds more than 1000 bytes; split it"):
        decode_manifest(content, "m1", AvroLimits(bytes=1000))


def listing(**changes):
    return encode_manifest_list(ManifestListHeader(77, None, 1, 3, 0), [replace(LISTED, **changes)])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"Obj", "no valid Avro file", id="cut"),
        pytest.param(manifest(), r"no field 500 \(manifest_path\)", id="a-manifest"),
        pytest.param(listing(manifest_path=""), "has a number that is missing", id="no-path"),
        pytest.param(listing(manifest_length=-1), "m.avro' has a number", id="negative-length"),
        pytest.param(listing(partition_spec_id=2**31), "m.avro' has a number", id="huge-spec-id"),
        pytest.param(listing(sequence_number=-1), "m.avro' has a number", id="negative-sequence-number"),
        pytest.param(listing(min_sequence_number=-2), "m.avro' has a number", id="negative-lowest-sequence-number"),
        pytest.param(listing(first_row_id=-1), "m.avro' has a number", id="negative-row-id"),
        pytest.param(listing(content=2), "neither of data nor of deletes", id="content"),
    ],
)
def test_what_is_no_list_is_refused(content, problem):
    """The message names the list and the manifest."""
    with pytest.raises(BadRequest, match=problem) as refusal:
        decode_manifest_list(content, "l1")
    assert refusal.value.message.startswith("Cannot read l1: ")


@pytest.mark.parametrize(("content", "first_row_id"), [(0, -(2**63)), (1, -(2**63)), (1, 77)])
def test_what_duckdb_does_not_know_is_none(content, first_row_id):
    """DuckDB's iceberg extension writes -1 for the lowest sequence number, and any number for the first row id of delete files."""
    (listed,) = decode_manifest_list(listing(min_sequence_number=-1, content=content, first_row_id=first_row_id))
    assert (listed.min_sequence_number, listed.first_row_id) == (0, None)


@given(st.data())
def test_damaged_manifests_are_read_or_refused(data):
    """Cut or changed anywhere, by one byte or by a few: nothing but BadRequest is raised."""
    sound = data.draw(st.sampled_from([manifest(), golden("v1-second-data"), golden("v3-vectors"), golden("v2-list"), written()]))
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for decode in (decode_manifest, decode_manifest_list):
        try:
            decode(bytes(content))
        except BadRequest:
            pass
