"""The shape of a target table as text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, LongType, NullType, ShortType, StringType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.common.spark_sql import (
    PartitionTerm,
    SortTerm,
    format_columns,
    format_create,
    format_order,
    parse_order,
    parse_partitions,
    quote_ident,
)


def test_partitions_are_read_in_icebergs_words() -> None:
    """Columns and transforms, singular or plural; Spark has them in its own."""
    fields = parse_partitions("day(seen), bucket(16, id), city, truncate( 4 ,name ), identity(x), years(a b)")
    assert fields == (
        PartitionTerm("seen", "days"),
        PartitionTerm("id", "bucket", 16),
        PartitionTerm("city"),
        PartitionTerm("name", "truncate", 4),
        PartitionTerm("x"),
        PartitionTerm("a b", "years"),
    )
    assert [field.term for field in fields[:4]] == ["day(seen)", "bucket[16](id)", "identity(city)", "truncate[4](name)"]
    assert [field.sql for field in fields[:4]] == ["days(`seen`)", "bucket(16, `id`)", "`city`", "truncate(4, `name`)"]


@pytest.mark.parametrize("text", ["day()", "bucket(id)", "bucket(0, id)", "day(3, seen)", "week(seen)", "a,,b", "", "day(seen"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    """The message says what may be written."""
    with pytest.raises(BadRequest):
        parse_partitions(text)


def test_an_order_is_read() -> None:
    """Ascending unless told."""
    assert parse_order("city, seen DESC") == (SortTerm("city"), SortTerm("seen", True))
    assert format_order("t", parse_order("b desc")) == ["ALTER TABLE t WRITE ORDERED BY `b` DESC"]
    assert format_order("t", ()) == []


def test_names_are_quoted() -> None:
    """A name may have any letter; a branch is one level more."""
    assert quote_ident("lake", TableIdent(("a b", "c"), "t`u"), "x_1") == "`lake`.`a b`.`c`.`t``u`.`branch_x_1`"
    assert parse_ident("a.b.t") == TableIdent(("a", "b"), "t")
    assert str(parse_ident("a.b.t").with_suffix("__ingested")) == "a.b.t__ingested"
    assert parse_ident('"Odd Schema.x"."t"') == TableIdent(("Odd Schema.x",), "t")


@pytest.mark.parametrize(
    ("ident", "text"),
    [
        (TableIdent(("Odd Schema.x",), "t"), '"Odd Schema.x".t'),
        (TableIdent(("a", 'b"c'), "."), 'a."b""c"."."'),
        (TableIdent(("a b",), "t`u"), "a b.t`u"),
    ],
)
def test_a_name_that_is_printed_can_be_given_back(ident: TableIdent, text: str) -> None:
    """Quoted where a part has a dot or a quote."""
    assert (str(ident), parse_ident(text)) == (text, ident)


@given(st.lists(st.text(min_size=1), min_size=2, max_size=4))
def test_every_name_can_be_given_back(parts: list[str]) -> None:
    """Whatever it is made of."""
    ident = TableIdent(tuple(parts[:-1]), parts[-1])
    assert parse_ident(str(ident)) == ident


@pytest.mark.parametrize("text", ["t", ".t", "a.", "a..t", '"a.t"', '"a.t', '"a"b.t', '"".t'])
def test_a_table_needs_a_namespace(text: str) -> None:
    """Everything else is refused."""
    with pytest.raises(BadRequest, match="namespace.table"):
        parse_ident(text)


def test_columns_become_ddl() -> None:
    """Nested names are quoted too, and small numbers are Iceberg's int."""
    inner = StructType([StructField("x y", ArrayType(ShortType()))])
    columns = StructType([StructField("id", LongType(), nullable=False), StructField("a-b", inner), StructField("n", IntegerType())])
    ddl = "`id` bigint NOT NULL, `a-b` struct<`x y`: array<int>>, `n` int"
    assert format_columns(columns) == ddl
    made = format_create("t", "`id` bigint", (PartitionTerm("id", "bucket", 4),))
    assert made == "CREATE TABLE IF NOT EXISTS t (`id` bigint) USING iceberg PARTITIONED BY (bucket(4, `id`))"


def test_a_column_without_values_has_no_type() -> None:
    """It has to be given."""
    with pytest.raises(BadRequest, match="column b: .*--schema"):
        format_columns(StructType([StructField("a", StringType()), StructField("b", NullType())]))
