import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import (
    Schema,
    check_format_version,
    find_column_path,
    find_field,
    format_schema,
    highest_field_id,
    leaf_fields,
    parse_schema,
    same_schema,
)
from duckicelake.iceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType

INT, STRING = PrimitiveType("int"), PrimitiveType("string")
POINT = StructType((NestedField(5, "x", INT, True), NestedField(9, "y", INT, False)))
SCHEMA = Schema(
    3,
    (
        NestedField(1, "id", INT, True),
        NestedField(2, "tags", ListType(6, STRING, False), False, "labels"),
        NestedField(3, "places", MapType(7, STRING, 8, POINT, True), False),
    ),
    (1,),
)


def field(field_id, name="a", type="int", required=True):
    return {"id": field_id, "name": name, "type": type, "required": required}


def test_schemas_come_back_from_their_json():
    """parse_schema(format_schema(x)) = x."""
    assert parse_schema(format_schema(SCHEMA)) == SCHEMA


def test_defaults_are_kept_as_they_came():
    """Defaults are JSON single values and survive unchanged."""
    node = {"type": "struct", "schema-id": 1, "fields": [field(1, type="date") | {"initial-default": "2017-11-16", "write-default": "2020-01-01"}]}
    assert format_schema(parse_schema(node)) == node


def test_schema_id_is_zero_when_left_out():
    """A new schema needs no id of its own; the server gives one."""
    assert parse_schema({"type": "struct", "fields": []}).schema_id == 0


def test_every_level_counts():
    """Ids, leaves and look-ups reach into lists, maps and structs."""
    assert highest_field_id(SCHEMA) == 9
    assert highest_field_id(Schema(0, ())) == 0
    assert [field_id for field_id, _ in leaf_fields(SCHEMA)] == [1, 6, 7, 5, 9]
    assert find_field(SCHEMA, 9) == NestedField(9, "y", INT, False)
    assert find_field(SCHEMA, 10) is None
    assert find_column_path(SCHEMA, 9) == "places.value.y"


def test_same_schema_ignores_its_id():
    """Two schemas are the same when only their ids differ."""
    assert same_schema(SCHEMA, Schema(8, SCHEMA.fields, (1,)))
    assert not same_schema(SCHEMA, Schema(3, SCHEMA.fields))
    assert not same_schema(SCHEMA, Schema(3, SCHEMA.fields[:2], (1,)))


@pytest.mark.parametrize(
    "node",
    [
        pytest.param({"type": "struct", "fields": [field(1), field(1, "b")]}, id="id-twice"),
        pytest.param({"type": "struct", "fields": [field(1), field(2)]}, id="name-twice"),
        pytest.param(
            {"type": "struct", "fields": [field(1, type={"type": "list", "element-id": 1, "element": "int", "element-required": True})]},
            id="id-of-parent",
        ),
        pytest.param({"type": "struct", "fields": [field(1)], "identifier-field-ids": [2]}, id="identifier-missing"),
        pytest.param({"type": "struct", "fields": [field(1, required=False)], "identifier-field-ids": [1]}, id="identifier-optional"),
        pytest.param({"type": "struct", "fields": [field(1, type="double")], "identifier-field-ids": [1]}, id="identifier-floating"),
        pytest.param({"type": "struct", "fields": [field(1)], "identifier-field-ids": ["1"]}, id="identifier-text"),
        pytest.param({"type": "list", "fields": []}, id="no-struct"),
        pytest.param({"type": "struct"}, id="no-fields"),
        pytest.param([], id="array"),
    ],
)
def test_malformed_schemas_are_bad_requests(node):
    """Ids and names are unique; identifier fields are required, primitive and no floats."""
    with pytest.raises(BadRequest):
        parse_schema(node)


def test_newer_types_need_a_newer_version():
    """Types and defaults of v3 are refused below it, in the words clients look for."""
    schema = parse_schema({"type": "struct", "fields": [field(1, "data", "variant", False), field(2, "n", "timestamp_ns") | {"initial-default": "x"}]})
    check_format_version(schema, 3)
    with pytest.raises(BadRequest, match="Invalid schema for v2:") as caught:
        check_format_version(schema, 2)
    assert "Invalid type for data: variant is not supported until v3" in caught.value.message
    assert "Invalid type for n: timestamp_ns is not supported until v3" in caught.value.message
    assert "Invalid initial default for n" in caught.value.message
