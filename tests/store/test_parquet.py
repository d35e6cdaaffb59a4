"""Position deletes and embedded snapshot ids, as DuckLake writes them and as Iceberg and DuckDB read ours."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO, _read_deletes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from duckicelake.errors import Unsupported
from duckicelake.store.objects import Objects, StoreSettings, open_objects
from duckicelake.store.parquet import encode_position_deletes, read_columns, read_position_deletes, read_positions
from tests.support.lakes import FreshLake

DELETE_FILES = "SELECT path, delete_count FROM ducklake_delete_file WHERE end_snapshot IS NULL ORDER BY delete_file_id"
DATA_FILES = "SELECT path, begin_snapshot, partial_max FROM ducklake_data_file WHERE end_snapshot IS NULL ORDER BY data_file_id"
ADD_DELETE_FILE = """
WITH head AS (SELECT * FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1),
snapshot AS (INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
  SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id + 1 FROM head),
changes AS (INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
  SELECT snapshot_id + 1, 'deleted_from_table:' || table_id FROM head, ducklake_data_file)
INSERT INTO ducklake_delete_file
  (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, delete_count, file_size_bytes)
SELECT next_file_id, table_id, head.snapshot_id + 1, data_file_id, %s, false, 'parquet', %s, %s FROM head, ducklake_data_file"""


@pytest.fixture
def objects(lake: FreshLake) -> Objects:
    """The objects of the lake's store."""
    store = lake.store
    return open_objects(StoreSettings(store.endpoint, store.region, store.access_key_id, store.secret_access_key))


def locate(lake: FreshLake, name: str) -> str:
    """The URI of a file of table `t`."""
    return f"{lake.data_path}main/t/{name}"


def test_ducklake_s_delete_files_tell_which_rows_and_since_when(lake: FreshLake, objects: Objects) -> None:
    """The first delete file has positions only; one that continues it has the snapshot of each position."""
    conn, state = lake.duckdb(), lake.psycopg()
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    conn.execute("DELETE FROM t WHERE i < 20")
    [(name, count)] = state.execute(DELETE_FILES).fetchall()
    positions, snapshot_ids = read_positions(objects.read(locate(lake, name)))
    assert (positions.tolist(), snapshot_ids, count) == (list(range(20)), None, 20)
    conn.execute("DELETE FROM t WHERE i >= 70 AND i < 85")
    [(name, _)] = state.execute(DELETE_FILES).fetchall()
    positions, snapshot_ids = read_positions(objects.read(locate(lake, name)))
    assert positions.tolist() == [*range(20), *range(70, 85)]
    assert snapshot_ids is not None
    assert snapshot_ids.tolist() == [2] * 20 + [3] * 15


def test_duckdb_honours_our_delete_file(lake: FreshLake, objects: Objects) -> None:
    """The upstream reader drops exactly the rows we wrote down."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    content = encode_position_deletes(f"{lake.data_path}main/t/data.parquet", [7, 3, 99, 3])
    uri = f"{lake.iceberg_path}deletes.parquet"
    objects.put_new(uri, content)
    lake.psycopg().execute(ADD_DELETE_FILE, [uri, 3, len(content)])
    assert conn.execute("SELECT i FROM t ORDER BY i").fetchall() == [(i,) for i in range(100) if i not in (3, 7, 99)]


def test_pyiceberg_honours_our_delete_file(tmp_path: Path) -> None:
    """Another reader finds the positions under the data file's path."""
    path = tmp_path / "deletes.parquet"
    data_path = "s3://lake/ü #%20/data.parquet"
    path.write_bytes(encode_position_deletes(data_path, [7, 3]))
    file = DataFile.from_args(content=DataFileContent.POSITION_DELETES, file_path=str(path), file_format=FileFormat.PARQUET)
    assert {name: array.to_pylist() for name, array in _read_deletes(PyArrowFileIO(), file).items()} == {data_path: [3, 7]}


def test_our_delete_file_has_the_shape_of_the_specification() -> None:
    """Both columns are required and bear Iceberg's reserved ids."""
    schema = pq.ParquetFile(pa.BufferReader(encode_position_deletes("s3://lake/a", [1]))).schema_arrow
    assert [(field.name, field.nullable, (field.metadata or {})[b"PARQUET:field_id"]) for field in schema] == [
        ("file_path", False, b"2147483546"),
        ("pos", False, b"2147483545"),
    ]


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_positions_come_back_sorted_and_once(positions: list[int]) -> None:
    """decode(encode(x)) = sorted(set(x)), and equal sets give equal bytes."""
    content = encode_position_deletes("s3://lake/a", positions)
    read, snapshot_ids = read_positions(content)
    assert (read.tolist(), snapshot_ids) == (sorted(set(positions)), None)
    assert content == encode_position_deletes("s3://lake/a", np.array(positions[::-1], dtype=np.int64))


