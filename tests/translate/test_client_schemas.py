"""What clients said of columns and DuckLake cannot, after DuckDB has changed them."""

import pytest

from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, fixed_type
from duckicelake.translate.client_schemas import carry_over_schema

LONG, DOUBLE, FLOAT = PrimitiveType("long"), PrimitiveType("double"), PrimitiveType("float")
TOLD = Schema(0, (NestedField(1, "id", LONG, True), NestedField(2, "other", LONG, True)), (1, 2))


@pytest.mark.parametrize(
    ("type_", "required", "kept"),
    [
        pytest.param(LONG, True, (1, 2), id="as it was"),
        pytest.param(PrimitiveType("string"), True, (1, 2), id="of another type"),
        pytest.param(LONG, False, (2,), id="may be NULL"),
        pytest.param(DOUBLE, True, (2,), id="double"),
        pytest.param(FLOAT, True, (2,), id="float"),
        pytest.param(StructType((NestedField(3, "x", LONG, True),)), True, (2,), id="nested"),
    ],
)
def test_what_identifies_a_row_stays_as_long_as_it_may(type_: IcebergType, required: bool, kept: tuple[int, ...]) -> None:
    """DuckDB knows nothing of it, and may drop NOT NULL, or make a floating-point column of a table that has no rows."""
    changed = (NestedField(1, "key", type_, required), NestedField(2, "other", LONG, True))
    assert carry_over_schema(changed, TOLD).identifier_field_ids == kept
    assert carry_over_schema(changed[1:], TOLD).identifier_field_ids == (2,)


@pytest.mark.parametrize(
    ("type_", "kept"),
    [pytest.param("binary", "fixed[4]", id="still bytes"), pytest.param("string", "string", id="of another type")],
)
def test_the_length_of_fixed_columns_stays_as_long_as_they_are_bytes(type_: str, kept: str) -> None:
    """At every level: DuckDB knows BLOB alone, and has no say about another column's id."""

    def fields(name: str) -> tuple[NestedField, ...]:
        leaf = PrimitiveType(name)
        inner = StructType((NestedField(2, "x", ListType(3, leaf, False), False), NestedField(4, "y", leaf, False)))
        return (
            NestedField(1, "s", inner, False),
            NestedField(5, "m", MapType(6, leaf, 7, leaf, False), False),
            NestedField(8, "k", leaf, True),
        )

    before = Schema(0, fields(str(fixed_type(4))))
    assert carry_over_schema(fields(type_), before).fields == fields(kept)
    other = (NestedField(9, "k", PrimitiveType("binary"), True),)
    assert carry_over_schema(other, before).fields == other
