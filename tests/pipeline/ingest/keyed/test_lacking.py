"""Files that lack columns of the table: what they do not tell of stays, and new rows have the table's defaults."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql.types import BinaryType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.common.spark_connect import from_arrow
from duckicelake.pipeline.common.spark_sql import add_defaults, format_default, parse_partitions
from duckicelake.pipeline.ingest.options import Evolve, IngestMode
from tests.pipeline.ingest.mill import Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]

PLACE = pa.struct([("city", pa.string()), ("zip", pa.string())])
CITY = pa.struct([("city", pa.string())])
LEG = pa.struct([("km", pa.int64()), ("by", pa.string())])
DEEP = {"trip": pa.struct([("no", pa.int64()), ("who", pa.string()), ("legs", pa.list_(LEG))]), "parts": pa.map_(pa.string(), LEG)}
LESS = pa.struct([("KM", pa.int32())])
LESS_DEEP = {"trip": pa.struct([("legs", pa.list_(LESS)), ("no", pa.int64())]), "parts": pa.map_(pa.string(), LESS)}
ODD_NAME = "drop/a b%20ä+.{}"


DEFAULTS = [
    ("BOOLEAN", "'true'", "true"),
    ("INTEGER", "'-7'", "-7"),
    ("BIGINT", "9007199254740993", "9007199254740993"),
    ("DOUBLE", "0.1", "0.1"),
    ("DECIMAL(9, 2)", "12.50", "12.50"),
    ("VARCHAR", "'it''s \\ %'", "it's \\ %"),
    ("DATE", "'2024-02-29'", "2024-02-29"),
    ("TIMESTAMP", "'2024-02-29 23:59:59.123456'", "2024-02-29 23:59:59.123456"),
    ("TIMESTAMPTZ", "'2024-02-29 23:59:59.123456+00'", "2024-02-29 23:59:59.123456"),
    ("BLOB", r"'\x00\xFF'", "00FF"),
    ("UUID", "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
]
"""Types, what DuckDB has as their default, and how Spark shows that, in UTC."""


def begin(mill: Mill, with_order: bool = False) -> None:
    """Two rows with everything."""
    columns: dict[str, Any] = {
        "id": pa.array([1, 2], pa.int64()),
        "note": ["one", "two"],
        "place": pa.array([{"city": "Bonn", "zip": "53"}, {"city": "Köln", "zip": "50"}], PLACE),
    }
    if with_order:
        columns["seen"] = pa.array([10, 10], pa.int64())
    mill.write_parquet("begin/a.parquet", **columns)
    mill.run(source=str(mill.folder / "begin"), mode=IngestMode.upsert, key=("id",))


def take(mill: Mill, name: str, **options: Any) -> Any:
    """Merge what lies in a folder."""
    return mill.run(**{"source": str(mill.folder / name), "mode": IngestMode.upsert, "key": ("id",)} | options)


@pytest.mark.long
def test_a_csv_without_a_column_keeps_its_values(mill: Mill) -> None:
    """And a new row has the default that DuckDB gave the column."""
    begin(mill)
    mill.ask("ALTER TABLE raw.trips ADD COLUMN kind VARCHAR DEFAULT 'it''s'")
    mill.ask("UPDATE raw.trips SET kind = NULL WHERE id = 1")
    mill.write("drop/a.csv", "id,note\n1,ONE\n3,three\n")
    report = take(mill, "drop")
    assert (report.rows_in, report.rows_out, report.rows_superseded) == (2, 2, 0)
    assert mill.rows(columns="id, note, place.city, kind") == [
        (1, "ONE", "Bonn", None),
        (2, "two", "Köln", "it's"),
        (3, "three", None, "it's"),
    ]


@pytest.mark.long
def test_a_new_row_has_the_defaults_of_all_types(mill: Mill) -> None:
    """As Spark's columns say them, or, where an older one says nothing, as the catalog does."""
    begin(mill)
    names = [f"c{place}" for place, _ in enumerate(DEFAULTS)]
    for name, (form, value, _) in zip(names, DEFAULTS, strict=True):
        mill.ask(f"ALTER TABLE raw.trips ADD COLUMN {name} {form} DEFAULT {value}")
    mill.write("drop/a.csv", "id\n3\n")
    take(mill, "drop")
    [expected] = mill.ask("SELECT " + ", ".join(f"CAST({value} AS {form})" for form, value, _ in DEFAULTS))
    assert mill.ask(f"SELECT {', '.join(names)} FROM raw.trips WHERE id = 3") == [expected]
    head = open_rest(mill.served.rest_catalog()).load(parse_ident("raw.trips"))
    assert head is not None
    known = mill.spark.session.table(f"{mill.catalog}.raw.trips").select(*names).schema
    told = add_defaults(StructType([StructField(field.name, field.dataType) for field in known.fields]), head.defaults)
    shown = [f"{'hex' if field.dataType == BinaryType() else 'string'}({format_default(field)})" for field in told.fields]
    (row,) = mill.spark.arrow(f"SELECT array({', '.join(shown)}) AS shown").to_pylist()
    assert row["shown"] == [text for *_, text in DEFAULTS]


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "orc", "avro"])
def test_files_of_several_columns_are_known_apart(mill: Mill, form: str) -> None:
    """Each by what it has itself, also within structs, whatever its name is."""
    begin(mill)
    one = {"id": pa.array([1, 3], pa.int64()), "place": pa.array([{"city": "Ulm"}, None], CITY)}
    two = {"note": [None, "four"], "id": pa.array([2, 4], pa.int64())}
    for name, columns in ((ODD_NAME.format(form), one), (f"drop/b.{form}", two)):
        write_as(mill, form, name, columns)
    report = take(mill, "drop")
    assert (report.rows_in, report.rows_out) == (4, 4)
    assert mill.rows(columns="id, note, place") == [
        (1, "one", {"city": "Ulm", "zip": "53"}),
        (2, None, {"city": "Köln", "zip": "50"}),
        (3, None, None),
        (4, "four", None),
    ]


