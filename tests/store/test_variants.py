"""Variants of data files are written again as the specification has them, and nothing else in the file changes."""

import io
import json
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.errors import Unsupported
from duckicelake.iceberg.variants import decode_names, decode_variant, format_json
from duckicelake.store.parquet import FIELD_ID
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


def test_other_bytes_stay(tmp_path: Path) -> None:
    """The new pages follow the old ones; row groups, field ids and other columns are what they were, and DuckDB reads the same."""
    content = write_file(tmp_path / "f.parquet", [{"b": n, "a": [n]} if n % 3 else None for n in range(5000)])
    rewritten = rewrite_variants(content)
    assert rewritten is not None
    kept = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert rewritten[:kept] == content[:kept]
    old, new = (pq.ParquetFile(pa.BufferReader(each)) for each in (content, rewritten))
    assert old.num_row_groups == new.num_row_groups > 1
    metadata: Any = new.metadata
    assert [metadata.row_group(n).num_rows for n in range(new.num_row_groups)] == [
        cast("Any", old.metadata).row_group(n).num_rows for n in range(old.num_row_groups)
    ]
    fields: list[Any] = list(new.schema_arrow)
    assert [field.metadata[FIELD_ID] for field in fields] == [b"1", b"2", b"3", b"6", b"7"]
    (tmp_path / "g.parquet").write_bytes(rewritten)
    with duckdb.connect() as conn:
        one, other = (conn.execute(f"SELECT * FROM '{tmp_path}/{name}.parquet' ORDER BY i").fetchall() for name in ("f", "g"))
    assert one == other


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
