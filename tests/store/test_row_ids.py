"""Open row ids are filled in, and nothing else of a file changes, whoever wrote it."""

import io
from dataclasses import replace
from itertools import chain
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duckicelake.errors import Unsupported
from duckicelake.store.row_ids import (
    ROW_ID,
    STEP_BYTES,
    decode_int,
    encode_int,
    join_list,
    join_struct,
    open_row_ids,
    read_struct,
    split_list,
    split_struct,
)
from tests.support.tiers import whole_after

ROWS, FIRST = 20_000, 500
IDS = [None if i % 3 == 0 else 10**12 + i for i in range(ROWS)]
FILLED = [FIRST + i if found is None else found for i, found in enumerate(IDS)]


def make_field(name: str, kind: Any, field_id: int) -> Any:
    """A column with its field id."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def make_table(ids: Any = None, field_id: int = ROW_ID) -> pa.Table:
    """Rows with a text, their ids, and a list behind these."""
    fields = [make_field("name", pa.string(), 1), make_field("_row_id", pa.int64(), field_id)]
    fields.append(make_field("list", pa.list_(make_field("element", pa.int32(), 3)), 2))
    count = ROWS if ids is None else len(ids)
    lists = [None if i % 7 == 0 else list(range(i % 4)) for i in range(count)]
    found = pa.array(IDS if ids is None else ids, pa.int64())
    return pa.Table.from_arrays([pa.array([f"x{i % 100}" for i in range(count)]), found, pa.array(lists)], schema=pa.schema(fields))


def write(table: pa.Table, **how: Any) -> bytes:
    """A Parquet file of several row groups."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"row_group_size": 3_000, **how})
    return sink.getvalue()


def fill(content: bytes, first: int = FIRST) -> bytes:
    """The file with its ids filled in."""
    opened = open_row_ids(io.BytesIO(content), len(content))
    assert opened is not None
    return b"".join(opened.fill(first))


def by_id(struct: bytes) -> dict[int, bytes]:
    """The values of a struct."""
    return {field.id: field.value for field in split_struct(struct)}


HOW = [
    *(pytest.param({"compression": name}, id=name) for name in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")),
    pytest.param({"data_page_version": "2.0", "write_page_index": True}, id="pages of version 2 and an index"),
    pytest.param({"write_page_checksum": True, "use_dictionary": False}, id="checksums"),
    pytest.param({"use_byte_stream_split": ["_row_id"], "use_dictionary": False}, id="split bytes"),
    pytest.param({"write_statistics": False}, id="no statistics"),
    pytest.param({"row_group_size": ROWS, "data_page_size": 1_000}, id="one row group of many pages"),
]


@pytest.mark.parametrize("how", whole_after(2, HOW))
def test_rows_count_from_the_first_of_the_file(how: dict[str, Any]) -> None:
    """Where they have no id; all else reads as before, for pyarrow and DuckDB, and row groups know what they hold."""
    table = make_table()
    content = write(table, **how)
    filled = fill(content)
    read = pq.read_table(io.BytesIO(filled))
    assert read["_row_id"].to_pylist() == FILLED
    assert read.schema.equals(table.schema, check_metadata=True)
    assert read.drop_columns("_row_id").equals(table.drop_columns("_row_id"))
    before, after = (pq.read_metadata(io.BytesIO(each)) for each in (content, filled))
    assert (after.num_row_groups, after.created_by, after.metadata) == (before.num_row_groups, before.created_by, before.metadata)
    for group in range(after.num_row_groups):
        old, new = before.row_group(group), after.row_group(group)
        columns = [new.column(place) for place in range(new.num_columns)]
        assert new.num_rows == old.num_rows
        assert new.total_byte_size == sum(column.total_uncompressed_size for column in columns)
        assert all(columns[place].to_dict() == old.column(place).to_dict() for place in (0, 2))
        told: Any = columns[1].statistics
        mine = FILLED[sum(before.row_group(i).num_rows for i in range(group)) :][: new.num_rows]
        assert (told.null_count, told.min, told.max) == (0, min(mine), max(mine))


def test_duckdb_reads_and_prunes_it(tmp_path: Any) -> None:
    """All columns, by the statistics of the new one too, and as a file over HTTP would be read: whole and in parts."""
    path = tmp_path / "filled.parquet"
    path.write_bytes(fill(write(make_table())))
    asked = f"SELECT name, _row_id, list FROM read_parquet('{path}', file_row_number => true) ORDER BY file_row_number"
    table = make_table()
    assert duckdb.sql(asked).fetchall() == list(zip(table["name"].to_pylist(), FILLED, table["list"].to_pylist(), strict=True))
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE _row_id = {FIRST + 9_999}").fetchall() == [(1,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE _row_id < {FIRST + 300}").fetchall() == [(100,)]


