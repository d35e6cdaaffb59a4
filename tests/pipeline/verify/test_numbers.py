"""Spark makes the same numbers of rows as we do, whatever is in them, and says the same of them all together."""

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, parse_type
from duckicelake.pipeline.common import spark_connect
from duckicelake.pipeline.verify.checksums import (
    CompareSpec,
    GroupField,
    checksum_batches,
    checksum_rows,
    compare,
    find_different_bins,
    format_number,
    pick_rows,
)
from duckicelake.pipeline.verify.row_hashes import hash_rows
from tests.support.spark import Spark, letting_go
from tests.support.tiers import long_after

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

ROWS = 600
NAN, HUGE = float("nan"), 10**38 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAVES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "long": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "float": (pa.float32(), [0.0, -0.0, NAN, -NAN, math.inf, -math.inf, 1.5, 1e-45]),
    "double": (pa.float64(), [0.0, -0.0, NAN, -NAN, math.inf, -math.inf, 0.1, 5e-324]),
    "decimal(9, 2)": (pa.decimal128(9, 2), [Decimal(0), Decimal("-0.01"), Decimal("9999999.99")]),
    "decimal(18, 18)": (pa.decimal128(18, 18), [Decimal(0), Decimal(1).scaleb(-18), -Decimal(10**18 - 1).scaleb(-18)]),
    "decimal(19, 0)": (pa.decimal128(19, 0), [Decimal(n) for n in (0, 127, 128, -128, -129, 255, -256, 2**63, -(2**63), 10**19 - 1)]),
    "decimal(38, 0)": (pa.decimal128(38, 0), [Decimal(n) for n in (0, -1, 32767, 32768, 2**64, -(2**64) - 1, HUGE, -HUGE)]),
    "string": (pa.string(), ["", "\0", "a\0", "é", *("x" * n for n in (31, 32, 33, 63, 64, 1024, 1025, 5000))]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff" * 8, *(b"\x80" * n for n in (31, 32, 33, 1024, 1025))]),
    "date": (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [0, -1, 1, 2**60, -(2**60), 253402300799999999]),
    "timestamptz": (pa.timestamp("us", "UTC"), [0, -1, 1, 2**60, -(2**60)]),
}


def to_leaf(name: str) -> PrimitiveType:
    """The type of a name."""
    form = parse_type(name)
    assert isinstance(form, PrimitiveType)
    return form


def draw(form: IcebergType, chance: random.Random, depth: int = 0) -> Any:
    """A value, or none, of the type: often one of the odd ones."""
    if chance.random() < 0.15:
        return None
    match form:
        case StructType(fields):
            return {field.name: draw(field.type, chance, depth + 1) for field in fields}
        case ListType():
            return [draw(form.element_type, chance, depth + 1) for _ in range(chance.choice((0, 1, 2, 5)))]
        case MapType():
            keys = {f"k{chance.randrange(9)}" for _ in range(chance.choice((0, 1, 3)))}
            return [(key, draw(form.value_type, chance, depth + 1)) for key in keys]
        case PrimitiveType():
            return DRAWN.get(form.name, lambda _: None)(chance) if chance.random() < 0.5 else chance.choice(LEAVES[str(form)][1])


def draw_text(chance: random.Random) -> str:
    """A text of any length, of letters of one to four bytes."""
    return "".join(chance.choice("aZ0 é€😀") for _ in range(chance.randrange(70)))


DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "boolean": lambda chance: chance.random() < 0.5,
    "int": lambda chance: chance.randrange(-(2**31), 2**31),
    "long": lambda chance: chance.randrange(-(2**63), 2**63),
    "float": lambda chance: chance.uniform(-1, 1),
    "double": lambda chance: chance.uniform(-1e300, 1e300),
    "string": draw_text,
    "binary": lambda chance: chance.randbytes(chance.randrange(70)),
    "date": lambda chance: date(1970, 1, 1) + timedelta(days=chance.randrange(-9000, 40000)),
    "timestamp": lambda chance: chance.randrange(-(10**16), 10**16),
    "timestamptz": lambda chance: chance.randrange(-(10**16), 10**16),
}