def write_as(mill: Mill, form: str, name: str, columns: dict[str, Any]) -> None:
    """A file of a format."""
    if form == "parquet":
        mill.write_parquet(name, **columns)
    elif form == "orc":
        path = mill.folder / name
        path.parent.mkdir(exist_ok=True)
        orc.write_table(pa.table(columns), path)
    else:
        (made,) = _write_avro(mill, columns).glob("*.avro")
        mill.write(name, made.read_bytes())


def _write_avro(mill: Mill, columns: dict[str, Any]) -> Path:
    folder = mill.folder / "made" / next(iter(columns))
    from_arrow(mill.spark.session, pa.table(columns)).coalesce(1).write.format("avro").save(str(folder))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("whole", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_json_file_has_what_one_of_its_values_has(mill: Mill, whole: bool) -> None:
    """Null is a value, and so is what another value of the file leaves out."""
    begin(mill)
    one = [{"id": 1, "place": {"city": "Ulm"}}, {"id": 3, "place": None}]
    two = [{"id": 2, "note": None}, {"id": 4}, {"id": 5, "place": {"zip": "7"}}]
    for name, rows in ((ODD_NAME.format("json"), one), ("drop/b.json", two)):
        mill.write(name, json.dumps(rows, indent=1) if whole else "".join(f"{json.dumps(row)}\n" for row in rows))
    take(mill, "drop", reading={"multiLine": str(whole).lower()})
    assert mill.rows(columns="id, note, place") == [
        (1, "one", {"city": "Ulm", "zip": "53"}),
        (2, None, None),
        (3, None, None),
        (4, None, None),
        (5, None, {"city": None, "zip": "7"}),
    ]


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "twice",
    [
        '{"id": 4, "id": 1, "note": "ONE"}',
        pytest.param('{"id": 1, "place": {"city": "Ulm"}, "place": {}}', marks=pytest.mark.long),
        '{"id": 1, "place": {"zip": "7", "zip": "8"}}',
    ],
)
def test_an_object_with_a_name_twice_is_refused(mill: Mill, twice: str, whole: bool) -> None:
    """Spark finds it malformed or takes the last value, which may be another in each scan: the rows would have another key."""
    begin(mill)
    mill.write("drop/a.json", f"[{twice}]" if whole else f"{twice}\n")
    given = {"schema": "id BIGINT, note STRING, place STRUCT<city: STRING, zip: STRING>", "reading": {"multiLine": str(whole).lower()}}
    with pytest.raises(BadRequest, match=r"a\.json has an object in which a name is twice: .*write each name once"):
        take(mill, "drop", **given)
    assert mill.rows(columns="id, note") == [(1, "one"), (2, "two")]