def test_a_file_of_duckdb(tmp_path: Any) -> None:
    """Which writes other footers than pyarrow does, with its own encodings."""
    path = tmp_path / "mine.parquet"
    duckdb.sql(
        f"COPY (SELECT range AS id, CASE WHEN range % 3 > 0 THEN 1000000 + range END AS _row_id FROM range(9000)) TO '{path}'"
        f" (FIELD_IDS {{id: 1, _row_id: {ROW_ID}}}, PARQUET_VERSION v2, ROW_GROUP_SIZE 2048)"
    )
    read = pq.read_table(io.BytesIO(fill(path.read_bytes(), 0)))
    assert read["id"].to_pylist() == list(range(9000))
    assert read["_row_id"].to_pylist() == [i if i % 3 == 0 else 1000000 + i for i in range(9000)]


def test_long_row_groups_are_written_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of all steps are one column chunk, and what is kept of the file comes in parts."""
    monkeypatch.setattr("duckicelake.store.row_ids.STEP_ROWS", 700)
    monkeypatch.setattr("duckicelake.store.row_ids.STEP_BYTES", 1_000)
    content = write(make_table(), compression="none")
    opened = open_row_ids(io.BytesIO(content), len(content))
    assert opened is not None
    parts = list(opened.fill(FIRST))
    kept = -(-opened.kept_bytes // 1_000)
    assert len(parts) == kept + 7 + 1
    assert b"".join(parts[:kept]) == content[: opened.kept_bytes]
    assert pq.read_table(io.BytesIO(b"".join(parts)))["_row_id"].to_pylist() == FILLED


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(write(make_table(field_id=7)), id="no such column"),
        pytest.param(write(make_table(range(100))), id="every row has its id"),
        pytest.param(write(make_table().cast(make_table().schema.set(1, make_field("_row_id", pa.int32(), ROW_ID)), safe=False)), id="int"),
    ],
)
def test_other_files_need_no_ids(content: bytes) -> None:
    """They are left as they are."""
    assert open_row_ids(io.BytesIO(content), len(content)) is None


def test_what_is_too_large_or_damaged_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: a file that is cut, holds other bytes, or more rows in a row group than go into the memory."""
    content = write(make_table())
    for broken in (content[:-1], content[:100], b"", b"PAR1" * 10):
        with pytest.raises(Unsupported):
            open_row_ids(io.BytesIO(broken), len(broken))
    with pytest.raises(Unsupported):
        open_row_ids(io.BytesIO(content), len(content) + STEP_BYTES)
    opened = open_row_ids(io.BytesIO(content), len(content))
    assert opened is not None
    place = opened.file.metadata.row_group(3).column(1).dictionary_page_offset
    spoilt = content[:place] + b"\xff" * 200 + content[place + 200 :]
    with pytest.raises(Unsupported):
        fill(spoilt)
    monkeypatch.setattr("duckicelake.store.row_ids.MAX_GROUP_ROWS", 2_999)
    with pytest.raises(Unsupported):
        open_row_ids(io.BytesIO(content), len(content))


def test_footers_are_taken_apart_and_put_together() -> None:
    """Every byte of one comes back, at the levels that are touched."""
    content = write(make_table(), write_page_index=True)
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    fields = split_struct(footer)
    assert join_struct(fields) == footer
    [groups] = [field.value for field in fields if field.id == 4]
    kind, items = split_list(groups)
    assert join_list(kind, items) == groups
    assert [join_struct(split_struct(item)) for item in items] == items
    for cut in range(0, len(footer), 7):
        with pytest.raises(Unsupported):
            split_struct(footer[:cut])


