import itertools
import json
import time
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest
from duckicelake.iceberg.avro.manifest_encoding import RowParts, build_manifest_schema, to_avro_name
from duckicelake.iceberg.manifest import (
    DataFile,
    EncodedEntry,
    EncodedFile,
    ManifestEntry,
    ManifestHeader,
    encode_files,
    encode_manifest,
    encode_metrics,
    widen_bounds,
)
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec, format_spec_fields, list_partition_types
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from tests.iceberg.support.oracles import duckdb_rows, fastavro_metadata, fastavro_rows, pyiceberg_entries
from tests.iceberg.support.strategies import PRIMITIVES, entries_of

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])
TYPES = [*PRIMITIVES, "unknown"]
SCHEMA = Schema(4, tuple(NestedField(i, f"c {i}", PrimitiveType(name), False) for i, name in enumerate(TYPES, 1)))
SPEC = PartitionSpec(6, tuple(PartitionField(i, 999 + i, f"c {i}", "identity") for i in range(1, len(TYPES) + 1)))
# What the foreign readers cannot read, by their own account: nanoseconds (PyIceberg 0.12), nanoseconds in UTC and
# nothing at all in no bytes (DuckDB 1.5.5).
UNREAD = {"pyiceberg": ("timestamp_ns", "timestamptz_ns"), "duckdb": ("timestamptz_ns", "fixed[0]")}
SAMPLES = {
    "boolean": True,
    "int": -5,
    "long": 2**60,
    "date": 17486,
    "time": 5,
    "timestamp": -1,
    "timestamptz": 2,
    "timestamp_ns": 3,
    "timestamptz_ns": 4,
    "float": 0.5,
    "double": -1.5,
    "string": "é",
    "uuid": bytes(range(16)),
    "binary": b"ab",
    "fixed[0]": b"",
    "fixed[7]": b"1234567",
    "decimal(1, 0)": Decimal("-9"),
    "decimal(9, 2)": Decimal("-1.25"),
    "decimal(18, 18)": Decimal("-0.999999999999999999"),
    "decimal(38, 10)": Decimal("9999999999999999999999999999.9999999999"),
    "unknown": None,
}


def header(version, spec=UNPARTITIONED, content=0):
    return ManifestHeader(SCHEMA, spec, version, content)


def entry(partition=(), **changes):
    file = DataFile(
        content=0,
        file_path="s3://bucket/t/data/ü.parquet",
        file_format="PARQUET",
        partition=partition,
        record_count=100,
        file_size_in_bytes=2**40,
        column_sizes={1: 10},
        value_counts={1: 100, 2: 100},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\x00\xff"},
        upper_bounds={1: b""},
        split_offsets=(4, 1000),
        sort_order_id=1,
    )
    return replace(ManifestEntry(1, 77, None, None, file), **changes)


def parts(version, left_out=()):
    """A spec of some partition fields, and entries of it."""
    picked = st.sets(st.sampled_from([i for i, name in enumerate(PRIMITIVES) if name not in left_out]), max_size=4)
    return picked.map(sorted).flatmap(lambda chosen: spec_and_entries(version, chosen))


def spec_and_entries(version, picked):
    spec = PartitionSpec(2, tuple(SPEC.fields[i] for i in picked))
    types = list_partition_types(spec, SCHEMA)
    return st.tuples(st.just(spec), st.lists(entries_of(types, version), max_size=3))


@VERSIONS
@given(data=st.data())
def test_manifests_come_back(version, data):
    """decode_manifest(encode_manifest(x)) = x, for every partition type and every optional field."""
    spec, entries = data.draw(parts(version))
    assert decode_manifest(encode_manifest(header(version, spec), entries)) == (header(version, spec), entries)


@VERSIONS
@given(data=st.data())
def test_fastavro_reads_our_manifests(version, data):
    """A foreign Avro reader finds a valid file, field by field (it turns times into Python's, which end in 9999)."""
    spec, entries = data.draw(parts(version, left_out=[name for name in PRIMITIVES if name.startswith(("date", "time"))]))
    rows = fastavro_rows(encode_manifest(header(version, spec), entries))
    assert [row["status"] for row in rows] == [item.status for item in entries]
    for row, item in zip(rows, entries, strict=True):
        found, file = row["data_file"], item.data_file
        assert (found["file_path"], found["record_count"]) == (file.file_path, file.record_count)
        bounds = found["upper_bounds"]
        assert (None if bounds is None else {pair["key"]: pair["value"] for pair in bounds}) == file.upper_bounds


