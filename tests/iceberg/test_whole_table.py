"""A table of every part of the format, on local files, read by foreign readers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.table import StaticTable

from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.puffin import encode_deletion_vectors
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import lower_bound, upper_bound
from duckicelake.iceberg.snapshots import Snapshot, SnapshotRef
from duckicelake.iceberg.types import NestedField, PrimitiveType
from tests.support.lakes import open_duckdb

STRING = PrimitiveType("string")
SCHEMA = Schema(0, (NestedField(1, "id", PrimitiveType("long"), False), NestedField(2, "name", STRING, False)))
SPEC = PartitionSpec(0, (PartitionField(2, 1000, "first letter", "truncate[1]"),))
ROWS = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8, 9]}
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


class TableFolder:
    """A table's folder, written bottom up: data files, manifests, list, metadata."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        (root / "metadata").mkdir()
        (root / "data").mkdir()

    def write(self, name: str, content: bytes) -> str:
        (self.root / name).write_bytes(content)
        return str(self.root / name)

    def add_rows(self, letter: str, ids: list[int]) -> ManifestEntry:
        """One Parquet file of one partition, as an added entry."""
        columns: list[Any] = [pyarrow.field("id", pyarrow.int64(), metadata={"PARQUET:field_id": "1"})]
        columns.append(pyarrow.field("name", pyarrow.string(), metadata={"PARQUET:field_id": "2"}))
        names = [f"{letter}{i}" for i in ids]
        path = self.root / "data" / f"{letter}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"id": ids, "name": names}, schema=pyarrow.schema(columns)), path)
        least, greatest = {1: min(ids), 2: min(names)}, {1: max(ids), 2: max(names)}
        types = {1: PrimitiveType("long"), 2: STRING}
        file = DataFile(
            content=0,
            file_path=str(path),
            file_format="PARQUET",
            partition=(letter,),
            record_count=len(ids),
            file_size_in_bytes=path.stat().st_size,
            value_counts=dict.fromkeys(types, len(ids)),
            null_value_counts=dict.fromkeys(types, 0),
            lower_bounds={i: bound for i, type in types.items() if (bound := lower_bound(type, least[i]))},
            upper_bounds={i: bound for i, type in types.items() if (bound := upper_bound(type, greatest[i]))},
        )
        return ManifestEntry(1, 7, None, None, file)

    def write_manifest(self, name: str, content: int, entries: list[ManifestEntry]):
        header = ManifestHeader(SCHEMA, SPEC, self.version, content)
        encoded = encode_manifest(header, entries)
        number = 0 if self.version == 1 else 1
        found = build_manifest_file(header, entries, WrittenManifest(self.write(f"metadata/{name}", encoded), len(encoded), 7, number))
        return replace(found, first_row_id=0) if self.version > 2 and not content else found

    def publish(self, data: list[ManifestEntry], deletes: list[ManifestEntry]) -> str:
        """The metadata file of a table with one snapshot of these entries."""
        manifests = [self.write_manifest("m0.avro", 0, data)]
        if deletes:
            manifests.append(self.write_manifest("m1.avro", 1, deletes))
        first_row_id = 0 if self.version > 2 else None
        number = 0 if self.version == 1 else 1
        listed = encode_manifest_list(ManifestListHeader(7, None, number, self.version, first_row_id), manifests)
        location = self.write("metadata/list.avro", listed)
        snapshot = Snapshot(7, None, number, 1000, location, {"operation": "append"}, 0, first_row_id, None if first_row_id is None else 9)
        metadata = TableMetadata(
            format_version=self.version,
            table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
            location=str(self.root),
            last_sequence_number=number,
            last_updated_ms=1000,
            last_column_id=2,
            schemas=(SCHEMA,),
            current_schema_id=0,
            partition_specs=(SPEC,),
            default_spec_id=0,
            last_partition_id=1000,
            current_snapshot_id=7,
            snapshots=(snapshot,),
            snapshot_log=((1000, 7),),
            refs={"main": SnapshotRef(7, "branch")},
            next_row_id=9 if self.version > 2 else 0,
        )
        return self.write("metadata/v1.metadata.json", encode_metadata(metadata))


def pyiceberg_ids(metadata: str, filter: str) -> list[int]:
    found: list[Any] = StaticTable.from_metadata(metadata).scan(row_filter=filter).to_arrow()["id"].to_pylist()
    return sorted(found)


def duckdb_ids(metadata: str, filter: str) -> list[int]:
    with open_duckdb("avro", "iceberg") as con:
        rows = con.execute(f"SELECT id FROM iceberg_scan(?) WHERE {filter} ORDER BY id", [metadata])
        return [row[0] for row in rows.fetchall()]


READERS = pytest.mark.parametrize("read_ids", [pyiceberg_ids, duckdb_ids])
FILTERS = {
    "id >= 0": lambda i: True,
    "id = 6": lambda i: i == 6,
    "name >= 'b5' AND name < 'b8'": lambda i: 5 <= i < 8,
    "name = 'zz'": lambda i: False,
}


@READERS
@VERSIONS
def test_readers_find_every_row(read_ids, version, tmp_path):
    """Whatever they prune by (partition, bounds, summaries), foreign readers find exactly the rows that match."""
    table = TableFolder(tmp_path, version)
    metadata = table.publish([table.add_rows(letter, ids) for letter, ids in ROWS.items()], [])
    for text, matches in FILTERS.items():
        assert read_ids(metadata, text) == [i for ids in ROWS.values() for i in ids if matches(i)]


@READERS
def test_readers_apply_deletion_vectors(read_ids, tmp_path):
    """A deletion vector hides its rows from foreign readers."""
    table = TableFolder(tmp_path, 3)
    entries = [table.add_rows(letter, ids) for letter, ids in ROWS.items()]
    target = entries[1].data_file
    file = encode_deletion_vectors([(target.file_path, [0, 3])])
    path = table.write("data/dv.puffin", file.content)
    blob = file.blobs[0]
    vector = DataFile(1, path, "PUFFIN", target.partition, 2, len(file.content), referenced_data_file=target.file_path)
    vector = replace(vector, content_offset=blob.offset, content_size_in_bytes=blob.length)
    metadata = table.publish(entries, [ManifestEntry(1, 7, None, None, vector)])
    assert read_ids(metadata, "id >= 0") == [1, 2, 3, 4, 6, 7, 9]
