"""Iceberg values as DuckDB's texts."""

from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.iceberg.single_values import encode_value
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.translate.values import decode_bound, find_text, parse_value

DAY_MICROS = 86_400_000_000
FIRST_MICROS = -9_223_372_022_400_000_000
FLOATS = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("int"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float"), FLOATS),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("decimal(9, 2)"), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    st.tuples(st.just("decimal(38, 0)"), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    st.tuples(st.just("date"), st.integers(-1_000_000, 2_900_000)),
    st.tuples(st.just("time"), st.integers(0, DAY_MICROS - 1)),
    st.tuples(st.just("timestamp"), st.integers(FIRST_MICROS, 10**17)),
    st.tuples(st.just("timestamptz"), st.integers(FIRST_MICROS, 10**17)),
    st.tuples(st.just("string"), st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))),
)
DUCKDB: dict[str, str] = {"int": "INTEGER", "long": "BIGINT", "string": "VARCHAR"}


@given(VALUES)
def test_a_text_is_read_back_as_its_value(typed: tuple[str, object]) -> None:
    """By our own reader of DuckDB's texts."""
    name, value = typed
    kind = PrimitiveType(name)
    text = find_text(kind, value)
    assert text is not None
    assert parse_value(kind, text) == value


@pytest.mark.parametrize(
    ("name", "text"), [("decimal(38, 0)", "9" * 38), ("decimal(38, 38)", f"0.{'9' * 38}"), ("decimal(38, 2)", f"{'9' * 36}.99")]
)
def test_decimals_of_all_digits_have_texts(name: str, text: str) -> None:
    """Python's `abs` rounds a decimal to 28 digits, which makes 10^38 of the greatest value."""
    for signed in (text, f"-{text}"):
        assert find_text(PrimitiveType(name), Decimal(signed)) == signed
    assert find_text(PrimitiveType("decimal(38, 0)"), Decimal(10**38)) is None


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB alone."""
    with duckdb.connect() as conn:
        yield conn


@settings(deadline=None)
@given(typed=VALUES)
def test_duckdb_takes_every_text(duck: duckdb.DuckDBPyConnection, typed: tuple[str, object]) -> None:
    """A text that does not cast would hide its file from every query."""
    name, value = typed
    text = find_text(PrimitiveType(name), value)
    assert duck.execute(f"SELECT TRY_CAST(? AS {DUCKDB.get(name, name.upper())}) IS NOT NULL", [text]).fetchone() == (True,)


EDGES: dict[str, tuple[int, int]] = {
    "date": (-(2**31), 2**31 - 1),
    "time": (-1, DAY_MICROS + 1),
    "timestamp": (-(2**63), 2**63 - 1),
    "timestamptz": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("name", EDGES)
def test_what_duckdb_reads_no_text_of_has_none(duck: duckdb.DuckDBPyConnection, name: str) -> None:
    """The numbers that are infinity to it, and those beyond its types; such a bound would hide the file from every query."""
    for edge in EDGES[name]:
        texts = [(find_text(PrimitiveType(name), value), value) for value in range(edge - 3, edge + 4) if -(2**63) <= value < 2**63]
        assert None in [text for text, _ in texts]
        for text, _ in texts:
            assert text is None or duck.execute(f"SELECT TRY_CAST(? AS {name}) IS NOT NULL", [text]).fetchone() == (True,)


@pytest.mark.parametrize("digits", [9, 10, 60])
def test_a_decimal_has_the_digits_of_its_type(digits: int) -> None:
    """Of more than those DuckDB reads nothing."""
    kind = PrimitiveType("decimal(9, 2)")
    assert (find_text(kind, Decimal(10**digits - 1).scaleb(-2)) is None) == (digits > 9)


@given(VALUES)
def test_a_bound_is_read_as_its_value(typed: tuple[str, object]) -> None:
    """From the bytes of a manifest."""
    name, value = typed
    assert decode_bound(PrimitiveType(name), encode_value(PrimitiveType(name), value)) == value


@pytest.mark.parametrize(
    ("name", "content"),
    [("int", b"\x00"), ("long", b"abc"), ("boolean", b""), ("string", b"\xff"), ("date", b""), ("decimal(9, 2)", b"")],
)
def test_nonsense_is_no_bound(name: str, content: bytes) -> None:
    """It proves nothing, and is no reason to refuse a file."""
    assert decode_bound(PrimitiveType(name), content) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("float", float("nan")), ("double", float("nan")), ("string", "a\0b"), ("uuid", b"\0" * 16), ("binary", b"a")],
)
def test_some_values_have_no_text(name: str, value: object) -> None:
    """NaN, NUL, and types whose order readers disagree about."""
    assert find_text(PrimitiveType(name), value) is None
