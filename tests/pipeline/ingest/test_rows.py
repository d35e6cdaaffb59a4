"""Every row is in the table or in its quarantine, and what the table may become is said before."""

import pytest
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.common.spark_sql import parse_order, parse_partitions
from duckicelake.pipeline.ingest.options import Changed, Evolve, Format, IngestMode, Status
from duckicelake.pipeline.ingest.row_checks import goes_on
from duckicelake.pipeline.ingest.schema_evolution import EvolutionRefused
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.support.spark import Spark, letting_go
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
SCHEMA = "id BIGINT NOT NULL, name STRING, day DATE"


def test_bad_lines_go_to_the_quarantine(mill: Mill) -> None:
    """As they were, with a reason, file, number and line; lines that lack a value that must be there too."""
    mill.write("a.csv", "id,name,day\n1,a,2026-01-01\nx,b,2026-01-01\n\n3,c\n4,d,2026-01-01,more\n,e,2026-01-01\n6,f,never\n")
    done = mill.run(schema=SCHEMA)
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (6, 1, 5)
    assert mill.rows(columns="id, name") == [(1, "a")]
    bad = mill.rows("trips__quarantine", "raw, reason, source_file, run_id, row_index, line")
    assert [row[0] for row in bad[:4]] == ["3,c", "4,d,2026-01-01,more", "6,f,never", "x,b,2026-01-01"]
    assert all(row[1].startswith("the line is malformed") for row in bad[:4])
    assert bad[4][:2] == ('{"id":null,"name":"e","day":"2026-01-01"}', "column id must have a value")
    assert {row[2:4] for row in bad} == {((mill.folder / "a.csv").as_uri().replace("///", "/"), done.run_id)}
    assert [row[4:] for row in bad] == [(2, 5), (3, 6), (5, 8), (1, 3), (4, 7)]
    assert mill.rows("trips__ingested", "rows, quarantined") == [(6, 5)]


def test_bad_json_goes_to_the_quarantine(mill: Mill) -> None:
    """Lines that are no JSON and values of other types; nested columns are taken."""
    mill.write("a.jsonl", '{"id":1,"spot":{"x":1.5}}\n{"id":"one"}\nnothing\n{"id":2,"spot":null}\n')
    done = mill.run(schema="id BIGINT, spot STRUCT<x: DOUBLE>")
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (4, 2, 2)
    assert mill.rows() == [(1, {"x": 1.5}), (2, None)]
    assert mill.rows("trips__quarantine", "raw, row_index, line") == [("nothing", 2, 3), ('{"id":"one"}', 1, 2)]
    mill.write("b.jsonl", '{"id":3,"spot":{"y":2}}\n')
    with pytest.raises(EvolutionRefused, match=r"column spot\.y is not in the table"):
        mill.run()
    assert mill.run(evolve=Evolve.add).rows_out == 1
    assert mill.rows() == [(1, {"x": 1.5, "y": None}), (2, None), (3, {"x": None, "y": 2})]
    path = mill.write("c.jsonl", '{"id":4}\n{"id":5}{"id":6}\n')
    for options in ({}, {"multiLine": "true"}):
        with pytest.raises(BadRequest, match=r"c\.jsonl .* goes on after its first JSON value: '{"):
            mill.run(reading=options)
    path.write_text('{"id":4}|{"id":5}')
    assert mill.run(reading={"lineSep": "|"}).rows_out == 2


@pytest.mark.long
def test_json_that_spark_would_leave_unread_is_found(spark: Spark) -> None:
    """It stops after the first value of a line, or of a file that is read whole; malformed lines are for the quarantine."""
    lines = {
        **dict.fromkeys(['{"id":1}{"id":2}', '{"id":1},{"id":2}', '{"id":1} x', '[{"id":1}] [{"id":2}]', '{"id":1}\n{"id":2}\n'], True),
        **dict.fromkeys(['{"id":1}] {"id":2}', '\ufeff{"id":1}{"id":2}'], True),
        '\ufeff{"id":1}': False,
        **dict.fromkeys(
            ['[{"id":1},\n{"id":2}]\n', '{"id":1}, ', '{"id":1}// [] x', '{"a":[{"b":"}] {"},{}],"id":1}', '{"id":\nx} y'], False
        ),
    }
    with letting_go():
        found = spark.session.createDataFrame([(line,) for line in lines], "line string")
        told = found.select("line", goes_on(F.col("line"), {"allowComments": "true"})).collect()
    assert {row[0]: row[1] for row in told} == lines


