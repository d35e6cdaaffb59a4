"""What is a text stays one: codes that look like numbers, times without a day, what stands in paths."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import parse_columns
from duckicelake.pipeline.ingest.file_checks import adopt_paths, list_path_texts, list_path_values
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.pipeline.ingest.test_avro import write_avro

of_spark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
OTHER = TABLE.with_suffix("_2")
KEEPS_FRACTIONS = not pyspark.__version__.startswith("3.")
"""Whether Spark makes texts of JSON's numbers as they are written; before 4.0 those with a point become doubles first."""


def spark(test: Any) -> Any:
    """A test that shares the session with the others of the jobs."""
    for mark in of_spark:
        test = mark(test)
    return test


@pytest.mark.long
@spark
def test_codes_and_times_are_no_numbers_and_no_moments(mill: Mill) -> None:
    """Where nobody says what columns are; where somebody says timestamp, a time without a day stops the run."""
    path = mill.write("a.csv", "id,seat,t,x,made\n1,12F,10:30,1.5,2026-03-01 10:30\n2,10D,9:05:01,-Inf,2026-03-02T10:30:00.5\n")
    mill.run()
    assert mill.rows(columns="id, seat, t, x, made::VARCHAR") == [
        (1, "12F", "10:30", 1.5, "2026-03-01 10:30:00+00"),
        (2, "10D", "9:05:01", float("-inf"), "2026-03-02 10:30:00.5+00"),
    ]
    mill.write("b.csv", "id,seat,t,x,made\n3,1A,10:30,2,2026-03-03 10:30\n4,1A,10:30,2,11:30\n")
    with pytest.raises(BadRequest, match=r'b\.csv has a time without a day .*: \{"made":"11:30"\}\. .*timestampFormat'):
        mill.run()
    path.unlink()
    (mill.folder / "b.csv").unlink()
    mill.write("c.jsonl", '{"t":"2026-03-01T10:30:00Z","s":[{"u":"12:00","v":"2026-01-01"}]}\n{"t":null,"s":[{"v":"9:05:01"}]}\n')
    with pytest.raises(BadRequest, match=r"c\.jsonl has a time without a day"):
        mill.run(table=OTHER, schema="t TIMESTAMP, s ARRAY<STRUCT<u: STRING, v: TIMESTAMP>>")
    assert mill.run(table=OTHER, schema="t TIMESTAMP, s ARRAY<STRUCT<u: STRING, v: STRING>>").rows_out == 2


@pytest.mark.long
@spark
def test_digits_that_a_double_does_not_hold_stay(mill: Mill) -> None:
    """A whole number among others; a double has 16 or 17 digits, and the same ones behind the point are one."""
    mill.write("a.csv", "n,x\n9007199254740993,0.30000000000000004\n1.5,123456789012345\n")
    mill.run()
    assert mill.rows() == [("1.5", 123456789012345.0), ("9007199254740993", 0.30000000000000004)]


FRACTIONS = ["1.5", "-0.30000000000000004", "0.10000000000000000000000", "0.00000000000000000012345", "1.000000000000000056e-01"]
"""What a double holds, or was written from one."""


@pytest.mark.long
@spark
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_fractions_that_a_double_does_not_hold_stay(mill: Mill, name: str) -> None:
    """Those of more digits than a double is ever shown with: `numeric` of a database, say."""
    long = "1234567890.123456789"
    rows = list(zip(FRACTIONS, [long, *FRACTIONS[1:]], strict=True))
    lines = [f'{{"x":{x},"n":{n}}}' for x, n in rows] if name.endswith("l") else ["x,n", *(f"{x},{n}" for x, n in rows)]
    mill.write(name, "\n".join(lines) + "\n")
    mill.run()
    is_kept = KEEPS_FRACTIONS or name.endswith("csv")
    assert mill.rows(columns="x, n") == sorted((float(x), n if is_kept else float(n)) for x, n in rows)


@pytest.mark.long
@spark
def test_digits_of_json_stay_too(mill: Mill) -> None:
    """Also inside: such a column is a text, where nothing says what it is; the next file is read as the table has it."""
    long = "1" + "0" * 39 + "1"
    first = '{"n":9007199254740993,"s":{"m.x":[[1.5],[12345678901234567890]]},"l":[{"v":0.5}],"x":0.30000000000000004,"i":9007199254740993}'
    second = f'{{"n":-1.50,"s":{{"m.x":[[2]]}},"l":[{{"v":-{long}}},{{}}],"x":123456789012345,"i":null}}'
    path = mill.write("a.jsonl", f"{first}\n{second}\n")
    mill.run()
    assert mill.rows(columns="n, s, l, x, i") == [
        ("-1.50" if KEEPS_FRACTIONS else "-1.5", {"m.x": [["2"]]}, [{"v": f"-{long}"}, {"v": None}], 123456789012345.0, None),
        ("9007199254740993", {"m.x": [["1.5"], ["12345678901234567890"]]}, [{"v": "0.5"}], 0.30000000000000004, 2**53 + 1),
    ]
    path.unlink()
    mill.write("b.jsonl", '{"n":2.5}\n')
    mill.run()
    assert mill.rows(columns="n")[1] == ("2.5",)
    mill.run(table=OTHER, schema="n DECIMAL(20,2)")
    assert mill.rows("trips_2", "n::VARCHAR") == [("2.50",)]


