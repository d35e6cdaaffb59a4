from typing import Any

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import (
    Schema,
    check_format_version,
    find_field,
    format_schema,
    get_highest_field_id,
    is_same_schema,
    list_leaf_fields,
    parse_schema,
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


def field(field_id: int, name: str = "a", type: Any = "int", required: bool = True) -> dict[str, Any]:
    return {"id": field_id, "name": name, "type": type, "required": required}


def test_schemas_come_back_from_their_json():
    """parse_schema(format_schema(x)) = x."""
    assert parse_schema(format_schema(SCHEMA)) == SCHEMA


def test_defaults_are_kept():
    """Defaults of every level survive, spelled as the specification does."""
    inner = {"type": "struct", "fields": [field(3, "x", "float") | {"write-default": 1}]}
    date = field(1, type="date") | {"initial-default": "2017-11-16", "write-default": "2020-01-01"}
    node = {"type": "struct", "schema-id": 1, "fields": [date, field(2, "b", inner) | {"initial-default": {}}]}
    kept: Any = format_schema(parse_schema(node))
    assert kept == node
    assert isinstance(kept["fields"][1]["type"]["fields"][0]["write-default"], float)


def test_schema_id_is_zero_when_left_out():
    """A new schema needs no id of its own; the server gives one."""
    assert parse_schema({"type": "struct", "fields": []}).schema_id == 0


def test_every_level_counts():
    """Ids, leaves and look-ups reach into lists, maps and structs."""
    assert get_highest_field_id(SCHEMA) == 9
    assert get_highest_field_id(Schema(0, ())) == 0
    assert [field_id for field_id, _ in list_leaf_fields(SCHEMA)] == [1, 6, 7, 5, 9]
    assert find_field(SCHEMA, 9) == NestedField(9, "y", INT, False)
    assert find_field(SCHEMA, 10) is None


def test_same_schema_ignores_its_id():
    """Two schemas are the same when only their ids differ."""
    assert is_same_schema(SCHEMA, Schema(8, SCHEMA.fields, (1,)))
    assert not is_same_schema(SCHEMA, Schema(3, SCHEMA.fields))
    assert not is_same_schema(SCHEMA, Schema(3, SCHEMA.fields[:2], (1,)))


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
        pytest.param({"type": "struct", "fields": [field(1) | {"write-default": "1"}]}, id="default-of-other-type"),
        pytest.param({"type": "struct", "fields": [field(1, type="variant") | {"initial-default": "1"}]}, id="default-of-variant"),
        pytest.param(
            {"type": "struct", "fields": [field(1, type={"type": "struct", "fields": []}) | {"initial-default": 1}]}, id="default-of-struct"
        ),
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
    schema = parse_schema(
        {
            "type": "struct",
            "fields": [field(1, "data", "variant", False), field(2, "n", "timestamp_ns") | {"initial-default": "2017-11-16T22:31:08"}],
        }
    )
    check_format_version(schema, 3)
    with pytest.raises(BadRequest, match="Invalid schema for v2:") as caught:
        check_format_version(schema, 2)
    assert "Invalid type for data: variant is not supported until v3" in caught.value.message
    assert "Invalid type for n: timestamp_ns is not supported until v3" in caught.value.message
    assert "Invalid initial default for n" in caught.value.message