@pytest.mark.parametrize("how", [{"compression": "none"}, {"compression": "zstd", "data_page_version": "2.0"}], ids=["none", "zstd"])
def test_the_new_pages_are_told_of(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trino reads no column without an offset index where pages of others are passed over; each names a page and its first row."""
    monkeypatch.setattr("duckicelake.store.row_ids.STEP_ROWS", 700)
    content = fill(write(make_table(), write_page_index=True, **how))
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    row = 0
    for group in split_list(by_id(footer)[4])[1]:
        chunk = by_id(split_list(by_id(group)[1])[1][1])
        start, length, metadata = decode_int(chunk[4]), decode_int(chunk[5]), by_id(chunk[3])
        pages = [by_id(page) for page in split_list(by_id(content[start : start + length])[1])[1]]
        place = decode_int(metadata[9])
        assert len(pages) == -(-decode_int(metadata[5]) // 700)
        for number, page in enumerate(pages):
            assert (decode_int(page[1]), decode_int(page[3])) == (place, 700 * number)
            place += decode_int(page[2])
        assert place == decode_int(metadata[9]) + decode_int(metadata[7])
        row += decode_int(metadata[5])
    assert row == ROWS


def test_a_file_that_begins_with_its_row_ids_stays() -> None:
    """parquet-mr takes a row group to lie where its first column begins, and would find its middle behind the file's end."""
    table = make_table().select(["_row_id", "name", "list"])
    content = write(table)
    with pytest.raises(Unsupported, match="begins with"):
        open_row_ids(io.BytesIO(content), len(content))


def test_row_ids_are_whole_numbers() -> None:
    """Other types of eight bytes are no ids, and stay."""
    for kind in (pa.time64("us"), pa.uint64(), pa.timestamp("us")):
        table = make_table([None, 5])
        ids = table.schema.set(1, make_field("_row_id", kind, ROW_ID))
        content = write(table.set_column(1, ids.field(1), table["_row_id"].cast(kind)))
        assert open_row_ids(io.BytesIO(content), len(content)) is None


def test_a_long_footer_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes many times its bytes."""
    content = write(make_table())
    monkeypatch.setattr("duckicelake.store.row_ids.MAX_FOOTER_BYTES", 100)
    monkeypatch.setattr("duckicelake.store.row_ids.pq.ParquetFile", None)
    with pytest.raises(Unsupported, match="footer"):
        open_row_ids(io.BytesIO(content), len(content))


def test_pages_are_not_decompressed_beyond_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the footer says of them: a page of a few bytes may become one of 2 GiB."""
    monkeypatch.setattr("duckicelake.store.row_ids.STEP_BYTES", 1_000)
    content = write(make_table(), use_dictionary=False, compression="zstd", row_group_size=ROWS)
    place = pq.read_metadata(io.BytesIO(content)).row_group(0).column(1).data_page_offset
    (kind, size, *rest), end = read_struct(content, place)
    header = join_struct([kind, size._replace(value=encode_int(1_000_000)), *rest])
    assert len(header) == end - place
    fill(content)
    with pytest.raises(Unsupported, match="too much"):
        fill(content[:place] + header + content[end:])


def test_footers_that_lack_something_are_refused() -> None:
    """With our word for it, though pyarrow may read what is left; so are those that say a thing twice."""
    content = write(make_table())
    opened = open_row_ids(io.BytesIO(content), len(content))
    assert opened is not None
    fields = split_struct(opened.footer)
    [groups] = [field for field in fields if field.id == 4]
    kind, items = split_list(groups.value)
    for less in (join_list(kind, items[:-1]), join_list(kind, [b"\0"] * len(items))):
        footer = join_struct(field._replace(value=less) if field.id == 4 else field for field in fields)
        with pytest.raises(Unsupported):
            list(replace(opened, footer=footer).fill(FIRST))
    with pytest.raises(Unsupported):
        split_struct(join_struct([*fields[:4], fields[3], *fields[4:]]))


def test_numbers_have_ten_bytes_at_most() -> None:
    """Longer ones take time that grows with the square of their length."""
    with pytest.raises(Unsupported):
        split_struct(b"\x06" + b"\x80" * 20 + b"\x01\x02\x00")


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back(number: int) -> None:
    """Of every size and sign."""
    assert decode_int(encode_int(number)) == number


BOMBS = (b"\xf1" + b"\xff" * 8 + b"\x7f", b"\xfc" + b"\x80" * 5_000 + b"\x01", b"\x18" + b"\xff" * 8 + b"\x7f", b"\x1c" * 5_000)
"""Lists and texts of 2⁶³ items, a number of 5,000 bytes, and a nest of structs."""


@given(st.binary(max_size=200))
@example(BOMBS[0])
@example(BOMBS[1])
@example(BOMBS[2])
@example(BOMBS[3])
def test_other_bytes_are_refused(content: bytes) -> None:
    """With our word for it, whatever they are."""
    for split in (split_struct, split_list):
        try:
            split(content)
        except Unsupported as error:
            assert "footer" in error.message


def test_ids_of_a_long_file_are_those_of_its_rows() -> None:
    """Positions go on over row groups, and a file of NULL alone is numbered through."""
    ids = pq.read_table(io.BytesIO(fill(write(make_table([None] * ROWS)), 10**15)))["_row_id"].to_numpy()
    assert np.array_equal(ids, np.arange(10**15, 10**15 + ROWS))
    assert list(chain([ids[0]], ids[-1:])) == [10**15, 10**15 + ROWS - 1]