def encode(**columns: Any) -> bytes:
    """A Parquet file of the columns."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_a_third_column_counts_only_under_ducklake_s_name() -> None:
    """Iceberg's optional `row` column is not taken for snapshot ids."""
    positions, snapshot_ids = read_positions(encode(file_path=["a"], pos=[4], row=[{"i": 1}]))
    assert (positions.tolist(), snapshot_ids) == ([4], None)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PAR1" + bytes(100) + b"PAR1", id="no-footer"),
        pytest.param(encode(pos=[1]), id="one-column"),
        pytest.param(encode(a=[1], b=[1], c=[1], d=[1]), id="four-columns"),
        pytest.param(encode(file_path=["a"], pos=["x"]), id="text"),
        pytest.param(encode(file_path=["a"], pos=pa.array([None], pa.int64())), id="null"),
    ],
)
def test_other_files_are_refused(content: bytes) -> None:
    """What is no position-delete file is not guessed at."""
    with pytest.raises(Unsupported):
        read_positions(content)


@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_paths_are_read_in_every_encoding(encoding: str) -> None:
    """Trino 483 writes a path that stands in few rows as a length and bytes, which pyarrow keeps in no dictionary."""
    written: Any = (
        {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": {"file_path": encoding}}
    )
    sink = io.BytesIO()
    pq.write_table(pa.table({"file_path": ["b", "a", "b", "b"], "pos": [5, 7, 2, 5]}), sink, row_group_size=2, **written)
    found = read_position_deletes(sink.getvalue(), 10)
    assert {path: positions.tolist() for path, positions in found.items()} == {"a": [7], "b": [2, 5]}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(encode(file_path=["a"]), id="no positions"),
        pytest.param(encode(pos=[1]), id="no paths"),
        pytest.param(encode(file_path=[1], pos=[1]), id="numbers for paths"),
        pytest.param(encode(file_path=["a", None], pos=[1, 2]), id="a path that is NULL"),
        pytest.param(encode(file_path=["a"] * 11, pos=range(11)), id="too many rows"),
    ],
)
def test_a_client_s_other_files_are_refused(content: bytes) -> None:
    """They remove no rows."""
    with pytest.raises(Unsupported):
        read_position_deletes(content, 10)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(pa.list_(pa.int64()), id="list"),
        pytest.param(pa.large_list(pa.int64()), id="large list"),
        pytest.param(pa.list_(pa.int64(), 1), id="fixed size"),
        pytest.param(pa.list_view(pa.int64()), id="view"),
        pytest.param(pa.large_list_view(pa.int64()), id="large view"),
    ],
)
def test_lists_have_elements_in_all_of_arrow_s_ways(kind: pa.DataType) -> None:
    """In Parquet they are one."""
    field_ids, kinds = read_columns(io.BytesIO(write(pa.field("a", kind), [[1]])))
    assert (field_ids, kinds) == ({("a",): None, ("a", "element"): None}, {("a", "element"): "int64"})


def test_a_field_id_that_is_no_number_is_refused() -> None:
    """It stands in the Arrow schema that a file carries along, where its writer may say what it likes."""
    content = write(pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "one"}), [1])
    with pytest.raises(Unsupported, match="no number"):
        read_columns(io.BytesIO(content))


def test_two_columns_of_one_name_need_field_ids() -> None:
    """By name nobody could tell which is meant."""
    plain, first, second = (pa.field("a", pa.int64(), metadata=told) for told in ({}, {"PARQUET:field_id": "1"}, {"PARQUET:field_id": "2"}))
    assert read_columns(io.BytesIO(write_columns([first, second])))[0] == {("a",): 2}
    nested = pa.field("s", pa.struct([plain, plain]))
    for fields in ([plain, plain], [first, plain], [plain, first], [nested]):
        with pytest.raises(Unsupported, match="Two columns are called"):
            read_columns(io.BytesIO(write_columns(fields)))


def write(field: Any, values: list[Any]) -> bytes:
    """A Parquet file of one column."""
    return write_columns([field], [pa.array(values, field.type)])


def write_columns(fields: list[Any], arrays: list[Any] | None = None) -> bytes:
    """A Parquet file of columns, without rows unless told."""
    sink = pa.BufferOutputStream()
    schema = pa.schema(fields)
    pq.write_table(schema.empty_table() if arrays is None else pa.Table.from_arrays(arrays, schema=schema), sink)
    return sink.getvalue().to_pybytes()
