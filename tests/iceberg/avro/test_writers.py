"""Manifests as the clients' own writers write them. Spark wrote those in `golden`: partitioned by bucket, day, identity and
truncate; then without the bucket; then a delete."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile as OracleFile
from pyiceberg.manifest import DataFileContent, FileFormat, write_manifest, write_manifest_list
from pyiceberg.manifest import ManifestEntry as OracleEntry
from pyiceberg.manifest import ManifestEntryStatus as OracleStatus
from pyiceberg.partitioning import PartitionSpec as OracleSpec
from pyiceberg.schema import Schema as OracleSchema
from pyiceberg.typedef import Record

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import FieldSummary
from duckicelake.iceberg.partition import PartitionField, PartitionSpec, format_spec, format_spec_fields
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from tests.support.lakes import open_duckdb

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Schema(0, (NestedField(1, "id", PrimitiveType("long"), False), NestedField(2, "at", PrimitiveType("date"), False)))
SPEC = PartitionSpec(3, (PartitionField(1, 1000, "id_bucket", "bucket[4]"), PartitionField(2, 1001, "at", "identity")))
FILE = DataFile(0, "s3://b/t/data/a.parquet", "PARQUET", (), 7, 1000)


def golden(name):
    return (GOLDEN / f"spark-4.1-iceberg-1.11.0-{name}.avro").read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_sparks_data_manifests_are_read(version):
    """Partition values of every kind, null and not; what is inherited stays None."""
    header, (first, second) = decode_manifest(golden(f"v{version}-first-data"))
    assert (header.format_version, header.content, header.spec.spec_id) == (version, 0, 0)
    assert [item.transform for item in header.spec.fields] == ["bucket[4]", "day", "identity", "truncate[3]"]
    assert (first.data_file.partition, second.data_file.partition) == ((0, 19782, Decimal("-1.25"), "abc"), (None,) * 4)
    assert (first.status, first.sequence_number, first.data_file.first_row_id) == (1, None, None)
    assert first.data_file.lower_bounds is not None
    assert first.data_file.lower_bounds[3] == b"\x83"
    assert first.data_file.null_value_counts == dict.fromkeys(range(1, 7), 0)
    assert (first.data_file.split_offsets, first.data_file.file_size_in_bytes, first.data_file.sort_order_id) == ((4,), 1680, 0)


@pytest.mark.parametrize(("version", "partition"), [(1, (None, -1)), (2, (-1,)), (3, (-1,))])
def test_sparks_later_specs_are_read(version, partition):
    """A dropped partition field is void in version 1 and gone from the tuple afterwards."""
    header, (entry,) = decode_manifest(golden(f"v{version}-second-data"))
    assert header.spec.spec_id == 1
    assert entry.data_file.partition == (*partition, Decimal("9999999.99"), "é")
    assert entry.data_file.nan_value_counts == {6: 1}


def test_sparks_position_deletes_are_read():
    """The delete file's bounds name the data file, under ids that only delete files have."""
    header, (entry,) = decode_manifest(golden("v2-deletes"))
    assert (header.content, entry.data_file.content, entry.data_file.file_format) == (1, 1, "PARQUET")
    assert entry.data_file.lower_bounds is not None
    assert entry.data_file.lower_bounds[2147483546].startswith(b"/tmp/warehouse/n/v2/data/at_day=1969-12-31/")


def test_sparks_deletion_vectors_are_read():
    """A blob in a Puffin file, with its place and the data file it is of."""
    _, (entry,) = decode_manifest(golden("v3-vectors"))
    file = entry.data_file
    assert (file.content, file.file_format, file.content_offset, file.content_size_in_bytes) == (1, "PUFFIN", 4, 42)
    assert file.referenced_data_file is not None
    assert file.referenced_data_file.endswith("-00001.parquet")
    assert file.value_counts is None


@pytest.mark.parametrize(
    ("version", "contents", "numbers", "row_ids"),
    [(1, [0, 0], [0, 0], [None, None]), (2, [0, 0, 1], [2, 1, 3], [None] * 3), (3, [0, 0, 1], [2, 1, 3], [2, 0, None])],
)
def test_sparks_lists_are_read(version, contents, numbers, row_ids):
    """Newest manifest first, deletes last; version 1 has no numbers, version 3 row ids."""
    listed = decode_manifest_list(golden(f"v{version}-list"))
    assert [item.content for item in listed] == contents
    assert [item.sequence_number for item in listed] == numbers
    assert [item.first_row_id for item in listed] == row_ids
    assert [item.partition_spec_id for item in listed][:2] == [1, 0]
    assert [(item.added_files_count, item.added_rows_count, item.existing_rows_count) for item in listed][:2] == [(1, 1, 0), (2, 2, 0)]
    assert listed[1].partitions[3] == FieldSummary(True, False, b"abc", b"abc")


METRICS = {
    "column_sizes": {1: 10},
    "value_counts": {1: 7},
    "null_value_counts": {1: 0},
    "nan_value_counts": {},
    "lower_bounds": {1: b"12345678"},
    "upper_bounds": {1: b"12345679"},
}


