"""Files that flush and merge wrote: what they embed, and the rows as they were before."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import NotFound, Unsupported
from duckicelake.store.derived_files import (
    EmbeddedLineage,
    InlinedColumn,
    RowLocations,
    can_restore,
    encode_inlined,
    read_embedded,
    restore_rows,
    take_rows,
)
from duckicelake.store.objects import Objects, StoreSettings, open_objects
from tests.store.lake_rows import InlinedTable
from tests.store.test_derived_files import WIDE
from tests.support.lakes import FreshLake

FLUSH = "CALL ducklake_flush_inlined_data('lake', table_name => '{t}')"
FILES = "SELECT data_file FROM ducklake_list_files('lake', '{t}')"


@pytest.fixture
def objects(shared_lake: FreshLake) -> Objects:
    """The object store that the lakes use."""
    keys = shared_lake.store
    return open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))


def test_flushed_rows_tell_their_snapshots(table: InlinedTable, objects: Objects) -> None:
    """Rows that were inlined at several snapshots, dead ones too, lie in one file that remembers them and their ids."""
    table.run("CREATE TABLE {t} (i INTEGER)")
    for number in range(3):
        table.run(f"INSERT INTO {{t}} VALUES ({number}), ({number})")
    table.run("UPDATE {t} SET i = 9 WHERE i = 0")
    begins = sorted(begin for begin in set(row[1] for row in table.rows()))
    table.run(FLUSH)
    [(path,)] = table.fetch(FILES)
    found = read_embedded(objects.open(path, objects.size(path)))
    assert found.row_ids is not None
    assert sorted(zip(found.row_ids.tolist(), found.snapshot_ids.tolist(), strict=True)) == [
        (0, begins[0]),
        (0, begins[3]),
        (1, begins[0]),
        (1, begins[3]),
        *((2 + place, begins[1 + place // 2]) for place in range(4)),
    ]


def test_merged_files_tell_their_snapshots(table: InlinedTable, objects: Objects) -> None:
    """A merge keeps who came when; row ids that count from the first are not embedded."""
    table.run("CREATE TABLE {t} AS SELECT range AS i FROM range(20)")
    table.run("INSERT INTO {t} SELECT range FROM range(30)")
    table.run("CALL ducklake_merge_adjacent_files('lake', '{t}')")
    [(path,)] = table.fetch(FILES)
    found = read_embedded(objects.open(path, objects.size(path)))
    first, *_, last = found.snapshot_ids.tolist()
    assert found.snapshot_ids.tolist() == [first] * 20 + [last] * 30
    assert found.row_ids is None
    assert found.compute_row_ids(7) is not None
    assert np.asarray(found.compute_row_ids(7)).tolist() == list(range(7, 57))
    assert found.compute_row_ids(None) is None


def test_rows_without_numbers_are_of_the_newest_lake_snapshot() -> None:
    """Iceberg clients leave lineage columns empty where rows inherit; what DuckDB merged of that, it shows from the newest on."""
    sink = io.BytesIO()
    columns = {"_ducklake_internal_row_id": [4, None], "_ducklake_internal_snapshot_id": [None, 5]}
    pq.write_table(pa.table(columns, schema=pa.schema([(name, pa.int64()) for name in columns])), sink)
    found = read_embedded(sink, 9)
    assert (found.snapshot_ids.tolist(), found.row_ids) == ([9, 5], None)


def test_only_the_columns_asked_for_are_fetched(tmp_path: Path) -> None:
    """A wide data file is not read for two columns of it."""
    path = tmp_path / "wide.parquet"
    columns = {"_ducklake_internal_row_id": range(10_000), "_ducklake_internal_snapshot_id": [5] * 10_000}
    pq.write_table(pa.table({"blob": [bytes(1000)] * 10_000, **columns}), path, use_dictionary=False, compression="none")
    fetched: list[int] = []

    class Counting(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size) or b""
            fetched.append(len(content))
            return content

    with Counting(str(path)) as file:
        assert read_embedded(file).snapshot_ids.tolist() == [5] * 10_000
    assert sum(fetched) < 400_000 < path.stat().st_size


def test_a_file_without_snapshot_ids_is_refused(objects: Objects, shared_lake: FreshLake) -> None:
    """The column must be there, and the file too."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"i": [1]}), sink)
    with pytest.raises(Unsupported, match="_ducklake_internal_snapshot_id"):
        read_embedded(sink)
    with pytest.raises(NotFound):
        read_embedded(objects.open(f"{shared_lake.data_path}gone.parquet", 1000))


def test_restored_rows_are_the_inlined_rows_byte_for_byte(table: InlinedTable, objects: Objects) -> None:
    """Every type, nested and NULL, out of two flushed files, makes the derived file that the inlined rows made."""
    table.run(WIDE)
    table.run("INSERT INTO {t} (i8) VALUES (1), (2); ALTER TABLE {t} SET PARTITIONED BY (i8); INSERT INTO {t} (i8) VALUES (8), (9)")
    columns, _ = table.read()
    before = table.read_files()
    table.run(FLUSH)
    contents = {number: objects.read(path) for number, (path,) in enumerate(table.fetch(FILES))}
    embedded = {number: read_embedded(io.BytesIO(content)) for number, content in contents.items()}
    assert len(contents) > 1
    assert all(can_restore(columns, found) for found in embedded.values())
    rows = restore_rows(columns, contents)
    for snapshot_id, file in before.items():
        places = [
            (row_id, number, position)
            for number, found in embedded.items()
            for position, (row_id, begin) in enumerate(zip(np.asarray(found.row_ids).tolist(), found.snapshot_ids.tolist(), strict=True))
            if begin == snapshot_id
        ]
        row_ids, numbers, positions = (np.array(part, dtype=np.int64) for part in zip(*sorted(places), strict=True))
        taken = take_rows(columns, rows, RowLocations(numbers, positions, row_ids, snapshot_id))
        assert encode_inlined(columns, taken) == file


def test_what_a_file_lacks_is_not_restored() -> None:
    """Neither a column it was written without, nor a type that no derived file holds."""
    embedded = EmbeddedLineage(np.array([1]), None, frozenset({1, 2}))
    assert can_restore([InlinedColumn(1, "a", "list", (InlinedColumn(2, "element", "int32"),))], embedded)
    assert not can_restore([InlinedColumn(1, "a", "list", (InlinedColumn(3, "element", "int32"),))], embedded)
    assert not can_restore([InlinedColumn(1, "a", "bignum")], embedded)


def test_a_torn_file_is_refused() -> None:
    """Not with what pyarrow says of it, but by what is wrong."""
    content = io.BytesIO()
    pq.write_table(pa.table({"i": [1]}), content)
    with pytest.raises(Unsupported, match="no Parquet file"):
        restore_rows([InlinedColumn(1, "i", "int32")], {1: content.getvalue()[:-9]})
