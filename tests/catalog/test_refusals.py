"""What cannot be published says which file, column and type it is about, and what to do."""

import io
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.catalog.row_files import COPY_ADVICE, decode_deletes, naming_file
from duckicelake.errors import Unsupported
from duckicelake.lake.install import check_absolute
from duckicelake.lake.rows import DeleteFileRow, TableRow
from duckicelake.store.derived_files import InlinedColumn, convert_rows, read_embedded
from duckicelake.translate.types import ColumnTree, build_value_refusal

ROW = DeleteFileRow(1, 1, 5, None, "a-delete.parquet", True, "parquet", 1, 10)


def write(table: pa.Table) -> bytes:
    """A Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        pytest.param("parquet", b"no Parquet", "is no Parquet file we can read", id="damaged"),
        pytest.param("parquet", write(pa.table({"file_path": ["x"], "pos": ["1"]})), "never NULL, not string", id="texts for positions"),
        pytest.param("parquet", write(pa.table({"pos": [1]})), "has 1 columns", id="one column"),
        pytest.param("puffin", b"no vector", "Cannot read deletion vector", id="a damaged vector"),
        pytest.param("orc", b"", "has the format 'orc'", id="a format that DuckLake does not have"),
    ],
)
def test_a_delete_file_that_cannot_be_read_is_named(kind: str, content: bytes, said: str) -> None:
    """With what is wrong with it, and how to keep the rows."""
    with pytest.raises(Unsupported, match=said) as refusal:
        decode_deletes(replace(ROW, format=kind), content)
    assert refusal.value.message.startswith("Delete file 'a-delete.parquet'")
    assert refusal.value.message.endswith(COPY_ADVICE)


def test_a_rewritten_file_that_cannot_be_read_is_named() -> None:
    """It says to hold several lake snapshots, and has no column of them."""
    with pytest.raises(Unsupported, match="no column _ducklake_internal_snapshot_id") as refusal, naming_file("Data file", "b.parquet"):
        read_embedded(io.BytesIO(write(pa.table({"i": [1]}))))
    assert refusal.value.message.startswith("Data file 'b.parquet'")
    assert refusal.value.message.endswith(COPY_ADVICE)


def test_an_inlined_value_of_another_type_is_named() -> None:
    """By column and type, with what DuckDB can do about it."""
    with pytest.raises(Unsupported, match="Column 'size' holds an inlined value that is no int32.*correct it with UPDATE in DuckDB"):
        convert_rows([InlinedColumn(1, "size", "int32")], [(0, 1, 2**31)])


def test_a_store_we_do_not_speak_is_named() -> None:
    """With where the tables can go."""
    with pytest.raises(Unsupported, match="'gs://b/x/' is in no object store.*Copy the lake's tables with DuckDB"):
        check_absolute("gs://b/x/")


def test_a_value_of_a_column_that_is_gone_is_refused_with_a_remedy() -> None:
    """No SQL can name such a column any more."""
    table = TableRow(1, UUID(int=1), "t", "t/", True, "main", "main/", True)
    assert "expire the lake snapshots that had it" in build_value_refusal(table, ColumnTree({}, {}), 7, "numbers from 2³¹ on").message
