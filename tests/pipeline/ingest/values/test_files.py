"""Files of other kinds than most: headers without names, other encodings, names that Spark passes over; and calls that name no column."""

from typing import Any

import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import parse_order, parse_partitions
from duckicelake.pipeline.ingest.file_source import choose_reading, is_odd_header
from duckicelake.pipeline.ingest.options import Format, IngestMode, IngestOptions, Status
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.support.tiers import long_but

OTHER = TABLE.with_suffix("_2")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_columns_without_names_are_named(mill: Mill) -> None:
    """As Spark names them, whatever stands in their place; files of another header are refused, and so are other columns."""
    mill.write("a.csv", ",a,A,\n0,1,x,\n1,2,y,\nz,2,y,\n")
    with pytest.raises(BadRequest, match=r"which are named \(_c0, a1, A2, _c3\): the columns asked for are \(id, a\)"):
        mill.run(schema="id INT, a INT")
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
    done = mill.run(schema="_c0 INT, a1 INT, A2 STRING, _c3 STRING")
    assert (done.rows_out, done.rows_quarantined) == (2, 1)
    mill.write("b.csv", ",a,A,\n2,3,z,w\n")
    assert mill.run().rows_out == 1
    assert mill.rows() == [(0, 1, "x", None), (1, 2, "y", None), (2, 3, "z", "w")]
    mill.write("c.csv", ",a,A,\n3,3,z,w\n")
    mill.write("c0.csv", "")
    mill.write("d.csv", ",A,a,\n4,3,z,w\n")
    with pytest.raises(BadRequest, match=r"headers of .*c\.csv and .*d\.csv differ"):
        mill.run()
    assert len(mill.rows()) == 3
    (mill.folder / "d.csv").unlink()
    assert mill.run().rows_out == 1
    mill.write("years/e.csv", "2019,2020,2020\n1,2,3\n")
    mill.run(source=str(mill.folder / "years"), table=OTHER, reading={"inferSchema": "true"})
    assert mill.rows("trips_2") == [(1, 2, 3)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_other_encodings_are_read_or_refused(mill: Mill) -> None:
    """Nothing is read as letters that are not there."""
    path = mill.write("a.csv", "id,name\n1,é\n".encode("utf-16"))
    with pytest.raises(BadRequest, match="do not end at a byte in UTF-16; --option multiLine=true"):
        mill.run(reading={"encoding": "UTF-16"})
    assert mill.run(reading={"encoding": "UTF-16", "multiLine": "true"}).rows_out == 1
    path.unlink()
    mill.write("b.csv", "id,name\n2,é\n")
    with pytest.raises(BadRequest, match="is not in US-ASCII"):
        mill.run(reading={"encoding": "US-ASCII"})
    (mill.folder / "b.csv").unlink()
    mill.write("c.jsonl", '{"id":2,"name":"é"}\r\n{"id":3,"name":"ü"}\n'.encode("latin-1"))
    assert mill.run(reading={"encoding": "ISO-8859-1"}).rows_out == 2
    assert mill.rows() == [(1, "é"), (2, "é"), (3, "ü")]
    for encoding, name in (("ISO-8859-1", "é"), ("US-ASCII", "e")):
        path = mill.write("d.jsonl", f'{{"id":4,"name":"{name}"}} {{"id":5}}\n'.encode("latin-1"))
        with pytest.raises(BadRequest, match=r"d\.jsonl has a line that goes on after its first JSON value"):
            mill.run(reading={"encoding": encoding})
        path.unlink()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_what_is_named_has_to_be_there(mill: Mill) -> None:
    """Columns of options, before the table is made and in a plan too; files that Spark passes over or cannot read."""
    path = mill.write("a.csv", "id,name\n1,a\n")
    key = {"mode": IngestMode.upsert, "key": ("Id",)}
    wrong: dict[str, dict[str, Any]] = {
        "--key: there is no column nothing": key | {"key": ("id", "nothing")},
        "--order-by: there is no column nothing": key | {"order_by": "nothing"},
        "--partition-by: there is no column nothing": {"partition_by": parse_partitions("bucket(4, nothing)")},
        "--sort-by: there is no column nothing": {"sort_by": parse_order("id, nothing desc")},
    }
    for message, options in wrong.items():
        for is_dry in (True, False):
            with pytest.raises(BadRequest, match=message):
                mill.run(dry_run=is_dry, **options)
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
    assert mill.run(**key).rows_out == 1
    with pytest.raises(BadRequest, match="because its name begins with _"):
        mill.run(source=str(mill.write("_b.csv", "id,name\n2,b\n")))
    path.rename(mill.folder / "2026-03-01T10:00.csv")
    with pytest.raises(BadRequest, match=r"2026-03-01T10:00\.csv, because its name has a colon"):
        mill.run()


def test_options_that_lose_rows_are_refused() -> None:
    """Of readers, and a limit that nothing meets."""
    with pytest.raises(BadRequest, match="mergeSchema is set by the job itself"):
        choose_reading(Format.parquet, [], {"mergeSchema": "false"})
    with pytest.raises(BadRequest, match="--max-quarantined begins at 0"):
        IngestOptions("x", TABLE, max_quarantined=-1)
    with pytest.raises(BadRequest, match=r"JSON in SHIFT_JIS .* write it in UTF-8"):
        choose_reading(Format.json, [], {"encoding": "Shift_JIS"})
    assert choose_reading(Format.json, [], {"charset": "latin1"})["lineSep"] == "\n"
    assert "lineSep" not in choose_reading(Format.json, [], {"encoding": "UTF-16", "multiLine": "true"})
    assert [is_odd_header(names) for names in (("a", "b"), ("a", None), ("a", "A"), ())] == [False, True, True, False]


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.parametrize(
    ("name", "content", "rows"),
    long_but(
        [
            pytest.param("a.csv", "\n", 0, id="csv"),
            pytest.param("a.csv", " \n\r\n", 0, id="spaces"),
            pytest.param("a.json", "\n\n", 0, id="json"),
            pytest.param("a.json", "{}\n", 1, id="an object of nothing"),
            pytest.param("day=2026-03-01/a.csv", "\n", 0, id="columns of paths alone"),
        ],
        "csv",
    ),
)
def test_files_that_say_nothing_of_columns(mill: Mill, name: str, content: str, rows: int) -> None:
    """They are taken by the table's, each once; a table is not made of them."""
    mill.write(name, content)
    with pytest.raises(BadRequest, match="nothing in the files says what columns they have; give --schema"):
        mill.run()
    mill.duck.execute("CREATE SCHEMA raw; CREATE TABLE raw.trips (id BIGINT, name VARCHAR, day DATE)")
    done = mill.run()
    assert (done.status, done.files, done.rows_in, done.rows_out, done.rows_quarantined) == (Status.done, 1, rows, rows, 0)
    assert mill.rows() == [(None, None, None)] * rows
    assert mill.run().status is Status.nothing_new


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_delta_table_is_no_folder_of_files(mill: Mill) -> None:
    """Some of its files may count no longer. Files that are beside it are taken."""
    mill.write_parquet("delta/0.parquet", id=[1])
    mill.write("delta/_delta_log/00000000000000000000.json", "{}\n")
    mill.write_parquet("beside/0.parquet", id=[2])
    for source in (mill.folder, mill.folder / "delta", mill.folder / "delta" / "*.parquet"):
        with pytest.raises(BadRequest, match=r"/delta is a Delta table.*--format delta.*nothing was taken"):
            mill.run(source=str(source))
    assert mill.run(source=str(mill.folder / "beside")).rows_out == 1
