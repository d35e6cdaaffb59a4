import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_json, to_json
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from duckicelake.errors import BadRequest
from duckicelake.iceberg.single_values import format_value, parse_value
from duckicelake.iceberg.types import PrimitiveType
from tests.iceberg.support.oracles import oracle_type
from tests.iceberg.support.strategies import PRIMITIVES, types_and_values

# What Python's dates can hold, in microseconds.
STAMPS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@given(types_and_values())
def test_values_come_back_from_their_json(typed):
    """parse_value(format_value(x)) = x, through JSON text, for every type; JSON cannot say infinity."""
    type, (value,) = typed
    if isinstance(value, float) and math.isinf(value):
        with pytest.raises(BadRequest):
            format_value(type, value)
        return
    assert parse_value(type, json.loads(json.dumps(format_value(type, value)))) == value


@given(types_and_values())
def test_json_is_pyicebergs(typed):
    """What Python's dates do not limit is written as PyIceberg writes it."""
    type, (value,) = typed
    if type.name in ("date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns") or value in (math.inf, -math.inf):
        return
    theirs: Any = to_json(oracle_type(type.name), UUID(bytes=value) if type.name == "uuid" else value)
    if type.name.startswith("decimal"):
        theirs = f"{Decimal(theirs):f}"  # PyIceberg spells small ones with an exponent
    assert theirs == format_value(type, value)


@given(STAMPS)
def test_pyiceberg_reads_our_dates(micros):
    """PyIceberg reads the same day, time and timestamp from our JSON."""
    days, time = divmod(micros, 86_400_000_000)
    assert date_to_days(from_json(oracle_type("date"), format_value(PrimitiveType("date"), days))) == days
    assert time_to_micros(from_json(oracle_type("time"), format_value(PrimitiveType("time"), time))) == time
    for name in ("timestamp", "timestamptz"):
        assert datetime_to_micros(from_json(oracle_type(name), format_value(PrimitiveType(name), micros))) == micros
        assert parse_value(PrimitiveType(name), to_json(oracle_type(name), micros)) == micros


@pytest.mark.parametrize(
    ("type", "node"),
    [
        pytest.param("boolean", True, id="boolean"),
        pytest.param("int", 34, id="int"),
        pytest.param("double", 1.0, id="double"),
        pytest.param("decimal(9, 2)", "14.20", id="decimal"),
        pytest.param("date", "2017-11-16", id="date"),
        pytest.param("date", "-0044-03-15", id="date-before-christ"),
        pytest.param("date", "+12017-11-16", id="date-far-off"),
        pytest.param("time", "22:31:08.123456", id="time"),
        pytest.param("timestamp", "2017-11-16T22:31:08.123456", id="timestamp"),
        pytest.param("timestamptz", "2017-11-16T22:31:08.123456+00:00", id="timestamptz"),
        pytest.param("timestamp_ns", "2017-11-16T22:31:08.123456789", id="timestamp-ns"),
        pytest.param("timestamptz_ns", "1969-12-31T23:59:59.999999999+00:00", id="timestamptz-ns"),
        pytest.param("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7", id="uuid"),
        pytest.param("fixed[4]", "000102ff", id="fixed"),
        pytest.param("binary", "", id="binary-empty"),
        pytest.param("string", None, id="null"),
    ],
)
def test_the_specifications_examples(type, node):
    """Appendix D's spellings are read, and written again."""
    assert format_value(PrimitiveType(type), parse_value(PrimitiveType(type), node)) == node


@pytest.mark.parametrize(
    ("type", "node", "canonical"),
    [
        pytest.param("double", 1, 1.0, id="whole-double"),
        pytest.param("decimal(9, 2)", "1.5", "1.50", id="fewer-digits"),
        pytest.param("decimal(9, 2)", "2E+2", "200.00", id="scientific"),
        pytest.param("time", "22:31", "22:31:00.000000", id="no-seconds"),
        pytest.param("timestamptz", "2017-11-16T22:31:08Z", "2017-11-16T22:31:08.000000+00:00", id="zulu"),
        pytest.param("binary", "FF", "ff", id="capitals"),
    ],
)
def test_other_spellings_become_the_canonical_one(type, node, canonical):
    """Values are kept in the one spelling every reader takes."""
    found = format_value(PrimitiveType(type), parse_value(PrimitiveType(type), node))
    assert (found, found.__class__) == (canonical, canonical.__class__)


@pytest.mark.parametrize(
    ("type", "node"),
    [
        pytest.param(type, node, id=f"{type}-{node}")
        for type, node in [
            ("boolean", 1),
            ("int", True),
            ("int", "34"),
            ("int", 2**31),
            ("int", 1.0),
            ("long", 2**63),
            ("double", "1.0"),
            ("double", math.nan),
            ("float", math.inf),
            ("float", 1e300),
            ("decimal(4, 2)", "100.00"),
            ("decimal(4, 2)", "1.234"),
            ("decimal(4, 2)", "NaN"),
            ("decimal(4, 2)", "1e999"),
            ("decimal(4, 2)", 1.5),
            ("date", "2017-02-29"),
            ("date", "2017-13-01"),
            ("date", "2017-00-10"),
            ("date", 17486),
            ("date", "+9999999-01-01"),
            ("time", "24:00:00"),
            ("time", "22:31:08.1234567"),
            ("timestamp", "2017-11-16 22:31:08"),
            ("timestamp", "2017-11-16T22:31:08+00:00"),
            ("timestamptz", "2017-11-16T22:31:08"),
            ("timestamptz", "2017-11-16T22:31:08+01:00"),
            ("uuid", "f79c3e09677c4bbda4793f349cb785e7"),
            ("fixed[4]", "0001"),
            ("binary", "0"),
            ("binary", "0g"),
            ("string", 5),
            ("string", "\ud800"),
            ("unknown", 5),
            ("variant", "x"),
            ("geometry", "POINT (1 2)"),
        ]
    ],
)
def test_what_is_no_value_is_a_bad_request(type, node):
    """A default or bound of another type is refused, naming the type."""
    with pytest.raises(BadRequest):
        parse_value(PrimitiveType(type), node)


@pytest.mark.parametrize("type", [*PRIMITIVES, "unknown", "variant"])
@given(node=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=2)))
def test_any_json_is_a_value_or_a_bad_request(type, node):
    """Whatever JSON comes, nothing else than BadRequest is raised."""
    try:
        parse_value(PrimitiveType(type), node)
    except BadRequest:
        pass
