"""Variants of data files are written again as the specification has them, and nothing else in the file changes."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.variants import decode_names, decode_variant, format_json
from duckicelake.store import variants
from duckicelake.store.parquet import FIELD_ID
from duckicelake.store.row_ids import (
    BINARY,
    I32,
    I64,
    STRUCT,
    ThriftField,
    decode_int,
    encode_binary,
    encode_int,
    join_list,
    join_struct,
    split_list,
    split_struct,
)
from duckicelake.store.variants import correct_variants, needs_correction, rewrite_variants

NAMES = st.sampled_from(["a", "b", "aa", "z", "é", "€", "", "metadata"])
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9) | st.text(max_size=70)
VALUES = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=4) | st.dictionaries(NAMES, parts, max_size=5), max_leaves=12)


def write_file(path: Path, values: list[object], more: str = "") -> bytes:
    """Write values as variants with DuckDB, in row groups of a few rows, beside other columns."""
    with duckdb.connect() as conn:
        conn.execute("CREATE TABLE t (i INTEGER, v VARIANT, m STRUCT(metadata BLOB, value BLOB), w VARIANT, s VARCHAR[])")
        texts = [None if value is None else json.dumps(value) for value in values]
        row = "n - 1, texts[n]::JSON::VARIANT, {'metadata': 'x'::BLOB}, (n - 1)::VARIANT, ['s']"
        conn.execute(f"INSERT INTO t SELECT {row} FROM range(1, len($1) + 1) r(n), (SELECT $1::VARCHAR[] AS texts)", [texts])
        ids = "{i: 1, v: 2, m: {__duckdb_field_id: 3, metadata: 4, value: 5}, w: 6, s: {__duckdb_field_id: 7, element: 8}}"
        conn.execute(f"COPY t TO '{path}' (ROW_GROUP_SIZE 2048, FIELD_IDS {ids} {more})")
    return path.read_bytes()


def read_file(content: bytes) -> list[dict[str, Any]]:
    """The rows, each variant as its value, None for a NULL."""
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    for row in rows:
        for name in ("v", "w"):
            if row[name] is not None:
                assert not row[name]["metadata"][0] & 0x10, "names are not said to be sorted"
                assert row[name]["value"] != b"\x00", "a NULL is no variant null"
                row[name] = decode_variant(decode_names(row[name]["metadata"]), row[name]["value"])
    return rows


def is_sorted(value: object) -> bool:
    """Return True if each object has its names in the order of their bytes."""
    if isinstance(value, list):
        return all(map(is_sorted, cast("list[object]", value)))
    if not isinstance(value, dict):
        return True
    found = cast("dict[str, object]", value)
    return list(found) == sorted(found, key=str.encode) and all(map(is_sorted, found.values()))


@settings(max_examples=15, deadline=None)
@given(st.lists(VALUES, max_size=12))
def test_values_are_what_duckdb_reads(tmp_path_factory: pytest.TempPathFactory, values: list[object]) -> None:
    """Of any shapes, shredded or not: NULL is NULL, and the names of an object are in order."""
    content = write_file(tmp_path_factory.mktemp("files") / "f.parquet", values)
    rewritten = rewrite_variants(content)
    assert rewritten is not None
    rows = read_file(rewritten)
    assert [json.loads(format_json(row["v"])) for row in rows] == values
    assert all(is_sorted(row["v"]) for row in rows)
    assert [(row["i"], row["w"], row["m"], row["s"]) for row in rows] == [
        (n, n, {"metadata": b"x", "value": None}, ["s"]) for n in range(len(values))
    ]


def test_all_else_stays(tmp_path: Path) -> None:
    """Row groups, field ids and the pages of other columns are what they were, Bloom filters too, and DuckDB reads the same."""
    content = write_file(tmp_path / "f.parquet", [{"b": n, "a": [n]} if n % 3 else None for n in range(5000)])
    rewritten = rewrite_variants(content)
    assert rewritten is not None
    old, new = (pq.ParquetFile(pa.BufferReader(each)) for each in (content, rewritten))
    assert old.num_row_groups == new.num_row_groups > 1
    metadata: Any = new.metadata
    assert [metadata.row_group(n).num_rows for n in range(new.num_row_groups)] == [
        cast("Any", old.metadata).row_group(n).num_rows for n in range(old.num_row_groups)
    ]
    others = [(number, name) for number in range(new.num_row_groups) for name in ("i", "m.metadata", "m.value", "s.list.element")]
    parts = [read_chunk(content, *each) for each in others]
    assert parts == [read_chunk(rewritten, *each) for each in others]
    assert any(len(part) > 1 for part in parts), "DuckDB writes Bloom filters"
    fields: list[Any] = list(new.schema_arrow)
    assert [field.metadata[FIELD_ID] for field in fields] == [b"1", b"2", b"3", b"6", b"7"]
    (tmp_path / "g.parquet").write_bytes(rewritten)
    with duckdb.connect() as conn:
        one, other = (conn.execute(f"SELECT * FROM '{tmp_path}/{name}.parquet' ORDER BY i").fetchall() for name in ("f", "g"))
    assert one == other


def list_chunks(content: bytes, number: int) -> list[Any]:
    """The metadata of the column chunks of a row group."""
    group = cast("Any", pq.read_metadata(pa.BufferReader(content))).row_group(number)
    return [group.column(place) for place in range(group.num_columns)]


def get_start(chunk: Any) -> int:
    """The offset of the first page."""
    return min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)


def read_chunk(content: bytes, number: int, path: str) -> list[bytes]:
    """The pages of a column in a row group, and its Bloom filter if it has one."""
    [chunk] = [chunk for chunk in list_chunks(content, number) if chunk.path_in_schema == path]
    ranges = [(get_start(chunk), chunk.total_compressed_size)]
    if chunk.bloom_filter_offset:
        ranges.append((chunk.bloom_filter_offset, chunk.bloom_filter_length))
    return [content[start : start + length] for start, length in ranges]


@pytest.mark.parametrize("columns", ["v, s", "s, v", "v", "v, w, s", "s, v, n, w"])
@pytest.mark.parametrize("rows", [1, 9000])
def test_row_groups_follow_each_other(tmp_path: Path, columns: str, rows: int) -> None:
    """Java readers read a row group with the split that has its midpoint: the first column's offset plus half of the size.

    Source: parquet-java's `ParquetMetadataConverter.filterFileMetaDataByMidpoint`
    """
    with duckdb.connect() as conn:
        values = "{'a': r}::VARIANT AS v, repeat(md5(r::VARCHAR), 2) AS s, r AS n, CASE WHEN r % 3 = 0 THEN 'x'::VARIANT END AS w"
        conn.execute(
            f"COPY (SELECT {columns} FROM (SELECT {values} FROM range({rows}) r(r))) TO '{tmp_path}/f.parquet' (ROW_GROUP_SIZE 2048)"
        )
    rewritten = rewrite_variants((tmp_path / "f.parquet").read_bytes())
    assert rewritten is not None
    footer = decode_footer(rewritten)
    end = 4
    for number, group in enumerate(footer):
        chunks = list_chunks(rewritten, number)
        assert end <= get_start(chunks[0]) == group[5], "a row group begins behind the one before"
        end = get_start(chunks[0])
        for chunk in chunks:
            assert get_start(chunk) == end
            end += chunk.total_compressed_size
        assert group[6] == end - get_start(chunks[0])
        assert get_start(chunks[0]) + group[6] // 2 < end < len(rewritten)
    assert len(footer) == -(-rows // 2048)


def decode_footer(content: bytes) -> list[dict[int, int]]:
    """The numbers in the row groups of a footer, by field id."""
    length = int.from_bytes(content[-8:-4], "little")
    groups = {each.id: each.value for each in split_struct(content[-8 - length : -8])}[4]
    return [{each.id: decode_int(each.value) for each in split_struct(group) if each.kind == I64} for group in split_list(groups)[1]]


def test_a_file_without_variants_is_left_alone(tmp_path: Path) -> None:
    """A struct with parts that are called like those of a variant is none. What is no Parquet file is refused."""
    table = pa.table({"m": [{"metadata": b"x", "value": b"y"}]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert rewrite_variants(sink.getvalue()) is None
    with pytest.raises(Unsupported, match="no Parquet file"):
        rewrite_variants(b"no file")


def write_unmarked(*, ids: bool) -> bytes:
    """A file as Trino writes it: a variant that looks like a struct."""
    parts = [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
    metadata = {FIELD_ID: b"2"} if ids else None
    schema = pa.schema([pa.field("v", pa.struct(parts), metadata=metadata)])
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": [{"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}, None]}, schema=schema), sink, store_schema=False)
    return sink.getvalue()


@pytest.mark.parametrize("ids", [True, False])
def test_unmarked_variants_are_marked(tmp_path: Path, *, ids: bool) -> None:
    """A column is found by its field id, or by its name in a file without ids. DuckDB reads the variant then."""
    content = write_unmarked(ids=ids)
    assert needs_correction(io.BytesIO(content), len(content), {2: "v"})
    assert not needs_correction(io.BytesIO(content), len(content), {3: "w"})
    corrected = correct_variants(content, {2: "v"})
    assert not needs_correction(io.BytesIO(corrected), len(corrected), {2: "v"})
    (tmp_path / "f.parquet").write_bytes(corrected)
    with duckdb.connect() as conn:
        assert conn.execute(f"SELECT v, v IS NULL FROM '{tmp_path}/f.parquet'").fetchall() == [(7, False), (None, True)]


def test_variants_of_another_duckdb_are_rewritten(tmp_path: Path) -> None:
    """DuckDB's `iceberg` extension writes as DuckDB does."""
    content = write_file(tmp_path / "f.parquet", [None, {"b": 1, "a": 2}])
    assert needs_correction(io.BytesIO(content), len(content), {2: "v"})
    assert [row["v"] for row in read_file(correct_variants(content, {2: "v"}))] == [None, {"a": 2, "b": 1}]


