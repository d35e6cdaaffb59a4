from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema as OracleSchema

from duckicelake.errors import BadRequest
from duckicelake.iceberg.types import (
    DEPTH_MAX,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    child_fields,
    decimal_type,
    find_decimal,
    find_fixed_length,
    fixed_type,
    format_type,
    parse_type,
)
from tests.iceberg.support.strategies import PRIMITIVES

PRIMITIVE = st.sampled_from([*PRIMITIVES, "variant", "unknown", "geometry(srid:4326)"]).map(PrimitiveType)
NAMES = st.text(min_size=1)
IDS = st.integers(1, 2**31 - 1)


def nested_over(inner):
    fields = st.builds(NestedField, IDS, NAMES, inner, st.booleans(), st.none() | st.text())
    return (
        st.builds(ListType, IDS, inner, st.booleans())
        | st.builds(MapType, IDS, inner, IDS, inner, st.booleans())
        | st.lists(fields, max_size=3).map(tuple).map(StructType)
    )


@given(st.recursive(PRIMITIVE, nested_over, max_leaves=8))
def test_types_come_back_from_their_json(type):
    """parse_type(format_type(x)) = x, at every depth."""
    assert parse_type(format_type(type)) == type


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [
        pytest.param("decimal(9,2)", "decimal(9, 2)", id="decimal-tight"),
        pytest.param("decimal( 38 , 0 )", "decimal(38, 0)", id="decimal-wide"),
        pytest.param("fixed[ 16 ]", "fixed[16]", id="fixed"),
        pytest.param("STRING", "string", id="capitals"),
        pytest.param("geometry( srid:4326 )", "geometry(srid:4326)", id="geometry"),
        pytest.param("geometry()", "geometry", id="geometry-default"),
        pytest.param("geometry(OGC:CRS84)", "geometry", id="geometry-default-named"),
        pytest.param("geometry(ogc:crs84)", "geometry", id="geometry-default-in-small"),
        pytest.param("Geography(EPSG:4326, Karney)", "geography(EPSG:4326, karney)", id="geography"),
        pytest.param("geography(EPSG:4326)", "geography(EPSG:4326)", id="geography-crs"),
    ],
)
def test_spellings_of_a_type_become_one(sent, canonical):
    """Readers accept optional white space and capitals; one name is kept."""
    assert parse_type(sent) == PrimitiveType(canonical)


LIST: Any = {"type": "list", "element-id": 2, "element": "int", "element-required": True}
MAP: Any = {"type": "map", "key-id": 2, "key": "int", "value-id": 3, "value": "int", "value-required": True}
STRUCT: Any = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": True, "type": "int"}]}


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(value, id=name)
        for name, value in {
            "unknown-name": "integer",
            "precision-39": "decimal(39, 0)",
            "precision-0": "decimal(0, 0)",
            "scale-above-precision": "decimal(2, 3)",
            "not-ascii-digits": "decimal(٣, ٢)",
            "edge-algorithm": "geography(EPSG:4326, straight)",
            "null": None,
            "number": 7,
            "array": ["int"],
            "empty-object": {},
            "unknown-nested": {"type": "union"},
            "list-without-element": {key: LIST[key] for key in LIST if key != "element"},
            "list-with-text-id": LIST | {"element-id": "2"},
            "list-with-true-id": LIST | {"element-id": True},
            "list-with-huge-id": LIST | {"element-id": 2**31},
            "map-without-key-id": {key: MAP[key] for key in MAP if key != "key-id"},
            "map-with-text-flag": MAP | {"value-required": "yes"},
            "struct-without-fields": {"type": "struct"},
            "field-is-text": {"type": "struct", "fields": ["a"]},
            "field-without-name": {"type": "struct", "fields": [{"id": 1, "required": True, "type": "int"}]},
            "field-with-empty-name": {"type": "struct", "fields": [{"id": 1, "name": "", "required": True, "type": "int"}]},
            "field-with-half-a-surrogate": {"type": "struct", "fields": [{"id": 1, "name": "\ud800", "required": True, "type": "int"}]},
        }.items()
    ],
)
def test_malformed_types_are_bad_requests(sent):
    """A stranger's JSON never raises anything but BadRequest."""
    with pytest.raises(BadRequest):
        parse_type(sent)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([LIST, MAP, STRUCT]),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*LIST, *MAP, *STRUCT, "id", "name", "required"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_type_or_a_bad_request(node):
    """Whatever JSON comes, nothing else than BadRequest is raised."""
    try:
        parse_type(node)
    except BadRequest:
        pass


def test_nesting_has_an_end():
    """A type nested too deep is refused before Python's stack ends."""
    node: object = "int"
    for _ in range(DEPTH_MAX + 1):
        node = LIST | {"element": node}
    with pytest.raises(BadRequest, match="nested deeper"):
        parse_type(node)


def test_parameters_are_read_from_names():
    """Precision, scale and length are in the name."""
    assert find_decimal(decimal_type(9, 2)) == (9, 2)
    assert find_decimal(PrimitiveType("int")) is None
    assert find_fixed_length(fixed_type(16)) == 16
    assert find_fixed_length(PrimitiveType("uuid")) is None


def test_children_carry_their_ids():
    """A list's element and a map's key and value are fields too, the key always required."""
    int_type = PrimitiveType("int")
    assert child_fields(ListType(3, int_type, False)) == (NestedField(3, "element", int_type, False),)
    assert child_fields(MapType(3, int_type, 4, int_type, False)) == (
        NestedField(3, "key", int_type, True),
        NestedField(4, "value", int_type, False),
    )


def test_pyiceberg_reads_every_type():
    """Each type's JSON is one PyIceberg knows and writes again in the same words."""
    fields: list[Any] = [{"id": i, "name": f"c{i}", "required": False, "type": name} for i, name in enumerate(PRIMITIVES, 1)]
    fields.append({"id": 90, "name": "l", "required": False, "type": LIST | {"element-id": 91}})
    fields.append({"id": 92, "name": "m", "required": True, "type": MAP | {"key-id": 93, "value-id": 94}})
    fields.append({"id": 95, "name": "s", "required": False, "type": {"type": "struct", "fields": [STRUCT["fields"][0] | {"id": 96}]}})
    node = {"type": "struct", "fields": fields}
    ours = format_type(parse_type(node))
    theirs = OracleSchema.model_validate(ours)
    assert [str(field.field_type) for field in theirs.fields[: len(PRIMITIVES)]] == PRIMITIVES
    assert parse_type(theirs.model_dump(mode="json", by_alias=True)) == parse_type(node)