def to_arrow(form: IcebergType) -> pa.DataType:
    """The type that the values have in Arrow."""
    match form:
        case StructType(fields):
            return pa.struct([(field.name, to_arrow(field.type)) for field in fields])
        case ListType():
            return pa.list_(to_arrow(form.element_type))
        case MapType():
            return pa.map_(to_arrow(form.key_type), to_arrow(form.value_type))
        case PrimitiveType():
            return LEAVES[str(form)][0]


def shape(kind: str, leaf: PrimitiveType) -> IcebergType:
    """A leaf alone, or within others."""
    listed, inner = ListType(900, leaf, False), StructType((NestedField(901, "a b", leaf, False), NestedField(902, "n", LONG, False)))
    return {
        "plain": leaf,
        "list": listed,
        "lists": ListType(903, listed, False),
        "map": MapType(904, PrimitiveType("string"), 905, leaf, False),
        "maps": MapType(904, PrimitiveType("string"), 905, ListType(906, inner, False), False),
        "struct": StructType((NestedField(907, "s", inner, False), NestedField(908, "l", listed, False))),
        "structs": ListType(909, inner, False),
    }[kind]


LONG = PrimitiveType("long")
KINDS = ("plain", "list", "lists", "map", "maps", "struct", "structs")


def make(forms: list[IcebergType], seed: int) -> tuple[pa.Table, CompareSpec]:
    """Rows of columns of these types."""
    chance = random.Random(seed)
    fields = tuple(NestedField(place, f"c{place}", form, False) for place, form in enumerate(forms, 1))
    columns = [pa.array([draw(field.type, chance) for _ in range(ROWS)], to_arrow(field.type)) for field in fields]
    return pa.Table.from_arrays(columns, names=[field.name for field in fields]), CompareSpec(fields)


def read(spark: Spark, table: pa.Table, folder: Path) -> DataFrame:
    """Rows by way of a file: Spark 3.5 takes none from Arrow."""
    path = folder / "rows.parquet"
    pq.write_table(table, path)
    return spark.session.read.option("datetimeRebaseMode", "CORRECTED").parquet(str(path))


@pytest.mark.parametrize("kind", long_after(2, KINDS))
def test_spark_makes_the_same_numbers(spark: Spark, kind: str, tmp_path: Path) -> None:
    """Of NULL, NaN, zeros, extremes, and texts of every length, alone and within lists, maps and structs."""
    names = [name for name in LEAVES if kind == "plain" or name in ("double", "string", "decimal(38, 0)")]
    # more columns than have their marks in one number
    forms = [shape(kind, to_leaf(name)) for name in names] * (3 if kind == "plain" else 1)
    table, look = make(forms, 7)
    number = format_number([(field.name, field.type) for field in look.fields])
    with letting_go():
        theirs = spark_connect.to_arrow(read(spark, table, tmp_path).select(F.expr(number).alias("n")))
    [whole] = table.combine_chunks().to_batches()
    ours = hash_rows(whole, look.fields)
    assert len(set(ours.tolist())) > ROWS * 0.9
    assert theirs.column("n").to_numpy().view(np.uint64).tolist() == ours.tolist()


def test_the_type_of_iceberg_decides(spark: Spark) -> None:
    """Whatever width Spark has read a value in."""
    shown = "CAST(-7 AS TINYINT)", "5", "CAST(0.5 AS FLOAT)", "CAST(1.50 AS DECIMAL(4, 2))", "array(CAST(3 AS SMALLINT))"
    types = [*map(to_leaf, ("int", "long", "double", "decimal(20, 2)")), ListType(9, LONG, False)]
    look = CompareSpec(tuple(NestedField(place, name, form, False) for place, (name, form) in enumerate(zip("abcde", types, strict=True))))
    values = pa.record_batch(
        [pa.array([-7]), pa.array([5]), pa.array([0.5]), pa.array([Decimal("1.50")]), pa.array([[3]])], names=[*"abcde"]
    )
    with letting_go():
        assert compare(checksum_rows(spark.session.sql(f"SELECT {', '.join(shown)}"), look), checksum_batches([values], look)) == ()