@VERSIONS
@pytest.mark.parametrize("type", [name for name in TYPES if name not in UNREAD["pyiceberg"]])
def test_pyiceberg_reads_every_partition_type(version, type, tmp_path):
    """PyIceberg finds the partition value of each type, and null."""
    spec = PartitionSpec(0, (SPEC.fields[TYPES.index(type)],))
    path = tmp_path / "m.avro"
    path.write_bytes(encode_manifest(header(version, spec), [entry((SAMPLES[type],)), entry((None,))]))
    values = [item.data_file.partition[0] for item in pyiceberg_entries(path)]
    assert [value.bytes if type == "uuid" and value else value for value in values] == [SAMPLES[type], None]


@VERSIONS
def test_pyiceberg_reads_our_entries(version, tmp_path):
    """PyIceberg finds counts, bounds and offsets, and inherits what is null."""
    path = tmp_path / "m.avro"
    sent = entry() if version == 1 else entry(data_file=replace(entry().data_file, content=2, equality_ids=(1, 2)))
    path.write_bytes(
        encode_manifest(header(version), [sent, replace(sent, status=2, snapshot_id=3, sequence_number=4, file_sequence_number=2)])
    )
    added, deleted = pyiceberg_entries(path, sequence_number=0 if version == 1 else 5)
    file = added.data_file
    assert (added.status, added.snapshot_id, added.sequence_number, added.file_sequence_number) == (
        1,
        77,
        *(2 * (0 if version == 1 else 5,)),
    )
    assert (deleted.status, deleted.snapshot_id, deleted.sequence_number) == (2, 3, 0 if version == 1 else 4)
    assert (file.file_path, file.file_format.value, file.record_count, file.file_size_in_bytes) == (
        "s3://bucket/t/data/ü.parquet",
        "PARQUET",
        100,
        2**40,
    )
    assert (file.column_sizes, file.value_counts, file.null_value_counts, file.nan_value_counts) == ({1: 10}, {1: 100, 2: 100}, {1: 0}, {})
    assert (file.lower_bounds, file.upper_bounds) == ({1: b"\x00\xff"}, {1: b""})
    assert (list(file.split_offsets), file.sort_order_id) == ([4, 1000], 1)
    assert version == 1 or (file.content, list(file.equality_ids)) == (2, [1, 2])


