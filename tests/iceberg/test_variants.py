"""Variants are decoded, and shown as JSON."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import duckdb
import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.variants import MISSING, assemble_variant, decode_names, decode_variant, format_json

DAY = date(2020, 2, 3)
MOMENT = datetime(2020, 2, 3, 4, 5, 6, 7)  # noqa: DTZ001 - a timestamp without a zone
SCALARS = [
    ("NULL", None, "null"),
    ("true", True, "true"),
    ("false", False, "false"),
    ("-7::TINYINT", -7, "-7"),
    ("-700::SMALLINT", -700, "-700"),
    ("70000::INTEGER", 70000, "70000"),
    ("-70000000000", -70000000000, "-70000000000"),
    ("1.5::FLOAT", 1.5, "1.5"),
    ("2.5::DOUBLE", 2.5, "2.5"),
    ("'nan'::DOUBLE", pytest.approx(float("nan"), nan_ok=True), '"NaN"'),
    ("'-infinity'::DOUBLE", float("-inf"), '"-Infinity"'),
    ("1.50::DECIMAL(4, 2)", Decimal("1.50"), "1.50"),
    ("-12345678901.5::DECIMAL(12, 1)", Decimal("-12345678901.5"), "-12345678901.5"),
    ("12345678901234567890.5::DECIMAL(30, 1)", Decimal("12345678901234567890.5"), "12345678901234567890.5"),
    ("DATE '2020-02-03'", DAY, '"2020-02-03"'),
    ("TIMESTAMP '2020-02-03 04:05:06.000007'", MOMENT, '"2020-02-03T04:05:06.000007"'),
    ("TIMESTAMPTZ '2020-02-03 04:05:06.000007+00'", MOMENT.replace(tzinfo=UTC), '"2020-02-03T04:05:06.000007+00:00"'),
    ("TIMESTAMP_NS '1960-02-03 04:05:06.000007008'", "1960-02-03T04:05:06.000007008", '"1960-02-03T04:05:06.000007008"'),
    ("TIME '04:05:06'", time(4, 5, 6), '"04:05:06"'),
    ("'x'::BLOB", b"x", '"eA=="'),
    ("'short'", "short", '"short"'),
    (f"'{'long' * 20}'", "long" * 20, f'"{"long" * 20}"'),
    ("'00000000-0000-0000-0000-000000000001'::UUID", UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ("[1, 2]", [1, 2], "[1,2]"),
    ("{'a': [NULL], 'b': {'\"': 1}}", {"a": [None], "b": {'"': 1}}, '{"a":[null],"b":{"\\"":1}}'),
    ("'{}'::JSON", {}, "{}"),
    ("'[]'::JSON", [], "[]"),
    ("range(300)", list(range(300)), str(list(range(300))).replace(" ", "")),
]


@pytest.mark.parametrize(("text", "value", "shown"), SCALARS, ids=[text[:30] for text, _, _ in SCALARS])
def test_values_are_those_of_duckdb(text: str, value: object, shown: str) -> None:
    """Of each type that DuckDB writes."""
    with duckdb.connect() as conn:
        (row,) = conn.execute(f"SELECT variant_to_parquet_variant(({text})::VARIANT)").fetchall()
    found = decode_variant(decode_names(row[0]["metadata"]), row[0]["value"])
    assert found == value
    assert type(found) is type(value) or not isinstance(value, (int, str, bytes))
    assert format_json(found) == shown


def test_nanoseconds_in_utc() -> None:
    """DuckDB 1.5 has no such type."""
    assert decode_variant([], bytes([18 << 2]) + (-1).to_bytes(8, "little", signed=True)) == "1969-12-31T23:59:59.999999999+00:00"


@pytest.mark.parametrize("value", [b"", b"\x18", b"\x0dab", b"\x7c", b"\x02\x01\x05\x00\x01\x00", b"\x03\x01\x00\x01"])
def test_damage_is_named(value: bytes) -> None:
    """Too few bytes, a type that is not known, a name that is not there."""
    with pytest.raises(BadRequest, match="variant"):
        decode_variant(["a"], value)


def test_damaged_names() -> None:
    """Too few bytes."""
    for metadata in (b"", b"\x01", b"\x01\x02\x00"):
        with pytest.raises(BadRequest, match="damaged"):
            decode_names(metadata)


SEVEN, ONE = b"\x0c\x07", {"value": None, "typed_value": 1}


@pytest.mark.parametrize(
    ("value", "typed", "expected"),
    [
        pytest.param(None, 3, 3, id="typed"),
        pytest.param(SEVEN, None, 7, id="of another type"),
        pytest.param(None, None, MISSING, id="missing"),
        pytest.param(None, {"a": ONE, "b": {"value": SEVEN}, "c": {"value": None}}, {"a": 1, "b": 7}, id="object"),
        pytest.param(b"\x02\x01\x00\x00\x02\x0c\x07", {"a": ONE}, {"x": 7, "a": 1}, id="object with more"),
        pytest.param(None, [ONE, {"value": SEVEN}, {"value": b"\x00"}], [1, 7, None], id="array"),
        pytest.param(None, [{"typed_value": [ONE]}], [[1]], id="array of arrays"),
    ],
)
def test_shredded_variants(value: bytes | None, typed: object, expected: object) -> None:
    """A part is in `typed_value` or in `value`, or partly in both."""
    assert assemble_variant(["x"], value, typed) == expected