@pytest.mark.long
def test_quoted_values_are_read_as_they_are(mill: Mill) -> None:
    """Doubled quotes, backslashes, line breaks where Spark is told of them; empty is not NULL; a column of the path is asked for."""
    path = mill.write("city=x/a.csv", 'id,name\n1,"say ""hi"""\n2,"C:\\d\\"\n3,""\n4,\n5,"two\nlines"\n')
    with pytest.raises(BadRequest, match="column city of the paths"):
        mill.run(schema="id BIGINT, name STRING", reading={"multiLine": "true"})
    path.rename(mill.folder / "a.csv")
    assert mill.run(schema="id BIGINT, name STRING", reading={"multiLine": "true"}).rows_quarantined == 0
    assert mill.rows() == [(1, 'say "hi"'), (2, "C:\\d\\"), (3, ""), (4, None), (5, "two\nlines")]


@pytest.mark.long
def test_a_file_without_good_rows_is_taken_too(mill: Mill) -> None:
    """Empty files, and files with nothing but bad lines."""
    mill.write("a.csv", "id,name\n")
    mill.write("b.csv", "id,name\nx,b\n")
    done = mill.run(schema="id BIGINT, name STRING")
    assert (done.files, done.rows_in, done.rows_out, done.rows_quarantined) == (2, 1, 0, 1)
    assert mill.rows("trips__ingested", "rows, quarantined") == [(0, 0), (1, 1)]
    assert mill.run().status == Status.nothing_new


@pytest.mark.long
def test_parquet_rows_without_a_value_are_numbered(mill: Mill) -> None:
    """Their position in the file is known; where no row can be bad, the quarantine is not made."""
    mill.write_parquet("a.parquet", id=[1, None, 3], name=["a", "b", None])
    done = mill.run(schema="id BIGINT NOT NULL, name STRING")
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (3, 2, 1)
    assert mill.rows("trips__quarantine", "raw, row_index, line") == [('{"id":null,"name":"b"}', 1, None)]
    clean = mill.run(source=str(mill.folder), table=TABLE.with_suffix("_2"))
    assert (clean.rows_in, clean.rows_out) == (3, 3)
    assert mill.served.server.get("namespaces/raw/tables/trips_2__quarantine").status == 404


def test_the_table_grows_only_as_it_is_allowed_to(mill: Mill) -> None:
    """Refused by the column's name, and nothing is taken; then widened and added to."""
    mill.write_parquet("a.parquet", id=[1], n=[1.5])
    mill.run(schema="id BIGINT, n DOUBLE")
    mill.write_parquet("b.parquet", id=[2], n=[2.5], more=["x"])
    with pytest.raises(EvolutionRefused, match="column more"):
        mill.run()
    assert mill.rows("trips__ingested", "rows") == [(1,)]
    planned = mill.run(evolve=Evolve.add, dry_run=True)
    assert planned.status == Status.planned
    assert "add more string in raw.trips" in planned.plan
    assert mill.run(evolve=Evolve.add).rows_out == 1
    mill.write("c.csv", "id,later\n3,4.5\n")
    assert mill.run(evolve=Evolve.add).rows_out == 1
    assert mill.rows(columns="id, n, more, later") == [(1, 1.5, None, None), (2, 2.5, "x", None), (3, None, None, 4.5)]