def pyiceberg_manifest(path, version, codec):
    """Let PyIceberg write a manifest of one file; returns what it says of it to a list."""
    file = OracleFile.from_args(
        content=DataFileContent.DATA,
        file_path="s3://b/t/data/ü.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(3, 19782),
        record_count=7,
        file_size_in_bytes=1000,
        split_offsets=[4, 90],
        sort_order_id=0,
        **METRICS,
    )
    schema, spec = OracleSchema.model_validate(format_schema(SCHEMA)), OracleSpec.model_validate(format_spec(SPEC))
    with write_manifest(version, spec, schema, PyArrowFileIO().new_output(str(path)), 77, codec) as writer:
        writer.add_entry(OracleEntry.from_args(status=OracleStatus.ADDED, snapshot_id=77, sequence_number=None, data_file=file))
    return writer.to_manifest_file()


PYICEBERG = pytest.mark.parametrize(("version", "codec"), [(1, "deflate"), (2, "null"), (2, "deflate"), (2, "zstandard")])


@PYICEBERG
def test_pyicebergs_manifests_are_read(version, codec, tmp_path):
    """With every codec that needs no other package."""
    pyiceberg_manifest(tmp_path / "m.avro", version, codec)
    header, entries = decode_manifest((tmp_path / "m.avro").read_bytes())
    assert (header.schema, header.spec, header.format_version) == (SCHEMA, SPEC, version)
    more = {"file_path": "s3://b/t/data/ü.parquet", "partition": (3, 19782), "split_offsets": (4, 90), "sort_order_id": 0}
    assert entries == [ManifestEntry(1, 77, None, None, replace(FILE, **more, **METRICS))]


@PYICEBERG
def test_pyicebergs_lists_are_read(version, codec, tmp_path):
    """Counts, numbers and summaries."""
    found = pyiceberg_manifest(tmp_path / "m.avro", version, codec)
    with write_manifest_list(version, PyArrowFileIO().new_output(str(tmp_path / "l.avro")), 77, None, 5, codec) as writer:
        writer.add_manifests([found])
    (listed,) = decode_manifest_list((tmp_path / "l.avro").read_bytes())
    assert (listed.partition_spec_id, listed.added_snapshot_id, listed.added_files_count, listed.added_rows_count) == (3, 77, 1, 7)
    assert (listed.sequence_number, listed.partitions[0].contains_null) == (5 if version == 2 else 0, False)


def ids(field_id, **children):
    return "{" + ", ".join([f"__duckdb_field_id: {field_id}", *[f'"{key}": {value}' for key, value in children.items()]]) + "}"


DUCKDB_FILE = {
    "file_path": ("'s3://b/t/data/a.parquet'", 100),
    "file_format": ("'parquet'", 101),
    "partition": ("{'id_bucket': 3::INTEGER, 'at': DATE '2024-02-29'}", ids(102, id_bucket=1000, at=1001)),
    "record_count": ("7::BIGINT", 103),
    "file_size_in_bytes": ("1000::BIGINT", 104),
    "value_counts": ("MAP {1::INTEGER: 7::BIGINT}", ids(109, key=119, value=120)),
    "null_value_counts": ("NULL::MAP(INTEGER, BIGINT)", ids(110, key=121, value=122)),
    "lower_bounds": ("MAP {1::INTEGER: 'abc'::BLOB}", ids(125, key=126, value=127)),
    "split_offsets": ("[4::BIGINT, 90]", ids(132, list=133)),
    "content": ("0::INTEGER", 134),
}


def test_duckdbs_manifests_are_read(tmp_path):
    """It lets everything be null, orders fields as it likes and spells formats in small letters."""
    path = tmp_path / "m.avro"
    values = ", ".join(f"'{name}': {value}" for name, (value, _) in DUCKDB_FILE.items())
    data_file = ids(2, **{name: found for name, (_, found) in DUCKDB_FILE.items()})
    metadata = {"schema": json.dumps(format_schema(SCHEMA)), "partition-spec": json.dumps(format_spec_fields(SPEC))}
    metadata |= {"schema-id": "0", "partition-spec-id": "3", "format-version": "2", "content": "data"}
    pairs = ", ".join(f"'{key}': '{value}'" for key, value in metadata.items())
    field_ids = f"{{status: 0, snapshot_id: 1, sequence_number: 3, data_file: {data_file}}}"
    columns = f"1 AS status, 77::BIGINT AS snapshot_id, NULL::BIGINT AS sequence_number, {{{values}}} AS data_file"
    options = f"FORMAT avro, ROOT_NAME 'manifest_entry', FIELD_IDS {field_ids}, METADATA {{{pairs}}}"
    with open_duckdb("avro") as con:
        con.execute(f"COPY (SELECT {columns}) TO '{path}' ({options})")
    header, entries = decode_manifest(path.read_bytes())
    assert header == ManifestHeader(SCHEMA, SPEC, 2, 0)
    expected = replace(FILE, partition=(3, 19782), value_counts={1: 7}, lower_bounds={1: b"abc"}, split_offsets=(4, 90))
    assert entries == [ManifestEntry(1, 77, None, None, expected)]
