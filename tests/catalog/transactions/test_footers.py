"""Which data files a commit looks into, and what it keeps of them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.places import Grounds
from duckicelake.catalog.writing.ready import footers
from duckicelake.catalog.writing.ready.footers import read_footers
from duckicelake.catalog.writing.ready.snapshots import FileChange
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table
from tests.support.lakes import FreshLake


def write(warehouse: Warehouse, path: str, *columns: str) -> DataFile:
    """A data file of one row."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: [1] for name in columns}), sink)
    content = sink.getvalue().to_pybytes()
    warehouse.objects.put_new(path, content)
    return DataFile(0, path, "PARQUET", (), 1, len(content))


def test_files_that_ducklake_knows_are_not_looked_into(lake: FreshLake, warehouse: Warehouse) -> None:
    """A rollback brings back as many files as a table has; their rows tell how they are read."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (a BIGINT)")
    path = lake.data_path.replace("/data/", "/outside/") + "known.parquet"
    known = write(warehouse, path, "a")
    conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    with reading(warehouse.lake) as look:
        table = find_table(look, "main", "t")
    for is_trusted in (False, True):
        change = FileChange((), {path: 0}, (), {}, [known], is_trusted)
        assert not read_footers(warehouse, table, Grounds((path.rpartition("/")[0],)), [change])
    assert read_footers(warehouse, None, Grounds((path.rpartition("/")[0],)), [change]).keys() == {path}


def test_what_files_say_alike_is_kept_once(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand files of a hundred columns are no load; as many different columns would be."""
    home = lake.data_path.replace("/data/", "/outside")
    files = [write(warehouse, f"{home}/{number}.parquet", "a", "bc"[number % 2]) for number in range(6)]
    change = FileChange(files, {}, (), {})
    found = read_footers(warehouse, None, Grounds((home,)), [change])
    assert [[*found[file.file_path].field_ids] for file in files[:2]] == [[("a",), ("b",)], [("a",), ("c",)]]
    assert len({id(columns) for columns in found.values()}) == 2
    monkeypatch.setattr(footers, "MAX_COLUMNS", 3)
    with pytest.raises(BadRequest, match="different columns"):
        read_footers(warehouse, None, Grounds((home,)), [change])
