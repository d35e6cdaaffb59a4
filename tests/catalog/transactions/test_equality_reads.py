"""What is remembered while the rows of equality deletes are looked for."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.catalog.incoming import delete_resolution
from duckicelake.catalog.incoming.client_manifests import MAX_POSITIONS, LiveFile, ManifestReader
from duckicelake.catalog.incoming.delete_resolution import EqualityResolver
from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from tests.support.lakes import FreshLake

SCHEMA = Schema(0, (NestedField(1, "id", PrimitiveType("long"), False),))
SPEC = PartitionSpec(0)


def encode_ids(*ids: int) -> bytes:
    """A Parquet file of one column."""
    column, sink = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}), pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(ids, pa.int64())], schema=pa.schema([column])), sink)
    return sink.getvalue().to_pybytes()


def describe(path: str, content: bytes, bounds: Mapping[int, bytes] | None = None) -> DataFile:
    """A data file as a manifest has it, with its column's lowest and highest value in `bounds`."""
    known = {"lower_bounds": bounds, "upper_bounds": bounds, "value_counts": {1: 1}, "null_value_counts": {1: 0}}
    told = {"content": DATA, "file_format": "PARQUET", "partition": (), "record_count": 1, "file_size_in_bytes": len(content)}
    return DataFile(file_path=path, **told, **known)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class Stand:
    """Five data files, of which one is there and has the row that a delete file means."""

    resolver: EqualityResolver
    delete: LiveFile
    live: Sequence[LiveFile]


@pytest.fixture
def stand(lake: FreshLake, warehouse: Warehouse) -> Stand:
    """A request on a table of its own."""
    location = f"{lake.iceberg_path}t"
    content, key = encode_ids(3), f"{location}/deletes.parquet"
    for path in (key, f"{location}/data/3.parquet"):
        warehouse.objects.put_new(path, content)
    files = [describe(f"{location}/data/{i}.parquet", content, {1: struct.pack("<q", i)}) for i in range(5)]
    delete = LiveFile(SPEC, replace(describe(key, content), content=EQUALITY_DELETES, equality_ids=(1,)), 2)
    resolver = EqualityResolver(ManifestReader(warehouse.objects, AllowedLocations((location,))), (SCHEMA,), {}, {})
    return Stand(resolver, delete, [LiveFile(SPEC, file, 1) for file in files])


def test_only_data_files_that_are_read_are_remembered(stand: Stand) -> None:
    """A branch may have thousands of deletes and of files, and most pairs of them have nothing to do with each other."""
    resolver, live, read = stand.resolver, stand.live, stand.live[3].file
    for candidates in (live, live[:2], live):
        found = {path: list(rows) for path, rows in resolver.list_rows(stand.delete, candidates).items()}
        assert found == ({read.file_path: [0]} if len(candidates) > 3 else {})
    assert resolver.rows[stand.delete.file.file_path, None].keys() == {read.file_path}
    assert resolver.read_bytes == read.file_size_in_bytes


def test_what_a_request_may_compare_and_delete_is_bounded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of pairs and of rows are the client's choice."""
    monkeypatch.setattr(delete_resolution, "MAX_PAIRS", 9)
    stand.resolver.list_rows(stand.delete, stand.live[:4])
    assert stand.resolver.reader.positions_left == MAX_POSITIONS - 1
    with pytest.raises(BadRequest, match="More than 9 pairs"):
        stand.resolver.list_rows(stand.delete, [*stand.live, *stand.live])
    stand.resolver.reader.positions_left = 0
    stand.resolver.rows.clear()
    stand.resolver.pairs = 0
    with pytest.raises(BadRequest, match="rows are deleted in one request"):
        stand.resolver.list_rows(stand.delete, stand.live)


def test_delete_files_lie_where_the_table_has_files() -> None:
    """In its own locations, or right next to a data file, which may lie in the folder of another branch: asked once for each folder."""
    asked = list[str]()

    def has_data_in(folder: str) -> bool:
        asked.append(folder)
        return folder == "s3://b/data/t/"

    allowed = AllowedLocations(("s3://b/own",), has_data_in=has_data_in)
    assert all(allowed.may_hold_deletes(f"s3://b/data/t/{number}.parquet") for number in range(3)) and asked == ["s3://b/data/t/"]
    assert allowed.may_hold_deletes("s3://b/own/d.parquet") and allowed.may_hold_deletes("s3://b/data/t/d.parquet")
    for elsewhere in ("s3://b/data/t/x/d.parquet", "s3://b/data/d.parquet", "s3://b/data/t/../u/d.parquet", "s3://b/data/t/../t/d.parquet"):
        assert not allowed.may_hold_deletes(elsewhere)
