"""What no other reader could read, or what would lose something, is not in the table."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import parse_columns
from duckicelake.pipeline.ingest.options import Evolve, Format, IngestMode
from tests.pipeline.ingest.mill import TABLE, Mill


def make_texts(*octets: bytes) -> pa.StringArray:
    """Texts of these octets, whatever they are."""
    return pa.Array.from_buffers(pa.string(), len(octets), pa.array(list(octets)).buffers())


def make_lists(*octets: bytes) -> pa.ListArray:
    """Lists of one text each."""
    return pa.ListArray.from_arrays(list(range(len(octets) + 1)), make_texts(*octets))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="append"),
        pytest.param({"mode": IngestMode.upsert, "key": ("id",)}, id="upsert", marks=pytest.mark.long),
        pytest.param({"form": Format.orc}, id="orc", marks=pytest.mark.long),
    ],
)
def test_texts_in_no_utf8_go_to_the_quarantine(mill: Mill, how: dict[str, Any]) -> None:
    """DuckDB could not read the table otherwise; those inside of lists and structs too."""
    wrong, kind = b"caf\xe9", str(how.get("form", "parquet"))
    inner = pa.StructArray.from_arrays([make_texts(b"x", b"x", b"x", wrong)], ["t"])
    texts, lists = make_texts(b"ok", wrong, "é".encode(), b"x"), make_lists(b"x", b"x", wrong, b"x")
    rows = pa.table({"id": [1, 2, 3, 4], "s": texts, "xs": lists, "r": inner})
    (pq if kind == "parquet" else orc).write_table(rows, mill.folder / f"a.{kind}")
    done = mill.run(**how)
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (4, 1, 3)
    assert mill.rows() == [(1, "ok", ["x"], {"t": "x"})]
    reasons = mill.rows("trips__quarantine", "reason, row_index")
    assert [reason for reason, _ in reasons] == [f"column {name} has a text that is not in UTF-8" for name in ("r", "s", "xs")]
    assert [place for _, place in reasons] == [3, 1, 2]
    assert mill.rows("trips__ingested", "rows, quarantined") == [(4, 3)]
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_such_texts_are_kept_and_found_beside_a_new_column(mill: Mill) -> None:
    """The table is changed once, and what was there can be read again."""
    mill.write_parquet("a.parquet", id=[1])
    mill.run()
    pq.write_table(pa.table({"id": [2, 3], "s": make_texts(b"ok", b"caf\xe9")}), mill.folder / "b.parquet")
    done = mill.run(evolve=Evolve.add)
    assert (done.rows_out, done.rows_quarantined) == (1, 1)
    assert mill.rows() == [(1, None), (2, "ok")]
    assert mill.rows("trips__quarantine", "raw") == [('{"id":3,"s":"\\\\x636166E9"}',)]


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_what_is_no_uuid_goes_to_the_quarantine(mill: Mill) -> None:
    """Where the table has a UUID and Spark a text; nothing fails for it."""
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips (id UUID, v INT)")
    known = "5a8e6c5c-0000-4000-8000-00000000000a"
    mill.write("a.csv", f"id,v\n{known.upper()},1\nnot-a-uuid,2\n1-1-1-1-1,3\n,4\n")
    assert mill.run().rows_quarantined == 2
    assert mill.rows(columns="id::VARCHAR, v") == [(known, 1), (None, 4)]
    assert {row[0] for row in mill.rows("trips__quarantine", "reason")} == {"column id must have a UUID"}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_narrower_type_inside_is_refused(mill: Mill) -> None:
    """As it is outside; values would be cut."""
    mill.write_parquet("a.parquet", id=[1], xs=[[1.5, 2.9]])
    with pytest.raises(BadRequest, match="column xs: the files have array<double>, which does not fit array<int>"):
        mill.run(schema="id BIGINT, xs ARRAY<INT>")
    assert mill.served.server.get(f"namespaces/raw/tables/{TABLE.name}").status == 404


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "text", ["s STRUCT<a: INT NOT NULL>", "s ARRAY<STRUCT<b: INT, a: INT NOT NULL>>", "s MAP<INT, STRUCT<a: INT NOT NULL>>"]
)
def test_a_field_inside_cannot_be_asked_to_have_a_value(text: str) -> None:
    """Nobody would look after it."""
    with pytest.raises(BadRequest, match=r"s\.a is inside another column"):
        parse_columns(text)
    assert not parse_columns("a INT NOT NULL").fields[0].nullable