@pytest.mark.long
@spark
def test_what_stands_in_a_path_stays_as_it_is(mill: Mill) -> None:
    """Leading zeros and letters are those of texts; a text may be asked for, and the table's columns are read as such."""
    mill.write_parquet("seat=12F/code=007/part=3/a.parquet", id=[1])
    mill.write_parquet("seat=12F/code=8/part=4/a.parquet", id=[2])
    mill.run()
    assert mill.rows(columns="id, seat, code, part") == [(1, "12F", "007", 3), (2, "12F", "8", 4)]
    mill.write_parquet("seat=13/code=8/part=5/b.parquet", id=[3])
    assert mill.run().rows_out == 1
    assert mill.rows(columns="id, seat, code, part")[2] == (3, "13", "8", 5)
    mill.write_parquet("seat=13/code=8/part=06/b.parquet", id=[4])
    assert mill.run().rows_out == 1
    assert mill.rows(columns="id, seat, code, part")[3] == (4, "13", "8", 6)
    mill.run(table=OTHER, schema="id BIGINT, seat STRING, code STRING, part STRING")
    assert mill.rows("trips_2", "part") == [("06",), ("3",), ("4",), ("5",)]
    mill.run(table=TABLE.with_suffix("_3"), schema="id BIGINT, seat STRING, code STRING, part BIGINT")
    assert mill.rows("trips_3", "part") == [(3,), (4,), (5,), (6,)]


@pytest.mark.long
@spark
def test_a_column_of_the_path_is_no_other_one_of_the_file(mill: Mill) -> None:
    """What a path says never stands in the place of what a row says; both may say the same."""
    days = [dt.date(2026, 3, 1), dt.date(2026, 3, 2)]
    mill.write_parquet("day=2026-03-01/a.parquet", id=[1], day=days[:1])
    mill.write_parquet("day=2026-03-02/a.parquet", id=[2], day=days[1:])
    mill.run()
    assert mill.rows(columns="id, day") == [(1, days[0]), (2, days[1])]
    path = mill.write_parquet("day=2026-03-02/b.parquet", id=[3, 4], day=pa.array(days))
    with pytest.raises(BadRequest, match=r'b\.parquet has a row of \{"day":"2026-03-01"\}, and its path says otherwise'):
        mill.run()
    path.unlink()
    texts = {"a.json": '{"id":1,"day":"2026-03-02"}\n', "b.json": '{"id":1,"Day":"2026-03-02"}\n', "a.csv": "id,day\n1,2026-03-01\n"}
    for name, text in texts.items():
        path = mill.write(f"{name}/day=2026-03-01/{name}", text)
        with pytest.raises(BadRequest, match=r"row of .*its path says otherwise|column [dD]ay is in the files and in their paths"):
            mill.run(source=str(mill.folder / name), table=OTHER)
    write_avro(mill.folder / "avro/day=2026-03-01/a.avro", [{"name": "id", "type": "int"}], [{"id": 1}])
    both = [{"name": "id", "type": "int"}, {"name": "day", "type": "string"}]
    write_avro(mill.folder / "avro/day=2026-03-01/b.avro", both, [{"id": 2, "day": "2026-03-02"}])
    with pytest.raises(BadRequest, match="column day is in the files and in their paths"):
        mill.run(source=str(mill.folder / "avro"), table=OTHER)
    mill.write("a.json/day=2026-03-01/a.json", '{"id":1,"day":"2026-03-01"}\n{"id":2}\n')
    assert mill.run(source=str(mill.folder / "a.json"), table=OTHER).rows_out == 2


@pytest.mark.long
@spark
@pytest.mark.usefixtures("spark")
def test_what_paths_say_is_a_number_if_it_is_written_like_one() -> None:
    """Else Spark would make another value of it."""
    paths = ["/x/a=1/b=01/c=0/d=-1.50/e=1e5/f=10%3A30/g=__HIVE_DEFAULT_PARTITION__/h=0.5/i=x=y", "/x/a=2/c=7/d=3/g=4/z=1/f=x"]
    columns = parse_columns("a INT, b INT, c BIGINT, d DOUBLE, e DOUBLE, f TIMESTAMP, g INT, h DECIMAL(9,2), i STRING")
    told = list_path_values([f"{path}/file" for path in paths], columns.names)
    assert told["a"] == {"1", "2"}
    assert told["i"] == {"x=y"}
    assert list(list_path_texts(columns, told)) == ["b", "e", "f"]


@pytest.mark.long
@spark
@pytest.mark.usefixtures("spark")
def test_digits_of_paths_are_whole_numbers_that_hold_all_of_them() -> None:
    """Spark would cut greater ones."""
    found, said = parse_columns("a STRING, b STRING, c STRING, d STRING, x STRING"), {name: {"01234", "7"} for name in "abc"}
    known = {field.name: field.dataType for field in parse_columns("a TINYINT, b SMALLINT, c INT, d BIGINT, x INT").fields}
    adopted = adopt_paths(found, known, said | {"d": {"000000000012", "__HIVE_DEFAULT_PARTITION__"}})
    assert [field.dataType.simpleString() for field in adopted.fields] == ["string", "string", "int", "bigint", "string"]
