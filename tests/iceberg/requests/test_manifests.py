from dataclasses import replace
from pathlib import Path

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.requests.manifest_checks import ReadManifest, check_added_once, check_manifest
from duckicelake.iceberg.schema import Schema
from tests.iceberg.support.updates import SCHEMAS, table

GOLDEN = Path(__file__).parents[1] / "avro" / "golden"
SPEC = PartitionSpec(1, (PartitionField(1, 1000, "id_bucket", "bucket[4]"),))
TABLE = table(3, partition_specs=(UNPARTITIONED, SPEC))
FILE = DataFile(0, "s3://b/t/data/a.parquet", "PARQUET", (), 7, 1000)
LISTED = ManifestFile("s3://b/t/m.avro", 10, 0, 0, 1, 1, 77, 1, 0, 0, 7, 0, 0, ())
HEADER = ManifestHeader(SCHEMAS[0], UNPARTITIONED, 2, 0)
ENTRY = ManifestEntry(1, None, None, None, FILE)
VECTOR = replace(
    FILE, content=1, file_format="PUFFIN", referenced_data_file="s3://b/t/data/a.parquet", content_offset=4, content_size_in_bytes=42
)


def manifest(entry=ENTRY, header=HEADER, **listed):
    return ReadManifest(replace(LISTED, **listed), header, [entry])


def deletes(**file):
    """A manifest of one delete file."""
    entry = replace(ENTRY, data_file=replace(FILE, **{"content": 1, **file}))
    return manifest(entry, replace(HEADER, content=1), content=1)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_spark_wrote_fits_its_table(version):
    """Every manifest of its last list, against a table with its specs."""
    lists = decode_manifest_list((GOLDEN / f"spark-4.1-iceberg-1.11.0-v{version}-list.avro").read_bytes())
    names = ["second-data", "first-data", {2: "deletes", 3: "vectors"}.get(version, "")][: len(lists)]
    read = [decode_manifest((GOLDEN / f"spark-4.1-iceberg-1.11.0-v{version}-{name}.avro").read_bytes()) for name in names]
    manifests = [ReadManifest(listed, header, entries) for listed, (header, entries) in zip(lists, read, strict=True)]
    specs = {header.spec.spec_id: header.spec for header, _ in read}
    for item in manifests:
        check_manifest(item, table(version, partition_specs=tuple(specs.values()), default_spec_id=0))
    check_added_once(manifests)


def test_names_are_no_difference():
    """A column or a partition field that was renamed since leaves the tuple as it is."""
    spec = PartitionSpec(1, (replace(SPEC.fields[0], name="b"),))
    entry = replace(ENTRY, data_file=replace(FILE, partition=(3,)))
    check_manifest(manifest(entry, replace(HEADER, schema=Schema(0, ()), spec=spec), partition_spec_id=1), TABLE)


def test_old_lists_need_not_count():
    """Version 1 may leave the counts out."""
    check_manifest(manifest(added_files_count=-1, added_rows_count=-1, existing_rows_count=-1), TABLE)


def test_existing_files_keep_their_snapshot():
    """Only what is added belongs to the snapshot that wrote the manifest."""
    moved = dict(added_files_count=0, added_rows_count=0, existing_files_count=1, existing_rows_count=7)
    check_manifest(manifest(replace(ENTRY, status=0, snapshot_id=5), **moved), TABLE)
    check_manifest(manifest(replace(ENTRY, snapshot_id=77)), TABLE)


def test_deletes_of_each_kind_are_taken():
    """Positions, equality, vectors."""
    for file in (dict(content=1), dict(content=2, equality_ids=(1,))):
        entry = replace(ENTRY, data_file=replace(FILE, **file))
        check_manifest(manifest(entry, replace(HEADER, content=1), content=1), TABLE)
    check_manifest(manifest(replace(ENTRY, data_file=VECTOR), replace(HEADER, content=1), content=1), TABLE)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        pytest.param(manifest(content=1), "it holds content 0, and its list says 1", id="content"),
        pytest.param(manifest(header=replace(HEADER, format_version=4)), "of format version 4, and the table of 3", id="version"),
        pytest.param(manifest(partition_spec_id=1), "of partition spec 0, and its list says 1", id="spec-id"),
        pytest.param(manifest(header=replace(HEADER, spec=PartitionSpec(9)), partition_spec_id=9), "no partition spec 9", id="no-spec"),
        pytest.param(
            manifest(header=replace(HEADER, spec=replace(SPEC, spec_id=0))), "its partition spec 0 is not the table's", id="other-spec"
        ),
        pytest.param(manifest(added_files_count=2), r"it has \[1, 0, 0, 7, 0, 0\] .*, and its list says \[2, 0, 0, 7, 0, 0\]", id="files"),
        pytest.param(manifest(added_rows_count=8), r"its list says \[1, 0, 0, 8, 0, 0\]", id="rows"),
        pytest.param(manifest(deleted_files_count=1), r"its list says \[1, 0, 1, 7, 0, 0\]", id="deleted-files"),
        pytest.param(manifest(replace(ENTRY, snapshot_id=5)), "was added by snapshot 5, and the manifest by 77", id="snapshot"),
        pytest.param(manifest(replace(ENTRY, data_file=replace(FILE, content=1))), "is of content 1", id="delete-among-data"),
        pytest.param(manifest(header=replace(HEADER, content=1), content=1), "is of content 0", id="data-among-deletes"),
        pytest.param(deletes(content=2), "deletes by equality of no column", id="equality-of-nothing"),
        pytest.param(deletes(equality_ids=(1,)), "deletes by position and by equality", id="both"),
        pytest.param(deletes(file_format="PUFFIN"), "without data file, offset or size", id="vector-of-nothing"),
        pytest.param(deletes(file_format="PUFFIN", content=2, equality_ids=(1,)), "without data file", id="equality-vector"),
    ],
)
def test_what_does_not_fit_is_refused(read, problem):
    """The message names the manifest."""
    with pytest.raises(BadRequest, match=rf"Cannot add manifest s3://b/t/m\.avro: .*{problem}"):
        check_manifest(read, TABLE)


def test_old_tables_take_no_newer_deletes():
    """Version 1 has no deletes, version 2 no vectors."""
    with pytest.raises(BadRequest, match="format version 1 does not have"):
        check_manifest(deletes(), table(1))
    with pytest.raises(BadRequest, match="only from format version 3"):
        check_manifest(manifest(replace(ENTRY, data_file=VECTOR), replace(HEADER, content=1), content=1), table(2))


def test_a_file_is_added_once():
    """In one manifest or in two, its rows would be there twice; vectors of two files may share a Puffin file."""
    with pytest.raises(BadRequest, match=r"s3://b/t/data/a.parquet is added twice"):
        check_added_once([manifest(), manifest(manifest_path="s3://b/t/n.avro")])
    check_added_once([manifest(), manifest(replace(ENTRY, status=0))])
    other = replace(VECTOR, referenced_data_file="s3://b/t/data/b.parquet", content_offset=46)
    check_added_once([manifest(replace(ENTRY, data_file=file)) for file in (VECTOR, other)])