@VERSIONS
def test_duckdb_reads_our_manifests(version, tmp_path):
    """DuckDB's Avro reader finds every field, in one manifest partitioned by every type."""
    fields = tuple(item for item, type in zip(SPEC.fields, TYPES, strict=True) if type not in UNREAD["duckdb"])
    partition = tuple(SAMPLES[TYPES[item.source_id - 1]] for item in fields)
    path = tmp_path / "m.avro"
    vector = replace(entry(partition).data_file, referenced_data_file="s3://x", content_offset=4, content_size_in_bytes=40, first_row_id=9)
    path.write_bytes(encode_manifest(header(version, PartitionSpec(0, fields)), [entry(partition), entry(partition, data_file=vector)]))
    first, second = duckdb_rows(path)
    file = first["data_file"]
    assert (first["status"], first["snapshot_id"], file["file_path"], file["record_count"]) == (1, 77, "s3://bucket/t/data/ü.parquet", 100)
    assert (file["value_counts"], file["split_offsets"]) == ({"1": 100, "2": 100}, [4, 1000])
    values = dict(zip([TYPES[item.source_id - 1] for item in fields], file["partition"].values(), strict=True))
    assert values["date"] == "2017-11-16"
    assert values["timestamptz"].startswith("1970-01-01 00:00:00.000002")
    assert values["decimal(9, 2)"] == -1.25
    assert values["uuid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert version < 2 or second["data_file"]["referenced_data_file"] == "s3://x"
    assert version < 3 or [second["data_file"][key] for key in ("content_offset", "content_size_in_bytes", "first_row_id")] == [4, 40, 9]


WIDENED = {1: PrimitiveType("long"), 2: PrimitiveType("double"), 5: PrimitiveType("long")}
NARROW = {1: b"\xf9\xff\xff\xff", 2: b"\0\0\0\x80", 3: b"\1\0\0\0", 5: b"\1" + b"\0" * 7}
WIDE = {1: b"\xf9" + b"\xff" * 7, 2: b"\0" * 7 + b"\x80", 3: b"\1\0\0\0", 5: b"\1" + b"\0" * 7}


@VERSIONS
@pytest.mark.parametrize(("narrow", "wide"), [(NARROW, WIDE), ({}, {}), (None, None)], ids=["some", "empty", "none"])
def test_bounds_from_before_a_promotion_get_eight_bytes(version, narrow, wide):
    """Bounds of promoted columns alone, and of those the narrow ones; an encoded file becomes what it would be if it were encoded anew."""
    file = replace(entry().data_file, sort_order_id=None, split_offsets=None, first_row_id=7, lower_bounds=narrow, upper_bounds=narrow)
    found = widen_bounds(file, version, WIDENED)
    assert found == replace(file, lower_bounds=wide, upper_bounds=wide)
    plain = EncodedFile(file.file_path, (), file.record_count, file.file_size_in_bytes, 7)
    (encoded,) = encode_files([plain], [encode_metrics(RowParts(), file)], version)
    widened = EncodedEntry(1, 77, None, None, widen_bounds(encoded, version, WIDENED))
    assert encode_manifest(header(version), [widened]) == encode_manifest(header(version), [entry(data_file=found)])


@VERSIONS
def test_field_ids_are_the_specifications(version):
    """Every field carries the id that readers look for; v1 lacks what came later."""
    schema = json.loads(build_manifest_schema(version, PartitionSpec(0, SPEC.fields[:1]), (PrimitiveType("boolean"),)))
    assert schema["name"] == "manifest_entry"
    file = next(item for item in schema["fields"] if item["name"] == "data_file")["type"]
    partition = next(item for item in file["fields"] if item["name"] == "partition")["type"]
    assert (file["name"], partition["name"], partition["fields"][0]["field-id"]) == ("r2", "r102", 1000)
    common = [100, 101, 102, 103, 104, 108, 109, 110, 137, 125, 128, 131, 132]
    expected = {
        1: sorted([*common, 105, 140]),
        2: sorted([*common, 134, 135, 140, 143]),
        3: sorted([*common, 134, 135, 140, 142, 143, 144, 145]),
    }
    assert sorted(item["field-id"] for item in file["fields"]) == expected[version]
    assert [item["field-id"] for item in schema["fields"]] == ([0, 1, 2] if version == 1 else [0, 1, 3, 4, 2])
    counts = next(item for item in file["fields"] if item["field-id"] == 109)
    assert counts["default"] is None
    assert counts["type"][1]["logicalType"] == "map"
    assert [item["field-id"] for item in counts["type"][1]["items"]["fields"]] == [119, 120]


@pytest.mark.parametrize(
    ("type", "avro_type"),
    [
        pytest.param("binary", "bytes", id="binary"),
        pytest.param("date", {"type": "int", "logicalType": "date"}, id="date"),
        pytest.param("time", {"type": "long", "logicalType": "time-micros"}, id="time"),
        pytest.param("timestamp", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}, id="timestamp"),
        pytest.param("timestamptz", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, id="timestamptz"),
        pytest.param("timestamp_ns", {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False}, id="timestamp-ns"),
        pytest.param("timestamptz_ns", {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True}, id="timestamptz-ns"),
        pytest.param("uuid", {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}, id="uuid"),
        pytest.param("fixed[7]", {"type": "fixed", "name": "fixed_7", "size": 7}, id="fixed"),
        pytest.param(
            "decimal(9, 2)",
            {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
            id="decimal",
        ),
    ],
)
def test_partition_values_have_the_specifications_types(type, avro_type):
    """Appendix A gives each type's form in Avro; every value is optional."""
    schema = json.loads(build_manifest_schema(2, PartitionSpec(0, SPEC.fields[:1]), (PrimitiveType(type),)))
    partition = schema["fields"][-1]["type"]["fields"][3]["type"]
    assert partition["fields"] == [
        {"name": "c_x201", "type": ["null", avro_type], "default": None, "field-id": 1000, "iceberg-field-name": "c 1"}
    ]


def test_types_of_no_tuple_are_refused():
    """A variant or a shape cannot stand in a partition tuple."""
    with pytest.raises(BadRequest, match="Cannot partition by"):
        build_manifest_schema(3, PartitionSpec(0, SPEC.fields[:1]), (PrimitiveType("variant"),))


def test_header_says_what_the_manifest_is():
    """Readers need schema, spec and ids from the file's metadata; DuckDB fails without them."""
    metadata = fastavro_metadata(encode_manifest(header(2, SPEC, 1), []))
    assert json.loads(metadata["schema"]) == format_schema(SCHEMA)
    assert json.loads(metadata["partition-spec"]) == format_spec_fields(SPEC)
    assert [metadata[key] for key in ("schema-id", "partition-spec-id", "format-version", "content")] == ["4", "6", "2", "deletes"]


@pytest.mark.parametrize(
    ("name", "avro_name"),
    [
        pytest.param("a_B9", "a_B9", id="valid"),
        pytest.param("9a", "_9a", id="digit-first"),
        pytest.param("a.b c", "a_x2Eb_x20c", id="dot-and-space"),
        pytest.param("é", "_xE9", id="letter-beyond-ascii"),
        pytest.param("😀", "_xD83D_xDE00", id="surrogates"),
    ],
)
def test_names_become_avro_names(name, avro_name):
    """Names that Avro does not allow are spelled as Iceberg's Java library does, in UTF-16 units."""
    assert to_avro_name(name) == avro_name


@given(st.lists(st.text(min_size=1), unique=True, max_size=4))
def test_any_field_name_is_read_back(names):
    """However partition fields are named, a foreign reader opens the file and the original name is in it."""
    spec = PartitionSpec(0, tuple(PartitionField(2, 1000 + i, name, "identity") for i, name in enumerate(names)))
    content = encode_manifest(header(2, spec), [entry((1,) * len(names))])
    assert len(fastavro_rows(content)[0]["data_file"]["partition"]) == len(names)
    assert decode_manifest(content)[0].spec == spec


def test_alike_names_and_types_are_told_apart():
    """Two fields whose Avro names would be one, and two values of one fixed type, stay two."""
    spec = PartitionSpec(0, (PartitionField(1, 1000, "a b", "identity"), PartitionField(2, 1001, "a_x20b", "identity")))
    schema = Schema(0, tuple(NestedField(i, f"c{i}", PrimitiveType("uuid"), False) for i in (1, 2)))
    sent = entry((bytes(16), bytes(range(16))))
    content = encode_manifest(ManifestHeader(schema, spec, 2, 0), [sent])
    assert decode_manifest(content)[1] == [sent]
    assert len(fastavro_rows(content)[0]["data_file"]["partition"]) == 2


def test_same_entries_give_the_same_bytes():
    """Publishing twice writes the same object."""
    entries = [entry((), snapshot_id=i) for i in range(50)]
    assert encode_manifest(header(3), entries) == encode_manifest(header(3), list(entries))


def test_entries_are_taken_one_by_one():
    """A manifest of many files is encoded from a stream, not from a list."""
    taken = itertools.count()
    content = encode_manifest(header(2), (replace(entry(), snapshot_id=next(taken)) for _ in range(3000)))
    assert [item.snapshot_id for item in decode_manifest(content)[1]] == list(range(3000))


def test_encoding_is_fast():
    """An entry with the bounds of ten columns takes tens of microseconds, not hundreds."""
    ten = range(1, 11)
    file = replace(
        entry().data_file,
        column_sizes={i: i * 1000 for i in ten},
        value_counts=dict.fromkeys(ten, 100),
        null_value_counts=dict.fromkeys(ten, 0),
        lower_bounds=dict.fromkeys(ten, b"12345678"),
        upper_bounds=dict.fromkeys(ten, b"12345678"),
    )
    entries = [ManifestEntry(1, 77, None, None, file)] * 2000
    start = time.process_time()
    encode_manifest(header(2), entries)
    assert (time.process_time() - start) / 2000 < 100e-6


@pytest.mark.parametrize(
    ("build", "words"),
    [
        pytest.param(lambda: encode_manifest(header(1, content=1), []), "delete manifest", id="deletes-in-v1"),
        pytest.param(lambda: encode_manifest(header(1), [entry(snapshot_id=None)]), "snapshot id", id="v1-without-snapshot"),
        pytest.param(lambda: encode_manifest(header(2), [entry((1,))]), "partition values", id="too-many-values"),
        pytest.param(
            lambda: encode_manifest(header(2, PartitionSpec(0, SPEC.fields[1:2])), [entry(("x",))]), "partition value", id="text-as-int"
        ),
        pytest.param(
            lambda: encode_manifest(header(2, PartitionSpec(0, SPEC.fields[TYPES.index("uuid") :][:1])), [entry((b"x",))]),
            "partition value",
            id="short-uuid",
        ),
    ],
)
def test_what_a_manifest_cannot_hold_is_a_bad_request(build, words):
    """A wrong entry raises nothing but BadRequest."""
    with pytest.raises(BadRequest, match=words):
        build()
