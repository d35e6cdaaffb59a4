"""Avro column by column: the same bytes as value by value."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.iceberg.avro.manifest_encoding import RowParts
from duckicelake.iceberg.avro.writer import (
    NULL,
    PRESENT,
    build_bytes_column,
    empty_where_absent,
    encode_long,
    encode_long_column,
    encode_map_items,
    encode_maps,
    join_columns,
)

LONGS = st.integers(-(2**63), 2**63 - 1)
EDGES = [0, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
MAPS = st.lists(st.dictionaries(st.integers(1, 2**31 - 1), st.binary(max_size=20) | st.none(), max_size=4), max_size=6)


def longs(numbers: list[int]) -> np.ndarray:
    """Numbers as columns are made of."""
    return np.array(numbers, dtype=np.int64)


def starts_of(lengths: list[int]) -> np.ndarray:
    """Where groups of those lengths begin, and where the last ends."""
    return np.cumsum(longs([0, *lengths]))


@given(st.lists(LONGS))
def test_numbers_are_those_of_single_values(numbers: list[int]) -> None:
    """Every length of varint, of either sign, in any company."""
    assert encode_long_column(longs(numbers)).to_pylist() == [encode_long(number) for number in numbers]


def test_numbers_at_the_edges_of_their_lengths() -> None:
    """Where one byte more is needed."""
    numbers = EDGES + [sign * (1 << (7 * count - 1)) - less for count in range(1, 9) for sign in (1, -1) for less in (0, 1)]
    assert encode_long_column(longs(numbers)).to_pylist() == [encode_long(number) for number in numbers]


@given(MAPS)
def test_maps_are_those_of_single_rows(maps: list[dict[int, bytes | None]]) -> None:
    """Keys and bytes, absent ones passed over, empty maps as the caller wants them."""
    items = [(key, value) for row in maps for key, value in row.items()]
    keys, values = encode_long_column(longs([key for key, _ in items])), pa.array([value for _, value in items], pa.binary())
    present = np.array([value is not None for _, value in items], dtype=np.bool_)
    found = encode_maps(encode_map_items(keys, values), present, starts_of([len(row) for row in maps]), NULL)
    known = [{key: value for key, value in row.items() if value is not None} for row in maps]
    assert found.to_pylist() == [RowParts().bytes_map(row or None) for row in known]


@pytest.mark.parametrize("empty", [NULL, PRESENT + NULL], ids=["null", "empty map"])
def test_a_group_without_items(empty: bytes) -> None:
    """Between others, at the beginning and at the end."""
    items = pa.array([b"a", b"b"], pa.binary())
    found = encode_maps(items, np.array([True, True]), starts_of([0, 1, 0, 1, 0]), empty)
    one = [PRESENT + encode_long(1) + item + NULL for item in (b"a", b"b")]
    assert found.to_pylist() == [empty, one[0], empty, one[1], empty]


def test_parts_of_a_column_are_grouped_as_well() -> None:
    """A slice lies somewhere in the memory of its column."""
    items = pa.array([b"xx", b"a", b"b", b"yy"], pa.binary())[1:3]
    assert encode_maps(items, np.array([True, True]), starts_of([2]), NULL).to_pylist() == [PRESENT + encode_long(2) + b"ab" + NULL]


def test_rows_are_joined_and_blanked() -> None:
    """Bytes stand in every row; what is not present is nothing."""
    cells = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    column = build_bytes_column(cells, np.array([[True, True], [False, True]]))
    assert join_columns(column, b"-", column).to_pylist() == [b"\x01\x02-\x01\x02", b"\x04-\x04"]
    assert empty_where_absent(np.array([False, True]), column).to_pylist() == [b"", b"\x04"]
