import math
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes

from duckicelake.errors import BadRequest
from duckicelake.iceberg.single_values import BOUND_LENGTH, decode_value, encode_value, lower_bound, upper_bound
from duckicelake.iceberg.types import PrimitiveType
from tests.iceberg.support.oracles import oracle_type
from tests.iceberg.support.strategies import PRIMITIVES, types_and_values

FLOATING = ("float", "double")
ANY_VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.just([])


def order(type: PrimitiveType, value: Any) -> Any:
    """A value's place in Iceberg's order: -0.0 comes before 0.0."""
    return (value, math.copysign(1, value)) if type.name in FLOATING else value


def decoded(type: PrimitiveType, bound: bytes | None) -> Any:
    """The value a bound holds, as it orders."""
    assert bound is not None
    return order(type, decode_value(type, bound))


@given(types_and_values())
def test_values_come_back_from_their_bytes(typed):
    """decode_value(encode_value(x)) = x, for every type."""
    type, (value,) = typed
    assert decoded(type, encode_value(type, value)) == order(type, value)


@given(types_and_values())
def test_bytes_are_pyicebergs(typed):
    """PyIceberg writes and reads the same bytes."""
    type, (value,) = typed
    source, encoded = oracle_type(type.name), encode_value(type, value)
    theirs = UUID(bytes=value) if type.name == "uuid" else value
    assert to_bytes(source, theirs) == encoded
    if type.name not in ("timestamp_ns", "timestamptz_ns"):
        assert from_bytes(source, encoded) == value


@given(types_and_values())
def test_bounds_enclose_the_value(typed):
    """lower_bound ≤ value ≤ upper_bound, in Iceberg's order."""
    type, (value,) = typed
    assert decoded(type, lower_bound(type, value)) <= order(type, value)
    upper = upper_bound(type, value)
    if upper is None:
        assert type.name in ("string", "binary")
    else:
        assert order(type, value) <= decoded(type, upper)


@given(types_and_values(count=2))
def test_bounds_keep_the_values_order(typed):
    """The bounds of a smaller value are not above those of a greater one."""
    type, values = typed
    small, great = sorted(values, key=lambda value: order(type, value))
    assert decoded(type, lower_bound(type, small)) <= decoded(type, lower_bound(type, great))
    uppers = [upper_bound(type, value) for value in (small, great)]
    if None not in uppers:
        assert decoded(type, uppers[0]) <= decoded(type, uppers[1])


@given(st.text(min_size=BOUND_LENGTH + 1))
def test_upper_bounds_of_strings_are_tight(text):
    """A long string's upper bound is above everything that begins like it, and keeps all but its last character at most."""
    upper = upper_bound(PrimitiveType("string"), text)
    if upper is not None:
        found = upper.decode()
        assert found > text[:BOUND_LENGTH] + "\U0010ffff" * 3
        assert len(found) <= BOUND_LENGTH
        assert text.startswith(found[:-1])


