import struct
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import mmh3
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform as parse_oracle

from duckicelake.errors import BadRequest
from duckicelake.iceberg.transforms import (
    TRANSFORMS,
    Bucket,
    apply_transform,
    encode_for_hash,
    encode_minimal,
    parse_transform,
    result_type,
    to_civil_date,
    to_days_since_1970,
    to_decimal,
    to_unscaled,
)
from duckicelake.iceberg.types import PrimitiveType
from tests.iceberg.support.oracles import oracle_type
from tests.iceberg.support.strategies import INTS, LONGS, PRIMITIVES, types_and_values

NAMES = [*TRANSFORMS, "bucket[1]", "bucket[16]", "bucket[2147483647]", "truncate[1]", "truncate[10]"]
# PyIceberg's calendar ends with year 9999, in microseconds and nanoseconds.
DAYS = st.integers(-719_162, 2_932_896)


@pytest.mark.parametrize(
    ("type", "value", "hashed"),
    [
        pytest.param("int", 34, 2017239379, id="int"),
        pytest.param("long", 34, 2017239379, id="long"),
        pytest.param("decimal(9, 2)", Decimal("14.20"), -500754589, id="decimal"),
        pytest.param("date", (date(2017, 11, 16) - date(1970, 1, 1)).days, -653330422, id="date"),
        pytest.param("time", 81_068_000_000, -662762989, id="time"),
        pytest.param("timestamp", 1_510_871_468_000_000, -2047944441, id="timestamp"),
        pytest.param("timestamp", 1_510_871_468_000_001, -1207196810, id="timestamp-1us"),
        pytest.param("timestamp_ns", 1_510_871_468_000_001_001, -1207196810, id="timestamp-ns"),
        pytest.param("string", "iceberg", 1210000089, id="string"),
        pytest.param("uuid", UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340, id="uuid"),
        pytest.param("fixed[4]", bytes(range(4)), -188683207, id="fixed"),
        pytest.param("binary", bytes(range(4)), -188683207, id="binary"),
    ],
)
def test_hashes_are_the_specifications(type, value, hashed):
    """Appendix B gives these hashes."""
    assert mmh3.hash(encode_for_hash(PrimitiveType(type), value)) == hashed
    assert Bucket(2**31 - 1).apply(PrimitiveType(type), value) == (hashed & 0x7FFFFFFF) % (2**31 - 1)


@given(types_and_values(), st.sampled_from(["identity", "void", "bucket[1]", "bucket[16]", "bucket[2147483647]"]))
def test_identity_bucket_and_void_are_pyicebergs(typed, name):
    """For every type that PyIceberg's transform takes, ours takes it and gives the same value."""
    type, (value,) = typed
    theirs, source = parse_oracle(name), oracle_type(type.name)
    if not theirs.can_transform(source):
        with pytest.raises(BadRequest):
            apply_transform(name, type, value)
        return
    assert result_type(name, type) == PrimitiveType(str(theirs.result_type(source)))
    given_value = UUID(bytes=value) if type.name == "uuid" and name.startswith("bucket") else value
    expected = theirs.transform(source)(given_value)
    assert apply_transform(name, type, value) == (value if name == "identity" else expected)


@given(types_and_values(), st.integers(1, 2**31 - 1))
@example((PrimitiveType("int"), (-(2**31),)), 10)
@example((PrimitiveType("long"), (-(2**63),)), 10)
def test_truncate_is_pyicebergs(typed, width):
    """Numbers go down to a multiple of the width, strings and bytes are cut."""
    type, (value,) = typed
    name = f"truncate[{width}]"
    source = oracle_type(type.name)
    assume(parse_oracle(name).can_transform(source))
    expected: Any = parse_oracle(name).transform(source)(value)
    ours = apply_transform(name, type, value)
    smallest = {"int": -(2**31), "long": -(2**63)}.get(type.name)
    if smallest is not None and expected < smallest:
        assert ours == expected - 2 * smallest
    else:
        assert ours == expected


