"""One Parquet file against what is said of it: what the footer proves, what is read, and what nothing is said of."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.iceberg.single_values import encode_value
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.pipeline.verify import parquet_checks
from duckicelake.pipeline.verify.parquet_checks import FileExpectations, PartitionPart, check_lake_facts, check_parquet, read_leaf_columns

DATE, DOUBLE, INT, LONG, TIMESTAMP = map(PrimitiveType, ("date", "double", "int", "long", "timestamp"))
UNSAID: Mapping[str, Any] = {
    **dict.fromkeys(("null_value_counts", "value_counts", "lower_bounds", "upper_bounds", "lake_statistics", "lake_partition")),
    "spec_id": 0,
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def field(name: str, form: pa.DataType, field_id: int, *, nullable: bool = True) -> Any:
    """A column with its id."""
    return pa.field(name, form, nullable, {"PARQUET:field_id": str(field_id)})


def write(folder: Path, fields: list[Any], *columns: list[Any], rows_a_group: int | None = None) -> pq.ParquetFile:
    """A file of these columns."""
    schema = pa.schema(fields)
    table = pa.Table.from_arrays([pa.array(values, one.type) for values, one in zip(columns, fields, strict=True)], schema=schema)
    pq.write_table(table, folder / "rows.parquet", row_group_size=rows_a_group)
    return pq.ParquetFile(folder / "rows.parquet")


def check(file: pq.ParquetFile, shape: FileExpectations, **said: Any) -> list[str]:
    """What is false of what a manifest and DuckLake say."""
    entry = {**UNSAID, "record_count": file.metadata.num_rows, **said}
    return [*check_parquet(file, entry, shape), *check_lake_facts(file, entry, shape)]


def tell_partition(transform: str, text: str) -> list[dict[str, Any]]:
    """DuckLake's partition value of column 1."""
    return [{"column_id": 1, "transform": transform, "text": text}]


def test_a_manifest_without_counts_and_bounds_says_nothing_false(tmp_path: Path) -> None:
    """Maps of a manifest that are not there hold nothing."""
    file = write(tmp_path, [field("x", pa.float64(), 1)], [1.0, float("nan")])
    told = [{"column_id": 1, "count": 2, "nulls": 0, "has_nan": False, "least": "2", "greatest": "3"}]
    shape = FileExpectations({1: DOUBLE}, {})
    assert check(file, shape) == []
    assert check(file, shape, lake_statistics=told) == ["column x has values from 1.0 to 1.0, DuckLake says from 2 to 3"]


@pytest.mark.parametrize(
    ("transform", "text", "stray"), [("year", "2026", "2027"), ("month", "1", "2"), ("day", "5", "6"), ("hour", "7", "8")]
)
def test_a_unit_that_both_ends_are_in_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: str, text: str, stray: str
) -> None:
    """Years and the rest of a calendar follow one another, so the footer proves them."""
    stamps = [datetime(2026, 1, 5, 7, minute, tzinfo=UTC).replace(tzinfo=None) for minute in range(60)]
    file = write(tmp_path, [field("t", pa.timestamp("us"), 1)], stamps)
    shape = FileExpectations({1: TIMESTAMP}, {})
    found = check(file, shape, lake_partition=tell_partition(transform, stray))
    assert found == [f"has rows with {transform}(t) of {text}, DuckLake says {stray}"]
    monkeypatch.setattr(parquet_checks, "read_values", None)
    assert check(file, shape, lake_partition=tell_partition(transform, text)) == []


def test_the_same_month_of_two_years_is_one_partition(tmp_path: Path) -> None:
    """To DuckLake, whose month is a number of the calendar; what lies between the ends is looked at."""
    fields, shape = [field("t", pa.timestamp("us"), 1)], FileExpectations({1: TIMESTAMP}, {})
    far = datetime(2027, 1, 3, tzinfo=UTC)
    assert check(write(tmp_path, fields, [START, far]), shape, lake_partition=tell_partition("month", "1")) == []
    file = write(tmp_path, fields, [START, START + timedelta(days=99), far])
    assert check(file, shape, lake_partition=tell_partition("month", "1")) == ["has rows with month(t) of 4, DuckLake says 1"]