@pytest.mark.parametrize(
    ("type", "value", "lower", "upper"),
    [
        pytest.param("string", "a" * 20, "a" * 16, "a" * 15 + "b", id="string"),
        pytest.param("string", "é" * 16, "é" * 16, "é" * 16, id="string-fits"),
        pytest.param("string", "a" * 15 + "\U0010ffff" * 2, "a" * 15 + "\U0010ffff", "a" * 14 + "b", id="last-code-point"),
        pytest.param("string", "\U0010ffff" * 17, "\U0010ffff" * 16, None, id="no-next-string"),
        pytest.param("string", "a" * 15 + "\ud7ff" * 2, "a" * 15 + "\ud7ff", "a" * 15 + "\ue000", id="over-the-surrogates"),
        pytest.param("binary", b"\x01" * 17, b"\x01" * 16, b"\x01" * 15 + b"\x02", id="binary"),
        pytest.param("binary", b"\x01" + b"\xff" * 20, b"\x01" + b"\xff" * 15, b"\x02", id="binary-carry"),
        pytest.param("binary", b"\xff" * 17, b"\xff" * 16, None, id="no-next-binary"),
        pytest.param("double", 0.0, struct.pack("<d", -0.0), struct.pack("<d", 0.0), id="zero"),
        pytest.param("float", -0.0, struct.pack("<f", -0.0), struct.pack("<f", 0.0), id="minus-zero"),
        pytest.param("double", math.inf, struct.pack("<d", math.inf), struct.pack("<d", math.inf), id="infinity"),
        pytest.param("double", math.nan, None, None, id="nan"),
        pytest.param("float", 1e300, None, None, id="too-great-for-float"),
        pytest.param("int", 2**31, None, None, id="too-great-for-int"),
        pytest.param("long", -(2**63) - 1, None, None, id="too-small-for-long"),
        pytest.param("timestamp_ns", 2**70, None, None, id="too-great-for-ns"),
        pytest.param("decimal(4, 2)", Decimal("100"), None, None, id="too-many-digits"),
        pytest.param("decimal(4, 2)", Decimal("1.001"), None, None, id="too-fine"),
        pytest.param("decimal(4, 2)", Decimal("Infinity"), None, None, id="infinite-decimal"),
        pytest.param("string", "\ud800", None, None, id="half-a-surrogate"),
        pytest.param("uuid", b"short", None, None, id="uuid-length"),
        pytest.param("int", None, None, None, id="null"),
        pytest.param("variant", b"x", None, None, id="variant"),
        pytest.param("boolean", 1, None, None, id="number-as-boolean"),
        pytest.param("int", True, None, None, id="boolean-as-number"),
    ],
)
def test_bounds_at_the_edges(type, value, lower, upper):
    """Long values are cut, the upper one upwards; what cannot be said is left out."""

    def as_bytes(x):
        return x.encode() if isinstance(x, str) else x

    assert lower_bound(PrimitiveType(type), value) == as_bytes(lower)
    assert upper_bound(PrimitiveType(type), value) == as_bytes(upper)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3e38, max_value=3e38))
def test_float_bounds_round_outwards(value):
    """A value that a float cannot hold is rounded away from it on both sides."""
    lower, upper = (bound(PrimitiveType("float"), value) for bound in (lower_bound, upper_bound))
    assert lower is not None
    assert upper is not None
    assert struct.unpack("<f", lower)[0] <= value <= struct.unpack("<f", upper)[0]


@pytest.mark.parametrize("type", PRIMITIVES)
@given(value=ANY_VALUE)
def test_no_value_breaks_a_bound(type, value):
    """Whatever value comes, a bound is bytes or None, and encode_value refuses with BadRequest."""
    lower, upper = lower_bound(PrimitiveType(type), value), upper_bound(PrimitiveType(type), value)
    assert lower is None or isinstance(lower, bytes)
    assert upper is None or isinstance(upper, bytes)
    try:
        encode_value(PrimitiveType(type), value)
    except BadRequest:
        assert value is None or type not in ("string", "binary") or not isinstance(value, str if type == "string" else bytes)


@pytest.mark.parametrize(
    ("type", "before", "value", "after"),
    [
        pytest.param("long", "int", -7, -7, id="int-to-long"),
        pytest.param("double", "float", 0.5, 0.5, id="float-to-double"),
        pytest.param("timestamp", "date", 2, 172_800_000_000, id="date-to-timestamp"),
        pytest.param("timestamp_ns", "date", -1, -86_400_000_000_000, id="date-to-timestamp-ns"),
        pytest.param("decimal(18, 2)", "decimal(4, 2)", Decimal("1.25"), Decimal("1.25"), id="decimal"),
    ],
)
def test_bounds_written_before_a_promotion_are_read(type, before, value, after):
    """The length of a bound tells the type it was written with."""
    assert decode_value(PrimitiveType(type), encode_value(PrimitiveType(before), value)) == after


@pytest.mark.parametrize("type", [*PRIMITIVES, "unknown", "variant", "geometry"])
@given(content=st.binary(max_size=20))
def test_any_bytes_are_a_value_or_a_bad_request(type, content):
    """Whatever bytes come, nothing else than BadRequest is raised."""
    try:
        decode_value(PrimitiveType(type), content)
    except BadRequest:
        pass