@given(DAYS, st.integers(0, 86_399_999_999), st.sampled_from(["year", "month", "day", "hour"]))
def test_time_transforms_are_pyicebergs(days, micros, name):
    """Years, months, days and hours count from 1970, downwards before it."""
    stamp = days * 86_400_000_000 + micros
    for type, value in {"date": days, "timestamp": stamp, "timestamptz": stamp}.items():
        source = oracle_type(type)
        if parse_oracle(name).can_transform(source):
            assert apply_transform(name, PrimitiveType(type), value) == parse_oracle(name).transform(source)(value)
    expected = apply_transform(name, PrimitiveType("timestamp"), stamp)
    assert apply_transform(name, PrimitiveType("timestamp_ns"), stamp * 1000 + 999) == expected


@given(DAYS)
def test_calendar_is_pythons(days):
    """Within Python's years the calendar is Python's."""
    expected = date.fromordinal(days + 719_163)
    assert to_civil_date(days) == (expected.year, expected.month, expected.day)
    assert to_days_since_1970(expected.year, expected.month, expected.day) == days


@given(INTS)
def test_calendar_has_no_end(days):
    """The calendar repeats every 400 years, far beyond Python's years."""
    year, month, day = to_civil_date(days)
    assert to_civil_date(days + 146_097) == (year + 400, month, day)
    assert to_days_since_1970(year, month, day) == days


@pytest.mark.parametrize("name", NAMES)
def test_null_stays_null(name):
    """Every transform gives null for null."""
    assert apply_transform(name, PrimitiveType("timestamp" if name in ("year", "month", "day", "hour") else "long"), None) is None


@pytest.mark.parametrize("name", NAMES)
def test_names_come_back(name):
    """str(parse_transform(x)) = x, whatever the capitals."""
    assert str(parse_transform(name.upper())) == name


@pytest.mark.parametrize(
    "name", ["", "zorder", "bucket", "bucket[]", "bucket[-1]", "bucket[0]", "truncate[2147483648]", "day[3]", "bucket[٣]"]
)
def test_unknown_transforms_are_bad_requests(name):
    """Only the specification's transforms are known."""
    with pytest.raises(BadRequest):
        parse_transform(name)


@pytest.mark.parametrize("type", [*PRIMITIVES, "unknown", "variant", "geometry"])
@pytest.mark.parametrize("name", NAMES)
def test_transforms_take_pyicebergs_types(name, type):
    """A transform takes the types that PyIceberg's takes; where they differ, the specification decides."""
    try:
        theirs = parse_oracle(name).can_transform(oracle_type(type))
    except Exception:  # noqa: BLE001 - PyIceberg has no variant type
        theirs = False
    differs = {("identity", "geometry"): False, ("identity", "unknown"): True, ("void", "variant"): True}
    assert (result_type(name, PrimitiveType(type)) is not None) == differs.get((name, type), theirs)


@given(LONGS | st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimals_keep_their_digits(unscaled, scale):
    """Unscaled numbers survive, whatever precision Python's decimal context has."""
    assert to_unscaled(to_decimal(unscaled, scale), scale) == unscaled
    assert int.from_bytes(encode_minimal(unscaled), "big", signed=True) == unscaled


@given(LONGS)
def test_minimal_bytes_are_the_fewest(number):
    """No shorter two's complement holds the number."""
    size = len(encode_minimal(number))
    assert size == 1 or not -(1 << (8 * size - 9)) <= number < 1 << (8 * size - 9)
    assert struct.pack(">q", number).endswith(encode_minimal(number))


def test_values_of_another_kind_are_bad_requests():
    """A value that is not of its type is refused by name, not by accident."""
    for name in ("bucket[4]", "truncate[4]", "day"):
        with pytest.raises(BadRequest):
            apply_transform(name, PrimitiveType("timestamp" if name == "day" else "string"), object())