@pytest.mark.long
def test_an_int_becomes_a_bigint(mill: Mill) -> None:
    """With `widen`; text that does not fit is quarantined without it."""
    mill.write("a.csv", "id\n1\n")
    mill.run()
    mill.write("b.csv", "id\n5000000000\n")
    assert mill.run().rows_quarantined == 1
    mill.write("c.csv", "id\n6000000000\n")
    assert mill.run(evolve=Evolve.widen).rows_out == 1
    assert mill.rows() == [(1,), (6000000000,)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    long_but(
        [
            pytest.param("a.parquet", b"PAR1 is cut off", "a.parquet", id="cut off"),
            pytest.param("a.csv", "id,name\n1,ł\n".encode("utf-16"), "a.csv is not in UTF-8", id="encoding"),
            pytest.param(
                "a.csv", b'id,name\n1,"two\nlines"\n', "odd number of quotes: '1,\"two'.*--option multiLine=true", id="line break"
            ),
            pytest.param("a.txt", b"hello", "does not say by its name what it is", id="unknown"),
        ],
        "cut off",
    ),
)
def test_what_cannot_be_read_changes_nothing(mill: Mill, name: str, content: bytes, message: str) -> None:
    """Neither a table nor a branch is there afterwards."""
    mill.write(name, content)
    with pytest.raises(CatalogError, match=message):
        mill.run()
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404


@pytest.mark.long
def test_headers_that_differ_are_refused(mill: Mill) -> None:
    """Values never come under another column's name, and nothing is half done."""
    mill.write("a.csv", "id,name\n1,a\n")
    mill.run()
    mill.write("b.csv", "id,name\n2,b\n")
    mill.write("c.csv", "name,id\nc,3\n")
    with pytest.raises(CatalogError, match="header"):
        mill.run()
    assert mill.rows() == [(1, "a")]
    assert mill.list_refs("trips") == ["main"]


@pytest.mark.long
def test_a_source_that_is_not_there_is_refused(mill: Mill) -> None:
    """An empty folder has nothing new, a missing one is a mistake."""
    assert mill.run().status == Status.nothing_new
    with pytest.raises(BadRequest, match="there is no"):
        mill.run(source=str(mill.folder / "missing"))


@pytest.mark.long
def test_a_file_that_changed_is_not_taken_twice(mill: Mill) -> None:
    """Unless it is asked for."""
    mill.write("a.csv", "id\n1\n")
    mill.run()
    mill.write("a.csv", "id\n1\n2\n")
    with pytest.raises(BadRequest, match="--changed"):
        mill.run()
    assert mill.run(changed=Changed.skip).status == Status.nothing_new
    assert mill.run(changed=Changed.take).rows_out == 2
    assert mill.run().status == Status.nothing_new


