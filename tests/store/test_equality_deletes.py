"""Equality deletes: which rows of a data file they mean, however the texts of both are written."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.store.equality_deletes import KeyColumn, list_equal_rows, read_keys

NAME = KeyColumn(2, "string")
ENCODINGS = ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]


def number(name: str, kind: Any, field_id: int) -> Any:
    """A column with its field id."""
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


INSIDE = pa.struct([number("x", pa.string(), 4), number("y", pa.int32(), 5)])
SCHEMA = pa.schema([number("id", pa.int64(), 1), number("name", pa.string(), 2), number("s", INSIDE, 3)])
ROWS = [{"id": i, "name": None if i % 4 == 0 else f"n{i % 4}", "s": {"x": f"x{i % 3}", "y": i}} for i in range(40)]


def write(rows: list[Any], schema: Any, encoding: str) -> bytes:
    """A Parquet file whose texts are encoded so."""
    texts = {name: encoding for name in ("name", "s.x") if name.partition(".")[0] in schema.names}
    chosen: Any = {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": texts}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, row_group_size=15, **chosen)
    return sink.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_are_found_in_every_encoding(encoding: str) -> None:
    """By a text, NULL too, in a file with a struct; Trino and Parquet's second version write texts that pyarrow keeps in no dictionary."""
    keys = read_keys(write([{"name": "n1"}, {"name": None}, {"name": "none"}], pa.schema([SCHEMA.field("name")]), encoding), [NAME], 10)
    found = list_equal_rows(io.BytesIO(write(ROWS, SCHEMA, encoding)), keys, {})
    assert found.tolist() == [i for i in range(40) if i % 4 in (0, 1)]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_are_found_by_a_column_within_a_struct(encoding: str) -> None:
    """Of the deletes' file that column alone is read."""
    keys = read_keys(write(ROWS[2:3], SCHEMA, encoding), [KeyColumn(4, "string")], 10)
    found = list_equal_rows(io.BytesIO(write(ROWS, SCHEMA, encoding)), keys, {})
    assert found.tolist() == [i for i in range(40) if i % 3 == 2]


@pytest.mark.parametrize("stored", [pa.binary(2), pa.binary()], ids=str)
def test_rows_are_found_by_a_fixed_column(stored: Any) -> None:
    """Whether a client wrote it or DuckDB, which has BYTE_ARRAY in its files."""
    rows = [{"f": value} for value in (b"ab", b"cd", None, b"\x00\xff", b"ab")]
    keys = read_keys(write(rows[2:4], pa.schema([number("f", pa.binary(2), 1)]), "PLAIN"), [KeyColumn(1, "fixed[2]")], 10)
    assert list_equal_rows(io.BytesIO(write(rows, pa.schema([number("f", stored, 1)]), "PLAIN")), keys, {}).tolist() == [2, 3]