def test_few_partition_values_are_kept(tmp_path: Path) -> None:
    """However many values a column has: of those that are false a few are told, and the rest is not read."""
    file = write(tmp_path, [field("n", pa.int64(), 1)], list(range(200_000)))
    shape = FileExpectations({1: LONG}, {0: (PartitionPart("n", 1, "identity", LONG, LONG),)})
    column = read_leaf_columns(file, shape.leaves)[1]
    assert len(parquet_checks.list_strays(file, column, LONG, lambda value: value, {7})) < 100
    said = check(file, shape, partition={"n": 7}, lake_partition=tell_partition("identity", "7"))
    assert said == ["is in the partition n=7, its rows belong to 0, 1, 2", "has rows with identity(n) of 0, 1, 2, DuckLake says 7"]


def test_names_may_hold_dots(tmp_path: Path) -> None:
    """Columns and fields of structs, beside such whose paths are written the same."""
    inner = pa.struct([field("x.y", pa.int64(), 3), field("x", pa.struct([field("y", pa.int64(), 4)]), 9)])
    fields = [field("a.b", pa.date32(), 1), field("a", pa.struct([field("b", pa.int64(), 2)]), 8), field("s", inner, 7)]
    file = write(tmp_path, fields, [20455, 20456], [{"b": 5}, None], [{"x.y": 6, "x": {"y": 7}}, None])
    shape = FileExpectations({1: DATE, 2: LONG, 3: LONG, 4: LONG}, {0: (PartitionPart("p", 1, "year", DATE, INT),)})
    bounds = [(field_id, encode_value(form, 1)) for field_id, form in shape.leaves.items()]
    found = check(file, shape, upper_bounds=bounds, partition={"p": 1}, lake_partition=tell_partition("year", "2027"))
    assert found == [
        "column a.b has values from 20455 to 20456, the manifest says from None to 1",
        "column a.b has values from 5 to 5, the manifest says from None to 1",
        "column s.x.y has values from 6 to 6, the manifest says from None to 1",
        "column s.x.y has values from 7 to 7, the manifest says from None to 1",
        "is in the partition p=1, its rows belong to 56",
        "has rows with year(a.b) of 2026, DuckLake says 2027",
    ]


@pytest.mark.parametrize(
    ("form", "nullable", "nulls", "values", "problems"),
    [
        pytest.param("double", True, 1, 2, 0, id="left-out"),
        pytest.param("double", True, 2, 3, 0, id="counted"),
        pytest.param("double", True, 2, 2, 1, id="values-alone"),
        pytest.param("double", True, 1, 3, 1, id="nulls-alone"),
        pytest.param("double", True, 3, 4, 2, id="more"),
        pytest.param("double", False, 1, 2, 2, id="no-null-struct"),
        pytest.param("long", True, 1, 2, 2, id="no-float"),
    ],
)
def test_iceberg_leaves_nulls_of_floats_out_where_their_struct_is_null(
    tmp_path: Path, form: str, nullable: bool, nulls: int, values: int, problems: int
) -> None:
    """Its writers up to 1.11 count neither the values nor the NULLs there; both are fewer by one number then."""
    of_struct = pa.struct([field("x", pa.float64() if form == "double" else pa.int64(), 2)])
    rows = [{"x": 1}, {"x": None}, None if nullable else {"x": None}]
    file = write(tmp_path, [field("s", of_struct, 1, nullable=nullable)], rows)
    shape = FileExpectations({2: PrimitiveType(form)}, {})
    assert len(check(file, shape, null_value_counts=[(2, nulls)], value_counts=[(2, values)])) == problems
