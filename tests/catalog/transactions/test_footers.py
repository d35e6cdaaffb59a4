"""Which data files a commit looks into, and what it keeps of them."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.catalog.incoming import column_names
from duckicelake.catalog.incoming.column_names import read_footers
from duckicelake.catalog.incoming.file_changes import FileChange
from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.catalog.warehouse import Warehouse
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
        assert not read_footers(warehouse, table, AllowedLocations((path.rpartition("/")[0],)), [change])
    assert read_footers(warehouse, None, AllowedLocations((path.rpartition("/")[0],)), [change]).keys() == {path}


def test_what_files_say_alike_is_kept_once(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand files of a hundred columns are no load; as many different columns would be."""
    home = lake.data_path.replace("/data/", "/outside")
    files = [write(warehouse, f"{home}/{number}.parquet", "a", "bc"[number % 2]) for number in range(6)]
    change = FileChange(files, {}, (), {})
    found = read_footers(warehouse, None, AllowedLocations((home,)), [change])
    assert [[*found[file.file_path].field_ids] for file in files[:2]] == [[("a",), ("b",)], [("a",), ("c",)]]
    assert len({id(columns) for columns in found.values()}) == 2
    monkeypatch.setattr(column_names, "MAX_COLUMNS", 3)
    with pytest.raises(BadRequest, match="different columns"):
        read_footers(warehouse, None, AllowedLocations((home,)), [change])


@pytest.mark.parametrize("size", [pytest.param(-1, id="negative"), pytest.param(0, id="none"), pytest.param(2**62, id="endless")])
def test_a_file_of_another_size_than_told_is_refused(lake: FreshLake, warehouse: Warehouse, size: int) -> None:
    """Its client says how long it is, and the footer is sought at its end."""
    home = lake.data_path.replace("/data/", "/outside")
    file = replace(write(warehouse, f"{home}/f.parquet", "a"), file_size_in_bytes=size)
    with pytest.raises(BadRequest, match=r"f\.parquet"):
        read_footers(warehouse, None, AllowedLocations((home,)), [FileChange([file], {}, (), {})])


def test_a_footer_has_a_size(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen are read at a time, each as long as its file says."""
    home = lake.data_path.replace("/data/", "/outside")
    file = write(warehouse, f"{home}/f.parquet", "a")
    monkeypatch.setattr(column_names, "MAX_FOOTER_BYTES", 16)
    with pytest.raises(BadRequest, match="bytes at once"):
        read_footers(warehouse, None, AllowedLocations((home,)), [FileChange([file], {}, (), {})])