def test_spark_counts_the_same(spark: Spark, tmp_path: Path) -> None:
    """All rows, bins, and parts of the partition, one or two, with the same labels."""
    table, look = make([to_leaf(name) for name in LEAVES], 11)
    stamps = [(name, by) for name in ("timestamp", "timestamptz", "date") for by in ("year", "month", "day")]
    parts = [*((name, "identity") for name in LEAVES), *stamps, ("timestamp", "hour"), ("timestamptz", "hour")]
    groups = [GroupField(f"c{[*LEAVES].index(name) + 1}", to_leaf(name), by) for name, by in parts]
    # Each with another one, so that half as many queries do.
    looks = [
        look,
        CompareSpec(look.fields, by_bins=True),
        *(CompareSpec(look.fields, pair) for pair in zip(groups[::2], groups[1::2], strict=False)),
    ]
    with letting_go():
        frame = read(spark, table, tmp_path)
        found = [(checksum_rows(frame, chosen), checksum_batches(table.to_batches(), chosen)) for chosen in looks]
    for theirs, ours in found:
        assert compare(theirs, ours) == ()
        assert (theirs.groups, theirs.labels, theirs.rows) == (ours.groups, ours.labels, ROWS)
    assert 1 < len(found[2][0].groups) < ROWS


@pytest.mark.long
@pytest.mark.parametrize("by_bins", [pytest.param(False, id="whole"), pytest.param(True, id="bins")])
def test_no_rows_are_nothing(spark: Spark, by_bins: bool, tmp_path: Path) -> None:
    """An empty table is as empty to Spark."""
    look = CompareSpec((NestedField(1, "c1", LONG, False),), by_bins=by_bins)
    with letting_go():
        found = checksum_rows(read(spark, pa.table({"c1": pa.array([], pa.int64())}), tmp_path), look)
    assert (found.rows, found.groups, compare(found, checksum_batches([], look))) == (0, {}, ())


TEXTS, MAPS = ListType(920, PrimitiveType("string"), False), MapType(921, PrimitiveType("string"), 922, LONG, False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ddl", "form"),
    [
        pytest.param("map<string, array<string>>", MapType(1, PrimitiveType("string"), 2, TEXTS, False), id="map of lists"),
        pytest.param("map<string, map<string, bigint>>", MapType(1, PrimitiveType("string"), 2, MAPS, False), id="map of maps"),
        pytest.param("array<array<string>>", ListType(1, TEXTS, False), id="list of lists"),
        pytest.param("array<map<string, bigint>>", ListType(1, MAPS, False), id="list of maps"),
        pytest.param(
            "array<struct<a: array<string>>>", ListType(1, StructType((NestedField(2, "a", TEXTS, False),)), False), id="list of structs"
        ),
    ],
)
def test_rows_are_found_where_lists_and_maps_hold_nothing(spark: Spark, ddl: str, form: IcebergType) -> None:
    """Where all of a batch are NULL or empty, Java hands over no offsets of what they would hold."""
    empty = f"CAST({'map' if isinstance(form, MapType) else 'array'}() AS {ddl})"
    rows = spark.session.sql(f"SELECT * FROM VALUES (1L, CAST(NULL AS {ddl})), (2L, {empty}) t(a, m)").coalesce(1)
    look = CompareSpec((NestedField(1, "a", LONG, False), NestedField(3, "m", form, False)), by_bins=True)
    with letting_go():
        bins = find_different_bins(checksum_rows(rows, look), checksum_batches([], look))
        picked = [row["text"] for row in pick_rows(rows, look, bins)]
    assert sorted(text[: len('{"a": 1')] for text in picked) == ['{"a": 1', '{"a": 2']
