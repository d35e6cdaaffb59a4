import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import decode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_json_comes_back(value):
    """decode_json(encode(x)) = x."""
    assert decode_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) == value


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "no valid JSON", id="empty"),
        pytest.param(b'{"a": 1', "no valid JSON", id="cut"),
        pytest.param(b'{"a": 1} 2', "no valid JSON", id="two-values"),
        pytest.param(b'{"b": {"a": 1, "c": 2, "a": 3}}', "'a' is given twice", id="duplicate-key"),
        pytest.param(b'{"a": NaN}', "NaN is no JSON number", id="nan"),
        pytest.param(b"[-Infinity]", "-Infinity is no JSON number", id="infinity"),
        pytest.param(b"9" * 5000, "no valid JSON", id="huge-number"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, "nested too deep", id="deep-array"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep", id="deep-object"),
        pytest.param(b'{"a": "\xff"}', "byte 7 is no UTF-8", id="no-utf-8"),
        pytest.param("{}".encode("utf-16"), "byte 0 is no UTF-8", id="utf-16"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(content, problem):
    """Anything but one value of plain JSON in UTF-8 is a bad request that says what is wrong."""
    with pytest.raises(BadRequest, match=f"Cannot read request body: .*{problem}"):
        decode_json(content)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eEnulltruefas+-\\', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(content):
    """No bytes raise anything but BadRequest."""
    try:
        decode_json(content)
    except BadRequest:
        pass