@pytest.mark.long
@pytest.mark.parametrize("vanishes", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_file_that_changes_while_it_is_read_stops_the_run(mill: Mill, vanishes: bool) -> None:
    """What was counted is not what is there: nothing is taken, and nothing is left over."""
    mill.write("a.csv", "id\n1\n")
    mill.run()
    path = mill.write("b.csv", "id\n2\n")

    def tell(step: str) -> None:
        if step == "write raw.trips__ingested":
            path.unlink() if vanishes else mill.write("b.csv", "id\n2\n3\n")

    with pytest.raises(BadRequest, match="changed or vanished"):
        mill.run(tell=tell)
    assert mill.rows() == [(1,)]
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


def test_partitions_are_overwritten(mill: Mill) -> None:
    """Those that the files have rows of, and no others; a table without partitions would lose everything."""
    mill.write("a.csv", "id,city\n1,x\n2,y\n")
    shape = {"partition_by": parse_partitions("city, bucket(4, id)"), "sort_by": parse_order("id desc")}
    mill.run(**shape)
    with pytest.raises(BadRequest, match=r"partitioned by identity\(city\), bucket\[4\]\(id\); alter"):
        mill.run(changed=Changed.take, **shape | {"partition_by": parse_partitions("city")}, source=str(mill.write("z.csv", "id,city\n")))
    (mill.folder / "z.csv").unlink()
    mill.write("b.csv", "id,city\n2,y\n4,y\n")
    mill.run(mode=IngestMode.overwrite_partitions, **shape)
    mill.write("c.csv", "id,city\n2,y\n3,y\n4,y\n")
    done = mill.run(mode=IngestMode.overwrite_partitions, **shape)
    assert done.rows_out == 3
    assert mill.rows() == [(1, "x"), (2, "y"), (3, "y"), (4, "y")]
    assert mill.find_summary("trips")["duckicelake.run-id"] == done.run_id
    mill.write("d.csv", "id,city\nbad,y\n")
    assert mill.run(mode=IngestMode.overwrite_partitions, **shape).rows_quarantined == 1
    assert len(mill.rows()) == 4
    with pytest.raises(BadRequest, match="no partitions"):
        mill.run(mode=IngestMode.overwrite_partitions, table=TABLE.with_suffix("_2"))


@pytest.mark.long
def test_partitions_are_overwritten_wherever_their_rows_lie(mill: Mill) -> None:
    """Inlined rows lie in no partition, and files from before the table had these lie in others; NULL is a value."""
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips AS SELECT i AS id, ['x', 'y', NULL][1 + i % 3] AS city, DATE '2026-01-01' AS day FROM range(30) r(i)")
    mill.ask("ALTER TABLE raw.trips SET PARTITIONED BY (city, year(day))")
    mill.ask("INSERT INTO raw.trips VALUES (100, 'x', '2026-02-02'), (101, 'x', '2025-02-02'), (102, NULL, '2026-02-02')")
    mill.write("a.csv", "id,city,day\n103,x,2026-03-03\n104,,2026-03-03\n")
    assert mill.run(mode=IngestMode.overwrite_partitions).rows_out == 2
    rows = [*((i, "y") for i in range(1, 30, 3)), (101, "x"), (103, "x"), (104, None)]
    assert mill.rows(columns="id, city") == rows
    mill.write("b.csv", "id,city,day\n105,z,2026-04-04\n")
    assert mill.run(mode=IngestMode.overwrite_partitions).rows_out == 1
    assert mill.rows(columns="id, city") == [*rows, (105, "z")]


@pytest.mark.long
def test_a_bad_row_overwrites_nothing(mill: Mill) -> None:
    """Spark alone would not see that it is bad where it needs the columns of the partitions and no others."""
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips (id BIGINT, city VARCHAR)")
    mill.ask("ALTER TABLE raw.trips SET PARTITIONED BY (city)")
    mill.ask("INSERT INTO raw.trips VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    mill.write("a.csv", "id,city\nbad,x\n4,y\n")
    assert mill.run(mode=IngestMode.overwrite_partitions).rows_quarantined == 1
    assert mill.rows() == [(1, "x"), (3, "z"), (4, "y")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("b.csv", "id,seen\n1,bad\n1,3\n2,bad\n3,4\n", id="csv"),
        pytest.param("b.json", '{"id":1,"seen":"bad"}\n{"id":1,"seen":3}\n{"id":2,"seen":"bad"}\n{"id":3,"seen":4}\n', id="json"),
    ],
)
def test_a_bad_row_has_no_key(mill: Mill, name: str, text: str) -> None:
    """Nor is it counted where Spark needs the columns of the key and no others."""
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips AS SELECT i AS id, i AS seen FROM range(1, 3) r(i)")
    mill.write(name, text)
    done = mill.run(mode=IngestMode.upsert, key=("id",))
    assert (done.rows_in, done.rows_out, done.rows_quarantined, done.rows_superseded) == (4, 2, 2, 0)
    assert mill.rows() == [(1, 3), (2, 2), (3, 4)]


@pytest.mark.long
def test_partitions_of_uuids_are_not_told_apart_by_text(mill: Mill) -> None:
    """Where rows lie in no partition: Spark's texts have other buckets, and capital letters make other values."""
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips (id BIGINT, code UUID)")
    mill.ask("ALTER TABLE raw.trips SET PARTITIONED BY (code)")
    mill.ask("INSERT INTO raw.trips VALUES (1, '00000000-0000-0000-0000-00000000000a')")
    mill.write("a.csv", "id,code\n2,00000000-0000-0000-0000-00000000000A\n")
    with pytest.raises(BadRequest, match="which Spark cannot tell by a UUID"):
        mill.run(mode=IngestMode.overwrite_partitions, schema="id BIGINT, code STRING")
    assert mill.rows(columns="id") == [(1,)]


def test_rows_are_known_by_their_key(mill: Mill) -> None:
    """Known ones are updated and others inserted; of several the last counts; a key must have values."""
    mill.write("a.csv", "id,name,at\n1,a,1\n2,b,1\n")
    mill.run(mode=IngestMode.upsert, key=("id",))
    mill.write("b.csv", "id,name,at\n2,c,2\n2,d,3\n3,e,1\n,f,1\n")
    with pytest.raises(BadRequest, match="several rows have the key id = 2: --order-by"):
        mill.run(mode=IngestMode.upsert, key=("id",))
    done = mill.run(mode=IngestMode.upsert, key=("id",), order_by="at")
    assert (done.rows_in, done.rows_out, done.rows_quarantined, done.rows_superseded) == (4, 2, 1, 1)
    assert mill.rows() == [(1, "a", 1), (2, "d", 3), (3, "e", 1)]
    assert mill.find_summary("trips")["duckicelake.run-id"] == done.run_id
    mill.write("c.csv", "id,name,at\n3,g,5\n3,h,5\n")
    with pytest.raises(BadRequest, match="they do not differ in at"):
        mill.run(mode=IngestMode.upsert, key=("id",), order_by="at")


def test_orc_and_folders_of_values_are_read(mill: Mill) -> None:
    """ORC has its own types; `city=x` in a path is a column."""
    session = mill.spark.session
    session.createDataFrame([(1, "a")], "id bigint, name string").write.orc(str(mill.folder / "city=x"))
    assert mill.run().rows_out == 1
    assert mill.rows(columns="id, name, city") == [(1, "a", "x")]
    assert mill.run(form=Format.orc).status == Status.nothing_new
    alone = mill.write("day=1/a.csv", "id\n1\n")
    assert "(`id` int)" in mill.run(source=str(alone), table=TABLE.with_suffix("_2"), dry_run=True).plan[1]


@pytest.mark.long
def test_too_many_bad_rows_stop_the_run(mill: Mill) -> None:
    """When there is a limit; the files can be taken later."""
    mill.write("a.csv", "id\nx\n1\n")
    with pytest.raises(BadRequest, match="1 rows are bad, more than --max-quarantined 0"):
        mill.run(schema="id BIGINT", max_quarantined=0)
    assert mill.run(schema="id BIGINT").rows_quarantined == 1


def test_versions_say_when_they_held(mill: Mill) -> None:
    """Several in one file, then a later one; what changes nothing makes none; what comes late stops the run."""
    options = {"mode": IngestMode.scd2, "key": ("id",), "order_by": "at"}
    mill.write("a.csv", "id,name,at\n1,a,2026-01-01\n1,b,2026-02-01\n1,b,2026-03-01\n2,x,2026-01-01\n3,y,\n")
    first = mill.run(**options)
    assert (first.rows_in, first.rows_out, first.rows_quarantined, first.rows_superseded) == (5, 3, 1, 1)
    mill.write("b.csv", "id,name,at\n1,b,2026-04-01\n2,z,2026-05-01\n2,w,2026-06-01\n4,n,2026-01-01\n")
    second = mill.run(**options)
    assert (second.rows_in, second.rows_out, second.rows_superseded) == (4, 3, 1)
    shown = "id, name, strftime(valid_from, '%m'), strftime(valid_to, '%m'), is_current"
    expected = [
        *[(1, "a", "01", "02", False), (1, "b", "02", None, True)],
        *[(2, "w", "06", None, True), (2, "x", "01", "05", False), (2, "z", "05", "06", False)],
        (4, "n", "01", None, True),
    ]
    assert mill.rows(columns=shown) == expected
    mill.write("new.csv", "id,name,at,more\n4,n,2026-02-01,m\n")
    assert mill.run(**options, evolve=Evolve.add).rows_out == 1
    expected[-1:] = [(4, "n", "01", "02", False), (4, "n", "02", None, True)]
    mill.write("c.csv", "id,name,at\n2,late,2026-05-15\n")
    with pytest.raises(BadRequest, match=r"the rows of id = 2 hold from the same at or from before"):
        mill.run(**options)
    assert mill.rows(columns=shown) == expected


@pytest.mark.long
def test_a_key_that_the_table_has_twice_stops_an_upsert(mill: Mill) -> None:
    """Which of them would be the one?"""
    mill.write("a.csv", "id,name\n1,a\n1,b\n")
    mill.run()
    mill.write("b.csv", "id,name\n1,c\n")
    with pytest.raises(BadRequest, match="several rows of one key"):
        mill.run(mode=IngestMode.upsert, key=("id",))
    assert mill.rows() == [(1, "a"), (1, "b")]