def damage(content: bytes, change: Callable[[dict[int, ThriftField]], object]) -> bytes:
    """A file with another footer."""
    length = int.from_bytes(content[-8:-4], "little")
    fields = {each.id: each for each in split_struct(content[-8 - length : -8])}
    change(fields)
    footer = join_struct(fields[number] for number in sorted(fields))
    return content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def replace_elements(*elements: list[ThriftField]) -> Callable[[dict[int, ThriftField]], object]:
    """Another schema."""
    return lambda fields: fields.update({2: fields[2]._replace(value=join_list(STRUCT, [join_struct(each) for each in elements]))})


NAME, CHILD = ThriftField(4, BINARY, encode_binary(b"v")), ThriftField(5, I32, encode_int(1))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda fields: fields.pop(2), id="no schema"),
        pytest.param(replace_elements([NAME, CHILD], [CHILD]), id="no name"),
        pytest.param(replace_elements([NAME, CHILD], [NAME._replace(value=encode_binary(b"\xff"))]), id="no text"),
        pytest.param(replace_elements([NAME, CHILD], [NAME, CHILD]), id="too few elements"),
        pytest.param(replace_elements(*[[NAME, CHILD]] * 5000, [NAME]), id="too deep"),
    ],
)
def test_a_damaged_schema_is_refused(tmp_path: Path, change: Callable[[dict[int, ThriftField]], object]) -> None:
    """Whatever the bytes are, the error says so."""
    content = damage(write_file(tmp_path / "f.parquet", [{"a": 1}]), change)
    with pytest.raises(BadRequest):
        needs_correction(io.BytesIO(content), len(content), {2: "v"})
    with pytest.raises(Unsupported):
        correct_variants(content, {2: "v"})


@pytest.mark.parametrize("name", ["MAX_GROUP_BYTES", "MAX_DECODED_BYTES"])
def test_variants_that_grow_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Repeated values take few bytes in a file, and many in memory."""
    content = write_file(tmp_path / "f.parquet", [{"text": "x" * 1000}] * 5000)
    assert len(content) < 100_000
    monkeypatch.setattr(variants, name, 1_000_000)
    with pytest.raises(Unsupported, match="more than 1000000 bytes when they are decoded"):
        rewrite_variants(content)