@pytest.mark.long
def test_what_only_an_earlier_row_tells_is_not_lost(mill: Mill) -> None:
    """Two files with other columns have one key: the run is refused, and nothing changed; one after the other they are taken."""
    begin(mill, with_order=True)
    before = mill.rows()
    mill.write_parquet("drop/a.parquet", id=pa.array([1], pa.int64()), seen=pa.array([11], pa.int64()), note=["told"])
    mill.write_parquet("later/b.parquet", id=pa.array([1], pa.int64()), seen=pa.array([12], pa.int64()), place=pa.array([None], CITY))
    with pytest.raises(BadRequest, match="key id = 1, and the file of the last one lacks columns that another's has.*one after the other"):
        take(mill, "{drop,later}/*", order_by="seen")
    assert mill.rows() == before
    take(mill, "drop", order_by="seen")
    take(mill, "later", order_by="seen")
    assert mill.rows(columns="id, note, place, seen") == [(1, "told", None, 12), (2, "two", {"city": "Köln", "zip": "50"}, 10)]


@pytest.mark.long
def test_versions_carry_on_what_files_lack(mill: Mill) -> None:
    """A row that says nothing new of what its file has makes no version; two files of a run follow on one another."""
    how: dict[str, Any] = {"mode": IngestMode.scd2, "order_by": "seen"}
    mill.write_parquet(
        "begin/a.parquet", id=pa.array([1, 2], pa.int64()), seen=pa.array([1, 1], pa.int64()), note=["a", "b"], city=["x", "y"]
    )
    take(mill, "begin", **how)
    mill.write_parquet("drop/a.parquet", id=pa.array([1, 2, 3], pa.int64()), seen=pa.array([2, 2, 2], pa.int64()), note=["a", "B", "c"])
    mill.write_parquet("drop/b.parquet", id=pa.array([2, 3], pa.int64()), seen=pa.array([3, 3], pa.int64()), city=[None, "z"])
    report = take(mill, "drop", **how)
    assert (report.rows_in, report.rows_out, report.rows_superseded) == (5, 4, 1)
    assert mill.rows(columns="id, seen, note, city, valid_to") == [
        (1, 1, "a", "x", None),
        (2, 1, "b", "y", 2),
        (2, 2, "B", "y", 3),
        (2, 3, "B", None, None),
        (3, 2, "c", None, 3),
        (3, 3, "c", "z", None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("lacking", [pytest.param(9, id="another key"), pytest.param(1, id="the same key")])
def test_rows_that_contradict_each_other_are_refused_whatever_others_lack(mill: Mill, lacking: int) -> None:
    """Each has the value that its own file tells; where they agree, one of that moment whose file lacks the column is no other row."""
    how: dict[str, Any] = {"mode": IngestMode.scd2, "order_by": "seen"}
    for name, note in (("a", "x"), ("b", "y")):
        mill.write_parquet(f"drop/{name}.parquet", id=pa.array([1], pa.int64()), seen=pa.array([5], pa.int64()), note=[note])
    mill.write_parquet("drop/c.parquet", id=pa.array([lacking], pa.int64()), seen=pa.array([5], pa.int64()))
    with pytest.raises(BadRequest, match="the rows of id = 1 hold from the same seen"):
        take(mill, "drop", **how)
    report = take(mill, "drop/{a,c}.parquet", **how)
    assert (report.rows_in, report.rows_superseded) == (2, lacking == 1)
    assert mill.rows(columns="id, note, valid_to") == [(1, "x", None), *([(9, None, None)] if lacking == 9 else [])]


WITHIN = [
    pytest.param(IngestMode.append, "parquet", id="append"),
    *(pytest.param(mode, "parquet", id=mode.value, marks=pytest.mark.long) for mode in IngestMode if mode is not IngestMode.append),
    *(pytest.param(IngestMode.append, form, id=form, marks=pytest.mark.long) for form in ("orc", "avro")),
]


@pytest.mark.parametrize(("mode", "form"), WITHIN)
def test_structs_with_less_than_those_of_the_table_are_taken(mill: Mill, mode: IngestMode, form: str) -> None:
    """Also within lists and maps; fields go by name, in whatever order and case. Only `upsert` keeps what one outside of these lacks."""
    how: dict[str, Any] = {"mode": mode, "key": ("id",) if mode in (IngestMode.upsert, IngestMode.scd2) else ()}
    how |= {"order_by": "seen"} if mode is IngestMode.scd2 else {}
    if mode is IngestMode.overwrite_partitions:
        how["partition_by"] = parse_partitions("id")
    trip = {"no": 7, "who": "Ada", "legs": [{"km": 1, "by": "bus"}]}
    whole = {"trip": pa.array([trip], DEEP["trip"]), "parts": pa.array([[("a", {"km": 2, "by": "tram"})]], DEEP["parts"])}
    write_as(mill, form, f"begin/a.{form}", {"id": pa.array([1], pa.int64()), "seen": pa.array([1], pa.int64()), **whole})
    take(mill, "begin", **how)
    trips = [{"no": 8, "legs": [{"KM": 3}, None]}, None]
    less = {
        "trip": pa.array(trips, LESS_DEEP["trip"]),
        "parts": pa.array([[("b", {"KM": 4}), ("c", None)], None], LESS_DEEP["parts"]),
    }
    write_as(mill, form, f"drop/b.{form}", {"seen": pa.array([2, 2], pa.int64()), "id": pa.array([1, 2], pa.int64()), **less})
    report = take(mill, "drop", **how)
    assert (report.rows_in, report.rows_out) == (2, 2)
    first = (1, 1, trip, {"a": {"km": 2, "by": "tram"}})
    who = "Ada" if mode is IngestMode.upsert else None
    legs = [{"km": 3, "by": None}, None]
    later = (1, 2, {"no": 8, "who": who, "legs": legs}, {"b": {"km": 4, "by": None}, "c": None})
    stays = mode in (IngestMode.append, IngestMode.scd2)
    assert mill.rows(columns="id, seen, trip, parts") == [*([first] if stays else []), later, (2, 2, None, None)]


@pytest.mark.long
def test_versions_are_compared_by_fields_that_come_to_structs(mill: Mill) -> None:
    """In versions that are older than such a field it is NULL, so that a row of NULL says nothing new."""
    how: dict[str, Any] = {"mode": IngestMode.scd2, "order_by": "seen"}
    mill.write_parquet("begin/a.parquet", id=pa.array([1, 2], pa.int64()), seen=[1, 1], place=pa.array([{"city": "Ulm"}] * 2, CITY))
    take(mill, "begin", **how)
    places = pa.array([{"city": "Ulm", "zip": None}, {"city": "Ulm", "zip": "89"}], PLACE)
    mill.write_parquet("drop/b.parquet", id=pa.array([1, 2], pa.int64()), seen=[2, 2], place=places)
    report = take(mill, "drop", evolve=Evolve.add, **how)
    assert (report.rows_in, report.rows_out, report.rows_superseded) == (2, 1, 1)
    assert mill.rows(columns="id, place.zip, valid_to") == [(1, None, None), (2, "89", None), (2, None, 2)]
